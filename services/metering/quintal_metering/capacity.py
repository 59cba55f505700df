"""Where every part of every device was, in every hour: the side of the fold that conserves.

Parts are counted per cell, that is (pool, model), and a cell is only brought up to date when
something in it changes or its hour closes, so that a tick costs nothing however large the fleet.
`total` is counted from devices that come and go, the rest from what each device is: two counts
that must agree. Nothing is clamped: what comes out negative is given out negative, with a fault.
"""

from __future__ import annotations

from typing import Final

from quintal.contracts.ledger import device_key
from quintal.units import MS_PER_HOUR, PARTS
from quintal_metering.facts import HEALTHY, Cell, Device, Hold, Node, Piece, State, hours_within
from quintal_metering.rows import CapacityRow, RowKind, checked, row_id
from quintal_metering.turn import Turn

TOTAL: Final = "total"


_HELD_AS: Final = {"bound": "leased", "granted": "binding", "ending": "releasing"}
"""What a lease makes of the parts that it holds, in the ledger's order of precedence."""


_SILENT: Final = frozenset({"lost", "suspect"})
_NOBODYS: Final = Node()


Cut = tuple[int, tuple[tuple[str, int], ...]]
"""The smallest legal share of a device, and (uuid, parts) of its partitions."""

_UNCUT: Final[Cut] = (PARTS, ())


def composed(base: str, holds: tuple[Hold, ...], cut: Cut = _UNCUT) -> dict[str, int]:
    """What a device's parts are: each hold's as its lease is, and what of the rest is free."""
    if len(holds) == 1 and holds[0].parts == PARTS:
        return {_HELD_AS[holds[0].state]: PARTS}
    smallest, partitions = cut
    if not holds and not partitions:
        return {base: PARTS}
    found: dict[str, int] = {}
    for hold in holds:
        reason = _HELD_AS[hold.state]
        found[reason] = found.get(reason, 0) + hold.parts
    rest = PARTS - sum(found.values())
    if all(hold.partitions for hold in holds):
        taken = {uuid for hold in holds for uuid in hold.partitions}
        free = sum(parts for uuid, parts in partitions if uuid not in taken)
        found |= {base: free, "partition_overhead": rest - free}
    else:
        found[base if rest >= smallest and not partitions else "stranded"] = rest
    return {reason: parts for reason, parts in found.items() if parts}


def _all(holds: tuple[Hold, ...]) -> bool:
    """Whether leases have all of it: then it does not matter what it would be without them."""
    return len(holds) == 1 and holds[0].parts == PARTS


def base_of(state: State, device: Device) -> str:
    """What the device is when no lease holds it."""
    node = state.nodes.get(device.node) or _NOBODYS
    if node.liveness in _SILENT:
        return node.liveness
    checks = (
        ("cordoned", node.cordons),
        ("tainted", node.taints),
        ("disputed", device.disputed),
        ("unhealthy", device.health not in HEALTHY),
        ("unresolved", device.model is None),
    )
    for reason, holds in checks:
        if holds:
            return reason
    return "free"


def take_out(turn: Turn, device: Device) -> None:
    """Uncount the device as it is. Whoever changes a device does so between this and `put_in`."""
    _count(turn, device, sign=-1)


def put_in(turn: Turn, device: Device) -> None:
    """Count the device as it has become, and remember that where its past may yet change."""
    _remember(turn, device, _count(turn, device, sign=1))


def hold(turn: Turn, device: Device, lease: str, held: Hold | None) -> None:
    """What the lease has of the device from now on: `take_out` and `put_in` at once."""
    before = tuple(device.holds.values())
    if held is None:
        del device.holds[lease]
    else:
        device.holds[lease] = held
    after = tuple(device.holds.values())
    base = "" if _all(before) and _all(after) else base_of(turn.state, device)
    cut = (device.smallest_parts, device.partitions)
    parts = composed(base, after, cut)
    if device.present:
        cell = _cell(turn, device.pool, device.model or "")
        settle(cell, turn.at_ms)
        _shift(cell.parts, composed(base, before, cut), -1)
        _shift(cell.parts, parts, 1)
    _remember(turn, device, parts)


def _shift(counts: dict[str, int], parts: dict[str, int], sign: int) -> None:
    for reason, number in parts.items():
        now = counts.get(reason, 0) + sign * number
        if now:
            counts[reason] = now
        else:
            counts.pop(reason, None)


def _remember(turn: Turn, device: Device, parts: dict[str, int]) -> None:
    if min(parts.values()) < 0:
        turn.fault("over_held", f"leases hold more of {device.node}/{device.uuid} than there is")
    holds = tuple(device.holds.values())
    if "bound" not in [held.state for held in holds]:
        device.pieces.clear()
        if not device.present and not holds:
            turn.state.devices.pop(device_key(device.node, device.uuid), None)
        return
    if device.pieces and device.pieces[-1].from_ms == turn.at_ms:
        device.pieces.pop()
    pool, model = (device.pool, device.model or "") if device.present else ("", "")
    base = base_of(turn.state, device)
    cut = (device.smallest_parts, device.partitions)
    device.pieces.append(Piece(turn.at_ms, pool, model, device.present, base, holds, *cut))


