"""Law 11, the second half: a snapshot replays offline to identical decisions."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from quintal.cli.__main__ import run
from quintal.client import Client
from quintal.contracts import placement, subjects
from quintal_placer import replay
from quintal_placer.replay import NotABundle
from tests.placer.site import asked
from tests.placer.states import random_shape, random_site
from tests.placer.town import town
from tests.placer.world import cards, request
from tests.support.nats import NatsServer

STATES = 30


@pytest.mark.laws
def test_law_11_a_saved_snapshot_decides_as_the_state_that_was_saved() -> None:
    seen: set[str] = set()
    for number in range(STATES):
        chance = random.Random(number)
        site = random_site(chance)
        data = replay.pack(site.state, 7)
        asks = [asked(100 + place, **random_shape(chance)) for place in range(4)]
        hashes = [replay.hash_of(site.desk.decide("ml", ask)) for ask in asks]
        lines = [
            json.dumps({"tenant": "ml", "request": ask.model_dump(mode="json"), "decision": before})
            for ask, before in zip(asks, hashes, strict=True)
        ]
        found = replay.replay(data, lines)
        assert [one.same for one in found] == [True] * 4, f"law 11: {found}"
        seen.update(one.verdict for one in found)
        again = replay.unpack(data)
        assert replay.pack(*again) == data, "what was read is written the same"
    assert seen == {"placed", "not_now", "never_fits"}


def test_what_was_decided_otherwise_is_told_apart() -> None:
    site = random_site(random.Random(1))
    ask = asked(1, cards=1)
    line = {"tenant": "ml", "request": ask.model_dump(mode="json"), "decision": "another"}
    found = replay.replay(replay.pack(site.state, 1), [json.dumps(line), ""])
    assert [one.same for one in found] == [False]
    del line["decision"]
    found = replay.replay(replay.pack(site.state, 1), [json.dumps(line)])
    assert [one.same for one in found] == [None]


@pytest.mark.parametrize("what", ["header", "documents", "snapshot", "request"])
def test_a_file_that_was_changed_is_refused(what: str) -> None:
    data = replay.pack(random_site(random.Random(1)).state, 1)
    head, documents, rest = data.split(b"\n", 2)
    line = "{}" if what == "request" else ""
    changed = {
        "header": b"{}\n" + documents + b"\n" + rest,
        "documents": head + b"\n" + documents.replace(b"a-80", b"a-81", 1) + b"\n" + rest,
        "snapshot": data[:-3] + b"xyz",
        "request": data,
    }
    lines = [line, '{"tenant": "ml", "request": {"cards": 1}}'] if what == "request" else []
    with pytest.raises(NotABundle):
        replay.replay(changed[what], lines)


@pytest.mark.bus
@pytest.mark.parametrize("placers", [1, 2], ids=["by the leader", "by the standby"])
async def test_law_11_what_a_dry_run_answers_a_saved_snapshot_comes_to_as_well(
    fresh_nats: NatsServer, tmp_path: Path, placers: int
) -> None:
    devices = {"n1": cards("n1", "BIG-80", 4), "n2": cards("n2", "MID-40", 2)}
    async with town(fresh_nats, tmp_path, devices=devices, placers=placers) as its:
        await its.place(request("held", cards=3))
        lines = []
        for number, cards_ in enumerate((1, 2, 4, 8)):
            ask = request(f"dry-{number}", cards=cards_)
            verdict = await its.ml.ask(subjects.DRY_RUN, ask)
            assert verdict.decision
            asked_ = {"tenant": "ml", "request": ask.model_dump(mode="json")}
            lines.append(
                json.dumps({**asked_, "at_ms": verdict.at_ms, "decision": verdict.decision})
            )
        sequence, data = await Client(its.operator).saved_snapshot()
        assert sequence > 0
        found = replay.replay(data, lines)
        assert [one.same for one in found] == [True] * 4, found
        assert {one.verdict for one in found} == {"placed", "not_now", "never_fits"}
        unknown = placement.SnapshotPartAsk(sequence=sequence + 1)
        assert await _silent(its.operator, unknown)


async def _silent(operator: object, ask: placement.SnapshotPartAsk) -> bool:
    from quintal.errors import BusUnavailable

    try:
        await operator.request(subjects.SNAPSHOT_PART, ask, timeout_s=0.3)  # type: ignore[attr-defined]
    except BusUnavailable:
        return True
    return False


def test_the_command_tells_what_differs_by_its_exit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = random_site(random.Random(1))
    snapshot, requests = tmp_path / "snapshot", tmp_path / "requests"
    snapshot.write_bytes(replay.pack(site.state, 1))
    ask = asked(1, cards=1)
    line = {"tenant": "ml", "request": ask.model_dump(mode="json")}
    line["decision"] = replay.hash_of(site.desk.decide("ml", ask))
    requests.write_text(json.dumps(line) + "\n")
    command = ["simulate", "--snapshot", str(snapshot), "--requests", str(requests)]
    assert run(command) == 0
    assert "1 of 1 whose decision was written down are the same" in capsys.readouterr().out
    line["decision"] = "0" * 32
    requests.write_text(json.dumps(line) + "\n")
    assert run([*command, "-o", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["compared"], told["same"]) == (1, 0)
    assert told["decisions"][0]["before"] == "0" * 32
    requests.write_text('{"tenant": "ml", "cards": 1}\n')
    assert run(command) == 1
    assert "line 1 holds no request" in capsys.readouterr().err
    snapshot.write_bytes(b"no")
    assert run(command) == 1
    assert "no saved snapshot" in capsys.readouterr().err
