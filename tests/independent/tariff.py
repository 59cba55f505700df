"""What a stretch of a lease costs, cut at full hours and at prices. Nothing of quintal."""

import itertools
from decimal import ROUND_HALF_EVEN, Context, Decimal

HOUR, PARTS = 3_600_000, 1_000_000
WIDE = Context(prec=90)


def in_force(lists, lease, group, at):
    """(amount, per, list, currency): the newest valid list that has an entry for this."""
    facts = {
        "class": lease["class"], "model": group[1], "pool": group[2],
        "profile": lease.get("profile", ""), "tenant": lease["tenant"],
    }  # fmt: skip
    for name, spec in sorted(lists.items(), key=lambda x: (-x[1].get("valid_from_ms", 0), x[0])):
        end = spec.get("valid_to_ms")
        begun = at >= spec.get("valid_from_ms", 0) and (end is None or at < end)
        if not begun or spec.get("type", "charge") != "charge":
            continue
        for price in spec["prices"]:
            if all(price.get(key) in (None, "", value) for key, value in facts.items()):
                return Decimal(price["amount"]), price["per"], name, spec["currency"]
    return None, "", "", ""


def pieces(lists, lease, start, to):
    """(group, begin, list, currency, quantity, parts x ms, cost) of a lease within a span."""
    edges = {spec.get("valid_from_ms", 0) for spec in lists.values()}
    edges |= {spec["valid_to_ms"] for spec in lists.values() if spec.get("valid_to_ms")}
    cuts = {start, to} | {edge for edge in edges if start < edge < to}
    cuts |= set(range(start - start % HOUR + HOUR, to, HOUR))
    ordered = sorted(cuts)
    for begin, end in itertools.pairwise(ordered):
        for group, cards in lease["use"][1]:
            nominal = lease.get("billing") == "nominal"
            micro = lease["nominal_micro"] if nominal else group[4]
            amount, per, name, currency = in_force(lists, lease, group, begin)
            part_ms = cards * group[3] * (end - begin)
            charged_ms = cards * group[-1] * (end - begin)
            cost = Decimal(0)
            if amount is not None:
                units = (charged_ms * micro, 1_000_000) if per == "unit_hour" else (part_ms, 1)
                exact = WIDE.divide(amount * units[0], PARTS * HOUR * units[1])
                cost = exact.quantize(Decimal("1e-9"), ROUND_HALF_EVEN, WIDE)
            yield group, begin, name, currency, charged_ms * group[4], part_ms, cost
