"""Builders for ledgers written by hand: a `Story` is a ledger that one writes line by line."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from quintal.contracts import ledger
from quintal.contracts.documents import Price, PriceListSpec
from quintal.contracts.ledger import AnyRecord, Group
from quintal.contracts.nodes import DeviceHealth, RawDevice
from quintal.contracts.placement import LeaseDevice
from quintal_metering import checkpoint
from quintal_metering.facts import State
from quintal_metering.fold import fold_group
from quintal_metering.rows import CapacityRow, CensusCheck, Fault, Row, SliceRow
from quintal_metering.turn import PriceLists

HOUR = 3_600_000
T0 = 1_700_000_400_000 - 1_700_000_400_000 % HOUR
MODEL = "nvidia-h100-sxm5-80gb"
POOL = "main"
STU = 1_000_000


def raw(uuid: str, health: str = "ok") -> RawDevice:
    return RawDevice(uuid=uuid, index=0, vendor="nvidia", name="H100", health=DeviceHealth(health))


def card(uuid: str, node: str = "n1", **more: Any) -> LeaseDevice:
    facts = {"index": 0, "vendor": "nvidia", "model": MODEL, "pool": POOL, "rating_micro": STU}
    return LeaseDevice(node=node, uuid=uuid, **{**facts, **more})


def price_list(amount: str, per: str = "unit_hour", from_ms: int = 0, **more: Any) -> PriceListSpec:
    return PriceListSpec(
        currency="EUR",
        valid_from_ms=from_ms,
        prices=(Price(amount=Decimal(amount), per=per),),
        **more,
    )


@dataclass
class Story:
    """A ledger: `at` sets the time of what follows, each verb is a message of its own."""

    prices: dict[int, PriceLists] = field(default_factory=lambda: {0: ()})
    groups: list[Group] = field(default_factory=list)
    now: int = T0
    _together: list[AnyRecord] | None = None

    def at(self, ms: int) -> Story:
        self.now = T0 + ms
        return self

    def tell(self, *records: AnyRecord) -> Story:
        at = len(self.groups)
        self.groups.append(
            Group(epoch=1, writer="p1", group=at, expected=at, transitions=tuple(records))
        )
        return self

    def tick(self) -> Story:
        return self.tell(ledger.Tick(at_ms=self.now))

    def adopt(self, revision: int, *lists: PriceListSpec) -> Story:
        self.prices[revision] = tuple((f"list-{i}", spec) for i, spec in enumerate(lists))
        return self.tell(ledger.CatalogAdopted(at_ms=self.now, revision=revision, digest=""))

    def node(self, name: str = "n1", boot: str = "b1") -> Story:
        return self.tell(ledger.NodeChanged(at_ms=self.now, node=name, boot_id=boot))

    def appear(
        self, uuid: str, node: str = "n1", model: str | None = MODEL, pool: str = POOL,
        health: str = "ok",
    ) -> Story:  # fmt: skip
        return self.tell(
            ledger.DeviceAppeared(
                at_ms=self.now, node=node, device=raw(uuid, health), model=model, pool=pool
            )
        )

    def grant(
        self, lease: str, *cards: LeaseDevice, bound: bool = False, tenant: str = "a", **more: Any
    ) -> Story:
        return self.tell(
            ledger.LeaseGranted(
                at_ms=self.now,
                lease=lease,
                token=1,
                tenant=tenant,
                workload_class="train_llm",
                devices=cards,
                ttl_ms=300_000,
                deadline_ms=self.now + 300_000,
                bound=bound,
                **more,
            )
        )

    def bind(self, lease: str) -> Story:
        return self.tell(ledger.LeaseBound(at_ms=self.now, lease=lease))

    def end(self, lease: str, effective: int | None = None, reason: str = "released") -> Story:
        at = self.now if effective is None else T0 + effective
        return self.tell(
            ledger.LeaseEnding(at_ms=self.now, lease=lease, reason=reason, effective_ms=at)
        )

    def released(self, lease: str, node: str = "n1") -> Story:
        return self.tell(ledger.NodeReleased(at_ms=self.now, lease=lease, node=node, by="agent"))

    def ended(self, lease: str) -> Story:
        return self.tell(ledger.LeaseEnded(at_ms=self.now, lease=lease))

    def census(self, *rows: ledger.CensusRow, cause: str = "snapshot") -> Story:
        return self.tell(ledger.Census(at_ms=self.now, cause=cause, rows=rows))

    def told(self, checkpoints: Collection[int] = ()) -> Told:
        """Folded from the start; the state goes through its checkpoint after these sequences."""
        told = Told(State(), [])
        for sequence, group in enumerate(self.groups, 1):
            again = Group.model_validate_json(group.model_dump_json())
            told.state, rows = fold_group(told.state, sequence, again, self.prices)
            told.rows.extend(rows)
            if sequence in checkpoints:
                told.state = through_checkpoint(told.state)
        return told


def through_checkpoint(state: State) -> State:
    back = checkpoint.read(checkpoint.written(state))
    assert back == state
    return back


@dataclass
class Told:
    """What came of a story."""

    state: State
    rows: list[Row]

    @property
    def slices(self) -> list[SliceRow]:
        return [row for row in self.rows if isinstance(row, SliceRow)]

    @property
    def faults(self) -> list[str]:
        return [row.code for row in self.rows if isinstance(row, Fault)]

    @property
    def censuses(self) -> list[CensusCheck]:
        return [row for row in self.rows if isinstance(row, CensusCheck)]

    def capacity(self, hour: int = 0, pool: str = POOL, model: str = MODEL) -> dict[str, int]:
        """reason -> parts x ms in one hour, adjustments included."""
        found: dict[str, int] = {}
        for row in self.rows:
            if not isinstance(row, CapacityRow):
                continue
            if (row.pool, row.model, row.hour_ms) == (pool, model, T0 + hour * HOUR):
                found[row.reason] = found.get(row.reason, 0) + row.part_ms
        return {reason: number for reason, number in found.items() if number}

    def quantity(self, key: Callable[[SliceRow], object] = lambda _: True) -> int:
        return sum(row.quantity for row in self.slices if key(row))
