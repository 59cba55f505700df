"""The machine itself: processor, memory, disks, networks, system; and the processor as a device.

The processor is the device class of last resort: its parts are the node's cores. What limits us
(affinity, a container's quota) limits what the node offers.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil

from quintal_agent.probes.pci import bridges
from quintal_agent.probes.probe import Device, Disk, Host, Network, Observation, Value
from quintal_agent.probes.values import checked

_DISK_SYSTEMS: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "vfat", "ntfs"}
)
"""Local ones. A network file system may hang on `statvfs`, and is nobody's disk."""

_PASSING: Final = (
    "lo", "veth", "cali", "tap", "tun", "lxc", "lxd", "br-", "docker", "cni", "flannel", "ifb",
    "virbr", "dummy", "kube", "cilium", "nodelocal",
)  # fmt: skip
"""Interfaces that come and go with containers: each would make a change of inventory."""

_RUNTIMES: Final = (
    ("containerd", "run/containerd/containerd.sock"),
    ("crio", "run/crio/crio.sock"),
    ("docker", "run/docker.sock"),
    ("podman", "run/podman/podman.sock"),
)


class HostProbe:
    """Looks at the machine that it runs on; `root` is where its file system begins."""

    def __init__(self, *, node: str, sys_root: str = "/sys", root: str = "/") -> None:
        self._node = node
        self._root = Path(root)
        self._sys = Path(sys_root)
        self._sampled = False

    def observe(self) -> Observation:
        """Look once; the first look has no utilization, which is measured between two."""
        memory = psutil.virtual_memory()
        limit = _number_in(self._sys / "fs/cgroup/memory.max")
        total = min(memory.total, limit) if limit else memory.total
        cpu_milli = self._cpu_milli()
        kernel = os.uname()
        host = Host(
            hostname=socket.gethostname(),
            cpu_milli=cpu_milli,
            memory_bytes=total,
            os=self._os(),
            kernel=kernel.release,
            architecture=kernel.machine,
            container_runtime=self._runtime(),
            disks=tuple(_disks()),
            networks=tuple(_networks(self._sys)),
        )
        percent = psutil.cpu_percent(None)
        busy = checked("utilization_percent", percent)
        device = Device(
            uuid=f"cpu-{self._node}",  # a machine id is copied with a disk image; a node id is not
            index=0,
            vendor="cpu",
            name=self._cpu_name(kernel.machine),
            memory_bytes=total,
            memory_kind="host",
            cores=max(1, cpu_milli // 1000),
            architecture=kernel.machine,
            readings={
                "utilization_percent": busy if self._sampled else Value(quality="unavailable"),
                "memory_used_bytes": checked("memory_used_bytes", memory.total - memory.available),
            },
        )
        self._sampled = True
        return Observation("cpu", f"psutil {psutil.__version__}", (device,), host=host)

    def _cpu_milli(self) -> int:
        milli = len(os.sched_getaffinity(0)) * 1000
        text = _text_in(self._sys / "fs/cgroup/cpu.max").split()
        if len(text) == 2 and all(part.isdigit() for part in text):  # noqa: PLR2004 - quota, period
            milli = min(milli, int(text[0]) * 1000 // int(text[1]))
        quota = _number_in(self._sys / "fs/cgroup/cpu/cpu.cfs_quota_us")
        period = _number_in(self._sys / "fs/cgroup/cpu/cpu.cfs_period_us")
        if quota and period:
            milli = min(milli, quota * 1000 // period)
        return max(1, milli)

    def _cpu_name(self, machine: str) -> str:
        for line in _text_in(self._root / "proc/cpuinfo").splitlines():
            key, _, text = line.partition(":")
            if key.strip() in {"model name", "cpu model", "Model"} and text.strip():
                return " ".join(text.split())
        model = _text_in(self._root / "proc/device-tree/model").strip("\0 \n")
        return model or f"unnamed {machine}"

    def _os(self) -> str:
        for line in _text_in(self._root / "etc/os-release").splitlines():
            key, _, text = line.partition("=")
            if key == "PRETTY_NAME":
                return text.strip().strip("\"'")
        return os.uname().sysname

    def _runtime(self) -> str:
        """Found by its socket, or as a binary; asking for its version would start it."""
        for name, path in _RUNTIMES:
            if (self._root / path).exists():
                return name
        for name, _ in _RUNTIMES:
            if shutil.which(name):
                return name
        return ""


def _text_in(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _number_in(path: Path) -> int | None:
    text = _text_in(path).strip()
    return int(text) if text.isdigit() else None


def _disks() -> list[Disk]:
    found: dict[str, Disk] = {}
    for mounted in psutil.disk_partitions(all=False):
        if mounted.fstype not in _DISK_SYSTEMS or mounted.device in found:
            continue
        try:
            usage = psutil.disk_usage(mounted.mountpoint)
        except OSError:
            continue
        found[mounted.device] = Disk(mounted.mountpoint, mounted.fstype, usage.total, usage.free)
    return sorted(found.values(), key=lambda disk: disk.mount)


def _networks(sys_root: Path) -> list[Network]:
    addresses = psutil.net_if_addrs()
    found = []
    rdma = _rdma(sys_root)
    for name, stats in sorted(psutil.net_if_stats().items()):
        if not stats.isup or name.startswith(_PASSING):
            continue
        mac = next((a.address for a in addresses.get(name, ()) if a.family == psutil.AF_LINK), "")
        # 0 and 65535 are how a driver says that it does not know.
        known = 0 < stats.speed < 65_535  # noqa: PLR2004
        network = Network(name, stats.speed if known else None, mac)
        found.append(_on_bus(network, sys_root / "class/net" / name / "device", rdma))
    with_one = {network.rdma for network in found}
    for at, name in rdma.items():
        if name not in with_one:
            folder = sys_root / "class/infiniband" / name
            network = Network(name, _rate(folder / "ports/1/rate"))
            found.append(_on_bus(network, folder / "device", {at: name}))
    return found


def _on_bus(network: Network, folder: Path, rdma: Mapping[str, str]) -> Network:
    """Where it lies on the PCI bus; what is virtual lies on none."""
    above = bridges(folder)
    if not above:
        return network
    at = folder.resolve().name
    return replace(
        network,
        pci_address=at,
        numa_node=_number_in(folder / "numa_node"),
        rdma=rdma.get(at),
        bridges=above,
    )


def _rdma(sys_root: Path) -> dict[str, str]:
    """PCI address -> RDMA device."""
    folders = sorted((sys_root / "class/infiniband").glob("*"))
    return {(folder / "device").resolve().name: folder.name for folder in folders}


def _rate(path: Path) -> int | None:
    """`400 Gb/sec (4X NDR)` in Mbit/s."""
    number = _text_in(path).partition(" ")[0]
    return int(number) * 1000 if number.isdigit() else None
