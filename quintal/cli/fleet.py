"""`nodes`, `devices`, `capacity`, `quota`: what there is, and what is held of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any

import typer

from quintal.cli import render, session
from quintal.cli.choices import chosen
from quintal.cli.render import Table
from quintal.contracts.placement import Capacity, CapacityRow, DeviceView, Fleet, FleetAsk, NodeView
from quintal.contracts.subjects import Role
from quintal.conversion import Total
from quintal.errors import SetupError
from quintal.names import meant
from quintal.units import CLASSES, PARTS, to_micro, unit_name

Vendor = Annotated[str | None, typer.Option(help="Only this vendor's.")]
Model = Annotated[str | None, typer.Option(help="Only this model.")]
Pool = Annotated[str | None, typer.Option(help="Only this pool.")]


def nodes(
    node: Annotated[str | None, typer.Argument(help="Only this node.")] = None,
    vendor: Vendor = None,
    model: Model = None,
    pool: Pool = None,
) -> None:
    """List the nodes: what they hold, whether they live, who cordoned them."""
    ask = FleetAsk(vendor=vendor, model=model, pool=pool, node=node)
    fleet = _known(session.ask(lambda client: client.fleet(ask)), ask)
    columns = (
        "node", "liveness", "devices", "free>", "islands", "fabric", "pools", "cpu>", "memory>",
        "silent>", "cordon", "taints", "drivers",
    )  # fmt: skip
    rows = [_node(one) for one in fleet.nodes]
    render.show(fleet, Table(columns, rows, footer=f"as of ledger sequence {fleet.sequence}"))


def _known(fleet: Fleet, ask: FleetAsk) -> Fleet:
    """The answer, unless it is empty because nobody has the node's name."""
    if fleet.nodes or ask.node is None:
        return fleet
    every = session.ask(lambda client: client.fleet(FleetAsk())).nodes
    names = [node.node for node in every]
    if ask.node in names:
        return fleet  # it is there, and has nothing of what was asked for
    raise SetupError(f"no such node: {ask.node}{meant(ask.node, names)}")


def _node(node: NodeView) -> tuple[object, ...]:
    kinds: dict[str, int] = {}
    for device in node.devices:
        name = device.model or device.name
        kinds[name] = kinds.get(name, 0) + 1
    cordon = f"{node.cordoned_by}: {node.cordon_reason}" if node.cordoned_by else None
    return (
        node.node,
        node.liveness,
        ", ".join(f"{count} x {name}" for name, count in kinds.items()),
        _free(node),
        _islands(node),
        node.fabric or None,
        sorted({device.pool for device in node.devices}),
        node.cpu_milli // 1000 if node.cpu_milli else None,
        render.size(node.memory_bytes or None),
        render.duration(node.silent_ms),
        cordon,
        node.taints,
        node.drivers,
    )


def _islands(node: NodeView) -> str | None:
    """`2 x 4 nvlink NV4`; none where nobody knows, or there is none."""
    islands = (node.topology.islands if node.topology is not None else None) or ()
    kinds: dict[str, int] = {}
    for island in islands:
        words = f"{len(island.devices)} {island.kind} {island.bandwidth}".strip()
        kinds[words] = kinds.get(words, 0) + 1
    return ", ".join(f"{count} x {words}" for words, count in kinds.items()) or None


def _free(node: NodeView) -> int:
    """Free accelerators; the CPU counts only where a node has nothing else to give."""
    cards = [device for device in node.devices if device.vendor != "cpu"] or node.devices
    return sum(device.state == "free" for device in cards)


def devices(
    node: Annotated[str | None, typer.Argument(help="Only this node's.")] = None,
    vendor: Vendor = None,
    model: Model = None,
    pool: Pool = None,
) -> None:
    """List the devices and what became of each."""
    ask = FleetAsk(vendor=vendor, model=model, pool=pool, node=node)
    fleet = _known(session.ask(lambda client: client.fleet(ask)), ask)
    columns = (
        "node", "#>", "model", "pool", "memory>", "island>", "nics", "state", "lease", "tenant",
        "health", "units",
    )  # fmt: skip
    rows = [
        row
        for one in fleet.nodes
        for device in one.devices
        for row in (_device(device), *_parts(device))
    ]
    render.show(fleet, Table(columns, rows))


def _parts(device: DeviceView) -> Iterator[tuple[object, ...]]:
    """A row for each partition, and for each share that somebody has."""
    for part in (*device.partitions, *device.shares):
        name = part.profile or f"{part.parts * 1000 // PARTS} milli"
        place = "" if part.index is None else f".{part.index}"
        yield (
            device.node, f"{device.index}{place}", f"  {name}", device.pool,
            render.size(part.memory_bytes), None, (), part.state, part.lease, part.tenant,
            None, None,
        )  # fmt: skip


def _state(device: DeviceView) -> str:
    """One word, or what its parts are in hundredths."""
    if len(device.parts) < 2:  # noqa: PLR2004 - all of it is one thing
        return device.state
    return ", ".join(f"{what} {parts * 100 // PARTS}%" for what, parts in device.parts.items())


