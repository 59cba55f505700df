"""`place` and what follows it: leases in a tenant's name."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from quintal.cli import render, session
from quintal.cli.choices import Output, chosen
from quintal.cli.render import Table
from quintal.contracts.placement import (
    Explanation,
    Lease,
    LeaseDevice,
    ListAsk,
    Pending,
    PlaceAsk,
    Verdict,
)
from quintal.contracts.subjects import Role
from quintal.errors import SetupError

Tenant = Annotated[str | None, typer.Option(help="In this tenant's name. [QUINTAL_TENANT]")]

_TIME = re.compile(r"(\d+)(ms|s|m|h)?")
_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, None: 1_000}
DRY_RUN_REFUSED = 3


def place(
    profile: Annotated[str | None, typer.Argument(help="A service profile.")] = None,
    tenant: Tenant = None,
    workload: Annotated[
        str | None, typer.Option(help="A Workload: only where its software runs.")
    ] = None,
    variant: Annotated[str | None, typer.Option(help="Only this variant of the workload.")] = None,
    cards: Annotated[int | None, typer.Option(min=1, help="Cards on each node.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="A gang over so many nodes.")] = None,
    member: Annotated[
        list[str] | None,
        typer.Option(help="CARDS or CARDSxNODES of a gang whose nodes differ (repeat)"),
    ] = None,
    mixed: Annotated[
        bool, typer.Option("--mixed", help="A gang's nodes may give different models.")
    ] = False,
    island: Annotated[
        bool, typer.Option("--island", help="Each node's cards of one island (linked).")
    ] = False,
    nic: Annotated[
        bool, typer.Option("--nic", help="Each node's cards near one network interface.")
    ] = False,
    domain: Annotated[
        str | None, typer.Option(help="All nodes in one of these: fabric or rack.")
    ] = None,
    prefer: Annotated[
        list[str] | None,
        typer.Option(help="island, nic, fabric or rack: where it can be had (repeat)"),
    ] = None,
    workload_class: Annotated[
        str | None, typer.Option("--class", help="Without a profile: the workload class.")
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="Only this model (repeat: any)")] = None,
    vendor: Annotated[list[str] | None, typer.Option(help="Only this vendor's (repeat)")] = None,
    memory: Annotated[
        str, typer.Option(help="Per card, such as 80GB.. (at least); of a share, its own: 20GiB")
    ] = "",
    share: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Thousandths of each card, not all of it.")
    ] = None,
    partition: Annotated[
        str, typer.Option(help="Partitions of this profile instead of cards: 1g.10gb")
    ] = "",
    feature: Annotated[list[str] | None, typer.Option(help="Such as nvlink (repeat: all)")] = None,
    precision: Annotated[str, typer.Option(help="Decides which rating applies.")] = "",
    pool: Annotated[list[str] | None, typer.Option(help="Only in this pool (repeat)")] = None,
    node: Annotated[list[str] | None, typer.Option(help="Only on this node (repeat)")] = None,
    tolerate: Annotated[list[str] | None, typer.Option(help="A taint to put up with")] = None,
    objective: Annotated[str | None, typer.Option(help="cheapest, fastest, pack, ...")] = None,
    ttl: Annotated[str | None, typer.Option(help="30s to 24h; renew before it is over.")] = None,
    priority: Annotated[str | None, typer.Option(help="A PriorityClass: a rank in line.")] = None,
    wait: Annotated[
        str | None, typer.Option(help="Queue for at most this long instead of failing.")
    ] = None,
    repairs: Annotated[
        str | None, typer.Option(help="A lease: your gang that lost a node; its turn is yours.")
    ] = None,
    project: Annotated[str | None, typer.Option(help="One of the tenant's projects.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="key=value, at most 8")] = None,
    no_bind: Annotated[bool, typer.Option("--no-bind", help="The agent is not asked.")] = False,
    request_id: Annotated[str | None, typer.Option(help="The same id, the same lease.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="The request as YAML.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Keep nothing.")] = False,
) -> None:
    """Ask for devices: by profile, or by class and capability.

    For example: quintal place --class train_llm --memory 80GB.. --cards 8 --tenant vision
    """
    chosen.tenant = tenant or chosen.tenant
    need = {
        "models": model, "vendors": vendor, "features": feature, "partition": partition,
        "memory": "" if share else _with_unit(memory),
        "share": {"compute_milli": share, "memory": memory} if share else None,
        "precision": precision,
    }  # fmt: skip
    where = {"pools": pool, "nodes": node, "tolerations": tolerate}
    given: dict[str, Any] = {
        "request_id": request_id,
        "profile": profile,
        "workload": workload,
        "variant": variant,
        "class": workload_class,
        "accelerator": _without_empty(need) or ({} if workload_class else None),
        "cards": cards,
        "nodes": nodes,
        "members": [_member(text) for text in member] if member else None,
        "mixed": mixed or None,
        "topology": _topology(domain, prefer or [], island=island, nic=nic) or None,
        "constraints": _without_empty(where) or None,
        "objective": objective,
        "ttl_ms": duration_ms(ttl) if ttl else None,
        "priority": priority,
        "wait": {"mode": "queue", "deadline_ms": duration_ms(wait)} if wait else None,
        "bind": "none" if no_bind else None,
        "repairs": repairs,
        "project": project,
        "labels": pairs(label) if label else None,
    }
    ask = _ask({**_from_file(file), **{k: v for k, v in given.items() if v is not None}})
    if dry_run:
        _show_verdict(session.ask_as_tenant(lambda client: client.dry_run(ask)))
        return
    answer = session.ask_as_tenant(lambda client: client.place(ask))
    if isinstance(answer, Pending):
        left = render.duration(answer.deadline_in_ms)
        about = (
            f", in {render.duration(answer.estimate_ms)} if nobody renews"
            if answer.estimate_ms is not None
            else ""
        )
        line = (
            f"queued as {answer.lease}, place {answer.queue_place}{about}, for at most {left};"
            f" take it back with `quintal cancel {answer.request_id}`"
        )
        render.show(answer, line=line)
        return
    show_lease(answer)


def _member(text: str) -> dict[str, int]:
    found = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no member: write CARDS or CARDSxNODES, such as 8x2")
    return {"cards": int(found[1]), "nodes": int(found[2] or 1)}


def _topology(domain: str | None, prefer: list[str], *, island: bool, nic: bool) -> dict[str, str]:
    need = {"island": "required"} if island else {}
    if nic:
        need["nic"] = "required"
    if domain is not None:
        need |= {"domain": "required", "over": domain}
    for name in prefer:
        if name in {"island", "nic"}:
            need.setdefault(name, "preferred")
        elif name not in {"fabric", "rack"}:
            raise typer.BadParameter(f"{name!r} is none of island, nic, fabric, rack")
        elif "domain" in need:
            raise typer.BadParameter("ask for one sort of domain: fabric or rack")
        else:
            need |= {"domain": "preferred", "over": name}
    return need


def _ask(given: dict[str, Any]) -> PlaceAsk:
    given.setdefault("request_id", f"cli-{uuid.uuid4().hex[:16]}")
    try:
        return PlaceAsk.model_validate(given)
    except ValidationError as exc:
        raise typer.BadParameter(render.faults(exc)) from exc


def _from_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    import yaml

    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as exc:
        raise SetupError(f"{path} cannot be read as YAML") from exc
    if not isinstance(found, dict):
        raise SetupError(f"{path} holds no request: write its fields as `key: value`")
    return found


def _with_unit(memory: str) -> str:
    """A card's memory as it was given; `80` alone would be bytes, and every card has those."""
    if re.fullmatch(r"[\d.]*\d[\d.]*", memory.strip()):
        raise typer.BadParameter(f"{memory!r} has no unit: write it like 80GB..")
    return memory


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def duration_ms(text: str) -> int:
    """`30s`, `5m`, `2h`, `250ms`, or seconds."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is no duration: write 30s, 5m or 2h; a bare number is seconds"
        )
    return int(found[1]) * _MS[found[2]]


def pairs(texts: list[str]) -> dict[str, str]:
    """`key=value` texts as a dict."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{text!r} is no label: write key=value")
        found[key] = value
    return found


