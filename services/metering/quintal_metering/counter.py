"""The counter: bills, quotes, corrections, and what could not be taken in.

Who may ask for what is told by the role, as in `handlers`; what changes the books is logged with
the name of whoever did it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

from quintal.bus import Caller, Stored
from quintal.catalog_reader import CatalogReader
from quintal.clock import Clock
from quintal.contracts.bills import (
    Bill,
    BillAsk,
    DeadLetterRow,
    DeadLetters,
    DeadLettersAsk,
    Quote,
    QuoteAsk,
    RerateAsk,
    Rerating,
)
from quintal.contracts.documents import Catalog
from quintal.contracts.subjects import Role
from quintal.errors import Code, Refused
from quintal.names import meant
from quintal_metering import correcting, invoicing, quoting
from quintal_metering.accounts import BillLines, DeadLetterRows, StandingSlices
from quintal_metering.columns import by_month
from quintal_metering.correcting import Correction, Tally, Unmatched
from quintal_metering.handlers import Desk, hours
from quintal_metering.meter import parsed
from quintal_metering.observations import SOURCES
from quintal_metering.queries import Span
from quintal_metering.refolding import Refold
from quintal_metering.rows import SliceRow, row_id
from quintal_metering.summing import open_slices

log = logging.getLogger(__name__)

STEP_SLICES: Final = 5_000
"""Charged again in one go: a part of a second of the engine's thread."""


