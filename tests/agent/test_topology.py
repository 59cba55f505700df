"""How a node's devices lie: islands, the bus, the nearest interfaces, the domain between nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from quintal.contracts.nodes import Inventory, Topology
from quintal_agent import topology as lying
from quintal_agent.probes import amd_sysfs, matrix, nvidia_links, pci
from quintal_agent.probes.host import _networks
from quintal_agent.probes.probe import Device, Host, Link, Network, Observation, decode, encode
from tests.agent import nvml
from tests.agent.fake_nvml import FakeNvml, a_gpu
from tests.agent.nvml import State
from tests.agent.test_fake_nvml import library, looked, probing

__all__ = ["library"]

SWITCHED = ("pci0000:10", "0000:10:01.0", "0000:11:00.0")
BESIDE = ("pci0000:10", "0000:10:03.0", "0000:15:00.0")
FAR = ("pci0000:90", "0000:90:01.0", "0000:91:00.0")


def cards(count: int, vendor: str = "nvidia", numa: int | None = None) -> list[Device]:
    return [
        Device(
            f"GPU-{at}", at, vendor, "H100", pci_address=f"0000:{0x10 + at:02x}:00.0",
            numa_node=numa,
        )
        for at in range(count)
    ]  # fmt: skip


def pairs(kind: str, *those: int) -> tuple[Link, ...]:
    return tuple(Link(f"GPU{a}", f"GPU{b}", kind) for a in those for b in those if a < b)


def told(
    devices: list[Device],
    *links: Link,
    bridges: dict[str, tuple[str, ...]] | None = None,
    networks: tuple[Network, ...] = (),
    asked: bool = True,
) -> Topology:
    vendor = devices[0].vendor
    seen = Observation(vendor, "t", tuple(devices), links=links, links_told=asked)
    host = Observation("cpu", "t", host=Host("h", networks=networks))
    return lying.topology((host, seen), devices, bridges or {})


def at(place: int) -> str:
    return f"0000:{0x10 + place:02x}:00.0"


# --- islands --------------------------------------------------------------------------------------


def test_devices_that_link_one_another_are_an_island_and_the_others_none() -> None:
    found = told(cards(5), *pairs("NV4", 0, 1), *pairs("NV4", 2, 3), *pairs("SYS", 1, 2, 4))
    assert found.islands is not None
    assert [(i.kind, i.bandwidth, i.full, i.devices) for i in found.islands] == [
        ("nvlink", "NV4", True, ("GPU-0", "GPU-1")),
        ("nvlink", "NV4", True, ("GPU-2", "GPU-3")),
    ]


def test_an_islands_bandwidth_is_that_of_its_weakest_pair() -> None:
    found = told(cards(3), *pairs("NV2", 0, 1), *pairs("NV1", 0, 2), *pairs("NV10", 1, 2))
    assert found.islands is not None
    assert found.islands[0].bandwidth == "NV1"


def test_an_island_over_a_third_device_is_not_full_and_has_no_bandwidth() -> None:
    found = told(cards(3), *pairs("NV2", 0, 1), *pairs("NV2", 1, 2), *pairs("SYS", 0, 2))
    assert found.islands is not None
    (island,) = found.islands
    assert (len(island.devices), island.full, island.bandwidth) == (3, False, "")


@pytest.mark.parametrize(
    ("vendor", "kind", "island"),
    [
        ("huawei", "HCCS", "hccs"),
        ("huawei", "HCCS_SW", "hccs"),
        ("amd", "link type: XGMI", "xgmi"),
        ("intel", "XL16", "xelink"),
        ("nvidia", "NV18S", "nvswitch"),
    ],
)
def test_each_vendors_link_is_known_by_its_own_name(vendor: str, kind: str, island: str) -> None:
    found = told(cards(2, vendor), *pairs(kind, 0, 1))
    assert found.islands is not None
    assert [i.kind for i in found.islands] == [island]


def test_links_that_nobody_was_asked_for_are_unknown_and_none_is_known() -> None:
    assert told(cards(2), asked=False).islands is None
    assert told(cards(2)).islands == ()


def test_two_vendors_devices_of_one_number_are_not_mixed_up() -> None:
    mixed = [*cards(2), Device("N-0", 0, "huawei", "910B"), Device("N-1", 1, "huawei", "910B")]
    gpus = Observation("nvidia", "t", tuple(mixed[:2]), links=pairs("NV4", 0, 1))
    npus = Observation("huawei", "t", tuple(mixed[2:]), links=(Link("NPU0", "NPU1", "HCCS"),))
    found = lying.topology((gpus, npus), mixed, {})
    assert found.islands is not None
    assert [i.devices for i in found.islands] == [("GPU-0", "GPU-1"), ("N-0", "N-1")]


def test_a_printed_matrix_is_read_into_the_same_islands() -> None:
    printed = (
        "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tNV12\tSYS\t0-31\t0\t\tN/A\n"
        "GPU1\tNV12\t X \tSYS\t0-31\t0\t\tN/A\n"
        "GPU2\tSYS\tSYS\t X \t32-63\t1\t\tN/A\n"
    )
    seen = matrix.parse(printed.encode())
    found = lying.topology((seen,), seen.devices, {})
    assert found.islands is not None
    assert [(i.kind, i.bandwidth, len(i.devices)) for i in found.islands] == [("nvlink", "NV12", 2)]


def test_cards_of_one_hive_are_an_island(tmp_path: Path) -> None:
    for place, hive in enumerate(("0xabc1", "0xabc1", "0")):
        device = tmp_path / f"devices/pci0000:00/0000:00:0{place + 1}.0/{at(place)}"
        (device / "xgmi_hive_info").mkdir(parents=True)
        (device / "xgmi_hive_info/xgmi_hive_id").write_text(f"{hive}\n")
        driver = tmp_path / "bus/pci/drivers/amdgpu"
        driver.mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(driver)
        card = tmp_path / f"class/drm/card{place}"
        card.mkdir(parents=True)
        (card / "device").symlink_to(device)
    assert amd_sysfs.hives(tmp_path) == (Link(at(0), at(1), "XGMI"),)
    assert amd_sysfs.hives(tmp_path / "nothing") is None


# --- the bus and the interfaces -------------------------------------------------------------------


def test_devices_below_one_switch_or_one_bridge_are_grouped() -> None:
    found = told(cards(4), bridges={at(0): SWITCHED, at(1): SWITCHED, at(2): BESIDE, at(3): FAR})
    assert found.bus is not None
    assert [(g.kind, g.devices) for g in found.bus] == [
        ("bridge", ("GPU-0", "GPU-1", "GPU-2")),
        ("switch", ("GPU-0", "GPU-1")),
    ]


def test_a_virtual_machines_flat_bus_is_unknown_and_not_near() -> None:
    flat = {at(place): ("pci0000:00",) for place in range(4)}
    nic = Network("eth0", 25_000, pci_address="0000:00:05.0", bridges=("pci0000:00",))
    found = told(cards(4), bridges=flat, networks=(nic,))
    assert found.bus is None
    assert found.nics is None


def test_each_device_has_its_nearest_interfaces_and_how_near() -> None:
    nics = (
        Network("ib0", rdma="mlx5_0", pci_address="0000:12:00.0", bridges=SWITCHED),
        Network("ib1", rdma="mlx5_1", pci_address="0000:92:00.0", bridges=FAR, numa_node=1),
        Network("eth0", pci_address="0000:16:00.0", bridges=BESIDE),
    )
    bridges = {at(0): SWITCHED, at(1): BESIDE, at(2): ("pci0000:e0", "0000:e0:01.0")}
    devices = [*cards(2), *cards(3, numa=1)[2:]]
    found = told(devices, bridges=bridges, networks=nics)
    assert found.nics is not None
    assert [(n.distance, n.nics, n.devices) for n in found.nics] == [
        ("switch", ("ib0",), ("GPU-0",)),
        ("bridge", ("ib0",), ("GPU-1",)),  # and not eth0 beside it: it cannot RDMA
        ("numa", ("ib1",), ("GPU-2",)),
    ]


def test_devices_with_an_interface_each_share_those_of_their_numa_node() -> None:
    other = ("pci0000:20", "0000:20:01.0", "0000:21:00.0")
    nics = tuple(
        Network(f"ib{n}", rdma=f"mlx5_{n}", bridges=where, numa_node=0)
        for n, where in enumerate((SWITCHED, other))
    )
    found = told(cards(2, numa=0), bridges={at(0): SWITCHED, at(1): other}, networks=nics)
    assert found.nics is not None
    assert [(n.distance, n.nics, n.devices) for n in found.nics] == [
        ("switch", ("ib0",), ("GPU-0",)),
        ("switch", ("ib1",), ("GPU-1",)),
        ("numa", ("ib0", "ib1"), ("GPU-0", "GPU-1")),
    ]


def test_an_interfaces_place_is_read_from_the_kernels_folders(tmp_path: Path) -> None:
    device = tmp_path / "devices/pci0000:10/0000:10:01.0/0000:12:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    folder = tmp_path / "class/infiniband/mlx5_0"
    (folder / "ports/1").mkdir(parents=True)
    (folder / "ports/1/rate").write_text("400 Gb/sec (4X NDR)\n")
    (folder / "device").symlink_to(device)
    found = [n for n in _networks(tmp_path) if n.rdma]
    assert found == [
        Network(
            "mlx5_0", 400_000, pci_address="0000:12:00.0", numa_node=1, rdma="mlx5_0",
            bridges=("pci0000:10", "0000:10:01.0"),
        )
    ]  # fmt: skip
    assert pci.bridges(tmp_path / "class") == ()


# --- between nodes --------------------------------------------------------------------------------


def test_a_fabric_is_unknown_none_or_a_domain() -> None:
    alone, in_none, in_one = cards(3)
    assert told([alone]).fabrics is None
    assert told([replace(in_none, fabric="")]).fabrics == ()
    found = told([replace(in_one, fabric="nvlink:7c-1/3")]).fabrics
    assert found is not None
    assert [(f.kind, f.domain, f.devices) for f in found] == [("nvlink", "7c-1/3", ("GPU-2",))]


def test_direct_links_are_counted_and_those_to_a_switch_join_all_that_have_them() -> None:
    library = FakeNvml()
    state = {"GPU": (1, 1, 0), "BOX": (1, 1, 1)}

    def handles(kind: str, count: int, to: dict[int, str]) -> dict[str, object]:
        return {at(place): {"kind": kind, "to": to.get(place, "")} for place in range(count)}

    def active(handle: dict[str, str], number: int) -> int:
        links = state[handle["kind"]]
        if number >= len(links):
            raise nvidia_error(2)
        return links[number]

    library.nvmlDeviceGetNvLinkState = active  # type: ignore[attr-defined]
    library.nvmlDeviceGetNvLinkRemoteDeviceType = (  # type: ignore[attr-defined]
        lambda handle, number: 2 if handle["kind"] == "BOX" else 0
    )
    library.nvmlDeviceGetNvLinkRemotePciInfo = (  # type: ignore[attr-defined]
        lambda handle, number: SimpleNamespace(busId=handle["to"])
    )
    paired = handles("GPU", 2, {0: f"0000{at(1)}", 1: f"0000{at(0)}"})
    assert nvidia_links.links(library, paired, lambda text: text[4:]) == (
        Link(at(0), at(1), "NV2"),
    )
    boxed = nvidia_links.links(library, handles("BOX", 3, {}), str)
    assert boxed is not None
    assert {link.kind for link in boxed} == {"NV3S"}
    assert len(boxed) == 3


def nvidia_error(code: int) -> Exception:
    return pynvml.NVMLError(code)  # type: ignore[no-any-return]


def test_a_device_that_does_not_tell_its_links_makes_them_unknown() -> None:
    library = FakeNvml(a_gpu())
    assert nvidia_links.links(library, {at(0): a_gpu()}, str) == ()  # NOT_SUPPORTED: it has none
    library.broken["nvmlDeviceGetNvLinkState"] = 4
    assert nvidia_links.links(library, {at(0): a_gpu()}, str) is None


def test_links_pass_through_the_childs_pipe() -> None:
    net = Network("ib0", rdma="mlx5_0", bridges=SWITCHED)
    seen = Observation(
        "nvidia", "t", tuple(cards(1)), links=pairs("NV4", 0, 1), links_told=True,
        host=Host("h", networks=(net,)),
    )  # fmt: skip
    assert decode(encode(seen)) == seen


@pytest.mark.skipif(nvml.COMPILER is None, reason="fake_nvml: no C compiler here to build it with")
async def test_a_switched_box_in_a_fabric_is_seen_through_nvml(
    tmp_path: Path, library: Path
) -> None:
    keys: dict[str, object] = {}
    cluster = "7c1d" + "0" * 27 + "1"
    for gpu in range(4):
        keys |= {f"gpu.{gpu}.nvlink_state.{link}": 1 for link in range(18)}
        keys |= {f"gpu.{gpu}.nvlink_to_a.{link}": 2 for link in range(18)}
        keys[f"gpu.{gpu}.fabric"] = f"3:{cluster}:5"
    state = State(tmp_path / "state", 4)
    state.set(keys)
    async with probing(state, library) as source:
        seen = await looked(source)
        found = lying.topology((seen,), seen.devices, {})
    assert found.islands is not None
    assert [(i.kind, i.bandwidth, len(i.devices)) for i in found.islands] == [
        ("nvswitch", "NV18", 4)
    ]
    assert found.fabrics is not None
    (fabric,) = found.fabrics
    assert (fabric.kind, fabric.domain) == ("nvlink", "7c1d0000-0000-0000-0000-000000000001/5")
    assert len(fabric.devices) == 4


@pytest.mark.skipif(nvml.COMPILER is None, reason="fake_nvml: no C compiler here to build it with")
async def test_a_box_of_its_own_is_in_no_fabric_and_an_old_driver_does_not_say(
    tmp_path: Path, library: Path
) -> None:
    state = State(tmp_path / "state", 2, **{"gpu.0.fabric": f"3:{'0' * 32}:0"})
    state.set()
    async with probing(state, library) as source:
        seen = await looked(source)
    assert [device.fabric for device in seen.devices] == ["", None]
    assert seen.links_told
    assert seen.links == ()


# --- bounds ---------------------------------------------------------------------------------------


def test_an_older_agents_inventory_has_no_topology() -> None:
    inventory = Inventory(node="n1", boot_id="b", sequence=1, at_ms=1)
    assert inventory.topology is None