def _show_verdict(verdict: Verdict) -> None:
    if verdict.lease is not None:
        if chosen.output is Output.TABLE:
            show_lease(verdict.lease, "would be placed")
        else:
            render.show(verdict)
        return
    if chosen.output is not Output.TABLE or verdict.refusal is None:
        render.show(verdict, line=f"would be {verdict.verdict}")
    else:
        render.refusal(verdict.refusal)
    raise typer.Exit(DRY_RUN_REFUSED)


def renew(
    lease: Annotated[str, typer.Argument(help="The lease's id.")],
    ttl: Annotated[str | None, typer.Option(help="A new ttl, kept from here on.")] = None,
    tenant: Tenant = None,
) -> None:
    """Hold a lease for one ttl more, from now."""
    chosen.tenant = tenant or chosen.tenant
    ttl_ms = duration_ms(ttl) if ttl else None
    answer = session.ask_as_tenant(lambda client: client.renew(lease, ttl_ms))
    render.show(answer, line=f"{answer.lease} holds for {render.duration(answer.expires_in_ms)}")


def release(
    lease: Annotated[str, typer.Argument(help="The lease's id.")], tenant: Tenant = None
) -> None:
    """Give a lease's devices back."""
    chosen.tenant = tenant or chosen.tenant
    answer = session.ask_as_tenant(lambda client: client.release(lease))
    render.show(answer, line=f"{answer.lease} is {answer.state}")


