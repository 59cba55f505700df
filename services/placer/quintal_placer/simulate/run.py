"""One run: a fleet, arrivals, a policy. What was placed, refused, waited for, and at what cost."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from quintal.units import MS_PER_HOUR, PARTS
from quintal_placer.engine.packing.shapes import Target
from quintal_placer.simulate import policies
from quintal_placer.simulate.trace import NodeLine, RequestLine
from quintal_placer.simulate.yard import Held, Yard

Ticks = Callable[[], int]
"""A clock of nanoseconds, for what decisions cost: of this thread alone, where others work too."""

MILLION = 1_000_000


@dataclass(slots=True)
class Outcome:
    """What one run came to. Ratios are in percent of the fleet's cards."""

    policy: str
    seed: int
    arrivals: int = 0
    demand: float = 0.0
    placed: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    allocation: dict[int, float] = field(default_factory=dict)
    """Arrived demand in whole percents -> allocated, the mean of the arrivals that round to it."""
    fragmentation: float = 0.0
    waits_ms: list[int] = field(default_factory=list)
    """Of those that were placed; 0 for who was placed at once."""
    micro: Counter[str] = field(default_factory=Counter)
    """Tenant -> micro-units held at the end; with departures, micro-unit-hours."""
    cost_nano: int = 0
    """The same in money."""
    decision_ns: list[int] = field(default_factory=list)
    mean_allocation: float | None = None
    """Over time, with departures."""
    lost: float | None = None
    """Demand that was not placed, with departures."""

    def at(self, percent: int) -> float | None:
        """The allocation when so much had arrived."""
        known = [each for each in self.allocation if each <= percent]
        return self.allocation[max(known)] if known else None


@dataclass(frozen=True, slots=True)
class Setup:
    """What all runs of a comparison share."""

    nodes: Sequence[NodeLine]
    known: Target
    """The list as a whole: what FGD is given, and what fragmentation is measured against."""
    ticks: Ticks
    warm: bool = False
    """Whether the engine's own history starts as the whole list, not as nothing."""


def yard(setup: Setup, policy: str, seed: int) -> Yard:
    """The fleet, empty, with the run's own order among equal nodes."""
    chance = Random(f"yard {seed}")  # noqa: S311 - a simulation, not a secret
    made = Yard(setup.nodes, policy, setup.known, chance, salt=f"{seed}/")
    if setup.warm:
        counts = dict(setup.known.shapes)
        made.fleet.packing.demand.restore(counts.items(), counts)
    return made


def fill_up(setup: Setup, policy: str, seed: int, stream: Sequence[RequestLine]) -> Outcome:
    """Arrivals that never leave; one that fits nowhere is dropped."""
    world, out = yard(setup, policy, seed), Outcome(policy, seed)
    arrived = 0
    bins: dict[int, list[float]] = {}
    for number, line in enumerate(stream):
        held = _decide(world, _named(line, number), setup.ticks, out)
        arrived += line.asked
        percent = (arrived * 200 + world.capacity) // (2 * world.capacity)
        bins.setdefault(percent, []).append(world.allocated)
        if held is not None:
            out.placed += 1
            out.micro[line.tenant] += held.micro
            out.cost_nano += held.price_nano
    scale = 100 / world.capacity
    out.arrivals, out.demand = len(stream), arrived * scale
    out.allocation = {at: sum(seen) / len(seen) * scale for at, seen in sorted(bins.items())}
    out.fragmentation = 100 * policies.fragmentation(world.fleet.packing, setup.known)
    return out


def timed(
    setup: Setup, policy: str, seed: int, stream: Sequence[RequestLine], span: tuple[int, int]
) -> Outcome:
    """Arrivals with times, that leave and may wait; measured over `span`."""
    world, out = yard(setup, policy, seed), Outcome(policy, seed)
    town = _Town(setup, world, out, span)
    for number, line in enumerate(sorted(stream, key=lambda line: line.at_ms or 0)):
        town.go_to(line.at_ms or 0)
        town.arrive(_named(line, number))
    town.go_to(span[1])
    town.close()
    return out


