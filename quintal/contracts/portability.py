"""Asking the catalog what runs where: a workload over the fleet, a place over workloads."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from quintal.contracts.boundaries import CompatibilityVerdict, NodeStack
from quintal.contracts.catalog import SourceFile
from quintal.contracts.message import Answer, Ask, Money, Name, Token
from quintal.errors import Owner

WRITTEN_MAX: Final = 65_536
"""Of a workload that anybody may have judged; a catalog file may be longer."""


class _WorkloadAsk(Ask):
    workload: Name | None = None
    """One of the catalog's."""
    file: SourceFile | None = None
    """Or one as written, that need not be applied."""

    @model_validator(mode="after")
    def _names_one(self) -> _WorkloadAsk:
        if (self.workload is None) == (self.file is None):
            raise ValueError("give a workload of the catalog, or a file with one")
        if self.file is not None and len(self.file.text) > WRITTEN_MAX:
            raise ValueError(f"a workload as written has at most {WRITTEN_MAX} characters")
        return self


class FitAsk(_WorkloadAsk):
    """Does this workload run here? Give a node, a pool, or a stack with the models on it."""

    node: Token | None = None
    pool: Name | None = None
    stack: NodeStack | None = None
    models: Annotated[tuple[Name, ...], Field(max_length=64)] = ()
    """With a stack: on these; empty: on each model that the variants are built for."""

    @model_validator(mode="after")
    def _names_a_place(self) -> FitAsk:
        if sum(place is not None for place in (self.node, self.pool, self.stack)) != 1:
            raise ValueError("give one of node, pool, stack")
        return self


class PortabilityAsk(_WorkloadAsk):
    """Over the whole fleet as far as the asker may see it: where it runs, and what that costs."""


class CanRunAsk(Ask):
    """Of all workloads that the asker may see: which run on this node or pool."""

    node: Token | None = None
    pool: Name | None = None

    @model_validator(mode="after")
    def _names_a_place(self) -> CanRunAsk:
        if (self.node is None) == (self.pool is None):
            raise ValueError("give a node or a pool")
        return self


class FitRow(Answer):
    """One variant on one model under one software."""

    workload: str
    variant: str
    model: str
    pool: str = ""
    nodes: tuple[str, ...] = ()
    """At most 20 of them."""
    count: int = 0
    """Nodes of this software that have the model."""
    software: dict[str, str] = Field(default_factory=dict)
    verdict: CompatibilityVerdict
    accepted: bool
    """Whether policy lets it through."""
    bound: str = ""
    """The failing bound."""
    passing: str = ""
    """What would pass."""
    owner: Owner | None = None
    """Whose move it is."""
    boundary: str = ""
    source: str = ""


class Fit(Answer):
    """Every variant on every model there."""

    kind: Literal["fit"] = "fit"
    accept: CompatibilityVerdict
    """The lowest verdict that policy accepts."""
    runs: bool
    """Whether some variant is accepted on something there."""
    rows: tuple[FitRow, ...]
    revision: int = 0


class PortabilityRow(Answer):
    """What becomes of a workload on one model of one pool under one software."""

    pool: str
    model: str
    software: dict[str, str] = Field(default_factory=dict)
    devices: int
    outcome: Literal["runs", "after_conversion", "no"]
    variant: str = ""
    toolchain: str = ""
    verdict: CompatibilityVerdict
    reason: str = ""
    passing: str = ""
    owner: Owner | None = None
    units: str | None = None
    """Of the workload's class, all devices together; none where the model is unrated in it."""
    estimated: bool = False
    """The rating is derived or by formula."""
    price_per_unit_hour: Money | None = None
    expected_cost: Money | None = None
    """Of one run, with the conversion's one-off cost where it takes one."""


class Portability(Answer):
    """Where a workload runs, and how much of the fleet is closed to it."""

    kind: Literal["portability"] = "portability"
    workload: str
    workload_class: Annotated[str, Field(alias="class")]
    rows: tuple[PortabilityRow, ...]
    units: str
    """Of all rated devices of its profile's kind."""
    units_open: str
    """Of those on which it runs as it is."""
    units_after_conversion: str
    """Of those on which it would run after an approved conversion."""
    open_percent: str | None = None
    """Share of the units on which it runs as it is; the rest is the lock-in. None: no units."""
    open_after_conversion_percent: str | None = None
    ecosystems: tuple[str, ...] = ()
    """That it runs on as it is."""
    currency: str = ""
    revision: int = 0


class CanRun(Answer):
    """What can run at a place, the best variant of each workload."""

    kind: Literal["can_run"] = "can_run"
    rows: tuple[FitRow, ...]
    revision: int = 0
