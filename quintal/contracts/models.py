"""One kind of accelerator: how to recognise it, how it can be cut, what it delivers."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from quintal import roofline
from quintal.contracts.message import Exact, Name
from quintal.contracts.spec import Provenance, Spec, WorkloadClass, memory_range
from quintal.units import to_micro

ESTIMATED: Final = frozenset({"derived", "roofline"})
"""Provenances that no measurement of the very device stands behind."""


class Rating(Spec):
    """How much of the class's unit one whole device delivers. The reference card is 1."""

    workload_class: Annotated[WorkloadClass, Field(alias="class")]
    precision: str = ""
    """fp4, fp8, bf16, fp64, ...; empty holds for any precision that has no rating of its own."""
    value: Exact
    low80: Exact | None = None
    high80: Exact | None = None
    provenance: Provenance
    evidence: str = ""
    """What it rests on: rounds and cells of a benchmark, the formula, the parent."""
    date: str = ""
    version: str = "1"
    per: Literal["device", "core"] = "device"
    """A CPU is rated by the core; the device counts its cores."""

    @property
    def micro(self) -> int:
        """The value in micro-units."""
        return to_micro(Decimal(self.value))

    @property
    def low_micro(self) -> int:
        """The low end of the 80 % band; the value where no band is known."""
        return self.micro if self.low80 is None else to_micro(self.low80)

    @property
    def high_micro(self) -> int:
        """The high end of the 80 % band; the value where no band is known."""
        return self.micro if self.high80 is None else to_micro(self.high80)

    @property
    def estimated(self) -> bool:
        """Whether nobody measured it: a formula, or a slice's share of its parent."""
        return self.provenance in ESTIMATED


class MatchRule(Spec):
    """What raw identity this model has. Every field that is given must hold; names are exact."""

    vendor: str
    names: tuple[str, ...] = ()
    memory: str = ""
    """Range of the memory that the tool reports, e.g. `79GiB..82GiB`."""
    pci_ids: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _says_something(self) -> MatchRule:
        if not (self.names or self.pci_ids or self.architectures):
            raise ValueError("a match rule needs names, pci_ids or architectures")
        memory_range(self.memory)
        return self


class PartitionProfile(Spec):
    """One shape that a device can be cut into."""

    name: str
    model: Name | None = None
    """The model that rates this shape, where it has a rating of its own."""
    parts: Annotated[int, Field(gt=0, le=1_000_000)]
    """Of the whole device's 1,000,000."""
    memory_bytes: int
    count_max: int = 1
    placements: tuple[int, ...] = ()
    """Memory slices that it can begin at; each takes `memory_slices` from there."""
    compute_slices: Annotated[int, Field(ge=0)] = 0
    memory_slices: Annotated[int, Field(ge=0)] = 0


class Layout(Spec):
    """One way to cut a whole device, and what of it nobody can use then."""

    name: str
    shapes: dict[str, Annotated[int, Field(ge=1)]]
    """Partition name -> how many of it."""
    overhead_parts: Annotated[int, Field(ge=0, le=1_000_000)]
    """Parts that this layout leaves over, `unavailable: partition_overhead`: with the parts of its
    shapes they are 1,000,000."""
    mode: str = ""
    """What the vendor's tool calls it, where the whole device is switched at once: `CPX/NPS4`."""


class LegalShares(Spec):
    """Which parts of one card may be shared out, in thousandths of its compute."""

    smallest_milli: Annotated[int, Field(ge=1, le=1000)]
    step_milli: Annotated[int, Field(ge=1, le=1000)] = 1
    """A share is a multiple of it."""

    def allows(self, milli: int) -> bool:
        """Whether a share of so many thousandths may be asked for."""
        return milli >= self.smallest_milli and milli % self.step_milli == 0

    def nearest(self, milli: int) -> tuple[int, ...]:
        """The legal shares next to this one, the smaller first."""
        legal = [n for n in range(self.smallest_milli, 1001) if self.allows(n)]
        below = [n for n in legal if n <= milli][-1:]
        above = [n for n in legal if n > milli][:1]
        return (*below, *above)


