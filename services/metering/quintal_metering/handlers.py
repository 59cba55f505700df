"""Questions from outside, translated: who may see what, and where the answer lies.

The role comes from the list of principals, the name from the bus. Whoever is not on the list is a
tenant, and a tenant is answered from its own rows whatever it asks for.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from quintal.bus import Caller
from quintal.contracts.reports import STRETCHES_MAX, Report, ReportAsk
from quintal.contracts.subjects import Role
from quintal.contracts.usage import (
    Slices,
    SlicesAsk,
    SummaryAsk,
    TelemetryAsk,
    TelemetryRow,
    TelemetryRows,
    UsageSummary,
    Verified,
    VerifyAsk,
)
from quintal.errors import Code, Owner, Refused
from quintal.units import MS_PER_HOUR
from quintal_metering.engine import Engine
from quintal_metering.facts import hour_of
from quintal_metering.meter import Meter
from quintal_metering.overviews import FleetOverTime, ModelsCosts, stretches, unit_costs
from quintal_metering.queries import Minutes, SliceRows, Span, StoredLeases, Sums
from quintal_metering.summing import open_slices, told, totals, usage_rows
from quintal_metering.verifying import Findings, verify

log = logging.getLogger(__name__)

RETRY_AFTER_MS = 1_000


class Principals:
    """Who is what. The file is read again when it changes."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._roles: dict[str, str] = {}

    def role(self, principal: str) -> str:
        """The role, or `tenant`: least rights."""
        self._refresh()
        return self._roles.get(principal, Role.TENANT)

    def _refresh(self) -> None:
        if self._path is None:
            return
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if stamp != self._stamp:
                self._roles = dict(json.loads(self._path.read_text()))
                self._stamp = stamp
        except (OSError, ValueError) as exc:
            log.warning("%s cannot be read; who is what stays as it was: %s", self._path, exc)


class Desk:
    """What every verb needs: the engine's thread, the meter, and who is what."""

    def __init__(self, engine: Engine, meter: Meter, principals: Principals) -> None:
        self.engine = engine
        self.meter = meter
        self.principals = principals

    def role(self, caller: Caller) -> str:
        """What the caller is."""
        return self.principals.role(caller.principal)

    def tenant(self, caller: Caller, wanted: str | None) -> str | None:
        """Whose rows the caller may see: all for some roles, its own for a tenant."""
        if self.role(caller) in {Role.OPERATOR, Role.FINANCE}:
            return wanted
        if wanted not in {None, caller.principal}:
            raise Refused(Code.NOT_YOURS, "a tenant sees its own usage only")
        return caller.principal

    def only(self, caller: Caller, *roles: Role) -> None:
        """Raises Refused for every other role."""
        if self.role(caller) not in roles:
            raise Refused(Code.NOT_YOURS, f"this is for {' and '.join(sorted(roles))}")

    def settled(self) -> None:
        """Raises Refused while the store lacks rows that the state has seen."""
        if not self.meter.settled:
            raise Refused(
                Code.OVERLOADED,
                "the store does not take rows at the moment; come again",
                owner=Owner.INFRASTRUCTURE,
                details={"retry_after_ms": RETRY_AFTER_MS},
            )


class Handlers(Desk):
    """One method a verb."""

    async def summary(self, caller: Caller, ask: SummaryAsk) -> UsageSummary:
        """Usage and cost, grouped."""
        span = Span(
            *hours(ask.from_ms, ask.to_ms),
            tenant=self.tenant(caller, ask.tenant),
            project=ask.project,
            profile=ask.profile,
            model=ask.model,
        )
        return await self.engine.call(self._summed, span, tuple(dict.fromkeys(ask.by)))

    async def slices(self, caller: Caller, ask: SlicesAsk) -> Slices:
        """The rows beneath a summary."""
        span = Span(
            *hours(ask.from_ms, ask.to_ms),
            tenant=self.tenant(caller, ask.tenant),
            lease=ask.lease,
        )
        return await self.engine.call(self._listed, span, ask.limit)

    async def verify(self, caller: Caller, ask: VerifyAsk) -> Verified:
        """Hold everything against everything."""
        self.only(caller, Role.OPERATOR, Role.FINANCE)
        await self.engine.call(self.settled)
        steps = verify(self.meter, ask)
        found: Findings | None = None
        while (step := await self.engine.call(next, steps, None)) is not None:
            found = step
        if found is None:
            raise AssertionError("verify found nothing to say")
        return found.answer()

    async def report(self, caller: Caller, ask: ReportAsk) -> Report:
        """The whole fleet over time, as far as hours are closed."""
        self.only(caller, Role.OPERATOR, Role.FINANCE)
        start, end = hours(ask.from_ms, ask.to_ms)
        if (ask.to_ms - ask.from_ms) // ask.stretch_ms > STRETCHES_MAX:
            raise Refused(
                Code.INVALID_REQUEST,
                f"at most {STRETCHES_MAX} stretches: take longer ones, or a shorter span",
            )
        return await self.engine.call(self._reported, start or 0, end or 0, ask.stretch_ms)

    async def telemetry(self, caller: Caller, ask: TelemetryAsk) -> TelemetryRows:
        """Minute rollups."""
        self.only(caller, Role.OPERATOR)
        question = Minutes(ask.reading, ask.node, ask.from_ms or 0, ask.to_ms or 2**53, ask.limit)
        rows = await self.engine.call(self.meter.store.ask, question)
        return TelemetryRows(
            reading=ask.reading, rows=tuple(TelemetryRow.model_validate(row) for row in rows)
        )

    # --- in the engine's thread ---------------------------------------------------------------

    def _summed(self, span: Span, by: tuple[str, ...]) -> UsageSummary:
        self.settled()
        meter = self.meter
        opened = open_slices(meter.state, meter.prices, span)
        stored = meter.store.ask(Sums(span, by))
        leases = tuple(dict.fromkeys(row.lease for row in opened))
        counted = meter.store.ask(StoredLeases(span, by, leases)) if leases and stored else []
        found = totals(by, stored, opened, counted)
        return UsageSummary(
            from_ms=span.from_ms or 0,
            to_ms=meter.state.at_ms if span.to_ms is None else span.to_ms,
            watermark_ms=meter.state.at_ms,
            sequence=meter.state.sequence,
            rows=usage_rows(by, found),
            restated=any(int(row["adjustments"]) for row in stored),
        )

    def _reported(self, start: int, end: int, stretch_ms: int) -> Report:
        self.settled()
        state, ask = self.meter.state, self.meter.store.ask
        end = max(start, min(end, state.hour_ms or start))
        return Report(
            from_ms=start,
            to_ms=end,
            stretch_ms=stretch_ms,
            sequence=state.sequence,
            fleet=stretches(ask(FleetOverTime(start, end, stretch_ms))),
            costs=unit_costs(ask(ModelsCosts(start, end))),
        )

    def _listed(self, span: Span, limit: int) -> Slices:
        self.settled()
        meter = self.meter
        rows = [told(row) for row in meter.store.ask(SliceRows(span, limit))]
        if len(rows) < limit:
            opened = open_slices(meter.state, meter.prices, span)
            rows.extend(told(row) for row in opened[: limit - len(rows)])
        return Slices(watermark_ms=meter.state.at_ms, rows=tuple(rows))


def hours(from_ms: int | None, to_ms: int | None) -> tuple[int | None, int | None]:
    """Slices never cross an hour, so a span is widened to full hours; the answer says so."""
    start = None if from_ms is None else hour_of(from_ms)
    end = None if to_ms is None else min(2**53 - 1, hour_of(to_ms + MS_PER_HOUR - 1))
    return start, end
