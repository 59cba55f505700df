"""Law 13, the second half: no string of tenant B occurs in any answer to tenant A.

Over histories that hypothesis makes up: two tenants, operators, agents that fail and say why, all
through the handlers that answer on the bus. Everything that is B's, or that somebody said about B,
has `zq` in it; leases of B are looked for by their names. QUINTAL_REDACTION_EXAMPLES says how many
(500; 10,000 under QUINTAL_PROOF).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from quintal.bus import Caller
from quintal.contracts import ledger, placement
from quintal.contracts.documents import Document
from quintal.contracts.message import Message, Refusal
from quintal_placer import operations
from quintal_placer.handlers import Handlers
from quintal_placer.limits import TenantLimits
from quintal_placer.reading import ReadHandlers
from tests.placer.counterpart import Counterpart
from tests.placer.site import AT_MS, Site, inventory, models, quota
from tests.placer.world import cards, doc

EXAMPLES = int(
    os.environ.get("QUINTAL_REDACTION_EXAMPLES")
    or ("10000" if os.environ.get("QUINTAL_PROOF") else "500")
)
A, B = "ml", "zq-bio"
SEEN: Counter[str] = Counter()


def documents() -> list[Document]:
    """Two tenants; one pool that is B's alone, with a price and a workload of its own."""
    return [
        *models(),
        doc("Profile", "zq-secret", **{"class": "train_llm", "public": False}),
        *quota(A, {"class": "train_llm", "units": "6"}),
        *quota(B, {"class": "train_llm", "units": "9"}),
        doc("Pool", "zq-pool", order=1, selector={"nodes": ["zq-n1"]}, tenants=[B]),
        doc("Pool", "green", order=2, selector={"vendors": ["nvidia"]}),
    ]


class Town:
    """The two tenants, an operator and the handlers between them."""

    def __init__(self) -> None:
        self.site = Site(
            documents(),
            inventory("zq-n1", *cards("zq-n1", "A-80", 4)),
            inventory("n2", *cards("n2", "A-80", 3)),
            inventory("n3", *cards("n3", "B-24", 2)),
            inventory("n4", *cards("n4", "RED-192", 2, "amd")),
        )
        self.placer: Any = Counterpart(self.site, f"held by zq-job of {B}")
        limits = TenantLimits(1e9, 1_000)
        self.writes = Handlers(self.placer, limits)
        self.reads = ReadHandlers(self.placer, limits)
        self.count = 0
        self.ids: dict[str, list[str]] = {A: [], B: []}

    async def told(self, tenant: str, answer: Any) -> None:
        """What a tenant hears is looked through, if it is A."""
        for _ in range(3):
            await asyncio.sleep(0)
        if tenant == A and isinstance(answer, Message):
            SEEN[type(answer).__name__] += 1
            self.look_through(answer)

    def look_through(self, answer: Message) -> None:
        text = answer.model_dump_json()
        assert "zq" not in text, f"law 13: {text}"
        theirs = {name for name, le in self.site.state.leases.items() if le.tenant == B}
        assert not theirs & set(re.findall(r"l\d+-\d+", text)), f"law 13: {text}"

    def caller(self, tenant: str) -> Caller:
        return Caller(tenant, f"quintal.v1.placement.{tenant}.x", f"_INBOX.{tenant}.1")

    def request(self, tenant: str, number: int) -> placement.PlaceAsk:
        self.count += 1
        own = "" if tenant == A else "zq-"
        name = f"{own}r{self.count}"
        self.ids[tenant].append(name)
        shape: dict[str, Any] = SHAPES[number % len(SHAPES)]
        return placement.PlaceAsk.model_validate(
            {
                "request_id": name, "profile": "train", "project": "a",
                "labels": {f"{own}run": f"{own}7"}, "requester": f"{own}somebody",
                "bind": "none" if number % 5 == 0 else "wait",
                "wait": {"mode": "queue" if number % 4 == 0 else "fail"}, **shape,
            }
        )  # fmt: skip

    async def act(self, what: str, number: int) -> None:
        tenant = A if number % 2 else B
        caller, state = self.caller(tenant), self.site.state
        own = [le for le in state.leases.values() if le.tenant == tenant]
        lease = own[number % len(own)].lease if own else "l0-0"
        match what:
            case "place" | "place again":
                await self.told(
                    tenant, await self.writes.place(caller, self.request(tenant, number))
                )
            case "dry run":
                await self.told(
                    tenant, await self.writes.dry_run(caller, self.request(tenant, number))
                )
            case "renew":
                await self.told(
                    tenant, await self.writes.renew(caller, placement.RenewAsk(lease=lease))
                )
            case "release":
                ask = placement.ReleaseAsk(lease=lease)
                await self.told(tenant, await self.writes.release(caller, ask))
            case "reach for another's":
                await self._reach(number)
            case "explain":
                await self._explain(number)
            case _:
                self._operate(what, number)

    async def _reach(self, number: int) -> None:
        """A knows a name of B's: it is told what it is told of a name that nobody has."""
        theirs = [le for le in self.site.state.leases.values() if le.tenant == B]
        if not theirs:
            return
        name = theirs[number % len(theirs)].lease
        got = await self.reads.get(self.caller(A), placement.GetAsk(lease=name))
        none = await self.reads.get(self.caller(A), placement.GetAsk(lease="l9-999"))
        assert isinstance(got, Refusal)
        assert isinstance(none, Refusal)
        assert got.model_dump_json().replace(name, "l9-999") == none.model_dump_json()

    async def _explain(self, number: int) -> None:
        if self.ids[A]:
            ask = placement.ExplainAsk(request_id=self.ids[A][number % len(self.ids[A])])
            await self.told(A, await self.reads.explain(self.caller(A), ask))

    def _operate(self, what: str, number: int) -> None:
        """What is done to nodes, with words that are not for tenants."""
        names = sorted(self.site.state.fleet.nodes)
        node = names[number % len(names)]
        apply, words = self.site.apply, f"zq-maintenance for {B}"
        match what:
            case "cordon":
                ask = placement.CordonAsk(nodes=(node,), reason=words)
                found = operations.cordon(
                    self.site.state, ask, by="zq-op", at_ms=AT_MS, on=number % 4 < 2
                )
                assert not isinstance(found, Refusal)
                apply(*found)
            case "taint":
                present = number % 4 < 2
                apply(
                    ledger.TaintChanged(
                        at_ms=AT_MS, node=node, taint="zq-team", present=present, by="zq-op",
                        reason=words,
                    )
                )  # fmt: skip
            case "fall silent":
                liveness: Any = ("ready", "suspect", "lost")[number % 3]
                apply(ledger.LivenessChanged(at_ms=AT_MS, node=node, liveness=liveness, heard_ms=1))
            case "agent refuses":
                self.placer.agents.refuses = set(names) if number % 4 < 3 else set()
            case "dispute":
                uuid = min(self.site.state.fleet.nodes[node].devices)
                apply(
                    ledger.DisputeChanged(
                        at_ms=AT_MS, node=node, uuid=uuid, disputed=number % 4 < 2, reason=words
                    )
                )