class Counter(Desk):
    """One method a verb."""

    def __init__(self, desk: Desk, catalog: CatalogReader, clock: Clock) -> None:
        super().__init__(desk.engine, desk.meter, desk.principals)
        self._catalog = catalog
        self._clock = clock

    async def bill(self, caller: Caller, ask: BillAsk) -> Bill:
        """A tenant's month."""
        tenant = self.tenant(caller, ask.tenant)
        if tenant is None:
            raise Refused(Code.INVALID_REQUEST, "a bill is one tenant's: name the tenant")
        found = await self.engine.call(self._billed, tenant, ask.month)
        if not found.lines and self.role(caller) != Role.TENANT:
            await self._check_known(tenant)
        return found

    async def quote(self, caller: Caller, ask: QuoteAsk) -> Quote:
        """What use would cost."""
        tenant = self.tenant(caller, ask.tenant) or ""
        catalog = await self._adopted()
        if self.role(caller) == Role.TENANT and ask.profile:
            spec = catalog.profiles.get(ask.profile)
            if spec is not None and not spec.public:
                raise Refused(Code.NOT_FOUND, f"no profile {ask.profile}")
        state = self.meter.state
        found = quoting.wanted(ask, catalog, tenant, state.at_ms)
        cells = [(cell.pool, cell.model) for cell in list(state.cells.values()) if cell.total]
        return Quote(
            tenant=tenant,
            workload_class=found.workload_class,
            from_ms=found.span[0],
            to_ms=found.span[1],
            revision=catalog.revision,
            offers=quoting.offers(ask, found, catalog, cells),
        )

    async def rerate(self, caller: Caller, ask: RerateAsk) -> Rerating:
        """Correct what was charged."""
        self.only(caller, Role.OPERATOR, Role.FINANCE)
        await self.engine.call(self.settled)
        catalog = await (self._adopted() if ask.revision is None else self._loaded(ask.revision))
        sequence = self.meter.position
        what = (ask.from_ms, ask.to_ms, ask.what, ask.tenant, ask.model)
        how = Correction(
            row_id("correction", *what, catalog.revision, sequence)[:24],
            ask.what,
            catalog.revision,
            catalog,
            tuple((n, spec) for n, spec in catalog.prices.items() if spec.type == "charge"),
            sequence,
        )
        span = Span(*hours(ask.from_ms, ask.to_ms), tenant=ask.tenant, model=ask.model or None)
        tally, catalogs, page = Tally(), {catalog.revision: catalog}, (-1, "")
        if not ask.dry_run:
            await self.engine.call(self._begin, how, ask, caller.principal)
        while True:
            rows = await self.engine.call(self._standing, span, page)
            if not rows:
                break
            page = (rows[-1].from_ms, rows[-1].id)
            for revision in {row.revision for row in rows} - catalogs.keys() - {0}:
                catalogs[revision] = await self._loaded(revision)
            new = list(_new_rows(rows, how, catalogs, tally))
            if new and not ask.dry_run:
                await self.engine.call(self._keep, new, how.id)
        if not ask.dry_run:
            log.warning(
                "%s corrected %d slices by revision %d: %s",
                caller.principal, tally.changed, how.revision, ask.why or "no reason given",
            )  # fmt: skip
        return Rerating(
            correction="" if ask.dry_run else how.id,
            revision=how.revision,
            looked_at=tally.looked_at,
            changed=tally.changed,
            unmatched=tally.unmatched,
            rows=tuple(tally.rows()),
            dry_run=ask.dry_run,
        )

    async def dead_letters(self, caller: Caller, ask: DeadLettersAsk) -> DeadLetters:
        """What could not be taken in; once more, where asked."""
        self.only(caller, Role.OPERATOR, Role.FINANCE)
        if ask.retry:
            self.only(caller, Role.OPERATOR)
        rows = await self.engine.call(self.meter.store.ask, DeadLetterRows(ask.limit))
        late = frozenset(str(row["id"]) for row in rows if ask.retry and _of_ledger(row))
        if late:
            await self._refold([row for row in rows if row["id"] in late], caller.principal)
        return await self.engine.call(self._letters, ask, caller.principal, (rows, late))

    async def _refold(self, rows: list[dict[str, Any]], author: str) -> None:
        """The messages of these letters can be read now: fold the archive again."""
        bodies = [Stored(int(row["sequence"]), "", str(row["body"]).encode()) for row in rows]
        for revision in await self.engine.call(self.meter.wanted, bodies):
            catalog = await self._loaded(revision)
            await self.engine.call(self.meter.describe, catalog)
            await self.engine.call(
                self.meter.learn, revision, tuple(sorted(catalog.prices.items()))
            )
        work = await self.engine.call(Refold, self.meter, [str(row["id"]) for row in rows])
        while not await self.engine.call(self._refolded, work, author):
            pass
        log.warning(
            "%s took %d late messages of the ledger in: %d rows", author, len(rows), work.mended
        )

    async def _check_known(self, tenant: str) -> None:
        """An empty bill of a name that nobody has would look like a month without use."""
        known = set(await self.engine.call(self._tenants))
        if self.meter.state.revision:
            known |= (await self._adopted()).tenants.keys()
        if tenant not in known:
            raise Refused(Code.NOT_FOUND, f"there is no tenant {tenant!r}{meant(tenant, known)}")

    async def _adopted(self) -> Catalog:
        if not self.meter.state.revision:
            raise Refused(Code.NOT_FOUND, "no catalog was adopted yet: there are no prices")
        return await self._loaded(self.meter.state.revision)

    async def _loaded(self, revision: int) -> Catalog:
        return await self._catalog.load(revision)

    # --- in the engine's thread ---------------------------------------------------------------

    def _billed(self, tenant: str, month: str) -> Bill:
        self.settled()
        meter = self.meter
        start, end = invoicing.month_span(month)
        span = Span(start, end, tenant=tenant)
        opened = open_slices(meter.state, meter.prices, span)
        leases = tuple(dict.fromkeys(row.lease for row in opened))
        lines = invoicing.lines(meter.store.ask(BillLines(span, leases)), opened)
        return Bill(
            tenant=tenant,
            month=month,
            from_ms=start,
            to_ms=end,
            watermark_ms=meter.state.at_ms,
            sequence=meter.state.sequence,
            closed=meter.state.at_ms >= end,
            restated=any(line.adjustments for line in lines),
            lines=lines,
            totals=invoicing.summed(lines),
        )

    def _tenants(self) -> list[str]:
        """Whoever ever used anything, or holds something now."""
        stored = self.meter.store.rows("SELECT DISTINCT tenant FROM slices")
        held = [lease.tenant for lease in self.meter.state.leases.values()]
        return [*(row["tenant"] for row in stored), *held]

    def _standing(self, span: Span, page: tuple[int, str]) -> list[SliceRow]:
        found = self.meter.store.ask(StandingSlices(span, *page, STEP_SLICES))
        return [correcting.slice_of(row) for row in found]

    def _begin(self, how: Correction, ask: RerateAsk, author: str) -> None:
        row = {
            "id": how.id, "at_ms": self._clock.now_ms(), "author": author, "why": ask.why,
            "what": how.what, "from_ms": ask.from_ms, "to_ms": ask.to_ms or 0,
            "revision": how.revision, "sequence": how.sequence,
        }  # fmt: skip
        columns = {name: [value] for name, value in row.items()}
        self.meter.store.insert("corrections", columns, f"correction:{how.id}")

    def _keep(self, rows: list[SliceRow], correction: str) -> None:
        """A month's rows are one insert, so that no slice is reversed without its successor."""
        token = f"correction:{correction}:{rows[0].id}:{rows[-1].id}"
        written = by_month("slices", rows, token, "from_ms")
        self.meter.store.write(written)
        self.meter.hours.wrote(written)

    def _refolded(self, work: Refold, author: str) -> bool:
        self.settled()
        if not work.step():
            return False
        # In the same turn of the thread: nothing was added to the ledger since.
        work.finish(self._clock.now_ms(), author)
        return True

    def _letters(
        self,
        ask: DeadLettersAsk,
        author: str,
        found: tuple[list[dict[str, Any]], frozenset[str]],
    ) -> DeadLetters:
        store, (rows, late) = self.meter.store, found
        told, taken = [], 0
        for row in rows:
            outcome = ""
            if ask.retry:
                outcome = "taken" if row["id"] in late else self._again(row)
            if outcome == "taken":
                columns = {"id": [row["id"]], "at_ms": [self._clock.now_ms()], "author": [author]}
                store.insert("letters_taken", columns, f"taken:{row['id']}")
                taken += 1
            names = DeadLetterRow.model_fields.keys() - {"outcome"}
            facts = {name: row[name] for name in names}
            told.append(DeadLetterRow(**{**facts, "body": row["body"][:2_000]}, outcome=outcome))
        left = store.ask(DeadLetterRows(1))
        waiting = int(left[0]["waiting"]) if left else 0
        return DeadLetters(waiting=waiting, taken=taken, rows=tuple(told))

    def _again(self, row: dict[str, Any]) -> str:
        stream = str(row["stream"])
        source = next((one for one in SOURCES if one.stream == stream), None)
        if source is None:
            return self._of_the_ledger(row)
        if row["code"] != "poison":
            return "left: it is no message"
        message = Stored(int(str(row["sequence"])), f"{stream}.", str(row["body"]).encode())
        observed = source.read([message])
        if observed.dead:
            return f"left: {observed.dead[0].message}"
        if observed.columns:
            self.meter.store.insert(source.table, observed.columns, f"retry:{row['id']}")
        self.touched(observed.minutes)
        return "taken"

    def _of_the_ledger(self, row: dict[str, Any]) -> str:
        if row["code"] == "poison":
            return f"left: {parsed(str(row['body']))}"
        gone = self.meter.store.rows(
            "SELECT count() AS n FROM letters_taken WHERE id = {id:String}", {"id": row["id"]}
        )
        if int(gone[0]["n"]):
            return "taken"
        return "left: the ledger says so; see `quintal verify`"

    touched: Callable[[frozenset[int]], None] = staticmethod(lambda _minutes: None)
    """Told which minutes a retry changed."""


def _of_ledger(row: dict[str, Any]) -> bool:
    """Whether it is a message of the ledger that can be read by now."""
    poison = row["stream"] == "LEDGER" and row["code"] == "poison"
    return poison and not isinstance(parsed(str(row["body"])), str)


def _new_rows(
    rows: list[SliceRow], how: Correction, catalogs: dict[int, Catalog], tally: Tally
) -> Iterator[SliceRow]:
    for row in rows:
        try:
            new = correcting.corrected(row, how, catalogs)
        except Unmatched:
            tally.unmatched += 1
            continue
        tally.count(row, new)
        yield from new