def cancel(
    request_id: Annotated[str, typer.Argument(help="The request's id.")], tenant: Tenant = None
) -> None:
    """Take a queued request back."""
    chosen.tenant = tenant or chosen.tenant
    answer = session.ask_as_tenant(lambda client: client.cancel(request_id))
    render.show(answer, line=f"{answer.lease} is {answer.state}")


def leases(
    lease: Annotated[str | None, typer.Argument(help="Show this one.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Ended ones as well.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 200,
) -> None:
    """List leases: an operator all tenants', a tenant its own. With an id, show one."""
    states = (
        "queued", "granted", "bound", "ending", "ended", "failed", "refused", "cancelled",
    ) if every or lease else ListAsk().states  # fmt: skip
    speaker = session.speaker()
    if speaker is Role.TENANT:
        chosen.tenant = tenant or chosen.tenant
        if lease:
            show_lease(session.ask_as_tenant(lambda client: client.get(lease)))
            return
        ask = ListAsk(states=states, limit=limit)
        answer = session.ask_as_tenant(lambda client: client.leases(ask))
    else:
        ask = ListAsk(states=states, limit=10_000 if lease else limit, tenant=tenant)
        answer = session.ask(lambda client: client.all_leases(ask))
    if lease:
        found = [one for one in answer.leases if one.lease == lease]
        if not found:
            raise SetupError(f"no lease {lease}: `quintal leases --all` lists them")
        show_lease(found[0])
        return
    columns = (
        "lease", "tenant", "project", "profile", "state", "devices", "units", "expires in>",
        "reason",
    )  # fmt: skip
    rows = [
        (
            one.lease, one.tenant, one.project, one.profile or one.workload_class, one.state,
            _devices(one.devices), render.units(one.units_micro, one.workload_class),
            render.duration(one.expires_in_ms) if one.state == "bound" else None, one.reason,
        )
        for one in answer.leases
    ]  # fmt: skip
    render.show(answer, Table(columns, rows))


def show_lease(lease: Lease, what: str = "") -> None:
    """One lease, with its devices."""
    price = (
        f", {render.number(lease.price_per_hour)} {lease.currency} an hour"
        if lease.price_per_hour is not None
        else ""
    )
    head = (
        f"{lease.lease} {what or lease.state}: {lease.tenant}"
        f"{'/' + lease.project if lease.project else ''}, {lease.profile or lease.workload_class},"
        f" {render.units(lease.units_micro, lease.workload_class)}{price},"
        f" ttl {render.duration(lease.ttl_ms)}"
    )
    rows = [
        (
            device.node, device.index, device.vendor, device.model, device.pool, device.uuid,
            render.units(device.rating_micro, lease.workload_class), device.provenance,
        )
        for device in lease.devices
    ]  # fmt: skip
    columns = ("node", "#>", "vendor", "model", "pool", "uuid", "units>", "rating")
    lines = [f"over quota by {lease.over_by}"] if lease.over_by else []
    lines += [f"preferred, not met: {cost}" for cost in lease.not_met]
    if lease.variant:
        args = f" {' '.join(lease.args)}" if lease.args else ""
        lines.append(f"variant {lease.variant}: {lease.image or 'no image'}{args}")
    for node, variables in lease.environment.items():
        lines += [f"{node}: {key}={value}" for key, value in variables.items()]
    render.show(lease, Table(columns, rows, title=head, footer="\n".join(lines)))


def _devices(devices: tuple[LeaseDevice, ...]) -> str:
    kinds: dict[str, int] = {}
    for device in devices:
        kinds[device.model] = kinds.get(device.model, 0) + 1
    return ", ".join(f"{count} x {model}" for model, count in kinds.items())


def explain(
    request_id: Annotated[str, typer.Argument(help="The request's id.")],
    tenant: Annotated[
        str | None, typer.Option(help="Whose request it was; else the newest of this id.")
    ] = None,
    hints: Annotated[
        bool, typer.Option("--hints", help="Small changes with which it would be placed now.")
    ] = False,
) -> None:
    """Say why a request got what it got: a tenant for its own, an operator for any."""
    if session.speaker() is Role.TENANT:
        chosen.tenant = tenant or chosen.tenant
        answer = session.ask_as_tenant(lambda client: client.explain(request_id, hints=hints))
    else:
        answer = session.ask(lambda client: client.explain_any(request_id, tenant, hints=hints))
    show_explanation(answer)


def show_explanation(answer: Explanation) -> None:
    """One decision: the reasons, the sentence, what would help."""
    told = "\n".join((answer.summary, *_explained_lines(answer)))
    if answer.reasons:
        render.show(answer, _explained(answer), line=told)
    else:
        render.show(answer, line=f"{_explained_title(answer)}\n{told}".rstrip())


def _explained_lines(answer: Explanation) -> Iterator[str]:
    """Who holds what would do, and what would help."""
    held = answer.details.get("held_by")
    if held:
        whom = {"held_by_others": "others"}
        told = (f"{count} by {whom.get(whose, whose)}" for whose, count in held.items())
        yield f"held of what would do: {', '.join(told)}"
    if answer.hints is None:
        return
    if not answer.hints:
        yield "no small change would help now"
    for hint in answer.hints:
        yield f"would be placed: {hint.message} ({hint.gives})"


def _explained_title(answer: Explanation) -> str:
    chosen = f", chosen: {', '.join(answer.chosen)}" if answer.chosen else ""
    return f"{answer.request_id}: {answer.verdict}, catalog {answer.catalog_revision}{chosen}"


def _explained(answer: Explanation) -> Table:
    rows = [
        (reason.count, reason.code, reason.pool, reason.message, reason.owner, reason.names)
        for reason in answer.reasons
    ]
    return Table(
        ("count>", "reason", "pool", "", "whose move", "nodes"),
        rows,
        title=_explained_title(answer),
    )


COMMANDS: dict[str, Callable[..., None]] = {
    "place": place,
    "renew": renew,
    "release": release,
    "cancel": cancel,
    "leases": leases,
    "explain": explain,
}
