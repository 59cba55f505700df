"""What an operator says of nodes, and of leases that an outside scheduler made."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from quintal.cli import render, session
from quintal.cli.placement import duration_ms, pairs, show_lease
from quintal.contracts.placement import AdoptAsk, ClearDisputeAsk, Done, PartitionAsk, TaintAsk
from quintal.errors import SetupError

Nodes = Annotated[list[str], typer.Argument(help="Node ids.")]
Reason = Annotated[str, typer.Option("--reason", "-r", help="Kept in the ledger.")]


def _done(answer: Done) -> None:
    names = f": {', '.join(answer.nodes)}" if answer.nodes else ""
    render.show(answer, line=f"{answer.message or 'done'}{names} (ledger {answer.sequence})")


def cordon(nodes: Nodes, reason: Reason = "") -> None:
    """Stop new grants on nodes; what runs there goes on."""
    _done(session.ask(lambda client: client.cordon(tuple(nodes), reason)))


def drain(
    nodes: Nodes,
    deadline: Annotated[
        str | None, typer.Option(help="What is held then is revoked, such as 30m. Else: no end.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until nothing runs.")] = True,
    reason: Reason = "",
) -> None:
    """Cordon nodes and wait until nothing runs there."""
    deadline_ms = duration_ms(deadline) if deadline else None
    answer = session.ask(lambda client: client.drain(tuple(nodes), deadline_ms, reason))
    told = ""
    while wait and not answer.details.get("drained"):
        if told != (told := answer.message):
            typer.echo(told, err=True)
        time.sleep(1)
        answer = session.ask(lambda client: client.drain(tuple(nodes), None, reason))
    _done(answer)


def uncordon(nodes: Nodes, reason: Reason = "") -> None:
    """Take a cordon back."""
    _done(session.ask(lambda client: client.uncordon(tuple(nodes), reason)))


def taint(
    taint: Annotated[str, typer.Argument(help="Such as maintenance or team=vision.")],
    nodes: Nodes,
    remove: Annotated[bool, typer.Option("--remove", help="Take it off.")] = False,
    reason: Reason = "",
) -> None:
    """Keep nodes for requests that tolerate a taint."""
    ask = _valid(TaintAsk, nodes=nodes, taint=taint, remove=remove, reason=reason)
    _done(session.ask(lambda client: client.taint(ask)))


def retire(
    nodes: Nodes,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    reason: Reason = "",
) -> None:
    """Declare nodes gone for good: what was held on them ends, unacknowledged."""
    if not yes:
        typer.confirm(f"retire {', '.join(nodes)}? Leases there end now", abort=True)
    _done(session.ask(lambda client: client.retire(tuple(nodes), reason)))


def clear_dispute(node: str, uuid: str, reason: Reason = "") -> None:
    """Say that a disputed device was looked at and may be granted again."""
    ask = _valid(ClearDisputeAsk, node=node, uuid=uuid, reason=reason)
    _done(session.ask(lambda client: client.clear_dispute(ask)))


def partition(
    node: Annotated[str, typer.Argument(help="The node.")],
    device: Annotated[str, typer.Argument(help="Its uuid, or its index as the tools show it.")],
    layout: Annotated[str, typer.Argument(help="A layout of its model, or `whole`.")],
    run: Annotated[bool, typer.Option("--run", help="Do it; else say what would be done.")] = False,
    task: Annotated[
        str, typer.Option(help="The node's installed task. [partition-<index>-<layout>]")
    ] = "",
    timeout: Annotated[str, typer.Option(help="How long the task may take.")] = "10m",
) -> None:
    """Cut a card that no lease holds into partitions, by the node's installed task."""
    ask = _valid(
        PartitionAsk, node=node, device=device, layout=layout, run=run, task=task,
        timeout_ms=duration_ms(timeout),
    )  # fmt: skip
    _done(session.ask(lambda client: client.partition(ask)))


def adopt(
    node: Annotated[str, typer.Argument(help="The node.")],
    devices: Annotated[list[str], typer.Argument(help="Uuids, or indices as the tools show.")],
    tenant: Annotated[str, typer.Option(help="Who runs there.")],
    workload_class: Annotated[
        str | None, typer.Option("--class", help="The class that its use is metered in.")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="A profile instead of a class.")] = None,
    project: Annotated[str | None, typer.Option(help="One of the tenant's projects.")] = None,
    share: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Thousandths of each card, not all of it.")
    ] = None,
    memory: Annotated[str, typer.Option(help="Of a share: 20GiB")] = "",
    ttl: Annotated[str, typer.Option(help="It ends then, unless it is ended before.")] = "24h",
    label: Annotated[list[str] | None, typer.Option(help="key=value, such as job=123")] = None,
    request_id: Annotated[
        str | None, typer.Option(help="The outside scheduler's job id: the same id, one lease.")
    ] = None,
) -> None:
    """Open a lease on devices that an outside scheduler gave to a tenant."""
    ask = _valid(
        AdoptAsk,
        request_id=request_id or f"cli-{uuid.uuid4().hex[:12]}",
        tenant=tenant,
        node=node,
        devices=devices,
        workload_class=workload_class,
        profile=profile,
        project=project,
        share={"compute_milli": share, "memory": memory} if share else None,
        ttl_ms=duration_ms(ttl),
        labels=pairs(label or []),
    )
    show_lease(session.ask(lambda client: client.adopt(ask)))


def end(lease: Annotated[str, typer.Argument(help="The lease's id.")], reason: Reason = "") -> None:
    """Say that the work of an adopted lease is over."""
    answer = session.ask(lambda client: client.end_adopted(lease, reason))
    render.show(answer, line=f"{answer.lease} is {answer.state}")


def snapshot(
    save: Annotated[
        Path | None, typer.Option(help="Also save it here, with its catalog, to replay it.")
    ] = None,
) -> None:
    """Append a census and write a snapshot now."""
    _done(session.ask(lambda client: client.snapshot()))
    if save is None:
        return
    sequence, data = session.ask(lambda client: client.saved_snapshot())
    try:
        save.write_bytes(data)
    except OSError as exc:
        raise SetupError(f"{save} cannot be written") from exc
    render.complain(f"{save}: {len(data)} bytes, as of ledger {sequence}")


def _valid(kind: Any, **fields: Any) -> Any:
    try:
        return kind.model_validate(fields)
    except ValidationError as exc:
        raise typer.BadParameter(render.faults(exc)) from exc


COMMANDS: dict[str, Callable[..., None]] = {
    "cordon": cordon,
    "drain": drain,
    "uncordon": uncordon,
    "taint": taint,
    "retire": retire,
    "clear-dispute": clear_dispute,
    "partition": partition,
    "adopt": adopt,
    "end": end,
    "snapshot": snapshot,
}