class AcceleratorModelSpec(Spec):
    """One accelerator variant: form factor and memory belong to it."""

    vendor: str
    family: str
    """The models that a family quota sums over, such as `nvidia-h100`."""
    title: str = ""
    kind: Literal["accelerator", "cpu"] = "accelerator"
    architecture: str = ""
    form_factor: str = ""
    release_year: int | None = None
    memory_bytes: int = 0
    memory_kind: Literal["device", "unified", "host"] = "device"
    memory_bandwidth_gbs: Exact | None = None
    interconnect: str = ""
    interconnect_gbs: Exact | None = None
    tdp_watts: Exact | None = None
    tflops: dict[str, Exact] = Field(default_factory=dict)
    """Dense peak by precision."""
    features: tuple[str, ...] = ()
    """What a request can ask for: precisions, nvlink, mig, ..."""
    runtime: str = ""
    """cuda, rocm, cann, ... : what software for it is built on."""
    match: tuple[MatchRule, ...] = ()
    legal_counts: tuple[int, ...] = ()
    """How many of a node one lease may hold; empty: any number."""
    together: Annotated[int, Field(ge=1, le=64)] = 1
    """So many devices with neighbouring indexes are one card (two dies): never given apart."""
    legal_shapes: tuple[str, ...] = ()
    """Topologies that several can be had in, `2x2`, `4x4x4`; empty: the vendor names none."""
    shares: LegalShares | None = None
    """Which shares of one device may be given out; none: it is never shared."""
    partitions: tuple[PartitionProfile, ...] = ()
    memory_slices: Annotated[int, Field(ge=0)] = 0
    """Slices that `placements` count in; 0: the device cannot be cut, or not in place."""
    layouts: tuple[Layout, ...] = ()
    ratings: tuple[Rating, ...] = ()
    estimate: tuple[WorkloadClass, ...] = ()
    """Classes to rate by formula (`quintal.roofline`) where `ratings` has nothing for them. What
    comes out stands among the ratings from then on, as the estimate that it is."""
    confidence: Literal["A", "B", "C", "D"] = "D"
    sources: tuple[str, ...] = ()
    notes: str = ""

    @model_validator(mode="after")
    def _estimated(self) -> AcceleratorModelSpec:
        """Rate what is to be estimated, once: what is stored never changes with the formula."""
        rated = {rating.workload_class for rating in self.ratings}
        missing = [name for name in dict.fromkeys(self.estimate) if name not in rated]
        if missing:
            made = tuple(rating for name in missing for rating in self._estimates(name))
            self.__dict__["ratings"] = (*self.ratings, *made)
        return self

    def _estimates(self, workload_class: WorkloadClass) -> Iterator[Rating]:
        figures = self.figures()
        fp4 = workload_class == "llm_large" and "fp4" in figures.tflops
        for precision in ("fp4", "") if fp4 else ("",):
            found = roofline.estimate(figures, workload_class, fp4=precision == "fp4")
            if found is None:
                raise ValueError(
                    f"estimate {workload_class}: give tflops (bf16 or fp16, fp8; fp64 for"
                    " scientific) and memory_bandwidth_gbs"
                )
            yield Rating(
                workload_class=workload_class,
                precision=precision,
                value=found.value,
                low80=found.low80,
                high80=found.high80,
                provenance="roofline",
                evidence=found.evidence,
            )

    def figures(self) -> roofline.Figures:
        """What the formula goes by."""
        return roofline.Figures(
            tflops=self.tflops,
            bandwidth_gbs=self.memory_bandwidth_gbs,
            interconnect_gbs=self.interconnect_gbs,
            watts=self.tdp_watts,
            cuda=self.runtime == "cuda",
            confidence=self.confidence,
        )


class RatingSpec(Spec):
    """Ratings that this site adds to a model: measured here, or set by the operator.

    They stand beside those of the model's own document, and the better provenance wins; so a
    measurement needs no copy of the model, and a later release of the model does not undo it.
    """

    model: Name
    ratings: Annotated[tuple[Rating, ...], Field(min_length=1)]


class EnergyProfileSpec(Spec):
    """What a model draws here under load, as measured; without one its nominal power counts."""

    model: Name
    workload_class: Annotated[WorkloadClass | None, Field(alias="class")] = None
    """Under the load of this class; empty: any."""
    watts: Annotated[Exact, Field(gt=0)]
    idle_watts: Annotated[Exact, Field(ge=0)] | None = None
    evidence: str = ""
    """How it was measured, over how many devices, how long."""
    date: str = ""
