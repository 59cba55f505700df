"""Verify: census, hours and store, each held against what it must equal.

The fold against the placer's census, the closed hours against themselves, the store against a
fold of the archive from its very beginning.

It goes in steps, one generator turn each, so that the engine's thread can serve others between.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from quintal.contracts.usage import Difference, Verified, VerifyAsk
from quintal_metering.accounts import Unbalanced
from quintal_metering.facts import State
from quintal_metering.fold import fold_group, pass_over
from quintal_metering.hourly import KEYS, HoursDiffer
from quintal_metering.meter import Meter, parsed
from quintal_metering.queries import ArchivedMessages, Censuses, Conserved, Gaps
from quintal_metering.refolding import Numbers, marks, numbers, standing
from quintal_metering.rows import CapacityRow, Row, SliceRow

STEP_MESSAGES: Final = 500
"""Folded again in one go: some 50 ms of the engine's thread."""

DIFFERENCES_MAX: Final = 1_000
"""Told at once; what is above is cut off, and `ok` is false all the same."""


@dataclass(slots=True)
class Findings:
    """What was found so far."""

    sequence: int
    watermark_ms: int
    from_ms: int
    to_ms: int
    censuses: int = 0
    hours: set[int] = field(default_factory=set)
    slices: int = 0
    refolds: tuple[str, ...] = ()
    """Corrections that took late messages in."""
    differences: list[Difference] = field(default_factory=list)

    def answer(self) -> Verified:
        """As the wire has it."""
        return Verified(
            ok=not self.differences,
            sequence=self.sequence,
            watermark_ms=self.watermark_ms,
            censuses=self.censuses,
            hours=len(self.hours),
            slices=self.slices,
            differences=tuple(self.differences[:DIFFERENCES_MAX]),
        )


def verify(meter: Meter, ask: VerifyAsk) -> Iterator[Findings]:
    """Step by step; the last findings are the answer. Without `to_ms`, up to the last census."""
    found = _scope(meter, ask)
    _check_censuses(meter, found)
    _check_gaps(meter, found)
    _check_corrections(meter, found)
    yield found
    _check_hours(meter, found)
    _check_sums(meter, found)
    yield found
    for _ in _fold_again(meter, found):
        yield found
    yield found


def _scope(meter: Meter, ask: VerifyAsk) -> Findings:
    sequence, watermark = meter.position, meter.state.at_ms
    if ask.to_ms is None:
        censuses = meter.store.ask(Censuses(meter.position))
        if censuses:
            sequence, watermark = int(censuses[-1]["sequence"]), int(censuses[-1]["at_ms"])
    to_ms = watermark if ask.to_ms is None else ask.to_ms
    return Findings(sequence, watermark, ask.from_ms or 0, to_ms, refolds=marks(meter.store))


def _check_censuses(meter: Meter, found: Findings) -> None:
    for row in meter.store.ask(Censuses(found.sequence, found.from_ms, found.to_ms)):
        found.censuses += 1
        found.differences.extend(
            Difference(
                check="census",
                at_ms=int(row["at_ms"]),
                pool=one["pool"],
                model=one["model"],
                subject=one["subject"],
                expected=str(one["expected"]),
                found=str(one["found"]),
            )
            for one in json.loads(row["differences"])
        )


def _check_corrections(meter: Meter, found: Findings) -> None:
    for row in meter.store.ask(Unbalanced(found.sequence)):
        found.differences.append(
            Difference(
                check="recompute", at_ms=int(row["at_ms"]),
                subject=f"{row['id']}, reversed by correction {row['correction']}",
                expected="0", found=f"cost {row['left']}, parts x ms {row['left_ms']}",
            )
        )  # fmt: skip


def _check_gaps(meter: Meter, found: Findings) -> None:
    for row in meter.store.ask(Gaps(found.sequence)):
        first, last = int(row["before"]) + 1, int(row["after"]) - 1
        found.differences.append(
            Difference(
                check="gap",
                at_ms=found.watermark_ms,
                subject=f"ledger {first}..{last}",
                expected=f"{last - first + 1} messages",
                found="0",
            )
        )


def _check_hours(meter: Meter, found: Findings) -> None:
    for row in meter.store.ask(Conserved(found.sequence, found.from_ms, found.to_ms)):
        hour, total, leased = int(row["hour"]), int(row["total"]), int(row["leased"])
        found.hours.add(hour)
        sums = (
            ("sum of all reasons", total, int(row["parts"])),
            ("leased, by slices", leased, int(row["sliced"])),
            ("least of any reason", max(0, int(row["least"])), int(row["least"])),
        )
        for subject, expected, actual in sums:
            if expected != actual:
                found.differences.append(
                    Difference(
                        check="conservation", at_ms=hour, pool=row["pool"], model=row["model"],
                        subject=subject, expected=str(expected), found=str(actual),
                    )
                )  # fmt: skip


def _check_sums(meter: Meter, found: Findings) -> None:
    """Usage by the hour, from which boards are drawn, against the slices that it sums."""
    behind = tuple(sorted(meter.hours.behind))
    for row in meter.store.ask(HoursDiffer(found.from_ms, found.to_ms, behind)):
        keys = ", ".join(row[key] for key in KEYS if row[key])
        found.differences.append(
            Difference(
                check="recompute", at_ms=int(row["hour"]), pool=row["pool"], model=row["model"],
                subject=f"usage by the hour: {keys}",
                expected=f"quantity {row['quantity']}, cost {row['cost']}",
                found=f"quantity {row['kept_quantity']}, cost {row['kept_cost']}",
            )
        )  # fmt: skip


def _fold_again(meter: Meter, found: Findings) -> Iterator[None]:
    state, after = State(), 0
    while after < found.sequence:
        messages = meter.store.ask(ArchivedMessages(after, found.sequence, STEP_MESSAGES))
        if not messages:
            return
        rows: list[Row] = []
        for message in messages:
            group, sequence = parsed(message["body"]), int(message["sequence"])
            if isinstance(group, str):
                state = pass_over(state, sequence)
                continue
            state, more = fold_group(state, sequence, group, meter.prices)
            rows.extend(more)
        until = int(messages[-1]["sequence"])
        _compare(meter, found, rows, (after, until))
        after = until
        yield


def _compare(meter: Meter, found: Findings, rows: list[Row], span: tuple[int, int]) -> None:
    folded: dict[str, tuple[int, Numbers]] = {}
    for row in rows:
        match row:
            case SliceRow():
                found.slices += 1
                folded[row.id] = (row.from_ms, numbers("slices", row))
            case CapacityRow():
                folded[row.id] = (row.hour_ms, numbers("capacity", row))
            case _:
                pass
    stored = standing(meter.store, span, folded, found.refolds)
    for name in sorted({**folded, **stored}):
        at_ms, expected = folded.get(name, (found.watermark_ms, {}))
        actual = stored.get(name, {})
        if expected != actual:
            found.differences.append(
                Difference(
                    check="recompute", at_ms=at_ms, subject=name,
                    expected=_shown(expected), found=_shown(actual),
                )
            )  # fmt: skip


def _text(value: Any) -> str:
    return str(value) if isinstance(value, int) else format(value.normalize(), "f")


def _shown(values: Numbers) -> str:
    return ", ".join(f"{name} {_text(value)}" for name, value in values.items()) or "no such row"
