"""What can be wrong with prices: in themselves, among one another, and against what was in force.

Rows are metered at the price of their time, and that time is over. So what a list said of the past
stays: a new list begins after the apply, a list in force can be ended from now on, and anything
else calls itself `retroactive`, which only a rerate acts on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from quintal.contracts.documents import Catalog, Price, PriceListSpec
from quintal_catalog.finding import Finding
from quintal_catalog.model_rules import ENDLESS

Lists = list[tuple[str, PriceListSpec]]

_SELECTORS: Final = ("workload_class", "model", "pool", "profile", "tenant")


def prices(catalog: Catalog, now_ms: int) -> Iterator[Finding]:
    """All lists of the set, whatever was before."""
    lists = sorted(catalog.prices.items(), key=lambda item: (item[1].valid_from_ms, item[0]))
    for index, (name, spec) in enumerate(lists):
        yield from _entries(name, spec)
        yield from _currency(lists[0], name, spec)
        for other, its in lists[:index]:
            if its.type == spec.type and its.valid_from_ms == spec.valid_from_ms:
                message = f"PriceList {other!r} ({its.type}) begins at the same instant"
                yield Finding(("PriceList", name), ("spec", "valid_from_ms"), message)
    yield from _calendar(lists)
    yield from _stale(lists, now_ms)


def _entries(name: str, spec: PriceListSpec) -> Iterator[Finding]:
    seen: dict[tuple[str | None, ...], int] = {}
    for place, price in enumerate(spec.prices):
        path = ("spec", "prices", place)
        if price.amount < 0:
            yield Finding(("PriceList", name), (*path, "amount"), "a price is not below 0")
        first = seen.setdefault(selector(price), place)
        if first != place:
            message = f"never applies: prices.{first} holds for the same and stands before it"
            yield Finding(("PriceList", name), path, message)


def _currency(
    first: tuple[str, PriceListSpec], name: str, spec: PriceListSpec
) -> Iterator[Finding]:
    if spec.currency != first[1].currency:
        message = (
            f"PriceList {first[0]!r} is in {first[1].currency}; an installation has one currency"
        )
        yield Finding(("PriceList", name), ("spec", "currency"), message)


def selector(price: Price) -> tuple[str | None, ...]:
    """What an entry holds for: two of one selector speak of the same use."""
    return tuple(getattr(price, name) or None for name in _SELECTORS)


def _calendar(lists: Lists) -> Iterator[Finding]:
    """For each type and selector, one list follows the other: no gap, no overlap."""
    last: dict[tuple[str, tuple[str | None, ...]], tuple[str, PriceListSpec]] = {}
    told: set[tuple[str, str]] = set()
    for name, spec in lists:
        for what in {selector(price): None for price in spec.prices}:
            before = last.get((spec.type, what))
            last[spec.type, what] = (name, spec)
            if before is None or (before[0], name) in told:
                continue
            message = _follows(*before, spec, what)
            if message and before[1].valid_from_ms != spec.valid_from_ms:
                told.add((before[0], name))
                yield Finding(("PriceList", name), ("spec", "valid_from_ms"), message)


def _follows(
    name: str, before: PriceListSpec, spec: PriceListSpec, what: tuple[str | None, ...]
) -> str | None:
    words = _words(what)
    end, start = before.valid_to_ms, spec.valid_from_ms
    if end is None or end > start:
        until = "has no end" if end is None else f"holds until {end}"
        return (
            f"overlaps PriceList {name!r}, which {until} and has a price for {words} too: "
            f"end it with valid_to_ms: {start}"
        )
    if end < start:
        return (
            f"leaves a gap: PriceList {name!r} has the price for {words} until {end}, "
            f"and this one begins at {start}"
        )
    return None


def _words(what: tuple[str | None, ...]) -> str:
    names = ("class", *_SELECTORS[1:])
    told = [f"{name} {value}" for name, value in zip(names, what, strict=True) if value]
    return ", ".join(told) or "everything"


def _stale(lists: Lists, now_ms: int) -> Iterator[Finding]:
    charges = [(name, spec) for name, spec in lists if spec.type == "charge"]
    lasting = [spec for _, spec in charges if (spec.valid_to_ms or ENDLESS) > now_ms]
    if charges and not lasting:
        name, spec = max(charges, key=lambda item: item[1].valid_to_ms or 0)
        message = f"the last charge prices ended at {spec.valid_to_ms}: use costs nothing since"
        yield Finding(("PriceList", name), ("spec", "valid_to_ms"), message, warning=True)


# --- against what was in force ----------------------------------------------------------------


def past(standing: Catalog, whole: Catalog, now_ms: int) -> Iterator[Finding]:
    """What this apply would change of the time before it."""
    types = {spec.type for spec in standing.prices.values()}
    for name, spec in whole.prices.items():
        old = standing.prices.get(name)
        if old == spec or spec.type not in types:
            # The very first list of a type may have begun whenever it likes.
            continue
        path, message = _changes_the_past(old, spec, now_ms)
        if not message:
            continue
        if spec.retroactive:
            message = "is retroactive: metered rows keep their price until they are rerated"
        yield Finding(("PriceList", name), ("spec", path), message, warning=spec.retroactive)


def _changes_the_past(
    old: PriceListSpec | None, new: PriceListSpec, now_ms: int
) -> tuple[str, str]:
    if old is None or old.valid_from_ms > now_ms:
        if new.valid_from_ms > now_ms:
            return "", ""
        message = (
            f"begins at {new.valid_from_ms}, before this apply ({now_ms}): give a later instant, "
            "or say retroactive: true"
        )
        return "valid_from_ms", message
    if (old.type, old.currency, old.valid_from_ms, old.prices) != (
        new.type, new.currency, new.valid_from_ms, new.prices
    ):  # fmt: skip
        message = (
            "is in force: end it with valid_to_ms and begin a new list there, "
            "or say retroactive: true"
        )
        return "prices", message
    ends = [edge for edge in (old.valid_to_ms, new.valid_to_ms) if edge is not None]
    if old.valid_to_ms != new.valid_to_ms and min(ends) <= now_ms:
        return "valid_to_ms", f"moves an end that lies before this apply ({now_ms})"
    return "", ""
