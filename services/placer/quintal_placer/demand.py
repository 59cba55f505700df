"""What a request adds to the history that packing looks ahead with. Pure: a fold of the ledger.

A request counts once, when the ledger first names it: queued, or granted at once. What was adopted
was placed by others, and is not counted. The shape is the request's own, by the catalog of its
time, and not what it was given: who may go anywhere names no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from quintal.contracts import ledger
from quintal.contracts.documents import AcceleratorNeed, Catalog
from quintal.contracts.placement import PlaceAsk
from quintal.units import PARTS, parse_bytes
from quintal_placer import asking
from quintal_placer.engine.packing.shapes import Demand, Shape

KEPT_MAX: Final = 10_000


class Shapes:
    """The shapes of requests under one catalog; needs repeat, so its answers are kept."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._kept: dict[object, Shape | None] = {}
        self._models: dict[tuple[AcceleratorNeed, ...], tuple[str, ...]] = {}

    def of(self, ask: PlaceAsk) -> Shape | None:
        """What the request asks of each node, its first alternative; none where that is no card."""
        if ask.node is not None or ask.alternatives or ask.members:
            return self._shape(ask)
        key = (ask.profile, ask.workload, ask.variant, ask.cards, ask.nodes, ask.accelerator)
        if key not in self._kept:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[key] = self._shape(ask)
        return self._kept[key]

    def _shape(self, ask: PlaceAsk) -> Shape | None:
        wanted = asking.wanted(self._catalog, ask)
        if wanted is None:
            return None
        needs, cards, node = wanted
        cut = asking.cut_need(needs)
        if needs[-1].kind == "cpu" or cut.partition:
            return None
        models = self._admissible(needs)
        return Shape(cards, self._parts(cut, models), node.cpu_milli, node.memory_bytes, models)

    def _admissible(self, needs: tuple[AcceleratorNeed, ...]) -> tuple[str, ...]:
        """Names, in order; none where every accelerator of the catalog would do."""
        found = self._models.get(needs)
        if found is None:
            known = {n: m for n, m in self._catalog.models.items() if m.kind == "accelerator"}
            found = tuple(
                name
                for name, spec in sorted(known.items())
                if not any(asking.lacks(name, spec, need, asking.cut_need(needs)) for need in needs)
            )
            if len(found) == len(known):
                found = ()
            if len(self._models) >= KEPT_MAX:
                self._models.clear()
            self._models[needs] = found
        return found

    def _parts(self, need: AcceleratorNeed, models: tuple[str, ...]) -> int:
        """Of a share: as it would be charged on the smallest card that would do."""
        if need.share is None:
            return PARTS
        parts = need.share.compute_milli * (PARTS // 1000)
        if need.share.memory:
            sizes = [spec.memory_bytes for n, spec in self._catalog.models.items() if n in models]
            if sizes:
                memory = parse_bytes(need.share.memory)
                parts = max(parts, -(-memory * PARTS // min(sizes)))
        return min(parts, PARTS)


def kept(known: Demand, at_ms: int) -> ledger.HistoryKept:
    """The history as a snapshot has it."""
    return ledger.HistoryKept(
        at_ms=at_ms,
        counts=tuple(_rows(known.counts.items())),
        target=tuple(_rows(known.target.shapes)),
    )


def restore(known: Demand, record: ledger.HistoryKept) -> None:
    """As the placer had it that wrote the snapshot."""
    known.restore(_counts(record.counts), dict(_counts(record.target)))


def _rows(counts: Iterable[tuple[Shape, int]]) -> Iterator[ledger.ShapeCount]:
    for shape, count in sorted(counts):
        yield ledger.ShapeCount(
            cards=shape.cards, parts=shape.parts, cpu_milli=shape.cpu_milli,
            memory_bytes=shape.memory_bytes, models=shape.models, count=count,
        )  # fmt: skip


def _counts(rows: Iterable[ledger.ShapeCount]) -> Iterator[tuple[Shape, int]]:
    for row in rows:
        yield Shape(row.cards, row.parts, row.cpu_milli, row.memory_bytes, row.models), row.count
