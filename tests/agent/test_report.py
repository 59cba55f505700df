"""From what was seen to what is said: health, change, readings, epochs."""

from __future__ import annotations

import typing
from dataclasses import replace

from quintal.contracts.nodes import DeviceHealth, Inventory, Quality
from quintal_agent import health, readings, report, rounds
from quintal_agent.health import Settled
from quintal_agent.probes import probe as plain
from quintal_agent.probes.probe import Disk, Host, Observation, Trouble, Value
from quintal_agent.report import Bounds, Identity, Sighting
from tests.agent.builders import GPU, a_device, reading, seen

WHO = Identity(node="n1", boot_id="boot-1", labels=(("rack", "r1"),))
BOUNDS = Bounds()


def said(
    *observations: Observation, held: frozenset[str] = frozenset(), **more: object
) -> Inventory:
    body: dict[str, object] = {"health": {}, "bounds": BOUNDS, "sequence": 1, "at_ms": 5}
    return report.inventory(WHO, observations, held=held, **(body | more))  # type: ignore[arg-type]


def test_the_plain_qualities_are_the_wires() -> None:
    assert set(typing.get_args(plain.Quality)) == {quality.value for quality in Quality}
    assert set(typing.get_args(plain.Health)) == {health.value for health in DeviceHealth}


def test_an_inventory_joins_the_host_and_every_vendor() -> None:
    host = Observation(
        "cpu", "t", (a_device("cpu-n1", vendor="cpu"),),
        host=Host("h", 8000, 2**34, disks=(Disk("/", "ext4", 2, 1),)),
    )  # fmt: skip
    gpus = seen(a_device(), drivers={"nvidia": "570"}, troubles=(Trouble("lost", "x", "GPU-b"),))
    inventory = said(host, gpus)
    assert [device.uuid for device in inventory.devices] == ["cpu-n1", GPU]
    assert (inventory.cpu_milli, inventory.stack.drivers) == (8000, {"nvidia": "570"})
    assert [(p.code, p.vendor, p.device) for p in inventory.problems] == [
        ("lost", "nvidia", "GPU-b")
    ]


def test_case_h04_memory_held_without_a_lease_is_foreign_and_with_one_it_is_not() -> None:
    busy = a_device(busy_bytes=60 * 2**30, memory_bytes=80 * 2**30)
    assert said(seen(busy)).devices[0].foreign_bytes == 60 * 2**30
    assert said(seen(busy), held=frozenset({GPU})).devices[0].foreign_bytes == 0
    driver = a_device(busy_bytes=2**20)
    assert said(seen(driver)).devices[0].foreign_bytes == 0


def test_what_moves_all_the_time_is_no_change() -> None:
    host = Host("h", 8000, 2**34, disks=(Disk("/", "ext4", 2, 1),))
    fuller = replace(host, disks=(Disk("/", "ext4", 2, 0),))
    before = said(replace(seen(a_device(busy_bytes=2**30)), host=host))
    after = said(replace(seen(a_device(busy_bytes=2**31)), host=fuller), sequence=9, at_ms=99)
    assert report.fingerprint(before) == report.fingerprint(after)


def test_a_device_more_or_another_driver_is_a_change() -> None:
    one = report.fingerprint(said(seen(a_device(), drivers={"nvidia": "570"})))
    assert one != report.fingerprint(said(seen(a_device(), drivers={"nvidia": "580"})))
    assert one != report.fingerprint(
        said(seen(a_device(), a_device("GPU-b"), drivers={"nvidia": "570"}))
    )


def test_a_device_without_a_vendors_identity_is_named_within_its_node() -> None:
    devices = report.devices_of((seen(a_device("pci-0000:1b:00.0")),), "n1")
    assert devices[0].uuid == "n1-pci-0000:1b:00.0"


def test_case_g07_an_old_look_is_stale_and_then_unknown() -> None:
    look = seen(
        a_device(readings={"power_watts": reading(70.0), "x_count": reading(None, "unsupported")})
    )
    fresh = report.aged(Sighting(look, 5), BOUNDS).devices[0]
    stale = report.aged(Sighting(look, 30), BOUNDS).devices[0]
    blind = report.aged(Sighting(look, 90), BOUNDS)
    assert fresh.readings["power_watts"].quality == "ok"
    assert (stale.readings["power_watts"].quality, stale.health) == ("stale", "ok")
    assert stale.readings["x_count"].quality == "unsupported"
    assert blind.devices[0].health == "unknown"
    assert blind.troubles[0].code == "probe_stale"


