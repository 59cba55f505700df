"""Laws 1 to 6 and 11 over generated histories: any order of acts, faults and takeovers.

QUINTAL_LAW_EXAMPLES says how many (150; 20,000 under QUINTAL_PROOF); the seed is printed where
it fails, and QUINTAL_LAW_SEED takes it back.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, seed, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    get_state_machine_test,
    invariant,
    precondition,
    rule,
)

from quintal.contracts import placement
from tests.laws.house import HALVES, QUARTERS, TENANTS, House, Replica, cut, fleet
from tests.laws.memory import MOODS, Fate, Mood

pytestmark = pytest.mark.laws

EXAMPLES = int(
    os.environ.get("QUINTAL_LAW_EXAMPLES")
    or ("20000" if os.environ.get("QUINTAL_PROOF") else "150")
)
SEED = int(os.environ.get("QUINTAL_LAW_SEED") or random.SystemRandom().getrandbits(32))

SEEN: Counter[str] = Counter()
"""What all histories together came to: a law is proven by what happened, not by what could."""

tenants = st.sampled_from(TENANTS)
POLICIES = ("train-drain", "train-evict")
nodes = st.sampled_from(("n1", "n2", "n3", "n4"))
which = st.integers(0, 1)
whom = st.sampled_from((2, 2, 2, 2, 0, 1))
names = st.integers(0, 11).map(lambda n: f"r{n}")
fates: st.SearchStrategy[list[Fate]] = st.lists(
    st.sampled_from(("acked", "reply lost", "lost", "late", "held", "full")),
    min_size=1,
    max_size=3,
)
moods = st.sampled_from(MOODS)
SHARES: tuple[dict[str, object], ...] = (
    {"models": ["mid-40"], "share": {"compute_milli": 400}},
    {"models": ["mid-40"], "share": {"compute_milli": 300, "memory": "20GiB"}},
)
PARTS_ASKED: tuple[tuple[dict[str, object], tuple[str, ...] | None], ...] = (
    *((share, None) for share in SHARES),
    ({"partition": "half"}, HALVES),
    ({"partition": "quarter"}, QUARTERS),
    ({"partition": "half"}, None),
)
asks = st.fixed_dictionaries(
    {},
    optional={
        "cards": st.integers(1, 4),
        "nodes": st.integers(1, 2),
        "bind": st.sampled_from(("wait", "none")),
        "objective": st.sampled_from(("pack", "spread", "fastest", "cheapest")),
        "accelerator": st.sampled_from(
            (
                {"models": ["big-80"]},
                {"vendors": ["amd"]},
                {"models": ["mid-40"]},
                *SHARES,
                {"partition": "half"},
                {"partition": "quarter"},
            )
        ),
        "groups": st.sampled_from([[{"accelerator": share}] for share in SHARES]),
        "node": st.sampled_from(({"cpu_milli": 4_000}, {"cpu_milli": 60_000})),
        "wait": st.sampled_from(({"mode": "queue", "deadline_ms": 20_000}, {"mode": "fail"})),
        "ttl_ms": st.sampled_from((30_000, 60_000)),
        "priority": st.just("high"),
        "profile": st.sampled_from(POLICIES),
    },
)
WAITS: dict[str, object] = {"wait": {"mode": "queue", "deadline_ms": 40_000}}
ARRANGED: tuple[dict[str, object], ...] = (
    {"topology": {"island": "required"}},
    {"topology": {"island": "preferred", "domain": "required"}, **WAITS},
    {"members": [{"cards": 2}, {"cards": 1}]},
    {"members": [{"cards": 1}, {"cards": 2}], "topology": {"island": "preferred"}, **WAITS},
)
CPU = {"accelerator": {"kind": "cpu"}, "class": "train_llm", "profile": None}


class Histories(RuleBasedStateMachine):
    """Everything that clients, operators, agents, the ledger and the other placer may do."""

    def __init__(self) -> None:
        super().__init__()
        self.house = House()
        self.steps = 0
        self.recuts = 0

    def teardown(self) -> None:
        try:
            self.house.book.fates.clear()
            self.house.book.deliver()
            self.house.pass_time(3)
            self.house.check()
            SEEN.update(self.house.seen())
        finally:
            self.house.close()

    def _ask(self, name: str, more: dict[str, object], *, cpu: bool) -> placement.PlaceAsk:
        more = {"ttl_ms": 30_000, **more, **(CPU if cpu else {})}
        if "members" in more:
            more = {key: value for key, value in more.items() if key not in {"cards", "nodes"}}
        return placement.PlaceAsk.model_validate({"request_id": name, "profile": "train", **more})

    def _whom(self, at: int) -> Replica | None:
        """Mostly whoever leads; sometimes one who may only think so."""
        return self.house.replicas[at] if at < 2 else self.house.leader_or_elect()

    # --- clients ------------------------------------------------------------------------------

    @rule(
        at=whom, tenant=tenants, name=names, more=asks,
        cpu=st.sampled_from((False, False, False, True)),
    )  # fmt: skip
    def request(self, at: int, tenant: str, name: str, more: dict[str, object], cpu: bool) -> None:
        self._request(at, tenant, self._ask(name, more, cpu=cpu))

    @rule(
        tenant=st.sampled_from(("ml", "ml", "bio")), name=names, beside=st.booleans(),
        pick=st.integers(0, 2), asked=st.sampled_from(PARTS_ASKED),
    )  # fmt: skip
    def request_a_part(
        self, tenant: str, name: str, beside: bool, pick: int,
        asked: tuple[dict[str, object], tuple[str, ...] | None],
    ) -> None:  # fmt: skip
        """Of a card that somebody may have cut just now; or of two cards at once."""
        part, shapes = asked
        if shapes is not None:
            self.card_is_cut(pick, shapes)
        more: dict[str, object] = {"accelerator": part}
        if beside:
            more = {"groups": [{"accelerator": part}], "accelerator": {"models": ["mid-40"]}}
        self._request(2, tenant, self._ask(name, more, cpu=False))

    def _request(self, at: int, tenant: str, ask: placement.PlaceAsk) -> None:
        house = self.house
        replica = self._whom(at)
        if replica is not None:
            house.start(replica, house.place(replica, tenant, ask))
            house.loop.spin()

    @rule(
        tenant=tenants, first=st.integers(20, 60), cards=st.integers(1, 2), gang=st.integers(1, 2),
        count=st.integers(2, 4),
        how=st.sampled_from(
            (
                {}, WAITS, {**WAITS, "priority": "high"}, *ARRANGED,
                *({"profile": p} for p in POLICIES),
            )
        ),
    )  # fmt: skip
    def requests_at_once(
        self, tenant: str, first: int, cards: int, gang: int, count: int, how: dict[str, object]
    ) -> None:
        """Several in one breath: they share a group, and compete."""
        replica = self.house.leader_or_elect()
        for number in range(first, first + count):
            ask = self._ask(f"r{number}", {"cards": cards, "nodes": gang, **how}, cpu=False)
            if replica is not None:
                self.house.start(replica, self.house.place(replica, tenant, ask))
        self.house.loop.spin()

    @precondition(lambda self: bool(self.house.auditor.state.broken))
    @rule(number=st.integers(70, 90), pick=st.integers(0, 5), how=st.sampled_from(({}, WAITS)))
    def repair(self, number: int, pick: int, how: dict[str, object]) -> None:
        """Somebody asks for a gang again that lost a node."""
        broken = list(self.house.auditor.state.broken.values())
        lease = broken[pick % len(broken)]
        assert lease.granted is not None
        assert lease.granted.request is not None
        request = lease.granted.request.model_dump(
            exclude_defaults=True, exclude={"repairs", "wait"}, by_alias=True
        )
        again = {**request, **how, "request_id": f"r{number}", "repairs": lease.lease}
        self._request(2, lease.tenant, placement.PlaceAsk.model_validate(again))

    @rule(at=whom, tenant=tenants, name=names)
    def repeat(self, at: int, tenant: str, name: str) -> None:
        house = self.house
        ask = house.asked.get((tenant, name))
        if ask is not None:
            self._request(at, tenant, ask)

    @rule(at=whom, pick=st.integers(0, 30), ttl=st.sampled_from((None, 30_000, 45_000)))
    def renew(self, at: int, pick: int, ttl: int | None) -> None:
        told = list(self.house.told.values())
        if told:
            lease = told[-1 - pick % len(told)]
            ask = placement.RenewAsk(lease=lease.lease, ttl_ms=ttl)
            replica = self._whom(at)
            if replica is not None:
                self.house.start(replica, self.house.renew(replica, lease.tenant, ask))
                self.house.loop.spin()

    @rule(at=whom, pick=st.integers(0, 30))
    def release(self, at: int, pick: int) -> None:
        told = list(self.house.told.values())
        if told:
            lease = told[-1 - pick % len(told)]
            ask = placement.ReleaseAsk(lease=lease.lease)
            replica = self._whom(at)
            if replica is not None:
                self.house.start(replica, self.house.release(replica, lease.tenant, ask))
                self.house.loop.spin()

    @rule(pick=st.integers(0, 30))
    def cancel(self, pick: int) -> None:
        leader = self.house.leader_or_elect()
        waiting = list(self.house.auditor.state.queue.values())
        if leader is not None and waiting:
            lease = waiting[-1 - pick % len(waiting)]
            ask = placement.CancelAsk(request_id=lease.request_id)
            self.house.start(leader, self.house.cancel(leader, lease.tenant, ask))
            self.house.loop.spin()

    @rule(tenant=tenants, node=nodes, index=st.integers(0, 3), name=names)
    def adopt(self, tenant: str, node: str, index: int, name: str) -> None:
        leader = self.house.leader_or_elect()
        devices = fleet()[node].devices
        if leader is not None:
            ask = placement.AdoptAsk.model_validate(
                {
                    "request_id": f"adopt-{name}",
                    "tenant": tenant,
                    "node": node,
                    "devices": (devices[index % len(devices)].uuid,),
                    "class": "train_llm",
                    "ttl_ms": 60_000,
                }
            )
            self.house.start(leader, self.house.adopt(leader, ask))
            self.house.loop.spin()

    @rule(pick=st.integers(0, 30))
    def end_adopted(self, pick: int) -> None:
        outside = [le for le in self.house.told.values() if le.adopted or le.bind == "none"]
        leader = self.house.leader_or_elect()
        if outside and leader is not None:
            self.house.start(
                leader, self.house.end(leader, outside[-1 - pick % len(outside)].lease)
            )
            self.house.loop.spin()

    # --- operators ----------------------------------------------------------------------------

    @rule(node=nodes, on=st.booleans())
    def cordon(self, node: str, on: bool) -> None:
        self.house.cordon(node, on=on)

    @rule(node=nodes)
    def retire(self, node: str) -> None:
        self.house.retire(node)
        self.house.loop.spin()

    @rule(revision=st.integers(2, 3))
    def apply_catalog(self, revision: int) -> None:
        self.house.head = max(self.house.head, revision)

    @rule()
    def take_snapshot(self) -> None:
        from quintal_placer import snapshots

        state = self.house.auditor.state
        self.house.snapshot = snapshots.dump(state, len(self.house.book.messages))

    # --- the world ----------------------------------------------------------------------------

    @rule(seconds=st.sampled_from((1, 5, 16, 31, 61)))
    def pass_time(self, seconds: int) -> None:
        self.house.pass_time(seconds)

    @rule(node=nodes, mood=moods)
    def agent_is(self, node: str, mood: Mood) -> None:
        self.house.agents[node].mood = mood

    @rule(node=nodes)
    def cut_off(self, node: str) -> None:
        """Nothing is heard of it for so long that it is lost."""
        self.house.agents[node].mood = "silent, not done"
        for _ in range(4):
            self.house.pass_time(7)

    @rule(node=nodes, says=st.sampled_from(("inventory", "heartbeat")))
    def reboot(self, node: str, says: str) -> None:
        self.house.gone.add(node)
        self.house.agents[node].reboot()
        if says == "heartbeat":
            self.house.heartbeat(node)
        self.house.report(node)
        self.house.loop.spin()

    @rule(node=nodes, less=st.integers(0, 2))
    def devices_change(self, node: str, less: int) -> None:
        whole = fleet()[node].devices
        self.house.agents[node].devices = whole[less:]
        self.house.sick |= {device.uuid for device in whole[:less]}  # held and gone is failed
        self.house.report(node)

    @rule(pick=st.integers(0, 2), shapes=st.sampled_from((HALVES, HALVES, QUARTERS, ())))
    def card_is_cut(self, pick: int, shapes: tuple[str, ...]) -> None:
        """By whoever has the node in hand, whether a lease holds the card or not."""
        self.recuts += 1
        agent = self.house.agents["n3"]
        devices = list(agent.devices)
        if devices:
            at = pick % len(devices)
            devices[at] = cut(devices[at], shapes, self.recuts)
            agent.devices = tuple(devices)
            self.house.report("n3")

    @rule(pick=st.integers(0, 30), well=st.sampled_from((False, False, True)))
    def device_fails(self, pick: int, well: bool) -> None:
        """One that somebody holds; or it recovers."""
        live = list(self.house.auditor.state.live.values())
        strict = [le for le in live if le.granted and le.granted.on_unhealthy != "none"]
        held = strict or live
        if held:
            device = held[-1 - pick % len(held)].devices[0]
            if device.uuid in {d.uuid for d in self.house.agents[device.node].devices}:
                self.house.fails(device.node, device.uuid, well=well)
                self.house.loop.spin()

    @rule(what=fates)
    def ledger_will(self, what: list[Fate]) -> None:
        self.house.book.fates.extend(what)

    @rule()
    def ledger_delivers(self) -> None:
        self.house.book.deliver()
        self.house.loop.spin()

    @rule(number=which)
    def take_over(self, number: int) -> None:
        self.house.lead(number)

    @rule(number=which)
    def crash(self, number: int) -> None:
        replica = self.house.replicas[number]
        replica.stop()
        replica.start()

    # --- what must hold -----------------------------------------------------------------------

    @invariant()
    def the_laws_hold(self) -> None:
        self.steps += 1
        self.house.check(deep=self.steps % 5 == 0)


MUST_HAPPEN = (
    "epoch", "granted", "bound", "queued", "ended", "gang", "adopted", "over_by", "told",
    "ending released", "ending expired", "ending rebooted", "catalog_adopted", "cordon",
    "deposed", "conflict", "groups of several", "share", "partition", "groups", "device_changed",
    "arranged", "members",
)  # fmt: skip

SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    print_blob=False,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
    database=None,
)


@pytest.mark.timeout(max(120, EXAMPLES))
def test_the_laws_hold_over_generated_histories() -> None:
    """Laws 1, 2, 3, 4, 5, 6, 11; the fence; exclusion until acknowledged."""
    print(f"QUINTAL_LAW_SEED={SEED} QUINTAL_LAW_EXAMPLES={EXAMPLES}")
    SEEN.clear()
    seed(SEED)(get_state_machine_test(Histories, settings=SETTINGS, _min_steps=25))()
    print(dict(sorted(SEEN.items())))
    if EXAMPLES >= 100:
        missing = [what for what in MUST_HAPPEN if not SEEN[what]]
        assert not missing, f"no history came to {missing}: the laws were not tried"
