"""Each credential against each subject, on a real server: its own go through, all others do not.

A spy that may hear everything stands by: what is allowed must reach it, what is not must not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats as driver
import pytest
from nats.aio.client import Client

from quintal import nkey
from quintal.contracts import subjects
from quintal.contracts.subjects import Publication, Request, Role
from quintal.nkey import Kind
from tests.support.nats import NatsServer

pytestmark = pytest.mark.bus

OWN, OTHER = "self1", "other1"
STORE = {
    "$JS.API.STREAM.PURGE.LEDGER": {Role.PLACER_BACK, Role.BOOTSTRAP},
    "$JS.API.STREAM.DELETE.LEDGER": {Role.BOOTSTRAP},
    "$JS.API.STREAM.UPDATE.LEDGER": {Role.BOOTSTRAP},
    "$JS.API.STREAM.CREATE.MINE": {Role.BOOTSTRAP},
    "$JS.API.STREAM.MSG.DELETE.LEDGER": {Role.BOOTSTRAP},
    "$JS.API.CONSUMER.CREATE.LEDGER": {Role.BOOTSTRAP},
    "$JS.API.DIRECT.GET.LEDGER": {
        Role.PLACER_BACK, Role.METERING_BACK, Role.CATALOG_BACK, Role.BOOTSTRAP,
    },
    "$KV.CATALOG.head": {Role.CATALOG_BACK},
    "$O.SNAPSHOTS.C.x": {Role.PLACER_BACK},
    f"_INBOX.{OTHER}.x": {Role.CATALOG_FRONT, Role.PLACER_FRONT, Role.METERING_FRONT},
    "$SRV.PING": {Role.OPERATOR},
    "anything.else": set(),
}  # fmt: skip
"""Beside the typed subjects: who may publish there."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Without streams: what is published here is heard and forgotten."""
    found = NatsServer(tmp_path_factory.mktemp("permissions"))
    found.start()
    yield found
    found.kill()


@pytest.fixture
async def spy(server: NatsServer, tmp_path: Path) -> AsyncIterator[Client]:
    """A user of the account's own key: no template binds it."""
    authority = server.authority
    seed = nkey.new_seed(Kind.USER)
    unlimited = {"subs": -1, "data": -1, "payload": -1}
    claims = {"name": "spy", "nats": {"type": "user", "version": 2, **unlimited}}
    token = authority._sign(claims, nkey.public(seed), authority._keys.account)
    path = tmp_path / "spy.creds"
    path.write_text(nkey.credentials(token, seed))
    client = await driver.connect(server.url, user_credentials=str(path))
    yield client
    await client.close()


class Speaker:
    """One connection of a role, and every subject that the server refused it."""

    def __init__(self) -> None:
        self.client = Client()
        self.refused: set[str] = set()

    async def connect(self, server: NatsServer, role: Role, name: str = OWN) -> None:
        access = server.access(f"{name}-{role}", role)

        async def on_error(error: Exception) -> None:
            text = str(error)
            if "permissions violation" in text.lower():
                self.refused.add(text.split('"')[1])

        await self.client.connect(
            access.url, user_credentials=str(access.credentials), error_cb=on_error
        )


def may_publish(role: Role, one: Any, *, own: bool) -> bool:
    if isinstance(one, Request):
        return role in one.callers and (own or one.names == "callee")
    named = role is Role.AGENT or "{reader}" in one.pattern
    return role in one.senders and (own or not named)


def may_hear(role: Role, one: Any, *, own: bool) -> bool:
    if isinstance(one, Request):
        return role in one.answerers and (own or one.names == "caller")
    return role in one.hearers and (own or role not in {Role.TENANT, Role.AGENT})


def concrete(one: Publication[Any] | Request[Any, Any], name: str) -> str:
    tokens = dict.fromkeys(("principal", "tenant", "node", "reader"), name)
    return one.subject(**tokens, lease="l1", transition="bound")


def table(role: Role) -> dict[str, tuple[Any, bool]]:
    """Concrete subject -> (what it is, whether it is in the credential's own name)."""
    everything = [one for _, one in (*subjects.publications(), *subjects.requests())]
    return {
        concrete(one, name): (one, name != OTHER)
        for one in everything
        for name in (OTHER, f"{OWN}-{role}")
    }


async def settle(*clients: Client) -> None:
    for client in clients:
        await client.flush()
    await asyncio.sleep(0.05)


@pytest.mark.parametrize("role", list(Role))
async def test_a_credential_publishes_its_own_subjects_and_no_other(
    server: NatsServer, spy: Client, role: Role
) -> None:
    heard: set[str] = set()

    async def on_message(msg: Any) -> None:
        heard.add(msg.subject)

    await spy.subscribe(">", cb=on_message)
    await spy.flush()
    speaker = Speaker()
    await speaker.connect(server, role)
    expected = {
        subject: may_publish(role, one, own=own or concrete(one, OTHER) == concrete(one, OWN))
        for subject, (one, own) in table(role).items()
    }
    expected |= {subject: role in roles for subject, roles in STORE.items()}
    for subject in expected:
        await speaker.client.publish(subject, b"")
    await settle(speaker.client, spy)
    allowed = {subject for subject, yes in expected.items() if yes}
    assert allowed, "a control that must succeed"
    assert heard & set(expected) == allowed
    assert speaker.refused == {subject.lower() for subject in set(expected) - allowed}
    await speaker.client.close()


@pytest.mark.parametrize("role", list(Role))
async def test_a_credential_hears_its_own_subjects_and_no_other(
    server: NatsServer, spy: Client, role: Role
) -> None:
    heard: set[str] = set()

    async def on_message(msg: Any) -> None:
        heard.add(msg.subject)

    speaker = Speaker()
    await speaker.connect(server, role)
    expected = {
        subject: may_hear(role, one, own=own or concrete(one, OTHER) == concrete(one, OWN))
        for subject, (one, own) in table(role).items()
    }
    own_inbox, other_inbox = f"_INBOX.{OWN}-{role}.x", f"_INBOX.{OTHER}.x"
    front = role in {Role.CATALOG_FRONT, Role.PLACER_FRONT, Role.METERING_FRONT}
    expected |= {own_inbox: not front, other_inbox: False, "$JS.API.STREAM.NAMES": False}
    for subject in expected:
        await speaker.client.subscribe(subject, cb=on_message)
    for wildcard in (">", "_INBOX.>", f"{subjects.PREFIX}.>"):
        await speaker.client.subscribe(wildcard, cb=on_message)
    await settle(speaker.client)
    for subject in expected:
        await spy.publish(subject, b"")
    await settle(spy, speaker.client)
    allowed = {subject for subject, yes in expected.items() if yes}
    assert allowed, "a control that must succeed"
    assert heard == allowed
    assert {">", "_inbox.>", f"{subjects.PREFIX}.>"} <= speaker.refused
    await speaker.client.close()
