"""The catalog's documents: what people write in YAML, and every part reads the same way.

Kinds of a feather have rooms of their own (`models`, `terms`, ...); their names hold here too.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, model_validator

from quintal.contracts.arrangement import GangMember, Members, TopologyNeed
from quintal.contracts.boundaries import Accepted, BoundarySpec, VersionBound
from quintal.contracts.message import Exact, Labels, Message, Name, Token, Word
from quintal.contracts.models import (
    AcceleratorModelSpec,
    EnergyProfileSpec,
    Layout,
    LegalShares,
    MatchRule,
    PartitionProfile,
    Rating,
    RatingSpec,
)
from quintal.contracts.spec import (
    CountRange,
    Provenance,
    Spec,
    WorkloadClass,
    check_class_names,
    count_range,
    memory_range,
)
from quintal.contracts.terms import (
    Budget,
    Cap,
    CohortMember,
    CohortSpec,
    CommitmentSpec,
    Price,
    PriceListSpec,
    PriorityClassSpec,
    QuotaSpec,
    TenantSpec,
)
from quintal.contracts.workloads import WorkloadSpec
from quintal.units import parse_bytes

__all__ = [
    "API_VERSION",
    "SPECS",
    "AcceleratorModelSpec",
    "AcceleratorNeed",
    "Alternative",
    "BoundarySpec",
    "Budget",
    "Cap",
    "CardGroup",
    "Catalog",
    "CohortMember",
    "CohortSpec",
    "CommitmentSpec",
    "CountRange",
    "Document",
    "EnergyProfileSpec",
    "GangMember",
    "Layout",
    "LegalShares",
    "MatchRule",
    "Metadata",
    "NodeNeed",
    "PartitionProfile",
    "PoolSelector",
    "PoolSpec",
    "Price",
    "PriceListSpec",
    "PriorityClassSpec",
    "ProfileSpec",
    "Provenance",
    "QuotaSpec",
    "Rating",
    "RatingSpec",
    "ShareNeed",
    "Spec",
    "TenantSpec",
    "TopologyNeed",
    "WorkloadClass",
    "WorkloadSpec",
    "check_class_names",
    "count_range",
    "memory_range",
]

API_VERSION: Final = "quintal/v1"


class ShareNeed(Spec):
    """A part of one card: it lies on that card alone, and other leases may lie beside it.

    Charged is the greater of compute and memory, as a part of the whole card.
    """

    compute_milli: Annotated[int, Field(ge=1, le=1000)]
    """Thousandths of the card's compute."""
    memory: Annotated[str, Field(max_length=64)] = ""
    """Of the card's memory, `20GiB`; empty: as much of it as of the compute."""

    @model_validator(mode="after")
    def _memory_reads(self) -> ShareNeed:
        if self.memory and parse_bytes(self.memory) <= 0:
            raise ValueError(f"memory {self.memory}: a share has some, or names none")
        return self


class AcceleratorNeed(Spec):
    """What a card must be. Every field that is given must hold; lists are any-of."""

    kind: Literal["accelerator", "cpu"] = "accelerator"
    models: Annotated[tuple[Name, ...], Field(max_length=64)] = ()
    families: Annotated[tuple[Word, ...], Field(max_length=64)] = ()
    vendors: Annotated[tuple[Word, ...], Field(max_length=64)] = ()
    memory: Annotated[str, Field(max_length=64)] = ""
    """Per card: `80GB..` is at least 80 GB."""
    features: Annotated[tuple[Word, ...], Field(max_length=32)] = ()
    """All of them."""
    precision: Word = ""
    """Decides which rating applies."""
    share: ShareNeed | None = None
    """A part of each card instead of the whole; none: the whole."""
    partition: Word = ""
    """A partition of this profile (`3g.40gb`) instead of a card; `cards` counts partitions."""
    shape: Annotated[str, Field(pattern=r"^(\d{1,4}(x\d{1,4}){0,2})?$")] = ""
    """A topology that all cards together form, `2x2`; it must be one that the model has."""

    @model_validator(mode="after")
    def _reads(self) -> AcceleratorNeed:
        memory_range(self.memory)
        if self.share is not None and self.partition:
            raise ValueError("a share is of a whole card: give a share or a partition, not both")
        return self


class CardGroup(Spec):
    """Cards of one kind on a node, beside others of the same request."""

    accelerator: AcceleratorNeed
    cards: Annotated[int, Field(ge=1, le=512)] = 1


