"""What of the ledger may go: never what a reader, a snapshot or the calendar still needs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from quintal.bus import Bus
from quintal.contracts import ledger, placement, subjects
from quintal.contracts.subjects import Role
from quintal_placer import snapshots
from quintal_placer.keeping import STANDBY_COUNTS_S, Readers, fill_percent, purge_to
from quintal_placer.state import PlacerState
from tests.placer.world import PlacerProcess, small_catalog, until, write_catalog
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


@pytest.mark.bus
@pytest.mark.crash
def test_a_full_ledger_stops_grants_and_goes_on_after_a_purge(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    """Alone it writes its snapshots by a child; metering's word lets the old part go."""

    placer = PlacerProcess(fresh_nats, 1, tmp_path, QUINTAL_PLACER_SNAPSHOT_S="1")

    async def body() -> None:
        async with (
            await fresh_nats.bus("bootstrap", Role.BOOTSTRAP) as boot,
            await fresh_nats.bus("op", Role.OPERATOR) as operator,
            await fresh_nats.bus("metering", Role.METERING_BACK) as metering,
            await fresh_nats.bus("ml", Role.TENANT) as ml,
        ):
            async with await fresh_nats.bus("catalog", Role.CATALOG_BACK) as catalog:
                await write_catalog(catalog, small_catalog())
            placer.start()

            async def dry() -> str:
                ask = placement.PlaceAsk(request_id="r", profile="train")
                answer = await ml.request(subjects.DRY_RUN, ask, timeout_s=2)
                refusal = getattr(answer, "refusal", None)
                return str(refusal.code if refusal else answer)

            async def says(code: str) -> bool:
                try:
                    return await dry() == code
                except Exception:
                    return False

            await until(lambda: says("never_fits"), within_s=20)
            for _ in range(40):
                await operator.request(subjects.SNAPSHOT, placement.SnapshotAsk(), timeout_s=5)
            used = int((await boot.stream_info("LEDGER"))["state"]["bytes"])
            await shrink(boot, used * 110 // 100)
            await until(lambda: says("ledger_full"), within_s=20)
            first, last = await boot.last("LEDGER")
            assert first == 1

            async def purged() -> bool:
                message = placement.Position(reader="metering", sequence=last)
                await metering.publish(subjects.POSITION, message, reader="metering")
                return (await boot.last("LEDGER"))[0] > 1

            await until(purged, within_s=30)
            await until(lambda: says("never_fits"), within_s=20)
            placer.kill()
            placer.start()
            await until(lambda: says("never_fits"), within_s=20)

    try:
        asyncio.run(body())
    except BaseException:
        log = tmp_path / "placer-1" / "log"
        print(log.read_text()[-4000:] if log.exists() else "")
        raise
    finally:
        placer.kill()
