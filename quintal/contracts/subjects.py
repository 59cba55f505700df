"""Every subject, once, as a typed object: who says it, who hears it, what it carries.

Permissions (`permissions.py`), the AsyncAPI document (`asyncapi.py`), the clients and the
services are all made from these objects; a subject spelled anywhere else is a defect.

`{principal}` and `{tenant}` are the caller's own token: its credentials allow no other. `{node}`
is the agent's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from pydantic import Field, TypeAdapter

from quintal.contracts import bills, catalog, ledger, nodes, placement, portability, reports, usage
from quintal.contracts.message import Message, Refusal

PREFIX: Final = "quintal.v1"


class Role(StrEnum):
    """What a credential may be. A service has two: *front* answers outsiders, *back* acts."""

    TENANT = "tenant"
    FINANCE = "finance"
    OPERATOR = "operator"
    AGENT = "agent"
    CATALOG_FRONT = "catalog-front"
    CATALOG_BACK = "catalog-back"
    PLACER_FRONT = "placer-front"
    PLACER_BACK = "placer-back"
    METERING_FRONT = "metering-front"
    METERING_BACK = "metering-back"
    BOOTSTRAP = "bootstrap"
    """Declares streams and buckets; nobody runs under it after the start."""


M = TypeVar("M", bound=Message)
A = TypeVar("A", bound=Message)
R = TypeVar("R", bound=Message)

_OUTSIDERS = frozenset({Role.TENANT, Role.FINANCE, Role.OPERATOR})
_PEOPLE = frozenset({Role.OPERATOR, Role.FINANCE})
_OPERATOR = frozenset({Role.OPERATOR})


@dataclass(frozen=True, slots=True)
class Publication(Generic[M]):
    """A subject that carries news of type `M`; nobody answers."""

    pattern: str
    message: TypeAdapter[M]
    senders: frozenset[Role]
    hearers: frozenset[Role]
    summary: str
    stream: str | None = None

    def subject(self, **tokens: str) -> str:
        """The subject with its tokens filled in; a missing one is a wildcard."""
        return _fill(self.pattern, tokens)


@dataclass(frozen=True, slots=True)
class Request(Generic[A, R]):
    """A subject that answers each ask with one answer."""

    pattern: str
    ask: TypeAdapter[A]
    answer: TypeAdapter[R | Refusal]
    callers: frozenset[Role]
    answerers: frozenset[Role]
    summary: str
    names: Literal["caller", "callee"] = "caller"
    """Whose token stands in the subject."""

    def subject(self, **tokens: str) -> str:
        """The subject with its tokens filled in; a missing one is a wildcard."""
        return _fill(self.pattern, tokens)


def _fill(pattern: str, tokens: dict[str, str]) -> str:
    return ".".join([tokens.get(name, "*") if name else word for word, name in _parts(pattern)])


@cache
def _parts(pattern: str) -> tuple[tuple[str, str], ...]:
    """Of each token: the word that it is, and the name that it stands for; empty if for itself."""
    return tuple((p, p[1:-1] if p.startswith("{") else "") for p in pattern.split("."))


def _request(  # noqa: PLR0913, PLR0917 - one line of the table each
    subject: str,
    ask: type[A],
    answer: type[R],
    callers: frozenset[Role],
    answerer: Role,
    summary: str,
    names: Literal["caller", "callee"] = "caller",
) -> Request[A, R]:
    reply: TypeAdapter[Any] = TypeAdapter(
        Annotated[answer | Refusal, Field(discriminator="kind")]  # type: ignore[arg-type]
    )
    return Request(
        f"{PREFIX}.{subject}",
        TypeAdapter(ask),
        reply,
        callers,
        frozenset({answerer}),
        summary,
        names,
    )


# --- agents -----------------------------------------------------------------------------------

_AGENT = frozenset({Role.AGENT})
_LISTENERS = frozenset({Role.PLACER_BACK, Role.METERING_BACK})

INVENTORY: Final = Publication(
    f"{PREFIX}.inventory.{{node}}", TypeAdapter(nodes.Inventory), _AGENT, _LISTENERS,
    "What a node has; the newest per node is kept.", "INVENTORY",
)  # fmt: skip
TELEMETRY: Final = Publication(
    f"{PREFIX}.telemetry.{{node}}", TypeAdapter(nodes.Telemetry), _AGENT,
    frozenset({Role.METERING_BACK}), "One node's readings of one period.", "TELEMETRY",
)  # fmt: skip
HEALTH: Final = Publication(
    f"{PREFIX}.health.{{node}}", TypeAdapter(nodes.HealthEvent), _AGENT, _LISTENERS,
    "A device changed its health, or its vendor reported an event.", "HEALTH",
)  # fmt: skip
HEARTBEAT: Final = Publication(
    f"{PREFIX}.heartbeat.{{node}}", TypeAdapter(nodes.Heartbeat), _AGENT,
    frozenset({Role.PLACER_BACK}), "The node lives; which leases and inventory it holds.",
)  # fmt: skip

_BACK = frozenset({Role.PLACER_BACK})
HEARD: Final = Publication(
    f"{PREFIX}.heard.{{node}}", TypeAdapter(nodes.Heard), _BACK, _AGENT,
    "The placer heard a beat of a node that wants to know (`fence: strict`).",
)  # fmt: skip
BIND: Final = _request(
    "bind.{node}.bind", nodes.BindAsk, nodes.BindDone, _BACK, Role.AGENT,
    "Hand devices to a lease.", "callee",
)  # fmt: skip
END: Final = _request(
    "bind.{node}.end", nodes.EndAsk, nodes.BindDone, _BACK, Role.AGENT,
    "A lease is over: forget it.", "callee",
)  # fmt: skip
SET: Final = _request(
    "bind.{node}.set", nodes.SetAsk, nodes.BindDone, _BACK, Role.AGENT,
    "The whole set of a node's leases.", "callee",
)  # fmt: skip

TASK: Final = _request(
    "task.{node}.run", nodes.TaskAsk, nodes.TaskDone,
    frozenset({Role.CATALOG_BACK, Role.PLACER_BACK}), Role.AGENT,
    "Run an installed task by name.", "callee",
)  # fmt: skip

# --- the ledger and what surrounds it ---------------------------------------------------------

LEDGER: Final = Publication(
    f"{PREFIX}.ledger", ledger.GROUP, _BACK, _LISTENERS,
    "Transitions, one message a group; the placer alone writes.", "LEDGER",
)  # fmt: skip
DECISIONS: Final = Publication(
    f"{PREFIX}.decisions", TypeAdapter(ledger.DecisionRecord), _BACK,
    frozenset({Role.METERING_BACK}), "One record per answered request.", "DECISIONS",
)  # fmt: skip
PLACER_BEAT: Final = Publication(
    f"{PREFIX}.placer.beat", TypeAdapter(placement.PlacerBeat), _BACK, _LISTENERS,
    "The leader lives: epoch and sequence.",
)  # fmt: skip
POSITION: Final = Publication(
    f"{PREFIX}.position.{{reader}}", TypeAdapter(placement.Position), _LISTENERS, _BACK,
    "Up to where a reader has verified the ledger.",
)  # fmt: skip
LEASE_NEWS: Final = Publication(
    f"{PREFIX}.lease.{{tenant}}.{{lease}}.{{transition}}", TypeAdapter(placement.News), _BACK,
    frozenset({Role.TENANT, Role.OPERATOR}), "A lease changed; sent after the append.",
)  # fmt: skip
NODE_NEWS: Final = Publication(
    f"{PREFIX}.node.{{node}}.{{transition}}", TypeAdapter(placement.News), _BACK,
    _OPERATOR, "A node changed; sent after the append.",
)  # fmt: skip

# --- placement --------------------------------------------------------------------------------

_TENANT = frozenset({Role.TENANT})
_PLACER = Role.PLACER_FRONT

PLACE: Final[Request[placement.PlaceAsk, placement.Lease | placement.Pending]] = Request(
    f"{PREFIX}.placement.{{tenant}}.request", TypeAdapter(placement.PlaceAsk), placement.PLACED,
    _TENANT, frozenset({_PLACER}),
    "A capability in; devices and a lease, a place in the queue, or why not.",
)  # fmt: skip
RENEW: Final = _request(
    "placement.{tenant}.renew", placement.RenewAsk, placement.Lease, _TENANT, _PLACER,
    "Hold the lease for one ttl more.",
)  # fmt: skip
RELEASE: Final = _request(
    "placement.{tenant}.release", placement.ReleaseAsk, placement.Lease, _TENANT, _PLACER,
    "The lease is no longer needed.",
)  # fmt: skip
CANCEL: Final = _request(
    "placement.{tenant}.cancel", placement.CancelAsk, placement.Lease, _TENANT, _PLACER,
    "Take a queued request back.",
)  # fmt: skip
GET: Final = _request(
    "placement.{tenant}.get", placement.GetAsk, placement.Lease, _TENANT, _PLACER,
    "One lease.",
)  # fmt: skip
LIST: Final = _request(
    "placement.{tenant}.list", placement.ListAsk, placement.Leases, _TENANT, _PLACER,
    "The tenant's leases.",
)  # fmt: skip
EXPLAIN: Final = _request(
    "placement.{tenant}.explain", placement.ExplainAsk, placement.Explanation, _TENANT, _PLACER,
    "Why a request got what it got.",
)  # fmt: skip
DRY_RUN: Final = _request(
    "placement.{tenant}.dry_run", placement.PlaceAsk, placement.Verdict, _TENANT, _PLACER,
    "What a request would get; nothing is kept.",
)  # fmt: skip
QUOTA: Final = _request(
    "placement.{tenant}.quota", placement.QuotaAsk, placement.QuotaView, _TENANT, _PLACER,
    "The tenant's caps and what is held under them.",
)  # fmt: skip
EVENTS: Final = _request(
    "placement.{tenant}.events", placement.EventsAsk, placement.Events, _TENANT, _PLACER,
    "The newest transitions of the tenant's leases.",
)  # fmt: skip

QUEUE: Final = _request(
    "placement.{tenant}.queue", placement.QueueAsk, placement.QueueView, _TENANT, _PLACER,
    "The tenant's requests that wait, with their places.",
)  # fmt: skip

# --- operations -------------------------------------------------------------------------------

_CORDONERS = frozenset({Role.OPERATOR, Role.CATALOG_BACK})
CORDON: Final = _request(
    "ops.{principal}.cordon", placement.CordonAsk, placement.Done, _CORDONERS, _PLACER,
    "No new grants on these nodes.",
)  # fmt: skip
UNCORDON: Final = _request(
    "ops.{principal}.uncordon", placement.CordonAsk, placement.Done, _CORDONERS, _PLACER,
    "Take a cordon back.",
)  # fmt: skip
DRAIN: Final = _request(
    "ops.{principal}.drain", placement.DrainAsk, placement.Done, _CORDONERS, _PLACER,
    "Cordon, and be rid of what runs there; asked again, how far that is.",
)  # fmt: skip
TAINT: Final = _request(
    "ops.{principal}.taint", placement.TaintAsk, placement.Done, _OPERATOR, _PLACER,
    "Only requests that tolerate it go there.",
)  # fmt: skip
RETIRE: Final = _request(
    "ops.{principal}.retire", placement.RetireAsk, placement.Done, _OPERATOR, _PLACER,
    "These nodes are gone for good.",
)  # fmt: skip
CLEAR_DISPUTE: Final = _request(
    "ops.{principal}.clear_dispute", placement.ClearDisputeAsk, placement.Done, _OPERATOR,
    _PLACER, "A disputed device was looked at and may be granted again.",
)  # fmt: skip
PARTITION: Final = _request(
    "ops.{principal}.partition", placement.PartitionAsk, placement.Done, _OPERATOR, _PLACER,
    "Cut a device that no lease holds, by the node's installed task; or say what that would be.",
)  # fmt: skip
ADOPT: Final = _request(
    "ops.{principal}.adopt", placement.AdoptAsk, placement.Lease, _OPERATOR, _PLACER,
    "An outside scheduler gave these devices to a tenant.",
)  # fmt: skip
END_ADOPTED: Final = _request(
    "ops.{principal}.end", placement.EndAdoptedAsk, placement.Lease, _OPERATOR, _PLACER,
    "The outside scheduler says that a lease is over.",
)  # fmt: skip
SNAPSHOT: Final = _request(
    "ops.{principal}.snapshot", placement.SnapshotAsk, placement.Done, _OPERATOR, _PLACER,
    "Append a census and write a snapshot now.",
)  # fmt: skip
SNAPSHOT_PART: Final = _request(
    "ops.{principal}.snapshot_part", placement.SnapshotPartAsk, placement.SnapshotPart, _OPERATOR,
    _PLACER, "A piece of a snapshot with its catalog, to be saved and replayed elsewhere.",
)  # fmt: skip
FLEET: Final = _request(
    "ops.{principal}.fleet", placement.FleetAsk, placement.Fleet, _OPERATOR, _PLACER,
    "Nodes and devices, and what became of each.",
)  # fmt: skip
CAPACITY: Final = _request(
    "ops.{principal}.capacity", placement.FleetAsk, placement.Capacity, _PEOPLE, _PLACER,
    "The fleet in standard units.",
)  # fmt: skip
ALL_LEASES: Final = _request(
    "ops.{principal}.leases", placement.ListAsk, placement.Leases, _OPERATOR, _PLACER,
    "Leases of all tenants.",
)  # fmt: skip
EXPLAIN_ANY: Final = _request(
    "ops.{principal}.explain", placement.ExplainAsk, placement.Explanation, _OPERATOR, _PLACER,
    "Why any tenant's request got what it got.",
)  # fmt: skip
ALL_QUEUES: Final = _request(
    "ops.{principal}.queue", placement.QueueAsk, placement.QueueView, _OPERATOR, _PLACER,
    "Everybody who waits, first served first.",
)  # fmt: skip
ALL_QUOTAS: Final = _request(
    "ops.{principal}.quota", placement.QuotaAsk, placement.QuotaView, _PEOPLE, _PLACER,
    "Caps of all tenants.",
)  # fmt: skip
ALL_EVENTS: Final = _request(
    "ops.{principal}.events", placement.EventsAsk, placement.Events, _OPERATOR, _PLACER,
    "The newest transitions of leases and nodes.",
)  # fmt: skip

# --- catalog ----------------------------------------------------------------------------------

_CATALOG = Role.CATALOG_FRONT
APPLY: Final = _request(
    "catalog.{principal}.apply", catalog.ApplyAsk, catalog.Applied, _OPERATOR, _CATALOG,
    "Make documents part of the catalog: all or none.",
)  # fmt: skip
CHECK: Final = _request(
    "catalog.{principal}.check", catalog.CheckAsk, catalog.Checked, _PEOPLE, _CATALOG,
    "What apply would say.",
)  # fmt: skip
DOCUMENTS: Final = _request(
    "catalog.{principal}.get", catalog.DocumentsAsk, catalog.Documents, _OUTSIDERS, _CATALOG,
    "Documents, as of one revision.",
)  # fmt: skip
LIST_DOCUMENTS: Final = _request(
    "catalog.{principal}.list", catalog.DocumentsAsk, catalog.DocumentList, _OUTSIDERS, _CATALOG,
    "What documents there are.",
)  # fmt: skip
DIFF: Final = _request(
    "catalog.{principal}.diff", catalog.DiffAsk, catalog.Diff, _PEOPLE, _CATALOG,
    "What differs between two revisions.",
)  # fmt: skip
HISTORY: Final = _request(
    "catalog.{principal}.history", catalog.HistoryAsk, catalog.History, _PEOPLE, _CATALOG,
    "Who changed the catalog, why, when.",
)  # fmt: skip
RATE: Final = _request(
    "catalog.{principal}.rate", catalog.RateAsk, catalog.Rated, _OUTSIDERS, _CATALOG,
    "What a model is worth in each class, how sure that is, and what it rests on.",
)  # fmt: skip
FIT: Final = _request(
    "catalog.{principal}.fit", portability.FitAsk, portability.Fit, _OUTSIDERS, _CATALOG,
    "Whether a workload runs on a node, in a pool, or under a stack; if not, which bound fails.",
)  # fmt: skip
PORTABILITY: Final = _request(
    "catalog.{principal}.portability", portability.PortabilityAsk, portability.Portability,
    _OUTSIDERS, _CATALOG,
    "Where a workload runs, what that costs, and how much of the fleet is closed to it.",
)  # fmt: skip
CAN_RUN: Final = _request(
    "catalog.{principal}.can_run", portability.CanRunAsk, portability.CanRun, _OUTSIDERS, _CATALOG,
    "Which workloads run on a node or pool.",
)  # fmt: skip

# --- metering ---------------------------------------------------------------------------------

_METER = Role.METERING_FRONT
SUMMARY: Final = _request(
    "usage.{principal}.summary", usage.SummaryAsk, usage.UsageSummary, _OUTSIDERS, _METER,
    "Usage and cost, grouped.",
)  # fmt: skip
SLICES: Final = _request(
    "usage.{principal}.slices", usage.SlicesAsk, usage.Slices, _OUTSIDERS, _METER,
    "The rows beneath a summary.",
)  # fmt: skip
VERIFY: Final = _request(
    "usage.{principal}.verify", usage.VerifyAsk, usage.Verified, _PEOPLE, _METER,
    "Hold the fold against the census and the store.",
)  # fmt: skip
TELEMETRY_ROWS: Final = _request(
    "usage.{principal}.telemetry", usage.TelemetryAsk, usage.TelemetryRows, _OPERATOR, _METER,
    "Minute rollups of a reading.",
)  # fmt: skip
REPORT: Final = _request(
    "usage.{principal}.report", reports.ReportAsk, reports.Report, _PEOPLE, _METER,
    "Capacity, granted and used over time, and what each model's units cost.",
)  # fmt: skip
BILL: Final = _request(
    "usage.{principal}.bill", bills.BillAsk, bills.Bill, _OUTSIDERS, _METER,
    "A tenant's bill of a month, each line with its evidence.",
)  # fmt: skip
QUOTE: Final = _request(
    "usage.{principal}.quote", bills.QuoteAsk, bills.Quote, _OUTSIDERS, _METER,
    "What use would cost, by the function that charges it.",
)  # fmt: skip
RERATE: Final = _request(
    "usage.{principal}.rerate", bills.RerateAsk, bills.Rerating, _PEOPLE, _METER,
    "Correct what was charged, in new rows.",
)  # fmt: skip
DEAD_LETTERS: Final = _request(
    "usage.{principal}.dead_letters", bills.DeadLettersAsk, bills.DeadLetters, _PEOPLE, _METER,
    "What could not be taken in, and why; try it again.",
)  # fmt: skip


def publications() -> Iterator[tuple[str, Publication[Any]]]:
    """Every publication of this module with the name it has here."""
    for name, value in globals().items():
        if isinstance(value, Publication):
            yield name, value


def requests() -> Iterator[tuple[str, Request[Any, Any]]]:
    """Every request of this module with the name it has here."""
    for name, value in globals().items():
        if isinstance(value, Request):
            yield name, value
