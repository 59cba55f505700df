"""The catalog's documents: what people write in YAML, and every part reads the same way."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, model_validator

from quintal.contracts.message import Exact, Message, Name, Token, UnixMs
from quintal.units import CLASSES, parse_bytes, to_micro

API_VERSION: Final = "quintal/v1"

WorkloadClass = Literal[
    "train_llm", "train_other", "llm_large", "llm_small", "llm_decode", "vision", "scientific"
]

Provenance = Literal["operator", "measured", "benchmark", "derived", "roofline"]
"""Where a rating comes from, best first: an explicit override, this site's own measurement, a
published benchmark, a slice derived from its parent, the roofline formula."""

CountRange = Annotated[str, Field(pattern=r"^\d+$|^\d*\.\.\d*$")]
"""`4`, `1..8`, `4..`, `..8`: both ends belong to it."""


class Spec(Message):
    """The body of a document. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


def count_range(text: str) -> tuple[int, int | None]:
    """`1..8` as (1, 8); a missing end is 1 or None. Raises ValueError on an empty range."""
    low, dots, high = text.partition("..")
    least = int(low) if low else 1
    most = (int(high) if high else None) if dots else least
    if most is not None and most < least:
        raise ValueError(f"{text!r} is empty: its end lies below its start")
    return least, most


def memory_range(text: str) -> tuple[int, int | None]:
    """`80GB..`, `24GiB..48GiB`, `80GB` (at least) as bytes (low, high or None)."""
    low, _, high = text.partition("..")
    return (parse_bytes(low) if low else 0), (parse_bytes(high) if high else None)


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


class AcceleratorNeed(Spec):
    """What a card must be. Every field that is given must hold; lists are any-of."""

    kind: Literal["accelerator", "cpu"] = "accelerator"
    models: tuple[Name, ...] = ()
    families: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    memory: str = ""
    """Per card: `80GB..` is at least 80 GB."""
    features: tuple[str, ...] = ()
    """All of them."""
    precision: str = ""
    """Decides which rating applies."""

    @model_validator(mode="after")
    def _memory_reads(self) -> AcceleratorNeed:
        memory_range(self.memory)
        return self


class NodeNeed(Spec):
    """What each node must give beside its cards."""

    cpu_milli: Annotated[int, Field(ge=0)] = 0
    memory_bytes: Annotated[int, Field(ge=0)] = 0
    labels: dict[str, str] = Field(default_factory=dict)


class Alternative(Spec):
    """One way to meet a need, with counts and a variant of its own; the first is liked best."""

    accelerator: AcceleratorNeed
    cards: Annotated[int, Field(ge=1, le=100_000)] = 1
    """On each node."""
    nodes: Annotated[int, Field(ge=1, le=10_000)] = 1
    variant: str = ""
    image: str = ""
    args: tuple[str, ...] = ()


class ProfileSpec(Spec):
    """A service profile: what a submitter asks for by name."""

    title: str = ""
    workload_class: Annotated[WorkloadClass, Field(alias="class")]
    accelerator: AcceleratorNeed = Field(default_factory=AcceleratorNeed)
    cards: CountRange = "1"
    """How many cards on each node a request may ask for; its low end is the default."""
    nodes: CountRange = "1"
    node: NodeNeed = Field(default_factory=NodeNeed)
    alternatives: tuple[Alternative, ...] = ()
    """Where given, they stand instead of `accelerator` for requests that name none."""
    objective: Literal["cheapest", "fastest", "efficient", "pack", "spread", "ordered"] = "pack"
    ttl_ms: Annotated[int, Field(ge=30_000, le=86_400_000)] = 300_000
    fence: Literal["keep", "strict"] = "keep"
    billing: Literal["delivered", "nominal"] = "delivered"
    nominal_units: Exact | None = None
    """What one card is charged as under `billing: nominal`; money only, never quota."""
    image: str = ""
    time_to_place_ms: int | None = None
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


class TenantSpec(Spec):
    """Who asks, and which projects it accounts to."""

    title: str = ""
    projects: tuple[Token, ...] = ()
    contact: str = ""


class Cap(Spec):
    """At most this much at once. Give `units` (of `class`) or `cards`."""

    workload_class: Annotated[WorkloadClass | None, Field(alias="class")] = None
    family: str = ""
    model: str = ""
    units: Exact | None = None
    cards: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _is_one_cap(self) -> Cap:
        if (self.units is None) == (self.cards is None):
            raise ValueError("a cap has either units or cards")
        if self.units is not None and self.workload_class is None:
            raise ValueError("a cap in units names its class")
        if self.family and self.model:
            raise ValueError("a cap is for a family or for a model")
        return self


class Budget(Spec):
    """Unit-hours of a class in a calendar month, UTC."""

    workload_class: Annotated[WorkloadClass, Field(alias="class")]
    unit_hours: Exact
    per: Literal["month"] = "month"
    on_exceed: Literal["warn", "refuse"] = "refuse"


class QuotaSpec(Spec):
    """How much a tenant may hold at once. A class without a cap of its own is refused."""

    tenant: Token
    caps: tuple[Cap, ...]
    budgets: tuple[Budget, ...] = ()
    adopt: Literal["record", "refuse"] = "record"


class Price(Spec):
    """One price. The first entry of a list whose selectors all hold applies."""

    amount: Exact
    per: Literal["unit_hour", "card_hour"]
    workload_class: Annotated[WorkloadClass | None, Field(alias="class")] = None
    model: str = ""
    pool: str = ""
    profile: str = ""
    tenant: str = ""


class PriceListSpec(Spec):
    """What use costs (`charge`), or what the fleet costs us (`cost`), between two instants."""

    type: Literal["charge", "cost"] = "charge"
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
    valid_from_ms: UnixMs = 0
    valid_to_ms: UnixMs | None = None
    prices: tuple[Price, ...]

    @model_validator(mode="after")
    def _lasts(self) -> PriceListSpec:
        if self.valid_to_ms is not None and self.valid_to_ms <= self.valid_from_ms:
            raise ValueError("valid_to_ms must lie after valid_from_ms")
        return self


class PriorityClassSpec(Spec):
    """A rank in the queue: higher goes first."""

    value: Annotated[int, Field(ge=-1_000_000, le=1_000_000)]
    default: bool = False


SPECS: Final[dict[str, type[Spec]]] = {
    "AcceleratorModel": AcceleratorModelSpec,
    "Profile": ProfileSpec,
    "Pool": PoolSpec,
    "Tenant": TenantSpec,
    "Quota": QuotaSpec,
    "PriceList": PriceListSpec,
    "PriorityClass": PriorityClassSpec,
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
        self.profiles: dict[str, ProfileSpec] = self._specs("Profile")
        self.pools: dict[str, PoolSpec] = self._specs("Pool")
        self.tenants: dict[str, TenantSpec] = self._specs("Tenant")
        self.quotas: dict[str, QuotaSpec] = {
            spec.tenant: spec for spec in self._specs("Quota").values()
        }
        self.prices: dict[str, PriceListSpec] = self._specs("PriceList")
        self.priorities: dict[str, PriorityClassSpec] = self._specs("PriorityClass")

    def _specs(self, kind: str) -> dict[str, Any]:
        return {name: doc.spec for (its, name), doc in self.documents.items() if its == kind}

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


def check_class_names() -> None:
    """The literal above and `units.CLASSES` are one list; a test calls this."""
    if WorkloadClass.__args__ != CLASSES:  # type: ignore[attr-defined]
        raise AssertionError("WorkloadClass and units.CLASSES differ")