class _Town:
    """The event loop of a run with departures."""

    def __init__(self, setup: Setup, world: Yard, out: Outcome, span: tuple[int, int]) -> None:
        self._setup, self._world, self._out = setup, world, out
        self._from, self._until = span
        self._now = 0
        self._ends: list[tuple[int, int, Held]] = []
        self._waiting: deque[RequestLine] = deque()
        self._held_ms = 0
        """Parts x ms held within the span."""
        self._asked = self._lost = 0
        self._open: dict[str, tuple[int, Held]] = {}

    def go_to(self, at_ms: int) -> None:
        """All ends until then, and what waited for them."""
        while self._ends and self._ends[0][0] <= at_ms:
            self._pass(self._ends[0][0])
            while self._ends and self._ends[0][0] == self._now:
                self._end(heapq.heappop(self._ends)[2])
            self._retry()
        self._pass(at_ms)

    def arrive(self, line: RequestLine) -> None:
        """One request; what finds no room waits if it may, else it is lost."""
        self._out.arrivals += 1
        self._out.demand += line.asked * 100 / self._world.capacity
        measured = self._now >= self._from
        self._asked += line.asked if measured else 0
        if self._try(line):
            return
        if line.wait_ms:
            self._waiting.append(line)
        else:
            self._lost += line.asked if measured else 0

    def close(self) -> None:
        """Those that still hold, up to now; those that still wait are lost."""
        for since, held in self._open.values():
            self._pay(since, held)
        self._lost += sum(line.asked for line in self._waiting)
        out, world = self._out, self._world
        span = max(1, self._until - self._from)
        out.mean_allocation = self._held_ms * 100 / (span * world.capacity)
        out.lost = self._lost * 100 / self._asked if self._asked else 0.0
        out.fragmentation = 100 * policies.fragmentation(world.fleet.packing, self._setup.known)

    def _try(self, line: RequestLine) -> bool:
        held = _decide(self._world, line, self._setup.ticks, self._out)
        if held is None:
            return False
        self._out.placed += 1
        self._out.waits_ms.append(self._now - (line.at_ms or 0))
        self._open[line.name] = (self._now, held)
        if line.duration_ms is not None:
            end = self._now + line.duration_ms
            heapq.heappush(self._ends, (end, self._out.placed, held))
        return True

    def _retry(self) -> None:
        """In order of arrival; who does not fit lets others by, who waited too long is lost."""
        for _ in range(len(self._waiting)):
            line = self._waiting.popleft()
            if self._now - (line.at_ms or 0) > line.wait_ms:
                self._lost += line.asked
                self._out.failures["deadline"] += 1
            elif not self._try(line):
                self._waiting.append(line)

    def _end(self, held: Held) -> None:
        since, _ = self._open.pop(held.line.name)
        self._pay(since, held)
        self._world.let_go(held)

    def _pay(self, since: int, held: Held) -> None:
        hours = (self._now - since) / MS_PER_HOUR
        self._out.micro[held.line.tenant] += round(held.micro * hours)
        self._out.cost_nano += round(held.price_nano * hours)

    def _pass(self, at_ms: int) -> None:
        begin, end = max(self._now, self._from), min(at_ms, self._until)
        if end > begin:
            self._held_ms += (end - begin) * self._world.allocated
        self._now = max(self._now, at_ms)


def _decide(world: Yard, line: RequestLine, ticks: Ticks, out: Outcome) -> Held | None:
    begin = ticks()
    held = world.place(line)
    out.decision_ns.append(ticks() - begin)
    if held is None:
        out.failures[world.reason(line)] += 1
    else:
        world.saw(line)
    return held


def _named(line: RequestLine, number: int) -> RequestLine:
    """Under a name of its own: a list is drawn from more than once."""
    return RequestLine(
        f"{number}", line.tenant, line.profile, line.cards, line.parts, line.cpu_milli,
        line.memory_bytes, line.models, line.at_ms, line.duration_ms, line.wait_ms,
    )  # fmt: skip


assert PARTS == MILLION
