"""What of the ledger may go: never what a reader, a snapshot or the calendar still needs."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from quintal.bus import Bus
from quintal.contracts import ledger, placement, subjects
from quintal.contracts.message import Refusal
from quintal.contracts.subjects import Role
from quintal.contracts.usage import SlicesAsk, SummaryAsk, UsageSummary
from quintal.errors import BusUnavailable
from quintal_placer import snapshots
from quintal_placer.keeping import STANDBY_COUNTS_S, Readers, fill_percent, purge_to
from quintal_placer.state import PlacerState
from tests.metering.test_service import Service
from tests.placer.town import town
from tests.placer.world import cards, request, until
from tests.support.nats import NatsServer


def said(**positions: int) -> Readers:
    readers = Readers()
    for reader, sequence in positions.items():
        readers.say(placement.Position(reader=reader, sequence=sequence), 0.0)
    return readers


def test_nothing_goes_while_metering_was_never_heard() -> None:
    assert said().behind_all(0.0) is None
    assert Readers().behind_all(0.0) is None
    assert purge_to([90, 80], None) is None


def test_the_slowest_reader_holds_the_ledger() -> None:
    assert said(metering=50, standby=70).behind_all(1.0) == 50
    assert said(metering=70, standby=50).behind_all(1.0) == 50


def test_a_standby_unheard_for_an_hour_counts_no_more_but_metering_always_does() -> None:
    readers = said(metering=50, standby=10)
    assert readers.behind_all(STANDBY_COUNTS_S - 1) == 10
    assert readers.behind_all(STANDBY_COUNTS_S) == 50


def test_a_new_leader_counts_a_standby_never_heard_for_an_hour_from_its_takeover() -> None:
    readers = said(metering=50)
    readers.expect({"placer-2"}, 100.0)
    assert readers.behind_all(100.0 + STANDBY_COUNTS_S - 1) is None
    assert readers.behind_all(100.0 + STANDBY_COUNTS_S) == 50
    readers.say(placement.Position(reader="placer-2", sequence=30), 200.0)
    assert readers.behind_all(201.0) == 30
    alone = said(metering=50)
    alone.expect(set(), 100.0)
    assert alone.behind_all(101.0) == 50


def test_who_led_before_is_remembered_over_a_snapshot() -> None:
    state = PlacerState()
    for epoch, writer in enumerate(("placer-1", "placer-2"), start=1):
        state.apply(ledger.EpochBegan(at_ms=epoch, epoch=epoch, writer=writer))
    again = PlacerState()
    snapshots.fill(again, snapshots.dump(state, 2))
    assert again.writers == {"placer-1", "placer-2"}


def test_a_position_never_goes_back() -> None:
    readers = said(metering=50)
    readers.say(placement.Position(reader="metering", sequence=20), 1.0)
    assert readers.behind_all(1.0) == 50


def test_the_second_newest_snapshot_that_checks_must_hold_what_goes() -> None:
    assert purge_to([90], 100) is None
    assert purge_to([90, 60], 100) == 60
    assert purge_to([90, 60], 50) == 50


def test_fullness_is_of_the_streams_own_bound() -> None:
    assert fill_percent({"state": {"bytes": 81}, "config": {"max_bytes": 100}}) == 81


async def shrink(bus: Bus, bytes_max: int) -> None:
    """Give the ledger so little room that it is nearly full."""
    config = (await bus.stream_info("LEDGER"))["config"]
    reply = await bus.client.request(
        "$JS.API.STREAM.UPDATE.LEDGER",
        json.dumps({**config, "max_bytes": bytes_max}).encode(),
        timeout=5,
    )
    assert "error" not in json.loads(reply.data)


async def lease_quantities(finance: Bus, at_least: int) -> dict[str, int]:
    """What each lease came to, as metering has it once it has read that far."""

    async def read() -> dict[str, int] | None:
        with contextlib.suppress(BusUnavailable):
            said = await finance.request(subjects.SUMMARY, SummaryAsk(), timeout_s=5)
            if not isinstance(said, UsageSummary) or said.sequence < at_least:
                return None
            rows = (await finance.ask(subjects.SLICES, SlicesAsk(), timeout_s=5)).rows
            found: dict[str, int] = {}
            for row in rows:
                found[row.lease] = found.get(row.lease, 0) + row.quantity
            return found
        return None

    found: dict[str, int] = await until(read, within_s=40)
    return found


def quantity(state: PlacerState, lease: str) -> int:
    """The same from the ledger: from the bind to the effective end, device by device."""
    its = state.leases[lease]
    assert its.bound_ms is not None
    assert its.effective_ms is not None
    ms = its.effective_ms - its.bound_ms
    return sum(device.parts * device.rating_micro * ms for device in its.devices)


@pytest.mark.bus
@pytest.mark.engine
@pytest.mark.crash
@pytest.mark.timeout(150)
async def test_a_full_ledger_stops_grants_alone_and_no_total_is_another_after_the_purge(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    """Metering is down: nothing may go, and at 80 % grants are refused. Ends and renewals go on.

    It comes back, the old part goes, grants are made again; what was used is what it was, also
    for who asks after a restart.
    """
    metering = Service(fresh_nats, tmp_path / "metering")
    finance = await fresh_nats.bus("finance", Role.FINANCE)
    boot = await fresh_nats.bus("bootstrap", Role.BOOTSTRAP)
    devices = {"n1": cards("n1", "BIG-80", 4)}
    quick = {"QUINTAL_PLACER_SNAPSHOT_S": "1"}
    try:
        metering.start()
        async with town(fresh_nats, tmp_path, devices=devices, **quick) as its:
            first = (await its.place(request("first"))).lease
            await its.ml.ask(subjects.RELEASE, placement.ReleaseAsk(lease=first))
            await its.state_is(first, "ended")
            held = await its.place(request("held", cards=2))
            _, last = await boot.last("LEDGER")
            before = await lease_quantities(finance, last)
            metering.end()

            for _ in range(40):
                await its.operator.ask(subjects.SNAPSHOT, placement.SnapshotAsk(), timeout_s=5)
            used = int((await boot.stream_info("LEDGER"))["state"]["bytes"])
            await shrink(boot, used * 122 // 100)

            async def says(code: str) -> bool:
                told = await its.ml.ask(subjects.DRY_RUN, request("dry"))
                return (told.refusal.code if told.refusal else told.verdict) == code

            await until(lambda: says("ledger_full"), within_s=20)
            refused = await its.place(request("second"))
            assert isinstance(refused, Refusal)
            assert (refused.code, refused.owner) == ("ledger_full", "infrastructure")
            renewal = placement.RenewAsk(lease=held.lease)
            assert (await its.ml.ask(subjects.RENEW, renewal)).state == "bound"
            await its.ml.ask(subjects.RELEASE, placement.ReleaseAsk(lease=held.lease))
            await its.state_is(held.lease, "ended")
            assert (await boot.last("LEDGER"))[0] == 1, "nothing goes without metering"
            _, last = await boot.last("LEDGER")
            whole = await its.audited()

            metering.start()

            async def purged() -> bool:
                return (await boot.last("LEDGER"))[0] > 1

            await until(purged, within_s=40)
            await until(lambda: says("placed"), within_s=20)
            assert (await its.place(request("third"))).state == "bound"

            due = {name: quantity(whole, name) for name in (first, held.lease)}
            assert before[first] == due[first]
            after = await lease_quantities(finance, last)
            assert {name: after[name] for name in due} == due
            metering.end()
            metering.start()
            again = await lease_quantities(finance, last)
            assert {name: again[name] for name in due} == due
            placer = its.placers[0]
            placer.kill()
            placer.start()
            assert (await its.place(request("third"))).state == "bound"
    finally:
        metering.end()
        await finance.close()
        await boot.close()