class NodeNeed(Spec):
    """What each node must give beside its cards."""

    cpu_milli: Annotated[int, Field(ge=0, lt=2**53)] = 0
    memory_bytes: Annotated[int, Field(ge=0, lt=2**63)] = 0
    network_mbits: Annotated[int, Field(ge=0, le=100_000_000)] = 0
    """Of its fastest interface."""
    labels: Labels = Field(default_factory=dict)


class Alternative(Spec):
    """One way to meet a need, with counts and a variant of its own; the first is liked best."""

    accelerator: AcceleratorNeed
    cards: Annotated[int, Field(ge=1, le=100_000)] = 1
    """On each node."""
    groups: Annotated[tuple[CardGroup, ...], Field(max_length=8)] = ()
    """Further cards of other kinds on the same node: a whole card and half of another."""
    nodes: Annotated[int, Field(ge=1, le=10_000)] = 1
    members: Members = ()
    """Instead of `cards` and `nodes`: a gang whose nodes give different numbers of cards."""
    mixed: bool = False
    """Whether the nodes of a gang may give different models."""
    topology: TopologyNeed | None = None
    """How its cards must lie; none: as the request says."""
    variant: Word = ""
    image: Annotated[str, Field(max_length=512)] = ""
    args: Annotated[tuple[Annotated[str, Field(max_length=512)], ...], Field(max_length=64)] = ()


class ProfileSpec(Spec):
    """A service profile: what a submitter asks for by name."""

    title: str = ""
    workload_class: Annotated[WorkloadClass, Field(alias="class")]
    accelerator: AcceleratorNeed = Field(default_factory=AcceleratorNeed)
    cards: CountRange = "1"
    """How many cards on each node a request may ask for; its low end is the default."""
    nodes: CountRange = "1"
    node: NodeNeed = Field(default_factory=NodeNeed)
    topology: TopologyNeed | None = None
    """How the cards of every request must lie; a request may ask for more."""
    alternatives: tuple[Alternative, ...] = ()
    """Where given, they stand instead of `accelerator` for requests that name none."""
    objective: Literal["cheapest", "fastest", "efficient", "pack", "spread", "ordered"] = "pack"
    ttl_ms: Annotated[int, Field(ge=30_000, le=86_400_000)] = 300_000
    fence: Literal["keep", "strict"] = "keep"
    """What a node does that is cut off: nothing, or end the work one ttl after the sending of its
    last beat that was acknowledged."""
    on_unhealthy: Literal["none", "drain", "evict"] = "none"
    """When a device of a bound lease has failed: show it; renew no more; or revoke the lease."""
    billing: Literal["delivered", "nominal"] = "delivered"
    nominal_units: Exact | None = None
    """What one card is charged as under `billing: nominal`; money only, never quota."""
    image: str = ""
    requires: tuple[VersionBound, ...] = ()
    """What must be installed on a node: a driver or firmware (by vendor), a runtime. A bound
    concerns the devices of its vendor or runtime alone."""
    time_to_place_ms: int | None = None
    """Objective: how long a request may wait for its devices."""
    availability: Annotated[Exact, Field(gt=0, le=1)] | None = None
    """Objective: the share of time in which such a request can be placed; not yet reported."""
    accept: Accepted = "supported_unvalidated"
    """The lowest verdict on a node's software that a workload under this profile accepts."""
    public: bool = True

    @model_validator(mode="after")
    def _ranges_read(self) -> ProfileSpec:
        count_range(self.cards)
        count_range(self.nodes)
        if self.billing == "nominal" and self.nominal_units is None:
            raise ValueError("billing: nominal needs nominal_units")
        return self


class PoolSelector(Spec):
    """Which devices a pool holds. Every field that is given must hold; empty holds for all."""

    clusters: tuple[str, ...] = ()
    locations: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    vendors: tuple[str, ...] = ()
    models: tuple[Name, ...] = ()
    families: tuple[str, ...] = ()
    kinds: tuple[Literal["accelerator", "cpu"], ...] = ()


class Approved(Spec):
    """What may run in a pool. A list that is empty approves all; `*` at an end stands for more."""

    images: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()


class PoolSpec(Spec):
    """A set of devices run as one. A device is in the matching pool of the lowest `order`."""

    title: str = ""
    selector: PoolSelector
    order: int = 100
    ecosystem: str = ""
    owner: str = ""
    tenants: tuple[Token, ...] = ()
    """Who may place here; empty: everybody."""
    taints: tuple[str, ...] = ()
    approved: Approved = Field(default_factory=Approved)
    """Of workloads that are asked for by name."""


