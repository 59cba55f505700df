"""A small world around a real placer: a catalog written by hand, and agents that do as scripted.

The agents speak the real subjects under their own credentials; they keep tokens and lease sets as
agents do, but have no devices, and can be told to refuse, to be silent, or to die.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from quintal.bus import Bus, Caller
from quintal.clock import SystemClock
from quintal.contracts import catalog, nodes, placement, subjects
from quintal.contracts.documents import Document
from quintal.contracts.message import Refusal
from quintal.contracts.subjects import Role
from quintal.errors import Code
from tests.support.nats import NatsServer

ROOT = Path(__file__).parent.parent.parent
GIB = 2**30


def doc(kind: str, name: str, /, **spec: Any) -> Document:
    """A document, as if read from YAML."""
    return Document.model_validate(
        {"apiVersion": "quintal/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    )


def model(
    name: str, *, memory: int, family: str = "", vendor: str = "nvidia", **ratings: str
) -> Document:
    """A model that the tool calls by its own name."""
    return doc(
        "AcceleratorModel",
        name,
        vendor=vendor,
        family=family or name.rsplit("-", 1)[0],
        memory_bytes=memory * GIB,
        features=["bf16"],
        tdp_watts="700",
        match=[{"vendor": vendor, "names": [name.upper()]}],
        ratings=[
            {"class": its, "value": value, "provenance": "benchmark"}
            for its, value in ratings.items()
        ],
    )


def small_catalog() -> list[Document]:
    """Three models of two vendors, one profile a class, two tenants, one price."""
    caps = [{"class": "train_llm", "units": "1000"}, {"class": "llm_large", "units": "1000"}]
    return [
        model("big-80", memory=80, train_llm="1", llm_large="1"),
        model("mid-40", memory=40, train_llm="0.25", llm_large="0.3"),
        model("red-192", memory=192, vendor="amd", train_llm="0.82", llm_large="0.95"),
        doc("Profile", "train", **{"class": "train_llm", "cards": "1..8", "nodes": "1..64"}),
        doc("Pool", "green", selector={"vendors": ["nvidia"]}),
        doc("Pool", "red", selector={"vendors": ["amd"]}),
        doc("Tenant", "ml", projects=["a"]),
        doc("Tenant", "bio", projects=["b"]),
        doc("Quota", "ml", tenant="ml", caps=caps),
        doc("Quota", "bio", tenant="bio", caps=caps),
        doc(
            "PriceList",
            "list",
            currency="USD",
            prices=[{"amount": "2", "per": "unit_hour"}],
        ),
        doc("PriorityClass", "high", value=100),
    ]


async def write_catalog(bus: Bus, documents: list[Document], revision: int = 1) -> None:
    """Make these the head, as the catalog service stores them."""
    entries = []
    for document in documents:
        data = document.model_dump_json(exclude_none=True).encode()
        digest = sha256(data).hexdigest()
        if await bus.key_get("CATALOG", f"doc.{digest}") is None:
            await bus.key_put("CATALOG", f"doc.{digest}", data, 0)
        entries.append(
            catalog.ManifestEntry(kind=document.kind, name=document.metadata.name, digest=digest)
        )
    manifest = catalog.Manifest(
        revision=revision, entries=tuple(entries), author="test", why="", at_ms=1
    )
    data = manifest.model_dump_json().encode()
    await bus.key_put("CATALOG", f"rev.{revision}", data, 0)
    head = catalog.Head(revision=revision, digest=sha256(data).hexdigest())
    known = await bus.key_get("CATALOG", "head")
    await bus.key_put("CATALOG", "head", head.model_dump_json().encode(), known[1] if known else 0)


@dataclass
class ScriptedAgent:
    """One node that answers as an agent would, or as a test wants it to."""

    bus: Bus
    node: str
    devices: tuple[nodes.RawDevice, ...]
    boot_id: str = "boot-1"
    refuse: str | None = None
    deaf: bool = False
    """Binds and ends get no answer (but are done)."""
    silent: bool = False
    """No heartbeats."""
    cpu_milli: int = 64_000
    labels: dict[str, str] = field(default_factory=dict)
    leases: dict[str, nodes.BoundLease] = field(default_factory=dict)
    outside: dict[str, nodes.BoundLease] = field(default_factory=dict)
    """Leases that it is only told of."""
    tokens: dict[str, int] = field(default_factory=dict)
    binds: int = 0
    sequence: int = 0
    every_s: float = 0.3
    _task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.bus.serve(subjects.BIND, self._bind)
        await self.bus.serve(subjects.END, self._end)
        await self.bus.serve(subjects.SET, self._set)
        await self.bus.flush()
        await self.report()
        self._task = asyncio.create_task(self._beat())

    async def report(self) -> None:
        """Send the inventory."""
        self.sequence += 1
        await self.bus.publish(
            subjects.INVENTORY,
            nodes.Inventory(
                node=self.node,
                boot_id=self.boot_id,
                sequence=self.sequence,
                at_ms=SystemClock().now_ms(),
                devices=self.devices,
                cpu_milli=self.cpu_milli,
                memory_bytes=512 * GIB,
                labels=self.labels,
            ),
            node=self.node,
        )
        await self.bus.flush()

    async def _beat(self) -> None:
        count = 0
        while True:
            count += 1
            if not self.silent and self.bus.connected:
                beat = nodes.Heartbeat(
                    node=self.node,
                    boot_id=self.boot_id,
                    sequence=count,
                    at_ms=SystemClock().now_ms(),
                    lease_version=nodes.lease_set_version(
                        {name: lease.token for name, lease in self.leases.items()}
                    ),
                    outside_version=nodes.lease_set_version(
                        {name: lease.token for name, lease in self.outside.items()}
                    ),
                    inventory_sequence=self.sequence,
                )
                await self.bus.publish(subjects.HEARTBEAT, beat, node=self.node)
            await asyncio.sleep(self.every_s)

    def reboot(self, boot_id: str) -> None:
        """Everything that ran is gone."""
        self.boot_id = boot_id
        self.leases.clear()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        await self.bus.close()

    def _done(self, released: tuple[str, ...] = ()) -> nodes.BindDone:
        return nodes.BindDone(boot_id=self.boot_id, released=released)

    async def _bind(self, _: Caller, ask: nodes.BindAsk) -> nodes.BindDone | Refusal | None:
        self.binds += 1
        if self.refuse is not None:
            return Refusal(code=Code(self.refuse), message="as scripted")
        for device in ask.lease.devices:
            if ask.lease.token < self.tokens.get(device.uuid, 0):
                return Refusal(code=Code.CONFLICT, message="an old token")
            self.tokens[device.uuid] = ask.lease.token
        self.leases[ask.lease.lease] = ask.lease
        return None if self.deaf else self._done()

    async def _end(self, _: Caller, ask: nodes.EndAsk) -> nodes.BindDone | None:
        if self.deaf:
            return None
        self.leases.pop(ask.lease, None)
        return self._done((ask.lease,))

    async def _set(self, _: Caller, ask: nodes.SetAsk) -> nodes.BindDone | None:
        if self.deaf:
            return None
        self.leases = {le.lease: le for le in ask.leases if le.bind != "none"}
        self.outside = {le.lease: le for le in ask.leases if le.bind == "none"}
        if ask.inventory_wanted:
            await self.report()
        return self._done(ask.ended)


def cards(
    node: str, name: str, count: int = 8, vendor: str = "nvidia"
) -> tuple[nodes.RawDevice, ...]:
    """So many devices that a tool names `name`."""
    return tuple(
        nodes.RawDevice(
            uuid=f"GPU-{node}-{name}-{i}", index=i, vendor=vendor, name=name, memory_bytes=GIB * 80
        )
        for i in range(count)
    )


class PlacerProcess:
    """One real placer process on a server, to be killed and started."""

    def __init__(self, nats: NatsServer, number: int, directory: Path, **env: str) -> None:
        self.name = f"placer-{number}"
        self._directory = directory / self.name
        self._directory.mkdir(parents=True, exist_ok=True)
        front = nats.access(f"{self.name}-front", Role.PLACER_FRONT)
        back = nats.access(self.name, Role.PLACER_BACK)
        paths = [ROOT, *(ROOT / "services" / s for s in ("agent", "catalog", "placer", "metering"))]
        self._env = {
            **os.environ,
            "PYTHONPATH": ":".join(str(path) for path in paths),
            "QUINTAL_URL": nats.url,
            "QUINTAL_CREDENTIALS_FRONT": str(front.credentials),
            "QUINTAL_CREDENTIALS_BACK": str(back.credentials),
            "QUINTAL_STATE": str(self._directory),
            **env,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "quintal_placer"], env=self._env, stdout=log, stderr=log
            )

    def log(self) -> str:
        return (self._directory / "log").read_text()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(15)

    def revive(self) -> None:
        """Start it again if it ended (deposed ones do)."""
        if self.process is None or self.process.poll() is not None:
            self.start()


async def until(what: Any, *, within_s: float = 10.0) -> Any:
    """Ask `await what()` until it gives something true."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + within_s
    while True:
        found = await what()
        if found:
            return found
        assert loop.time() < give_up, f"still {found!r} after {within_s} s"
        await asyncio.sleep(0.05)


def request(request_id: str, **more: Any) -> placement.PlaceAsk:
    """A request for one card of profile `train`."""
    return placement.PlaceAsk.model_validate({"request_id": request_id, "profile": "train", **more})