def _device(device: DeviceView) -> tuple[object, ...]:
    health = f"{device.health}: {device.health_reason}" if device.health_reason else device.health
    shown = {
        cls: device.ratings[cls] for cls in ("train_llm", "llm_large") if cls in device.ratings
    }
    return (
        device.node,
        device.index,
        device.model or f"? {device.name}",
        device.pool,
        render.size(device.memory_bytes),
        device.island,
        device.nics,
        _state(device),
        device.lease,
        device.tenant,
        health,
        _units(shown),
    )


def capacity(
    vendor: Vendor = None,
    model: Model = None,
    pool: Pool = None,
    shapes: Annotated[
        bool, typer.Option("--shapes", help="How many of each profile still fit.")
    ] = False,
) -> None:
    """Show the fleet in standard units, by pool and model. `~` marks an estimated rating."""
    ask = FleetAsk(vendor=vendor, model=model, pool=pool, shapes=shapes)
    answer = session.ask(lambda client: client.capacity(ask), session.speaker())
    classes = [name for name in CLASSES if any(name in row.units for row in answer.rows)]
    columns = (
        "pool", "model", "vendor", "devices>", "leased>", "free>", "unavailable",
        *(f"{unit_name(name)}>" for name in classes),
        *(f"free {unit_name(name)}>" for name in classes if name in {"train_llm", "llm_large"}),
    )  # fmt: skip
    rows = [_capacity(row, classes) for row in answer.rows]
    tables = [Table(columns, rows, footer=_totals(answer))]
    render.show(answer, *tables, *(_shapes(answer) if shapes else ()))


def _shapes(answer: Capacity) -> tuple[Table, Table]:
    """What of each profile still fits, and what of the free cards could be used."""
    fits = [(row.profile, row.pool, row.cards, row.nodes, row.fits) for row in answer.shapes]
    free = [
        (row.pool, row.model, _cards(row.free_parts), _cards(row.usable_parts),
         _cards(row.stranded_parts))
        for row in answer.fragments
    ]  # fmt: skip
    return (
        Table(
            ("profile", "pool", "cards>", "nodes>", "fit>"), fits,
            title="\nwhat still fits, by cards, CPU and memory",
        ),
        Table(
            ("pool", "model", "free cards>", "usable>", "stranded>"), free,
            title="\nfree cards, and what requests like those of late could use of them",
        ),
    )  # fmt: skip


def _cards(parts: int | None) -> Decimal | None:
    return None if parts is None else (Decimal(parts) / PARTS).quantize(Decimal("0.01"))


def _capacity(row: CapacityRow, classes: Iterable[str]) -> tuple[object, ...]:
    names = list(classes)
    return (
        row.pool,
        row.model,
        row.vendor,
        row.devices,
        row.leased,
        row.free,
        row.unavailable,
        *(_estimated(row, name) for name in names),
        *(row.free_units.get(name) for name in names if name in {"train_llm", "llm_large"}),
    )


def _estimated(row: CapacityRow, name: str) -> str | None:
    value = row.units.get(name)
    return f"~{value}" if value is not None and row.estimated.get(name) else value


def _totals(answer: Capacity) -> str:
    """Per class, with its band and how much of it is estimated: no total runs over classes."""
    told = [
        total.words()
        for name in ("train_llm", "llm_large")
        if (total := _total(answer, name)).micro
    ]
    return "fleet: " + ("; ".join(told) or "nothing is rated")


def _total(answer: Capacity, name: str) -> Total:
    total = Total(name)
    for row in answer.rows:
        if name in row.units:
            total = total.plus(
                to_micro(Decimal(row.units[name])),
                to_micro(Decimal(row.low80.get(name, row.units[name]))),
                to_micro(Decimal(row.high80.get(name, row.units[name]))),
                estimated=row.estimated.get(name, False),
            )
    return total


def _units(by_class: Mapping[Any, str]) -> str:
    return ", ".join(
        f"{render.number(Decimal(value))} {unit_name(name)}" for name, value in by_class.items()
    )


def quota(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
) -> None:
    """Show caps and budgets, and what is used of them: a tenant its own, others all."""
    speaker = session.speaker()
    if speaker is Role.TENANT:
        # In whose name is then said by both, and refused where they say two.
        chosen.tenant = tenant or chosen.tenant
        answer = session.ask_as_tenant(lambda client: client.quota())
    else:
        answer = session.ask(lambda client: client.all_quotas(tenant), speaker)
        if tenant is not None and not answer.rows:
            raise SetupError(f"no quota of {tenant}: `quintal list Quota` shows whose there are")
    rows = [(row.tenant, row.cap, row.limit, row.used, row.over_by) for row in answer.rows]
    footer = "a cap is of units held at once"
    if any("-hours" in row.cap for row in answer.rows):
        footer += (
            "; a budget is of unit-hours in this calendar month, UTC: `used` counts what was used"
            " and what live leases come to by their deadlines"
        )
    columns = ("tenant", "cap or budget", "limit>", "used>", "over by>")
    render.show(answer, Table(columns, rows, footer=footer))


COMMANDS: dict[str, Callable[..., None]] = {
    "nodes": nodes,
    "devices": devices,
    "capacity": capacity,
    "quota": quota,
}
