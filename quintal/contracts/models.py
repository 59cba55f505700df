"""One kind of accelerator: how to recognise it, how it can be cut, what it delivers."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field, model_validator

from quintal.contracts.message import Exact, Name
from quintal.contracts.spec import Provenance, Spec, WorkloadClass, memory_range
from quintal.units import to_micro


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
    memory_bytes: int
    count_max: int = 1
    placements: tuple[int, ...] = ()


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
    partitions: tuple[PartitionProfile, ...] = ()
    ratings: tuple[Rating, ...] = ()
    confidence: Literal["A", "B", "C", "D"] = "D"
    sources: tuple[str, ...] = ()
    notes: str = ""
