"""The meter: the fold's state beside the store that holds its rows, moved on batch by batch.

Everything here runs in the engine's one thread, blocking, one call after another: a question
therefore always sees a state and a store that belong together. A batch that the store did not
take stays pending and is written again before anything else is folded or answered.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from quintal.bus import Stored
from quintal.contracts.documents import Catalog, PriceListSpec
from quintal.contracts.ledger import GROUP, CatalogAdopted, Group
from quintal_metering import checkpoint
from quintal_metering.cataloguing import described
from quintal_metering.columns import Archived, DeadLetter, Insert, archive, inserts
from quintal_metering.facts import State
from quintal_metering.fold import fold_group, pass_over
from quintal_metering.hourly import UsageHours
from quintal_metering.queries import ArchivedMessages
from quintal_metering.rows import CensusCheck, Fault, Row
from quintal_metering.settings import (
    BATCH_MESSAGES,
    CHECKPOINT_MESSAGES,
    CHECKPOINT_S,
    CHECKPOINT_S_PER_MIB,
)
from quintal_metering.store import Store, StoreUnavailable
from quintal_metering.turn import PriceLists

log = logging.getLogger(__name__)

_LISTS: TypeAdapter[list[tuple[str, PriceListSpec]]] = TypeAdapter(list[tuple[str, PriceListSpec]])

_ADOPTED = b"catalog_adopted"


@dataclass(slots=True)
class Counts:
    """What the meter counted since its start."""

    messages: int = 0
    rows: int = 0
    faults: int = 0
    poison: int = 0
    gaps: int = 0
    census_differences: int = 0


@dataclass(frozen=True, slots=True)
class _Pending:
    span: tuple[int, int]
    at_ms: int
    archive: tuple[Insert, ...]
    rows: tuple[Insert, ...]


class Meter:
    """State and store. Make it with `open`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.state = State()
        self.hours = UsageHours(store)
        self.prices: dict[int, PriceLists] = {0: ()}
        self.counts = Counts()
        self.position = 0
        """Everything up to here is stored."""
        self._pending: _Pending | None = None
        self._since_checkpoint = 0
        self._checkpoint_s: float | None = None
        self._checkpoint_mib = 0.0

    @property
    def settled(self) -> bool:
        """Whether the store holds all that the state has seen."""
        return self._pending is None

    def open(self, writer: str, at_ms: int) -> None:
        """Become the writer: newest checkpoint, then the archive; its last batch once more.

        The rows of that batch may be half stored. They are written again under the same token and
        ids, from the archive: the stream may have let go of what was told to be stored.
        """
        self.store.begin(writer, at_ms)
        for row in self.store.rows("SELECT DISTINCT revision, body FROM price_lists"):
            self.prices[int(row["revision"])] = tuple(_LISTS.validate_json(row["body"]))
        restart = self.store.restart()
        state = checkpoint.read(restart.checkpoint) if restart.checkpoint else None
        self.state = state or State()
        self.position = restart.position
        for sequence, body in self.archived(self.state.sequence, self.position):
            self._fold(sequence, parsed(body))
        if restart.archived > self.position:
            self._once_more(restart.archived)
        self.hours.open()
        log.info(
            "at %d of the ledger, from a checkpoint at %d; generation %d",
            self.position, restart.checkpoint_sequence if state else 0, self.store.generation,
        )  # fmt: skip

    def _once_more(self, until: int) -> None:
        found = [
            Stored(sequence, "", body.encode())
            for sequence, body in self.archived(self.position, until)
        ]
        self.take(found, 0.0)
        self._checkpoint_s = None

    def archived(self, after: int, until: int) -> Iterable[tuple[int, str]]:
        """Messages of the archive, in order."""
        while after < until:
            rows = self.store.ask(ArchivedMessages(after, until, BATCH_MESSAGES))
            if not rows:
                return
            for row in rows:
                after = int(row["sequence"])
                yield after, row["body"]

    # --- prices -------------------------------------------------------------------------------

    def wanted(self, messages: Sequence[Stored]) -> list[int]:
        """Catalog revisions that these messages adopt and whose prices are not known yet."""
        found: dict[int, None] = {}
        for message in messages:
            # A look at the bytes spares most messages from being read twice.
            group = parsed(text_of(message.data)) if _ADOPTED in message.data else ""
            if isinstance(group, Group):
                for record in group.transitions:
                    if isinstance(record, CatalogAdopted) and record.revision not in self.prices:
                        found[record.revision] = None
        return list(found)

    def learn(self, revision: int, lists: PriceLists) -> None:
        """Keep a revision's charge lists beside the archive, so that it replays alone."""
        charges = [(name, spec) for name, spec in lists if spec.type == "charge"]
        body = _LISTS.dump_json(charges).decode()
        self.store.insert("price_lists", {"revision": [revision], "body": [body]})
        self.prices[revision] = tuple(charges)

    def describe(self, catalog: Catalog) -> None:
        """Keep what reports need of a revision."""
        self.store.write(described(catalog))

    # --- the ledger ---------------------------------------------------------------------------

    def take(self, messages: Sequence[Stored], now_s: float) -> None:
        """Fold these messages, the next ones of the ledger, and store what comes of them.

        Raises StoreUnavailable with the batch pending: call `flush` until it goes through.
        """
        if self._pending is not None:
            raise StoreUnavailable("a batch is still pending")
        if not messages:
            return
        groups = [(message, parsed(text_of(message.data))) for message in messages]
        span = (self.position + 1, messages[-1].sequence)
        kept = tuple(archive(span, self._archived(groups)))
        # The archive goes to the disk while its rows are reckoned; they follow when it is there.
        wait = self.store.archive(kept)
        rows: list[Row] = []
        letters: list[DeadLetter] = []
        following = span[0]
        for message, group in groups:
            if message.sequence != following:
                letters.append(self._gap(following, message.sequence))
            following = message.sequence + 1
            if isinstance(group, str):
                letters.append(self._poison(message.sequence, group, text_of(message.data)))
            rows.extend(self._fold(message.sequence, group))
        self._count(messages, rows)
        batch = tuple(inserts(span, rows, letters))
        self._pending = _Pending(span, self.state.at_ms, kept, batch)
        wait()
        self._settle(self._pending, now_s)

    def flush(self, now_s: float) -> None:
        """Store the pending batch, if there is one. Raises StoreUnavailable, Deposed."""
        if self._pending is not None:
            self.store.archive(self._pending.archive)()
            self._settle(self._pending, now_s)

    def _settle(self, pending: _Pending, now_s: float) -> None:
        """The rows, and with them the batch is over; now and then a checkpoint."""
        wait = self.store.beside(pending.rows[1:])
        try:
            self.store.write(pending.rows[:1])
        finally:
            wait()
        self.hours.wrote(pending.rows)
        due = self._checkpoint_due(now_s)
        if due:
            text = checkpoint.written(self.state)
            self.store.keep(pending.span[1], pending.at_ms, text)
            self._checkpoint_mib = len(text) / 2**20
        self.position, self._pending = pending.span[1], None
        if due:
            self._since_checkpoint, self._checkpoint_s = 0, now_s
            self.store.prune()

    def rest(self) -> None:
        """A clean stop: the next start folds nothing again."""
        if self._pending is None and self._since_checkpoint:
            self.store.keep(self.position, self.state.at_ms, checkpoint.written(self.state))
            self._since_checkpoint = 0

    def _checkpoint_due(self, now_s: float) -> bool:
        if self._checkpoint_s is None:
            self._checkpoint_s = now_s
        pause_s = CHECKPOINT_S + CHECKPOINT_S_PER_MIB * self._checkpoint_mib
        late = now_s - self._checkpoint_s >= pause_s
        return late or self._since_checkpoint >= CHECKPOINT_MESSAGES

    def _fold(self, sequence: int, group: Group | str) -> list[Row]:
        if isinstance(group, str):
            self.state = pass_over(self.state, sequence)
            return []
        self.state, rows = fold_group(self.state, sequence, group, self.prices)
        return rows

    def _count(self, messages: Sequence[Stored], rows: Sequence[Row]) -> None:
        self.counts.messages += len(messages)
        self._since_checkpoint += len(messages)
        self.counts.rows += len(rows)
        for row in rows:
            if isinstance(row, Fault):
                self.counts.faults += 1
                log.error("ALARM at %d of the ledger: %s: %s", row.sequence, row.code, row.message)
            elif isinstance(row, CensusCheck) and row.differences:
                self.counts.census_differences += len(row.differences)
                log.error(
                    "ALARM at %d of the ledger: the census differs: %s",
                    row.sequence, json.dumps([str(d) for d in row.differences]),
                )  # fmt: skip

    def _archived(self, groups: Sequence[tuple[Stored, Group | str]]) -> list[Archived]:
        at_ms, found = self.state.at_ms, []
        for message, group in groups:
            epoch, writer = -1, ""
            if isinstance(group, Group):
                epoch, writer = group.epoch, group.writer
                at_ms = max(at_ms, *(record.at_ms for record in group.transitions), 0)
            body = text_of(message.data)
            found.append(Archived(message.sequence, at_ms, epoch, writer, body, self.position))
        return found

    def _gap(self, following: int, found: int) -> DeadLetter:
        self.counts.gaps += 1
        said = f"messages {following} to {found - 1} were gone before they were read"
        log.error("ALARM: %s", said)
        return DeadLetter("LEDGER", following, -1, self.state.at_ms, "gap", said)

    def _poison(self, sequence: int, why: str, body: str) -> DeadLetter:
        self.counts.poison += 1
        log.error("ALARM at %d of the ledger: not a group: %s", sequence, why)
        return DeadLetter("LEDGER", sequence, -1, self.state.at_ms, "poison", why, body)


def parsed(body: str) -> Group | str:
    """The group, or why it is none."""
    try:
        return GROUP.validate_json(body)
    except ValidationError as exc:
        faults = exc.errors(include_url=False, include_context=False, include_input=False)
        return "; ".join(f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in faults[:5])


def text_of(data: bytes) -> str:
    """The message as text; bytes that are none are spelled out."""
    return data.decode("utf-8", "backslashreplace")