SPECS: Final[dict[str, type[Spec]]] = {
    "AcceleratorModel": AcceleratorModelSpec,
    "Profile": ProfileSpec,
    "Pool": PoolSpec,
    "Tenant": TenantSpec,
    "Quota": QuotaSpec,
    "PriceList": PriceListSpec,
    "PriorityClass": PriorityClassSpec,
    "Cohort": CohortSpec,
    "Commitment": CommitmentSpec,
    "Rating": RatingSpec,
    "EnergyProfile": EnergyProfileSpec,
    "Boundary": BoundarySpec,
    "Workload": WorkloadSpec,
}
"""Every kind this version knows. Issue by issue the table grows; nothing else lists kinds."""


class Metadata(Message):
    """A document's name and what people write about it."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    labels: dict[str, str] = Field(default_factory=dict)
    description: str = ""


class Document(Message):
    """One document of the catalog; `spec` is checked against its kind's model."""

    model_config = ConfigDict(extra="forbid")

    api_version: Annotated[Literal["quintal/v1"], Field(alias="apiVersion")] = "quintal/v1"
    kind: str
    metadata: Metadata
    spec: Annotated[Any, Field()]

    @model_validator(mode="before")
    @classmethod
    def _read_spec(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kind, spec = data.get("kind"), data.get("spec")
        model = SPECS.get(kind) if isinstance(kind, str) else None
        if model is None:
            raise ValueError(f"kind {kind!r} is none of {', '.join(SPECS)}")
        return {**data, "spec": spec if isinstance(spec, model) else model.model_validate(spec)}

    @property
    def key(self) -> tuple[str, str]:
        """(kind, name): what a catalog has one document of."""
        return self.kind, self.metadata.name


class Catalog:
    """One revision of the catalog, read: typed look-ups by kind and name.

    Made from documents, never changed after; a new revision is a new `Catalog`.
    """

    def __init__(
        self, documents: tuple[Document, ...] = (), *, revision: int = 0, digest: str = ""
    ) -> None:
        self.revision = revision
        self.digest = digest
        self.documents = {document.key: document for document in documents}
        self.models: dict[str, AcceleratorModelSpec] = self._specs("AcceleratorModel")
        self.cohorts: dict[str, CohortSpec] = self._specs("Cohort")
        self.commitments: dict[str, CommitmentSpec] = self._specs("Commitment")
        self.energy: dict[str, EnergyProfileSpec] = self._specs("EnergyProfile")
        for name in sorted(added := self._specs("Rating")):
            self._rate(added[name])
        self.profiles: dict[str, ProfileSpec] = self._specs("Profile")
        self.pools: dict[str, PoolSpec] = self._specs("Pool")
        self.tenants: dict[str, TenantSpec] = self._specs("Tenant")
        self.quotas: dict[str, QuotaSpec] = {
            spec.tenant: spec for spec in self._specs("Quota").values()
        }
        self.prices: dict[str, PriceListSpec] = self._specs("PriceList")
        self.priorities: dict[str, PriorityClassSpec] = self._specs("PriorityClass")
        self.boundaries: dict[str, BoundarySpec] = self._specs("Boundary")
        self.workloads: dict[str, WorkloadSpec] = self._specs("Workload")

    def _rate(self, added: RatingSpec) -> None:
        """The model with what its site adds; a name that nobody has is the catalog's to refuse."""
        spec = self.models.get(added.model)
        if spec is not None:
            ratings = (*spec.ratings, *added.ratings)
            self.models[added.model] = spec.model_copy(update={"ratings": ratings})

    def _specs(self, kind: str) -> dict[str, Any]:
        return {name: doc.spec for (its, name), doc in self.documents.items() if its == kind}

    def watts(self, model: str, workload_class: str = "") -> tuple[Decimal, str] | None:
        """What one device draws, and where from: measured here in the class, in any, or nominal."""
        found = [its for its in self.energy.values() if its.model == model]
        for wanted in (workload_class or None, None):
            for profile in found:
                if profile.workload_class == wanted:
                    return profile.watts, profile.evidence or "measured here"
        spec = self.models.get(model)
        if spec is None or spec.tdp_watts is None:
            return None
        return spec.tdp_watts, "nominal power of the model"

    def rating(self, model: str, workload_class: str, precision: str = "") -> Rating | None:
        """The rating that applies: an exact precision before the one for any precision.

        Among equals an operator's override wins, then what was measured here, and so on.
        """
        spec = self.models.get(model)
        if spec is None:
            return None
        fitting = [
            rating
            for rating in spec.ratings
            if rating.workload_class == workload_class and rating.precision in {precision, ""}
        ]
        order = ("operator", "measured", "benchmark", "derived", "roofline")
        fitting.sort(key=lambda r: (r.precision != precision, order.index(r.provenance)))
        return fitting[0] if fitting else None
