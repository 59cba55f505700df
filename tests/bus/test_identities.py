"""Identities on a real server: own subject yes, foreign subject no, wildcard no."""

from __future__ import annotations

import stat

import pytest

from quintal.auth import Authority
from quintal.bus import Bus
from quintal.contracts import nodes, placement, subjects
from quintal.contracts.subjects import Role
from quintal.errors import Refused, SetupError
from tests.support.nats import NatsServer
from tests.support.wait import until

pytestmark = pytest.mark.bus


def a_beat(node: str) -> nodes.Heartbeat:
    return nodes.Heartbeat(node=node, boot_id="b", sequence=1, at_ms=1)


async def test_an_agent_beats_under_its_own_name_only(nats: NatsServer) -> None:
    heard: list[str] = []
    async with (
        await nats.bus("placer-1", Role.PLACER_BACK) as placer,
        await nats.bus("n1", Role.AGENT) as agent,
    ):
        await placer.hear(subjects.HEARTBEAT, lambda _, tokens: heard.append(tokens[-1]))
        await placer.flush()
        await agent.publish(subjects.HEARTBEAT, a_beat("n2"), node="n2")
        await agent.publish(subjects.HEARTBEAT, a_beat("n1"), node="n1")
        await agent.flush()
        await placer.flush()
        assert heard == ["n1"]
        await until(lambda: agent.counts.violations == 1)


async def test_a_wildcard_over_other_names_is_refused(nats: NatsServer) -> None:
    async with await nats.bus("n1", Role.AGENT) as agent:
        await agent.client.subscribe("quintal.v1.bind.*.bind")
        await agent.client.subscribe("_INBOX.>")
        await agent.client.subscribe("quintal.v1.bind.n1.bind")
        await agent.flush()
        await until(lambda: agent.counts.violations == 2)


async def test_an_agent_answers_what_it_is_asked(nats: NatsServer) -> None:
    async def bind(_: object, ask: nodes.BindAsk) -> nodes.BindDone:
        return nodes.BindDone(boot_id="b", lease_version=ask.lease.lease)

    lease = nodes.BoundLease(lease="l1", token=1, tenant="vision", ttl_ms=1, devices=())
    async with (
        await nats.bus("placer-1", Role.PLACER_BACK) as placer,
        await nats.bus("n1", Role.AGENT) as agent,
    ):
        await agent.serve(subjects.BIND, bind)
        await agent.flush()
        done = await placer.ask(subjects.BIND, nodes.BindAsk(lease=lease), node="n1")
        assert done.lease_version == "l1"


async def test_a_tenant_is_answered_by_the_front(nats: NatsServer) -> None:
    async def all_leases(caller: object, ask: placement.ListAsk) -> placement.Leases:
        return placement.Leases(leases=(), sequence=7)

    async with (
        await nats.bus("placer-1-front", Role.PLACER_FRONT) as front,
        await nats.bus("vision", Role.TENANT) as tenant,
    ):
        await front.serve(subjects.LIST, all_leases)
        await front.announce("placer", "for the test")
        await front.flush()
        assert (await tenant.ask(subjects.LIST, placement.ListAsk())).sequence == 7
        async with await nats.bus("operator", Role.OPERATOR) as operator:
            reply = await operator.client.request("$SRV.PING.placer", b"", timeout=2)
            assert b"placer" in reply.data


async def test_a_credential_of_another_installation_is_refused(
    nats: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Authority(tmp_path_factory.mktemp("other") / "auth")
    from quintal.errors import BusUnavailable

    with pytest.raises(BusUnavailable):
        await Bus.connect(other.access(nats.url, "vision", Role.TENANT), wait_s=3)


def test_a_name_has_one_role_and_is_one_token(nats: NatsServer) -> None:
    authority = nats.authority
    authority.issue("vision", Role.TENANT)
    with pytest.raises(SetupError, match="already a tenant"):
        authority.issue("vision", Role.AGENT)
    for name in ("a.b", "*", ">", "a b", "", "x" * 65, "{{name()}}"):
        with pytest.raises(SetupError, match="cannot be a principal"):
            authority.issue(name, Role.TENANT)
    for name in (
        "placer-1",
        "placer-7-front",
        "catalog",
        "Metering-front",
        "bootstrap",
        "operator",
    ):
        with pytest.raises(SetupError, match="reserved"):
            authority.issue(name, Role.TENANT)


def test_secrets_are_for_their_owner_alone(nats: NatsServer) -> None:
    authority = nats.authority
    first = authority.issue("vision", Role.TENANT)
    before = first.read_text()
    assert authority.issue("vision", Role.TENANT).read_text() == before
    for path in authority.directory.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE(authority.directory.stat().st_mode) == 0o700
    assert "SA" not in repr(authority._keys)


async def test_who_may_not_ask_is_told_so_and_not_left_to_wait(nats: NatsServer) -> None:
    async with await nats.bus("vision", Role.TENANT) as tenant:
        with pytest.raises(Refused, match="vision may not ask") as told:
            await tenant.ask(subjects.CAPACITY, placement.FleetAsk(), timeout_s=0.5)
        assert told.value.code == "not_yours"
