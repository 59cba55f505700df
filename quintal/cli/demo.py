"""`demo`: the main job on a fleet of many vendors, from request to bill, in about two minutes.

It starts a whole system in a folder of its own, with the demo's nodes and load, and then does what
its users do: looks at the fleet, asks for each classic profile, adopts a device, is refused, holds
its leases for a while, gives them back, and reads usage and cost from the store. Whatever is not
as it should be is said, and the exit status is 1.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from quintal.cli import render
from quintal.cli.render import Table
from quintal.client import Client
from quintal.contracts import placement, usage as metered
from quintal.contracts.documents import AcceleratorNeed
from quintal.errors import BusUnavailable, Refused, SetupError
from quintal.units import from_micro, unit_name
from quintal.up.layout import TENANTS, local_access

READY_S: Final = 90.0
FLEET_S: Final = 30.0
SETTLE_S: Final = 20.0
RENEW_S: Final = 10.0
NODES_MIN: Final = 12
VENDORS_MIN: Final = 5

ASKS: Final = (
    ("vision", "inference-small", 1, "nvidia"),
    ("language", "inference-large", 2, "amd"),
    ("climate", "training-standard", 4, "intel"),
    ("language", "training-large", 8, "nvidia"),
    ("climate", "scientific", 1, "amd"),
    ("vision", "cpu-batch", 1, "cpu"),
)
"""Tenant, profile, cards, vendor: each classic profile once, over several vendors."""


@dataclass(slots=True)
class Report:
    """What was seen, for the file, and what was not as it should be."""

    found: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def expect(self, holds: bool, what: str) -> None:
        """Note a fault; the demo goes on, so that one shows all of them."""
        if not holds:
            self.faults.append(what)
            render.say(f"NOT SO: {what}")


def demo(
    seconds: Annotated[int, typer.Option(help="How long the leases are held.")] = 40,
    file: Annotated[Path, typer.Option(help="Where the same is written as JSON.")] = Path(
        "demo.json"
    ),
    keep: Annotated[Path | None, typer.Option(help="Run in this folder, and leave it.")] = None,
) -> None:
    """Do the main job on a demo fleet, from request to bill; exit 0 if all is as it should be."""
    data = keep.absolute() if keep else Path(tempfile.mkdtemp(prefix="quintal-demo-"))
    try:
        report = asyncio.run(_demo(data, seconds))
    finally:
        if keep is None:
            shutil.rmtree(data, ignore_errors=True)
    file.write_text(json.dumps(report.found | {"faults": report.faults}, indent=2) + "\n")
    render.say(f"\nthe same as JSON: {file}")
    if report.faults:
        render.complain(f"demo: {len(report.faults)} things are not as they should be")
        raise typer.Exit(1)
    render.say("all is as it should be")


async def _demo(data: Path, seconds: int) -> Report:
    render.say("starting nats-server, catalog, two placers, metering, agents ...")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quintal.cli", "up", "--demo", "--data", str(data),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), READY_S)
        if not line:
            raise SetupError(f"the system did not come up: its logs are in {data}/logs")
        render.say(line.decode().strip())
        report = Report()
        async with asyncio.timeout(READY_S + seconds + SETTLE_S):
            await Tour(data, report).go(seconds)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        code = await asyncio.wait_for(process.wait(), 60)
    report.expect(code == 0, f"the system stops cleanly (its exit status was {code})")
    return report


class Tour:
    """The steps of the demo, in order."""

    def __init__(self, data: Path, report: Report) -> None:
        self._data = data
        self._report = report
        self._held: list[tuple[Client, str]] = []

    async def go(self, seconds: int) -> None:
        """All steps."""
        names = ("operator", "finance", *TENANTS)
        clients = {name: await Client.connect(local_access(self._data, name)) for name in names}
        try:
            operator = clients["operator"]
            await self._fleet(operator)
            await self._capacity(operator)
            await self._leases(clients)
            await self._adopted(operator)
            await self._refused(clients["language"])
            await self._hold(seconds)
            await self._release()
            await self._usage(operator, clients["finance"])
            await self._verify(operator)
        finally:
            for client in clients.values():
                await client.close()

    async def _fleet(self, operator: Client) -> None:
        fleet = await _until(
            operator.fleet, lambda f: sum(bool(n.devices) for n in f.nodes) > NODES_MIN, FLEET_S
        )
        by_vendor: dict[str, dict[str, set[str]]] = {}
        for node in fleet.nodes:
            for device in node.devices:
                seen = by_vendor.setdefault(device.vendor, {"nodes": set(), "devices": set()})
                seen["nodes"].add(node.node)
                seen["devices"].add(f"{node.node}/{device.uuid}")
        counts = {
            vendor: {what: len(names) for what, names in seen.items()}
            for vendor, seen in sorted(by_vendor.items())
        }
        _heading("the fleet, by vendor")
        rows = [(vendor, n["nodes"], n["devices"]) for vendor, n in counts.items()]
        _print(("vendor", "nodes>", "devices>"), rows)
        self._report.found["vendors"] = counts
        unnamed = [d.name for n in fleet.nodes for d in n.devices if d.model is None]
        self._report.expect(not unnamed, f"every device has a model; these have none: {unnamed}")
        accelerators = set(counts) - {"cpu"}
        self._report.expect(len(accelerators) >= VENDORS_MIN, "at least five vendors are there")
        self._report.expect(len(fleet.nodes) > NODES_MIN, "at least twelve nodes and this host")

    async def _capacity(self, operator: Client) -> None:
        answer = await operator.capacity()
        _heading("capacity in standard units, by model (~: an estimated rating)")
        rows = []
        for row in answer.rows:
            shown = [
                ("~" if row.estimated.get(its) else "") + row.units[its] if its in row.units else ""
                for its in ("train_llm", "llm_large")
            ]
            rows.append((row.model, row.devices, *shown))
        _print(("model", "devices>", "STU>", "SIU>"), rows)
        self._report.found["capacity"] = [row.model_dump(mode="json") for row in answer.rows]

    async def _leases(self, clients: dict[str, Client]) -> None:
        _heading("a lease for each classic profile")
        leases = []
        for number, (tenant, profile, cards, vendor) in enumerate(ASKS):
            kind = "cpu" if vendor == "cpu" else "accelerator"
            need = AcceleratorNeed.model_validate({"kind": kind, "vendors": [vendor]})
            client = clients[tenant]
            answer = await client.place(
                placement.PlaceAsk(
                    request_id=f"demo-{number}-{client.bus.client.client_id}",
                    profile=profile,
                    cards=cards,
                    accelerator=need,
                    ttl_ms=60_000,
                    requester="quintal demo",
                )
            )
            if isinstance(answer, placement.Lease):
                leases.append(answer)
                self._held.append((client, answer.lease))
            self._report.expect(
                answer.kind == "lease", f"{profile} on {vendor} is placed, not {answer.kind}"
            )
        _print(
            ("tenant", "profile", "devices", "units>", "price/h>", "environment"),
            [_lease_row(lease) for lease in leases],
        )
        self._report.found["leases"] = [lease.model_dump(mode="json") for lease in leases]
        vendors = {device.vendor for lease in leases for device in lease.devices}
        self._report.expect(len(vendors) >= 2, "the leases are on at least two vendors")  # noqa: PLR2004

    async def _adopted(self, operator: Client) -> None:
        _heading("a device that an outside scheduler gave away, adopted")
        fleet = await operator.fleet(placement.FleetAsk(vendor="huawei"))
        node, device = next(
            (node, device)
            for node in fleet.nodes
            for device in node.devices
            if device.state == "free"
        )
        lease = await operator.adopt(
            placement.AdoptAsk(
                request_id=f"slurm-4711-{fleet.sequence}",
                tenant="climate",
                node=node.node,
                devices=(device.uuid,),
                workload_class="train_llm",
                requester="slurmctld",
            )
        )
        _print(("tenant", "profile", "devices", "units>", "price/h>", ""), [_lease_row(lease)])
        self._report.found["adopted"] = lease.model_dump(mode="json")
        self._report.expect(lease.adopted and lease.state == "bound", "the device is adopted")

    async def _refused(self, language: Client) -> None:
        _heading("a request that cannot be met, and why")
        ask = placement.PlaceAsk(
            request_id="demo-too-large",
            profile="training-large",
            nodes=3,
            accelerator=AcceleratorNeed(families=("nvidia-h100", "nvidia-h200")),
        )
        try:
            await language.place(ask)
        except Refused as exc:
            self._report.found["refusal"] = exc.details
            render.say(f"{exc.code}: {exc}  [{exc.owner}'s move]")
            rows = [
                (r["count"], r["code"], r.get("pool", ""), r.get("message", ""), r["owner"])
                for r in exc.details.get("reasons", ())
            ]
            _print(("nodes>", "code", "pool", "reason", "whose move"), rows)
            self._report.expect(bool(rows), "the refusal names its reasons")
        else:
            self._report.expect(holds=False, what="three nodes of H100 or H200 are refused")

    async def _hold(self, seconds: int) -> None:
        _heading(f"holding the leases for {seconds} s, renewing them")
        loop = asyncio.get_running_loop()
        until_s = loop.time() + seconds
        while loop.time() < until_s:
            await asyncio.sleep(max(0.0, min(RENEW_S, until_s - loop.time())))
            for client, lease in self._held:
                await client.renew(lease)

    async def _release(self) -> None:
        for client, lease in self._held:
            await client.release(lease)

    async def _usage(self, operator: Client, finance: Client) -> None:
        done = await operator.snapshot()
        ask = metered.SummaryAsk(by=("tenant", "profile"))
        summary = await _until(
            lambda: finance.usage(ask), lambda u: u.sequence >= done.sequence, SETTLE_S
        )
        _heading("usage and cost, read back from the store")
        rows = [
            (
                row.group.get("tenant"),
                row.group.get("profile") or "(adopted)",
                row.leases,
                row.unit_seconds,
                unit_name(row.workload_class),
                f"{row.cost:f}",
                row.currency,
            )
            for row in sorted(
                summary.rows, key=lambda r: (sorted(r.group.items()), r.workload_class)
            )
        ]
        columns = ("tenant", "profile", "leases>", "unit-seconds>", "unit", "cost>", "")
        _print(columns, rows)
        self._report.found["usage"] = summary.model_dump(mode="json")
        used = {row.group.get("tenant") for row in summary.rows if row.quantity > 0}
        self._report.expect(used >= set(TENANTS), f"every tenant has used something: {used}")
        self._report.expect(
            all(row.cost > 0 for row in summary.rows if row.quantity > 0), "all use has a price"
        )

    async def _verify(self, operator: Client) -> None:
        verified = await operator.verify()
        _heading("verify")
        render.say(
            f"{verified.slices} slices, {verified.hours} closed hours and {verified.censuses} "
            f"censuses up to sequence {verified.sequence}: "
            + ("all agree" if verified.ok else f"{len(verified.differences)} differences")
        )
        for difference in verified.differences:
            render.say(f"  {difference.model_dump(mode='json')}")
        self._report.found["verify"] = verified.model_dump(mode="json")
        self._report.expect(verified.ok, "the ledger, the store and the census agree")
        self._report.expect(verified.censuses > 0, "at least one census was compared")


async def _until(ask: Callable[[], Any], holds: Callable[[Any], bool], within_s: float) -> Any:
    """Ask until the answer is as wanted, or time is up: the last answer then."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + within_s
    while True:
        try:
            answer = await ask()
        except BusUnavailable:
            if loop.time() > give_up:
                raise
        else:
            if holds(answer) or loop.time() > give_up:
                return answer
        await asyncio.sleep(0.3)


def _lease_row(lease: placement.Lease) -> tuple[object, ...]:
    models: dict[str, int] = {}
    for device in lease.devices:
        models[device.model] = models.get(device.model, 0) + 1
    nodes = ", ".join(dict.fromkeys(device.node for device in lease.devices))
    what = ", ".join(f"{count} x {model}" for model, count in models.items())
    price = f"{lease.price_per_hour:.2f} {lease.currency}" if lease.price_per_hour else ""
    variables = {name for names in lease.environment.values() for name in names}
    return (
        lease.tenant,
        lease.profile or "(adopted)",
        f"{what} on {nodes}",
        f"{from_micro(lease.units_micro).normalize():f} {unit_name(lease.workload_class)}",
        price,
        ", ".join(sorted(variables)),
    )


def _heading(text: str) -> None:
    render.say(f"\n== {text}")


def _print(columns: tuple[str, ...], rows: Sequence[Sequence[object]]) -> None:
    render.show({}, Table(columns, rows))


COMMANDS: dict[str, Callable[..., None]] = {"demo": demo}