def _count(turn: Turn, device: Device, *, sign: int) -> dict[str, int]:
    holds = tuple(device.holds.values())
    cut = (device.smallest_parts, device.partitions)
    parts = composed("" if _all(holds) else base_of(turn.state, device), holds, cut)
    if device.present:
        cell = _cell(turn, device.pool, device.model or "")
        settle(cell, turn.at_ms)
        cell.total += sign * PARTS
        _shift(cell.parts, parts, sign)
    return parts


def _cell(turn: Turn, pool: str, model: str) -> Cell:
    key = f"{pool}/{model}"
    cell = turn.state.cells.get(key)
    if cell is None:
        cell = turn.state.cells[key] = Cell(pool, model, turn.at_ms)
    return cell


def settle(cell: Cell, to_ms: int) -> None:
    """Bring the cell's sums up to `to_ms`, which lies within the open hour."""
    passed = to_ms - cell.at_ms
    if passed <= 0:
        return
    for reason, number in cell.parts.items():
        cell.part_ms[reason] = cell.part_ms.get(reason, 0) + number * passed
    cell.total_part_ms += cell.total * passed
    cell.at_ms = to_ms


def close_hour(turn: Turn, hour_ms: int) -> None:
    """Give out what each cell was in the hour, and begin the next one."""
    end = hour_ms + MS_PER_HOUR
    for key, cell in list(turn.state.cells.items()):
        settle(cell, end)
        sums = {**cell.part_ms, TOTAL: cell.total_part_ms}
        for reason, number in sorted(sums.items()):
            if number:
                turn.rows.append(_row(turn, (cell.pool, cell.model, hour_ms, reason), number))
        cell.part_ms, cell.total_part_ms = {}, 0
        if not cell.total and not cell.parts:
            del turn.state.cells[key]


def restate(turn: Turn, device: Device, lease: str, from_ms: int) -> None:
    """The lease was over on this device at `from_ms` already: since then it was releasing."""
    ends = [piece.from_ms for piece in device.pieces[1:]] + [turn.at_ms]
    rewritten: list[Piece] = []
    for piece, end in zip(device.pieces, ends, strict=True):
        start = max(piece.from_ms, from_ms)
        if start > end or (start == end and piece is not device.pieces[-1]):
            rewritten.append(piece)
            continue
        after = tuple(
            hold._replace(state="ending") if hold.lease == lease else hold for hold in piece.holds
        )
        if piece.from_ms < start:
            rewritten.append(piece)
        rewritten.append(piece._replace(from_ms=start, holds=after))
        if piece.present:
            _move(turn, piece, after, (start, end))
    device.pieces[:] = rewritten


def _move(turn: Turn, piece: Piece, after: tuple[Hold, ...], span: tuple[int, int]) -> None:
    cut = (piece.smallest_parts, piece.partitions)
    old, new = composed(piece.base, piece.holds, cut), composed(piece.base, after, cut)
    for reason in {**old, **new}:
        change = new.get(reason, 0) - old.get(reason, 0)
        for hour, start, end in hours_within(*span):
            moved = change * (end - start)
            if hour == turn.state.hour_ms:
                cell = _cell(turn, piece.pool, piece.model)
                cell.part_ms[reason] = cell.part_ms.get(reason, 0) + moved
            else:
                key = (piece.pool, piece.model, hour, reason)
                turn.adjusted[key] = turn.adjusted.get(key, 0) + moved


def adjustments(turn: Turn) -> None:
    """Give out what this transition changed in hours that are closed."""
    if not turn.adjusted:
        return
    for key, number in sorted(turn.adjusted.items()):
        if number:
            turn.rows.append(_row(turn, key, number, "adjustment"))
    turn.adjusted.clear()


def _row(
    turn: Turn, key: tuple[str, str, int, str], number: int, kind: RowKind = "usage"
) -> CapacityRow:
    pool, model, hour_ms, reason = key
    place = (turn.sequence, turn.index) if kind == "adjustment" else ()
    name = row_id("capacity", kind, *key, *place)
    return CapacityRow(name, kind, pool, model, hour_ms, reason, checked(number), turn.sequence)


def counted(state: State) -> dict[tuple[str, str], tuple[int, dict[str, int]]]:
    """Per (pool, model): the parts in inventory, and how many are what, now."""
    return {
        (cell.pool, cell.model): (cell.total, dict(cell.parts))
        for cell in state.cells.values()
        if cell.total or cell.parts
    }
