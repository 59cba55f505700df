"""The service on a real bus: who may what, races, crashes, and readers that switch at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quintal.bus import Bus
from quintal.catalog_reader import CatalogReader
from quintal.client import Client
from quintal.contracts.catalog import (
    ApplyAsk,
    CheckAsk,
    DiffAsk,
    DocumentsAsk,
    HistoryAsk,
)
from quintal.contracts.streams import CATALOG_BUCKET
from quintal.contracts.subjects import APPLY, CHECK, DIFF, HISTORY, Request, Role
from quintal.errors import BusUnavailable, Code, Owner, Refused
from quintal_catalog import app
from quintal_catalog.settings import Settings
from tests.catalog.given import SMALL, document, file
from tests.support.nats import NatsServer
from tests.support.wait import until

pytestmark = pytest.mark.bus

ROLES = {"operator": Role.OPERATOR, "finance": Role.FINANCE, "blue": Role.TENANT}


def settings(server: NatsServer, directory: Path, *, starter: bool = False) -> Settings:
    principals = directory / "principals.json"
    principals.write_text(json.dumps({name: str(role) for name, role in ROLES.items()}))
    return Settings(
        front=server.access("catalog-front", Role.CATALOG_FRONT),
        back=server.access("catalog", Role.CATALOG_BACK),
        principals=principals,
        starter=starter,
    )


@dataclass(slots=True)
class Running:
    """The service in this loop, and a client of each role."""

    server: NatsServer
    operator: Client
    finance: Client
    blue: Client
    back: Bus


@contextlib.asynccontextmanager
async def serving(
    server: NatsServer, directory: Path, *, starter: bool = False
) -> AsyncIterator[Running]:
    stop = asyncio.Event()
    back = await server.bus("catalog", Role.CATALOG_BACK)
    task = asyncio.create_task(app.run(settings(server, directory, starter=starter), stop))
    clients = [
        await Client.connect(server.access(name, role), patience_s=10)
        for name, role in ROLES.items()
    ]
    try:
        yield Running(server, *clients, back)
    finally:
        for client in clients:
            await client.close()
        await back.close()
        stop.set()
        assert await asyncio.wait_for(task, 10) == 0


@pytest.fixture
async def running(fresh_nats: NatsServer, tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(fresh_nats, tmp_path) as found:
        await found.operator.apply(ApplyAsk(files=(file(SMALL),), why="begin"))
        yield found


async def test_what_is_applied_is_read_back_listed_compared_and_remembered(
    running: Running,
) -> None:
    applied = await running.operator.apply(
        ApplyAsk(
            files=(file(document("Tenant", "red", "{title: Red}")),),
            delete=("Profile/train",),
            why="red comes, train goes",
        )
    )
    assert applied.revision == 2
    told = [(change.action, change.kind, change.name) for change in applied.changes]
    assert told == [("removed", "Profile", "train"), ("added", "Tenant", "red")]
    found = await running.operator.documents(DocumentsAsk(kind="Tenant", name="red"))
    assert found.revision == 2
    assert found.documents[0].spec.title == "Red"
    old = await running.operator.documents(DocumentsAsk(kind="Profile", revision=1))
    assert [each.metadata.name for each in old.documents] == ["train"]
    rows = (await running.operator.document_list(DocumentsAsk(kind="Tenant"))).rows
    assert [row.name for row in rows] == ["blue", "green", "red"]
    diff = await running.finance.diff(1)
    assert (diff.before, diff.after, diff.changes) == (1, 2, applied.changes)
    history = (await running.finance.history()).revisions
    assert [(each.revision, each.author, each.why) for each in history] == [
        (2, "operator", "red comes, train goes"),
        (1, "operator", "begin"),
    ]
    touched = await running.operator.history(HistoryAsk(kind="Profile", name="train"))
    assert [each.revision for each in touched.revisions] == [2, 1]
    only_red = await running.operator.history(HistoryAsk(kind="Tenant", name="red"))
    assert [each.revision for each in only_red.revisions] == [2]


async def test_the_same_content_again_makes_no_revision(running: Running) -> None:
    again = await running.operator.apply(ApplyAsk(files=(file(SMALL),)))
    assert (again.revision, again.changes) == (1, ())
    assert len((await running.operator.history()).revisions) == 1


async def test_an_apply_asked_twice_since_its_answer_was_lost_is_no_conflict(
    running: Running,
) -> None:
    ask = ApplyAsk(files=(file(document("Tenant", "red", "{}")),), base_revision=1)
    first = await running.operator.apply(ask)
    again = await running.operator.apply(ask)
    assert (first.revision, again.revision, again.changes) == (2, 2, ())


async def test_a_dry_run_and_a_check_say_what_would_be_and_keep_nothing(running: Running) -> None:
    files = (file(document("Tenant", "red", "{}")),)
    dry = await running.operator.apply(ApplyAsk(files=files, dry_run=True))
    checked = await running.finance.check(CheckAsk(files=files))
    assert (dry.revision, dry.dry_run, checked.ok) == (2, True, True)
    assert dry.changes == checked.changes
    assert (await running.operator.documents()).revision == 1
    bad = await running.operator.check(CheckAsk(files=(file("kind: Nope"),)))
    assert not bad.ok
    assert bad.faults[0].line == 1


async def test_all_faults_come_back_with_the_refusal_and_nothing_is_applied(
    running: Running,
) -> None:
    files = (
        file(document("Tenant", "red", "{}"), "good.yaml"),
        file(document("Quota", "red", "{tenant: rad, caps: [{family: x, cards: 1}]}"), "bad.yaml"),
    )
    with pytest.raises(Refused, match="2 faults; nothing was applied") as refused:
        await running.operator.apply(ApplyAsk(files=files))
    assert refused.value.code is Code.INVALID_REQUEST
    faults = refused.value.details["details"]["faults"]
    assert [(f["file"], f["line"], f["field"]) for f in faults] == [
        ("bad.yaml", 5, "spec.caps.0.family"),
        ("bad.yaml", 5, "spec.tenant"),
    ]
    assert (await running.operator.documents()).revision == 1


async def test_of_applies_that_race_on_one_base_exactly_one_wins_and_the_other_learns_what_changed(
    running: Running,
) -> None:
    asks = [
        ApplyAsk(files=(file(document("Tenant", name, "{}")),), base_revision=1)
        for name in ("red", "grey", "gold")
    ]
    answers = await asyncio.gather(
        *(running.operator.apply(ask) for ask in asks), return_exceptions=True
    )
    won = [each for each in answers if not isinstance(each, BaseException)]
    lost = [each for each in answers if isinstance(each, Refused)]
    assert (len(won), len(lost)) == (1, 2)
    for refusal in lost:
        assert refusal.code is Code.CONFLICT
        assert refusal.owner is Owner.SUBMITTER
        details = refusal.details["details"]
        assert (details["head"], details["base"]) == (2, 1)
        assert [change["kind"] for change in details["changes"]] == ["Tenant"]


async def test_two_services_that_race_without_a_base_both_get_through(
    running: Running, tmp_path: Path
) -> None:
    from quintal.clock import SystemClock
    from quintal_catalog.handlers import Handlers
    from quintal_catalog.roles import Roles
    from quintal_catalog.store import Store

    other = Handlers(Store(running.back), Roles(None), SystemClock())
    names = [f"t{index}" for index in range(6)]
    await asyncio.gather(
        *(
            running.operator.apply(ApplyAsk(files=(file(document("Tenant", name, "{}")),)))
            if index % 2
            else other.put("second", ApplyAsk(files=(file(document("Tenant", name, "{}")),)))
            for index, name in enumerate(names)
        )
    )
    catalog = await CatalogReader(running.back).load()
    assert set(names) <= set(catalog.tenants)


async def test_readers_switch_at_once_and_whole(running: Running) -> None:
    reader = CatalogReader(running.back)
    before = await reader.load()
    await running.operator.apply(
        ApplyAsk(files=(file(SMALL.replace("units: 8", "units: 9")),), base_revision=1)
    )
    head = await reader.head()
    assert head is not None
    assert head.revision == 2
    after = await reader.load()
    assert (before.revision, after.revision) == (1, 2)
    assert (str(before.quotas["blue"].caps[0].units), str(after.quotas["blue"].caps[0].units)) == (
        "8", "9",
    )  # fmt: skip
    assert (await reader.load(1)).digest == before.digest


async def test_a_tenant_reads_its_own_and_what_is_public_and_nothing_of_others(
    running: Running,
) -> None:
    found = await running.blue.documents()
    keys = {each.key for each in found.documents}
    assert ("Tenant", "blue") in keys
    assert ("Quota", "blue") in keys
    assert "green" not in found.model_dump_json()
    listed = await running.blue.document_list()
    assert {(row.kind, row.name) for row in listed.rows} == keys
    with pytest.raises(Refused) as refused:
        await running.blue.documents(DocumentsAsk(kind="Tenant", name="green"))
    missing = str(refused.value)
    with pytest.raises(Refused) as refused:
        await running.blue.documents(DocumentsAsk(kind="Tenant", name="nobody"))
    assert missing.replace("green", "nobody") == str(refused.value)
    assert refused.value.code is Code.NOT_FOUND


@pytest.mark.parametrize(
    ("request_", "ask"),
    [
        (APPLY, ApplyAsk(files=(file(SMALL),))),
        (CHECK, CheckAsk(files=(file(SMALL),))),
        (DIFF, DiffAsk(before=1)),
        (HISTORY, HistoryAsk()),
    ],
    ids=["apply", "check", "diff", "history"],
)
async def test_what_is_not_for_tenants_never_leaves_the_server(
    running: Running, request_: Request[Any, Any], ask: Any
) -> None:
    with pytest.raises(Refused, match="blue may not ask"):
        await running.blue.bus.ask(request_, ask, timeout_s=0.5)
    assert running.blue.bus.counts.violations == 1
    await running.operator.bus.ask(request_, ask)


async def test_a_principal_whose_permissions_are_too_wide_is_still_refused_by_its_role(
    running: Running,
) -> None:
    async with await running.server.bus("stray", Role.FINANCE) as bus:
        with pytest.raises(Refused) as refused:
            await bus.ask(HISTORY, HistoryAsk())
    assert refused.value.code is Code.NOT_YOURS


async def test_questions_about_what_never_was_are_refused_by_name(running: Running) -> None:
    with pytest.raises(Refused, match="no revision 99"):
        await running.operator.documents(DocumentsAsk(revision=99))
    with pytest.raises(Refused, match="did you mean 'Profile'"):
        await running.operator.documents(DocumentsAsk(kind="Profil"))


async def test_a_store_that_was_tampered_with_is_told_and_not_served(running: Running) -> None:
    head = await running.back.key_get(CATALOG_BUCKET, "head")
    assert head is not None
    wrong = json.dumps({"revision": 1, "digest": "0" * 64}).encode()
    await running.back.key_put(CATALOG_BUCKET, "head", wrong, head[1])
    with pytest.raises(Refused, match="is not the one that the head names") as refused:
        await running.operator.documents()
    assert (refused.value.code, refused.value.owner) == (Code.INTERNAL, Owner.INFRASTRUCTURE)


async def test_a_new_installation_begins_with_the_starter_catalog_once(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async with serving(fresh_nats, tmp_path, starter=True) as running:
        (begun,) = (await running.operator.history()).revisions
        assert (begun.author, begun.why) == ("quintal", "starter catalog")
        catalog = await CatalogReader(running.back).load()
        assert len(catalog.models) >= 120
        await running.operator.apply(ApplyAsk(delete=("PriceList/cost-example",)))
    async with serving(fresh_nats, tmp_path, starter=True) as running:
        assert (await running.operator.documents()).revision == 2


@pytest.mark.crash
async def test_a_service_killed_while_it_applies_leaves_the_old_head_whole_or_the_new(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async with await fresh_nats.bus("catalog", Role.CATALOG_BACK) as back:
        operator = await Client.connect(
            fresh_nats.access("operator", Role.OPERATOR), patience_s=0.1
        )
        reader = CatalogReader(back)
        async with _process(fresh_nats, tmp_path):
            await operator.apply(ApplyAsk(files=(file(SMALL),)))
        seen = {1}
        for turn in range(4):
            tenants = "".join(document("Tenant", f"x{turn}-{i}", "{}") for i in range(40))
            async with _process(fresh_nats, tmp_path) as process:
                ask = asyncio.create_task(
                    operator.apply(ApplyAsk(files=(file(tenants),), why=str(turn)))
                )
                await asyncio.sleep(0.005 * (turn + 1))
                process.send_signal(signal.SIGKILL)
                await process.wait()
                ask.cancel()
                await asyncio.gather(ask, return_exceptions=True)
            catalog = await reader.load()
            seen.add(catalog.revision)
            of_turn = [name for name in catalog.tenants if name.startswith(f"x{turn}-")]
            assert len(of_turn) in {0, 40}
        async with _process(fresh_nats, tmp_path):
            made = await operator.apply(ApplyAsk(files=(file(document("Tenant", "red", "{}")),)))
        assert made.revision > max(seen)
        assert "red" in (await reader.load()).tenants
        await operator.close()


@contextlib.asynccontextmanager
async def _process(
    server: NatsServer, directory: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m quintal_catalog`, up when it says READY."""
    found = settings(server, directory)
    ready = directory / f"ready-{os.urandom(4).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(ready))
        listener.setblocking(False)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "quintal_catalog",
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "NOTIFY_SOCKET": str(ready),
                "QUINTAL_URL": server.url,
                "QUINTAL_CREDENTIALS_FRONT": str(found.front.credentials),
                "QUINTAL_CREDENTIALS_BACK": str(found.back.credentials),
                "QUINTAL_PRINCIPALS": str(found.principals),
                "QUINTAL_STARTER": "0",
            },
        )  # fmt: skip
        try:
            said = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(listener, 64), 20)
            assert said == b"READY=1"
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
                assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_the_service_says_ready_answers_ping_and_stops_at_sigterm(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async with _process(fresh_nats, tmp_path):
        async with await fresh_nats.bus("operator", Role.OPERATOR) as bus:
            reply = await bus.client.request("$SRV.PING.catalog", b"", timeout=5)
        assert json.loads(reply.data)["name"] == "catalog"


async def test_an_outage_of_the_bus_is_survived(running: Running) -> None:
    running.server.kill()
    reader = CatalogReader(running.back)
    with pytest.raises(BusUnavailable):
        await asyncio.wait_for(reader.head(), 10)
    running.server.start()
    await until(lambda: running.back.connected, within_s=10)
    await until(lambda: running.operator.bus.connected, within_s=10)
    assert (await reader.load()).revision == 1
    assert (await running.operator.documents()).revision == 1
