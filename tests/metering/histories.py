"""Generated ledgers that a placer could have written, and a slow reckoning of what they come to.

The reckoning shares nothing with the fold: it cuts all of time at every instant that anything
names, and asks for each stretch and each device, from the whole ledger at once, what it was.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from quintal.contracts import ledger
from tests.metering.story import HOUR, MODEL, T0, Story, card, price_list, raw

PARTS = 1_000_000
NODES = ("n1", "n2")
DEVICES = tuple((node, f"{node}g{i}") for node in NODES for i in range(2))
POOLS = ("main", "other")

_WEIGHTS = {
    "appear": 2, "gone": 1, "resolve": 2, "health": 1, "dispute": 1, "cordon": 1, "taint": 1,
    "liveness": 1, "retire": 1, "grant": 8, "bind": 8, "move": 1, "end": 2, "late_end": 6,
    "release": 2, "finish": 4, "adopt": 2, "tick": 2, "census": 1, "cut": 3, "part": 8,
}  # fmt: skip
OPS = tuple(op for op, weight in _WEIGHTS.items() for _ in range(weight))
"""Drawn so that most histories hold leases that end late, over closed hours."""

steps = st.lists(
    st.tuples(
        st.sampled_from((0, 1, 17, 600_000, 1_800_000, HOUR, HOUR, 2 * HOUR + 1)),
        st.sampled_from(OPS),
        st.integers(0, 11),
    ),
    min_size=12,
    max_size=50,
)


@dataclass
class Known:
    """A lease, as the writer of the history knows it."""

    name: str
    cards: tuple[Any, ...]
    state: str = "granted"
    bound: int | None = None
    waiting: list[str] = field(default_factory=list)


@dataclass
class History:
    """Writes a story step by step, as a placer may: a device whole, or shared, or cut."""

    story: Story = field(default_factory=Story)
    present: set[tuple[str, str]] = field(default_factory=set)
    leases: list[Known] = field(default_factory=list)
    granted: int = 0
    ms: int = 0
    cuts: dict[tuple[str, str], tuple[int, tuple[ledger.PartitionFact, ...]]] = field(
        default_factory=dict
    )

    def held(self) -> set[tuple[str, str]]:
        return {
            (c.node, c.uuid)
            for lease in self.leases
            for c in lease.cards
            if lease.state != "ending" or c.node in lease.waiting
        }

    def step(self, passed: int, op: str, n: int) -> None:
        self.ms += passed
        self.story.at(self.ms)
        getattr(self, op)(n)

    def tell(self, kind: type[ledger.Record], **facts: Any) -> None:
        self.story.tell(kind(at_ms=self.story.now, **facts))  # type: ignore[arg-type]

    def appear(self, n: int) -> None:
        node, uuid = DEVICES[n % len(DEVICES)]
        if (node, uuid) not in self.present:
            self.present.add((node, uuid))
            self.cuts.pop((node, uuid), None)
            model = None if n >= 10 else MODEL
            self.tell(
                ledger.DeviceAppeared, node=node, device=raw(uuid), model=model, pool=POOLS[n % 2]
            )

    def gone(self, n: int) -> None:
        if self.present:
            node, uuid = sorted(self.present)[n % len(self.present)]
            self.present.discard((node, uuid))
            self.tell(ledger.DeviceGone, node=node, uuid=uuid)

    def resolve(self, n: int) -> None:
        if self.present:
            node, uuid = sorted(self.present)[n % len(self.present)]
            model = None if n >= 10 else MODEL
            self._resolved((node, uuid), model, POOLS[n // 2 % 2])

    def _resolved(self, key: tuple[str, str], model: str | None, pool: str) -> None:
        smallest, partitions = self.cuts.get(key, (PARTS, ()))
        self.tell(
            ledger.DeviceResolved, node=key[0], uuid=key[1], model=model, pool=pool,
            smallest_parts=smallest, partitions=partitions,
        )  # fmt: skip

    def cut(self, n: int) -> None:
        """A device that nobody holds is cut anew, or made whole, or shared."""
        free = self._free(cut=True)
        if free:
            key = free[n % len(free)]
            shapes = ((), (500_000, 375_000), (250_000,) * 3, (500_000, 500_000))[n % 4]
            facts = tuple(
                ledger.PartitionFact(uuid=f"{key[1]}-{self.ms}-{i}", profile="p", parts=parts)
                for i, parts in enumerate(shapes)
            )
            self.cuts[key] = ((100_000, PARTS)[n // 4 % 2], facts)
            self._resolved(key, MODEL, POOLS[n % 2])

    def part(self, n: int) -> None:
        """A share beside others, or a partition beside others."""
        for key in sorted(self.present):
            smallest, partitions = self.cuts.get(key, (PARTS, ()))
            holds = [
                c
                for lease in self.leases
                for c in lease.cards
                if (c.node, c.uuid) == key and (lease.state != "ending" or c.node in lease.waiting)
            ]
            taken = {c.partition for c in holds}
            left = PARTS - sum(c.parts for c in holds)
            if partitions:
                free = [p for p in partitions if p.uuid not in taken][: 1 + n % 2]
                cards = tuple(
                    card(key[1], key[0], parts=p.parts, partition=p.uuid, partition_profile="p",
                         rating_micro=120_000, charged_parts=PARTS if n % 2 else None)
                    for p in free if None not in taken
                )  # fmt: skip
            else:
                fits = smallest < PARTS and left >= 300_000
                cards = (card(key[1], key[0], parts=300_000),) if fits else ()
            if cards:
                self._granted(n, cards)
                return

    def health(self, n: int) -> None:
        if self.present:
            node, uuid = sorted(self.present)[n % len(self.present)]
            health = ("ok", "degraded", "failed", "unknown")[n % 4]
            self.tell(ledger.DeviceHealthChanged, node=node, uuid=uuid, health=health)

    def dispute(self, n: int) -> None:
        if self.present:
            node, uuid = sorted(self.present)[n % len(self.present)]
            self.tell(ledger.DisputeChanged, node=node, uuid=uuid, disputed=n % 3 > 0)

    def cordon(self, n: int) -> None:
        self.tell(
            ledger.CordonChanged,
            node=NODES[n % 2],
            cordoned=n % 3 > 0,
            by=("op", "catalog")[n // 6],
        )

    def taint(self, n: int) -> None:
        self.tell(ledger.TaintChanged, node=NODES[n % 2], taint="t", present=n % 3 > 0, by="op")

    def liveness(self, n: int) -> None:
        state = ("ready", "suspect", "lost")[n % 3]
        self.tell(ledger.LivenessChanged, node=NODES[n // 6], liveness=state, heard_ms=0)

    def retire(self, n: int) -> None:
        node = NODES[n % 2]
        if not any(c.node == node for lease in self.leases for c in lease.cards):
            self.present = {key for key in self.present if key[0] != node}
            self.tell(ledger.NodeRetired, node=node, by="op")

    def _free(self, *, cut: bool = False) -> list[tuple[str, str]]:
        """Devices that nobody holds; but for those that are cut, unless these are asked for too."""
        free = sorted(self.present - self.held())
        return [key for key in free if cut or not self.cuts.get(key, (PARTS, ()))[1]]

    def grant(self, n: int) -> None:
        free = self._free()[: 1 + n % 3]
        if not free:
            return
        cards = tuple(
            card(
                uuid, node, rating_micro=1_000_000 + 7 * (n % 2), parts=PARTS if n % 4 else 400_000
            )
            for node, uuid in free
        )
        self._granted(n, cards)

    def _granted(self, n: int, cards: tuple[Any, ...]) -> None:
        self.granted += 1
        lease = Known(f"l{self.granted}", cards)
        self.leases.append(lease)
        self.story.grant(lease.name, *cards, bound=n > 4, tenant=f"t{n % 3}")
        if n > 4:
            lease.state, lease.bound = "bound", self.ms

    def _pick(self, n: int, *states: str) -> Known | None:
        found = [lease for lease in self.leases if lease.state in states]
        return found[n % len(found)] if found else None

    def bind(self, n: int) -> None:
        if lease := self._pick(n, "granted"):
            lease.state, lease.bound = "bound", self.ms
            self.story.bind(lease.name)

    def move(self, n: int) -> None:
        lease, free = self._pick(n, "granted"), self._free()
        if lease and free:
            lease.cards = tuple(card(uuid, node) for node, uuid in free[:2])
            self.tell(ledger.LeaseMoved, lease=lease.name, token=2, devices=lease.cards)

    def end(self, n: int) -> None:
        if lease := self._pick(n, "granted", "bound"):
            self._end(lease, self.ms)

    def late_end(self, n: int) -> None:
        if lease := self._pick(n, "bound"):
            back = (1, 999, 600_000, HOUR, 2 * HOUR, 3 * HOUR + 5)[n % 6]
            self._end(lease, max(0, self.ms - back))

    def _end(self, lease: Known, effective: int) -> None:
        lease.state, lease.waiting = "ending", sorted({c.node for c in lease.cards})
        self.story.end(lease.name, effective)

    def release(self, n: int) -> None:
        lease = self._pick(n, "ending")
        if lease and lease.waiting:
            self.story.released(lease.name, lease.waiting.pop())

    def finish(self, n: int) -> None:
        if lease := self._pick(n, "ending"):
            self.leases.remove(lease)
            self.story.ended(lease.name)

    def adopt(self, n: int) -> None:
        revision = max(self.story.prices) + 1
        later = price_list("0.7", "card_hour", self.story.now + 1_000_000)
        self.story.adopt(revision, price_list(f"{n + 1}.37"), *([later] if n % 2 else []))

    def tick(self, n: int) -> None:
        self.story.tick()

    def census(self, n: int) -> None:
        self.story.census()


def written(drawn: list[tuple[int, str, int]]) -> Story:
    """A story of these steps: two nodes, two devices each, then what was drawn, then a tick."""
    history = History()
    for n in range(len(DEVICES)):
        history.step(0, "appear", n)
    for passed, op, n in drawn:
        history.step(passed, op, n)
    history.story.tick()
    return history.story


# --- the slow reckoning -----------------------------------------------------------------------


@dataclass
class Reckoned:
    """What the ledger comes to: parts x ms."""

    usage: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    """(lease, from, to) -> leased parts x ms of that stretch."""
    capacity: Counter[tuple[str, str, int, str]] = field(default_factory=Counter)
    edges: list[int] = field(default_factory=list)
    until: int = 0


def reckoned(story: Story) -> Reckoned:
    records = [record for group in story.groups for record in group.transitions]
    until = records[-1].at_ms
    edges = {record.at_ms for record in records}
    edges |= {r.effective_ms for r in records if isinstance(r, ledger.LeaseEnding)}
    edges |= {
        edge
        for lists in story.prices.values()
        for _, spec in lists
        for edge in (spec.valid_from_ms,)
        if T0 <= edge <= until
    }
    edges |= set(range(T0, until + 1, HOUR))
    ordered = sorted(edges)
    found = Reckoned(edges=ordered, until=until)
    overs = {r.lease: r.effective_ms for r in records if isinstance(r, ledger.LeaseEnding)}
    for start, end in itertools.pairwise(ordered):
        _stretch(found, [r for r in records if r.at_ms <= start], overs, start, end)
    return found


def _stretch(found: Reckoned, past: list[Any], overs: dict[str, int], start: int, end: int) -> None:
    devices: dict[tuple[str, str], dict[str, Any]] = {}
    nodes: dict[str, dict[str, Any]] = {}
    leases: dict[str, dict[str, Any]] = {}
    for record in past:
        _replay(record, devices, nodes, leases)
    parts: dict[tuple[str, str], list[tuple[str, Any]]] = {}
    for name, lease in leases.items():
        over = lease["ending"] or (lease["bound"] and overs.get(name, end) <= start)
        state = "releasing" if over else "leased" if lease["bound"] else "binding"
        for c in lease["cards"]:
            if c.node not in lease["released"]:
                parts.setdefault((c.node, c.uuid), []).append((state, c))
                if state == "leased":
                    found.usage[name, start, end] += c.parts * (end - start)
    for key, device in devices.items():
        node = nodes.get(key[0], {})
        cell = (device["pool"], device["model"] or "", start - start % HOUR)
        found.capacity[(*cell, "total")] += PARTS * (end - start)
        for state, count in _made_of(device, _why(device, node), parts.get(key, [])):
            found.capacity[(*cell, state)] += count * (end - start)


def _made_of(
    device: dict[str, Any], base: str, holds: list[tuple[str, Any]]
) -> list[tuple[str, int]]:
    """What each part of a device is, a part at a time."""
    found = [(state, c.parts) for state, c in holds]
    left = PARTS - sum(count for _, count in found)
    if any(c.partition is None for _, c in holds):
        usable = left >= device["smallest"] and not device["cut"]
        return [*found, (base if usable else "stranded", left)]
    if not holds and not device["cut"]:
        return [(base, PARTS)]
    taken = {c.partition for _, c in holds}
    free = [(base, count) for uuid, count in device["cut"] if uuid not in taken]
    return [*found, *free, ("partition_overhead", left - sum(count for _, count in free))]


def _cut_of(record: Any) -> dict[str, Any]:
    return {
        "smallest": record.smallest_parts, "cut": [(p.uuid, p.parts) for p in record.partitions]
    }  # fmt: skip


def _why(device: dict[str, Any], node: dict[str, Any]) -> str:
    if node.get("liveness", "ready") != "ready":
        return node["liveness"]
    if any(node.get("cordons", {}).values()):
        return "cordoned"
    if node.get("tainted"):
        return "tainted"
    if device["disputed"]:
        return "disputed"
    if device["health"] not in ("ok", "degraded"):
        return "unhealthy"
    return "free" if device["model"] else "unresolved"


def _replay(record: Any, devices: Any, nodes: Any, leases: Any) -> None:
    node = nodes.setdefault(getattr(record, "node", ""), {})
    match record.kind:
        case "device_appeared":
            devices[record.node, record.device.uuid] = {
                "model": record.model, "pool": record.pool, "health": "ok", "disputed": False,
                **_cut_of(record),
            }  # fmt: skip
        case "device_gone":
            del devices[record.node, record.uuid]
        case "device_resolved":
            its = {"model": record.model, "pool": record.pool, **_cut_of(record)}
            devices[record.node, record.uuid].update(its)
        case "device_health":
            devices[record.node, record.uuid]["health"] = record.health
        case "dispute":
            devices[record.node, record.uuid]["disputed"] = record.disputed
        case "cordon":
            node.setdefault("cordons", {})[record.by] = record.cordoned
        case "taint":
            node["tainted"] = record.present
        case "liveness":
            node["liveness"] = record.liveness
        case "retired":
            node.clear()
            for key in [key for key in devices if key[0] == record.node]:
                del devices[key]
        case "granted":
            leases[record.lease] = {
                "cards": record.devices, "bound": record.bound, "ending": False, "released": set(),
            }  # fmt: skip
        case "bound":
            leases[record.lease]["bound"] = True
        case "moved":
            leases[record.lease]["cards"] = record.devices
        case "ending":
            leases[record.lease]["ending"] = True
        case "node_released":
            leases[record.lease]["released"].add(record.node)
        case "ended":
            del leases[record.lease]