SHAPES: list[dict[str, Any]] = [
    {"cards": 1},
    {"cards": 2, "accelerator": {"models": ["a-80"]}},
    {"cards": 4, "accelerator": {"models": ["a-80"]}},
    {"cards": 3, "nodes": 2},
    {"cards": 1, "constraints": {"pools": ["green"]}, "objective": "spread"},
    {"cards": 1, "constraints": {"nodes": ["n2"]}},
    {"cards": 1, "constraints": {"nodes": ["n1"]}},
    {"cards": 2, "accelerator": {"models": ["b-24"]}, "objective": "ordered"},
    {"cards": 9},
]
ACTS = (
    "place", "place again", "place again", "dry run", "renew", "release", "reach for another's",
    "explain", "cordon", "taint", "fall silent", "agent refuses", "dispute",
)  # fmt: skip


async def history(steps: list[tuple[str, int]]) -> None:
    town = Town()
    for what, number in steps:
        await town.act(what, number)
    caller = town.caller(A)
    states = ("queued", "granted", "bound", "ending", "ended", "failed", "refused", "cancelled")
    await town.told(A, await town.reads.leases(caller, placement.ListAsk(states=states)))
    await town.told(A, await town.reads.quota(caller, placement.QuotaAsk(tenant=B)))
    await town.told(A, await town.reads.queue(caller, placement.QueueAsk(tenant=B)))
    for name in town.ids[A]:
        await town.told(A, await town.reads.explain(caller, placement.ExplainAsk(request_id=name)))
        await town.told(A, await town.reads.get(caller, placement.GetAsk(request_id=name)))
    SEEN["failed"] += sum(le.state == "failed" for le in town.site.state.leases.values())
    await town.placer.promises.close()


@pytest.mark.laws
@pytest.mark.timeout(max(120, EXAMPLES // 10))
def test_law_13_no_string_of_one_tenant_occurs_in_any_answer_to_another() -> None:
    SEEN.clear()
    steps = st.tuples(st.sampled_from(ACTS), st.integers(0, 47))
    with asyncio.Runner() as runner:

        @settings(
            max_examples=EXAMPLES, deadline=None, database=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(st.lists(steps, min_size=6, max_size=16))
        def over_histories(done: list[tuple[str, int]]) -> None:
            runner.run(history(done))

        over_histories()
    print(dict(SEEN))
    missing = {
        "Lease",
        "Refusal",
        "Verdict",
        "Explanation",
        "Leases",
        "QuotaView",
        "QueueView",
        "failed",
    }
    missing -= {name for name, count in SEEN.items() if count}
    assert not missing, f"A never heard {missing}: the law was not tried"
