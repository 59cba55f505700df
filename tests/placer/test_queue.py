"""The line and what is said of it: order, places, counts, estimates; and the verb that shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from quintal.contracts import ledger, placement, subjects
from quintal.contracts.message import Reason, Refusal
from quintal.contracts.subjects import Role
from quintal_placer import explaining
from quintal_placer.engine.line import Line, Waiter
from quintal_placer.queue import Queue
from tests.placer.site import AT_MS, Site, asked, inventory, models, only, quota
from tests.placer.town import town
from tests.placer.world import cards, doc, request, until
from tests.support.nats import NatsServer

TTL_MS = 300_000


def a_site(*caps: dict[str, Any], count: int = 4) -> Site:
    documents = [
        *models(), *quota("ml", *caps), *quota("bio"), doc("PriorityClass", "high", value=100),
    ]  # fmt: skip
    return Site(documents, inventory("n1", *cards("n1", "A-80", count)))


def wait(site: Site, name: str, tenant: str = "ml", **more: Any) -> str:
    """Into the queue, whatever is free."""
    ask = asked(0, accelerator=only("a-80"), **more).model_copy(update={"request_id": name})
    site.apply(
        ledger.LeaseQueued(
            at_ms=site.writer.at_ms, lease=f"q-{name}", tenant=tenant, request=ask,
            deadline_ms=site.writer.at_ms + 10**6,
        )
    )  # fmt: skip
    return f"q-{name}"


def estimates(site: Site) -> dict[str, int]:
    return site.desk.waiting.estimates(site.desk.market, site.writer.at_ms)


# --- order --------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.sampled_from(("a", "b")), st.integers(0, 2), st.booleans()), max_size=30)
)
def test_the_line_is_what_sorting_would_give(steps: list[tuple[str, int, bool]]) -> None:
    """Higher priority first, then in order of arrival; places and counts are of that order."""
    line, kept = Line(), []
    for number, (tenant, rank, leaves) in enumerate(steps):
        line.join(str(number), (tenant, "x"), priority="", rank=rank, since_ms=number)
        kept.append((rank, number, tenant))
        if leaves:
            _, gone, _ = kept.pop(len(kept) // 2)
            line.leave(str(gone))
    order = [str(number) for _, number, _ in sorted(kept)]
    assert list(line) == order
    assert [line.place(name) for name in order] == list(range(1, len(order) + 1))
    for tenant in ("a", "b"):
        assert line.waiting(tenant) == sum(its == tenant for _, _, its in kept)
        firsts = [str(number) for _, number, its in sorted(kept) if its == tenant]
        head = line.head((tenant, "x"))
        assert (head.lease if head else None) == (firsts[0] if firsts else None)


def test_another_catalog_ranks_the_line_anew() -> None:
    site = a_site()
    wait(site, "one")
    wait(site, "two", priority="high")
    assert list(site.state.line) == ["q-two", "q-one"]
    rest = [*models(), *quota("ml"), *quota("bio")]
    site.adopt([*rest, doc("PriorityClass", "high", value=-1)], 2)
    assert list(site.state.line) == ["q-one", "q-two"]


# --- estimates ----------------------------------------------------------------------------------


def test_an_estimate_is_the_deadline_of_the_lease_that_stands_in_the_way() -> None:
    site = a_site()
    site.granted(cards=4, accelerator=only("a-80"), ttl_ms=120_000)
    name = wait(site, "one", cards=4)
    assert estimates(site) == {name: 120_000}
    site.writer.at_ms += 20_000
    assert estimates(site) == {name: 100_000}


def test_an_estimate_waits_for_as_many_leases_as_it_takes_and_no_more() -> None:
    site = a_site()
    for seconds in (60, 90, 120, 150):
        site.granted(cards=1, accelerator=only("a-80"), ttl_ms=seconds * 1_000)
    assert estimates(site) == {}
    assert estimates_of(site, cards=1) == 60_000
    assert estimates_of(site, cards=3) == 120_000
    assert estimates_of(site, cards=4) == 150_000


def estimates_of(site: Site, **more: Any) -> int | None:
    """Of one that waits alone."""
    name = wait(site, "alone", **more)
    found = estimates(site).get(name)
    site.apply(ledger.LeaseCancelled(at_ms=site.writer.at_ms, lease=name))
    return found


def test_who_stands_before_is_served_first_and_holds_for_one_ttl() -> None:
    site = a_site()
    site.granted(cards=4, accelerator=only("a-80"), ttl_ms=60_000)
    first = wait(site, "first", cards=4)
    second = wait(site, "second", "bio", cards=1)
    urgent = wait(site, "urgent", "bio", cards=2, priority="high")
    assert estimates(site) == {
        urgent: 60_000, first: 60_000 + TTL_MS, second: 60_000 + 2 * TTL_MS,
    }  # fmt: skip


def test_an_estimate_counts_the_tenants_own_cap() -> None:
    site = a_site({"class": "train_llm", "units": "2"})
    site.granted(cards=2, accelerator=only("a-80"), ttl_ms=60_000)
    capped, other = wait(site, "capped", cards=1), wait(site, "other", "bio", cards=1)
    assert estimates(site) == {capped: 60_000, other: 60_000}


def test_what_is_unknown_has_no_estimate_and_hides_those_behind_it() -> None:
    """A lease whose agent has yet to let go; a cordon; more than the fleet has."""
    site = a_site()
    held = site.granted(cards=4, accelerator=only("a-80"))
    wait(site, "one", cards=4)
    wait(site, "two", "bio", cards=1)
    assert len(estimates(site)) == 2
    site.end(held)
    assert estimates(site) == {}
    cordoned = a_site()
    wait(cordoned, "one", cards=1)
    cordoned.apply(ledger.CordonChanged(at_ms=AT_MS, node="n1", cordoned=True, by="op"))
    assert estimates(cordoned) == {}


def test_the_cpu_that_is_held_beside_the_cards_counts_too() -> None:
    site = a_site(count=8)
    site.granted(accelerator=only("a-80"), node={"cpu_milli": 60_000}, ttl_ms=90_000)
    site.granted(cards=7, accelerator=only("a-80"), ttl_ms=30_000)
    assert estimates_of(site, cards=1, node={"cpu_milli": 10_000}) == 90_000
    assert estimates_of(site, cards=1) == 30_000


# --- priority is a turn, and no claim -----------------------------------------------------------


def why_not(site: Site, **more: Any) -> Reason:
    """What is said of preemption to one who asked with a priority and was refused."""
    ask = asked(99, accelerator=only("a-80"), priority="high", **more)
    assert isinstance(site.desk.decide("bio", ask), Refusal)
    kept = site.desk.explanations.newest("bio", ask.request_id)
    told = explaining.found(site.state, site.desk.explanations, "bio", ask.request_id)
    assert told is not None
    whole = explaining.with_holders(site.state, site.desk.market, "bio", kept, told)
    return whole.reasons[-1]


def test_case_d06_who_has_priority_is_told_why_no_lease_is_ended_for_it() -> None:
    """How many devices victims hold, and whether they would suffice; none is ended here."""
    site = a_site()
    site.granted(cards=2, accelerator=only("a-80"))
    site.granted(cards=2, accelerator=only("a-80"), priority="high")
    enough = why_not(site, cards=2)
    assert (enough.code, enough.count) == ("not_enabled", 2)
    assert "would do, and is not enabled" in enough.message
    short = why_not(site, cards=4)
    assert short.count == 2
    assert "would not do: 1 of its 1 nodes would still be missing" in short.message
    equals = a_site()
    equals.granted(cards=4, accelerator=only("a-80"), priority="high")
    none = why_not(equals, cards=1)
    assert none.count == 0
    assert "no victim" in none.message


# --- the verb -----------------------------------------------------------------------------------


@pytest.mark.bus
@pytest.mark.timeout(90)
async def test_the_queue_is_shown_to_tenants_their_own_and_to_operators_whole(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    """Whoever answers; and what is let go wakes it."""
    devices = {"n1": cards("n1", "BIG-80", 2)}
    async with town(fresh_nats, tmp_path, devices=devices, QUINTAL_PLACER_QUEUED_MAX="2") as its:
        bio = await its.bus("bio", Role.TENANT)
        held = await its.place(request("held", cards=2))
        waits = {"wait": {"mode": "queue", "deadline_ms": 60_000}}
        mine = await its.place(request("mine", cards=2, **waits))
        theirs = await bio.request(
            subjects.PLACE, request("theirs", cards=1, priority="high", **waits), timeout_s=5
        )
        assert isinstance(mine, placement.Pending)
        assert isinstance(theirs, placement.Pending)
        assert (mine.queue_place, theirs.queue_place) == (1, 1)
        assert mine.estimate_ms is not None
        assert 290_000 < mine.estimate_ms <= 300_000

        own = await its.ml.ask(subjects.QUEUE, placement.QueueAsk())
        assert [(row.request_id, row.place) for row in own.rows] == [("mine", 2)]
        assert "bio" not in own.model_dump_json()
        whole = await its.operator.ask(subjects.ALL_QUEUES, placement.QueueAsk())
        assert [(r.place, r.tenant, r.priority) for r in whole.rows] == [
            (1, "bio", "high"), (2, "ml", ""),
        ]  # fmt: skip
        assert (whole.waiting, own.waiting) == (2, 2)
        only_ml = await its.operator.ask(subjects.ALL_QUEUES, placement.QueueAsk(tenant="ml"))
        assert [row.lease for row in only_ml.rows] == [mine.lease]

        await its.place(request("second", cards=2, **waits))
        full = await its.ml.request(subjects.PLACE, request("third", cards=2, **waits))
        assert isinstance(full, Refusal)
        assert full.code == "overloaded"
        another = await bio.request(subjects.PLACE, request("fourth", cards=1, **waits))
        assert isinstance(another, placement.Pending), "the bound is each tenant's own"

        await its.ml.ask(subjects.RELEASE, placement.ReleaseAsk(lease=held.lease))

        async def served() -> bool:
            found = await bio.ask(subjects.GET, placement.GetAsk(request_id="theirs"))
            return bool(found.state == "bound")

        await until(served)
        assert (await its.lease(mine.lease)).state == "queued"
        await its.audited()


# --- a long line --------------------------------------------------------------------------------


def looked_at(
    site: Site, monkeypatch: pytest.MonkeyPatch, each_s: float
) -> tuple[Queue, list[str]]:
    """A queue of which each try takes so long, and whom it looks at; none of them fits."""
    unused: Any = None
    queue, seen = Queue(site.desk, unused, unused), []
    now_s = [0.0]

    def grant(waiter: Waiter) -> bool:
        now_s[0] += each_s
        seen.append(waiter.lease)
        return False

    monkeypatch.setattr(queue, "_grant", grant)
    monkeypatch.setattr("quintal_placer.queue.time.thread_time", lambda: now_s[0])
    return queue, seen


def test_a_look_through_the_line_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries that take long, of large gangs and many alternatives, do not hold up its beats."""
    site = a_site()
    for n in range(40):
        wait(site, f"odd{n}", cards=1 + n)
    queue, seen = looked_at(site, monkeypatch, each_s=0.4)
    queue.work(32, 0.01)
    assert len(seen) == 1


def test_the_many_wishes_of_one_tenant_hide_nobody_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = a_site()
    for n in range(40):
        wait(site, f"odd{n}", cards=1 + n)
    behind = wait(site, "other", tenant="bio")
    queue, seen = looked_at(site, monkeypatch, each_s=0.4)
    for _ in range(2):
        site.state.stir.everything = True  # there is always something new
        queue.work(32, 0.01)
    assert seen == ["q-odd0", behind]