def test_case_i01_health_gets_worse_at_once_and_better_after_clean_looks() -> None:
    bad, good = (a_device(health="failed", health_reason="lost"),), (a_device(),)
    state = health.settle_health({}, good)
    state = health.settle_health(state, bad)
    assert state[GPU].health is DeviceHealth.FAILED
    for _ in range(health.CLEAN_LOOKS - 1):
        state = health.settle_health(state, good)
        assert state[GPU].health is DeviceHealth.FAILED
    state = health.settle_health(state, good)
    assert state[GPU].health is DeviceHealth.OK


def test_a_fault_in_between_starts_the_count_of_clean_looks_anew() -> None:
    bad, good = (a_device(health="failed", health_reason="lost"),), (a_device(),)
    state = health.settle_health({}, bad)
    for devices in (good, good, bad, good, good):
        state = health.settle_health(state, devices)
    assert state[GPU].health is DeviceHealth.FAILED


def test_only_transitions_are_events() -> None:
    ok, lost = Settled(DeviceHealth.OK), Settled(DeviceHealth.FAILED, "lost")

    def events(before: dict[str, Settled], now: dict[str, Settled]) -> list[tuple[object, ...]]:
        found = health.transitions(before, now, node="n1", boot_id="boot-1", at_ms=7)
        return [(event.device, event.before, event.after, event.code) for event in found]

    assert events({}, {GPU: ok}) == []
    assert events({}, {GPU: lost}) == [(GPU, None, DeviceHealth.FAILED, "lost")]
    assert events({GPU: ok}, {GPU: lost}) == [(GPU, DeviceHealth.OK, DeviceHealth.FAILED, "lost")]
    assert events({GPU: lost}, {GPU: lost}) == []
    assert events({GPU: ok}, {})[0][2] is DeviceHealth.UNKNOWN


def columns(*devices: plain.Device, epochs: dict[str, readings.Epoch] | None = None) -> object:
    return readings.telemetry(
        devices, epochs or {}, node="n1", boot_id="b", sequence=1, at_ms=9, period_ms=1000
    )


def test_readings_are_columns_with_none_where_a_device_has_none() -> None:
    one = a_device(readings={"power_watts": reading(70.5), "utilization_percent": reading(0)})
    two = a_device("cpu-n1", readings={"utilization_percent": reading(3.5)})
    message = columns(one, two)
    assert message.columns == {"power_watts": (70.5, None), "utilization_percent": (0, 3.5)}  # type: ignore[attr-defined]
    assert message.qualities == {"power_watts": (Quality.OK, Quality.UNSUPPORTED)}  # type: ignore[attr-defined]


def readings_of(percent: float, watts: float) -> dict[str, Value]:
    return {
        "utilization_percent": reading(percent),
        "power_watts": reading(watts),
        "power_limit_watts": reading(700.0),
    }


def test_case_j03_no_utilization_under_full_power_is_implausible() -> None:
    checked = readings.plausible(readings_of(0, 600))["utilization_percent"]
    assert (checked.quality, checked.raw) == ("implausible", "0")
    assert readings.plausible(readings_of(0, 70))["utilization_percent"].quality == "ok"


def test_case_j04_full_utilization_at_idle_power_is_implausible() -> None:
    assert readings.plausible(readings_of(100, 60))["utilization_percent"].quality == "implausible"
    assert readings.plausible(readings_of(100, 300))["utilization_percent"].quality == "ok"


def test_a_counter_that_falls_begins_a_new_epoch() -> None:
    def at(
        joules: float | None, known: dict[str, readings.Epoch], ms: int
    ) -> dict[str, readings.Epoch]:
        quality = "ok" if joules is not None else "unavailable"
        device = a_device(readings={"energy_joules": reading(joules, quality)})
        return readings.settle_epochs(known, (device,), at_ms=ms)

    first = at(100.0, {}, 1)
    assert at(150.0, first, 2)[GPU].began_ms == 1
    assert at(None, first, 2) == first
    assert at(10.0, first, 3)[GPU].began_ms == 3


def test_beats_are_spread_within_their_jitter_and_the_same_every_time() -> None:
    periods = [rounds.spread(5.0, f"n{at}", 0.2) for at in range(200)]
    assert all(4.0 <= period <= 6.0 for period in periods)
    assert max(periods) - min(periods) > 1.5
    assert rounds.spread(5.0, "n1", 0.2) == rounds.spread(5.0, "n1", 0.2)


def test_waits_grow_to_a_bound() -> None:
    assert [rounds.backoff_s(n) for n in (1, 2, 3)] == [5, 10, 20]
    assert rounds.backoff_s(1000) == 300
