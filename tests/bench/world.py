"""What the benchmarks of the placer stand on: a real server, a real placer, a fleet as it reports.

Ten thousand nodes are ten thousand inventories on the stream; their connections would measure the
machine and not the placer. They are written under one credential without bounds, signed by the
account's own key, that exists in benchmarks alone.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from quintal import nkey
from quintal.bus import Bus
from quintal.contracts import nodes, subjects
from quintal.contracts.documents import Document
from quintal.contracts.subjects import Role
from quintal.nkey import Kind
from quintal.settings import Access
from quintal_catalog.first import starter
from tests.bench import floor
from tests.placer.world import PlacerProcess, doc, write_catalog
from tests.support.nats import NatsServer

GIB = 2**30
CARDS = 8
TENANTS = [f"bench-{number:03d}" for number in range(200)]
ZONES = ("a", "b", "c", "d")
MODELS = (
    ("nvidia-h100-sxm5-80gb", "nvidia", "NVIDIA H100 80GB HBM3", 80),
    ("nvidia-a100-sxm4-80gb", "nvidia", "NVIDIA A100-SXM4-80GB", 80),
    ("nvidia-l40s-48gb", "nvidia", "NVIDIA L40S", 48),
    ("nvidia-h200-sxm5-141gb", "nvidia", "NVIDIA H200", 141),
    ("amd-mi300x-192gb", "amd", "AMD Instinct MI300X OAM", 192),
    ("intel-gaudi3-128gb", "intel", "HL-325L", 128),
)


def unbounded(server: NatsServer, name: str = "bench") -> Path:
    """A credential that may say and hear everything in the account."""
    seed = nkey.new_seed(Kind.USER)
    account = server.authority._keys.account
    claims = {
        "name": name,
        "nats": {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1},
    }
    token = nkey.token(claims, subject=nkey.public(seed), issued_s=int(time.time()), seed=account)
    path = server.directory / f"{name}.creds"
    path.write_text(nkey.credentials(token, seed))
    path.chmod(0o600)
    return path


def documents() -> list[Document]:
    """The starter catalog, and two hundred tenants with caps on three levels."""
    import yaml

    found = [
        Document.model_validate(raw)
        for file in starter()
        for raw in yaml.safe_load_all(file.text)
        if raw
    ]
    for tenant in TENANTS:
        caps: list[dict[str, Any]] = [
            {"class": its, "units": "1000000"} for its in ("train_llm", "llm_large")
        ]
        caps += [
            {"class": "train_llm", "family": "nvidia-h100", "units": "900000"},
            {"class": "train_llm", "model": "amd-mi300x-192gb", "units": "900000"},
            {"model": "intel-gaudi3-128gb", "cards": 900_000},
        ]
        found.append(doc("Tenant", tenant, projects=["p"]))
        found.append(doc("Quota", tenant, tenant=tenant, caps=caps))
    return found


def inventory(number: int) -> nodes.Inventory:
    """One node of eight cards; models and zones in turn."""
    _, vendor, name, gib = MODELS[number % len(MODELS)]
    node = f"n{number:05d}"
    return nodes.Inventory(
        node=node,
        boot_id="boot",
        sequence=1,
        at_ms=1,
        location=ZONES[number // len(MODELS) % len(ZONES)],
        cpu_milli=128_000,
        memory_bytes=2**41,
        devices=tuple(
            nodes.RawDevice(
                uuid=f"GPU-{node}-{index}", index=index, vendor=vendor, name=name,
                memory_bytes=gib * GIB,
            )
            for index in range(CARDS)
        ),
    )  # fmt: skip


def requests(seed: int) -> Any:
    """1, 2, 4 or 8 cards on one node (50/20/15/15 %), 40 % one model, 60 % by capability."""
    chance = random.Random(seed)
    for number in itertools.count():
        cards = chance.choices((1, 2, 4, 8), (50, 20, 15, 15))[0]
        if chance.random() < 0.4:
            need: dict[str, Any] = {"models": [chance.choice(MODELS)[0]]}
        else:
            need = {"memory": chance.choice(("40GB..", "80GB..", "120GB.."))}
            if cards >= 4:
                need["features"] = ["bf16"]
        ask: dict[str, Any] = {
            "request_id": f"r{seed}-{number}",
            "profile": chance.choice(("training-standard", "inference-large")),
            "accelerator": need,
            "cards": cards,
            "objective": chance.choice(("pack", "cheapest", "fastest")),
            "bind": "none",
            "ttl_ms": 86_400_000,
            "labels": {"run": f"b{number % 17}"},
            "project": "p",
        }
        if chance.random() < 0.25:
            ask["constraints"] = {"locations": [chance.choice(ZONES)]}
        yield number, ask


class Asker:
    """Raw requests under any tenant's name, one subscription for all answers."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._count = 0

    @classmethod
    async def connect(cls, server: NatsServer) -> Asker:
        client = await nats.connect(server.url, user_credentials=str(unbounded(server)))
        asker = cls(client)
        await client.subscribe("_INBOX.*.b.*", cb=asker._hear)
        await client.flush()
        return asker

    async def _hear(self, msg: Msg) -> None:
        future = self._waiting.pop(msg.subject, None)
        if future is not None and not future.done():
            future.set_result(msg.data)

    async def ask(self, subject: str, data: bytes, who: str, timeout_s: float = 10.0) -> bytes:
        """The answer's bytes."""
        self._count += 1
        reply = f"_INBOX.{who}.b.{self._count}"
        future = asyncio.get_running_loop().create_future()
        self._waiting[reply] = future
        await self.client.publish(subject, data, reply=reply)
        async with asyncio.timeout(timeout_s):
            return await future

    async def place(self, tenant: str, ask: bytes) -> bytes:
        """One request for devices."""
        return await self.ask(f"quintal.v1.placement.{tenant}.request", ask, tenant)

    async def release(self, tenant: str, lease: str) -> None:
        """Over."""
        data = json.dumps({"lease": lease}).encode()
        await self.ask(f"quintal.v1.placement.{tenant}.release", data, tenant)

    async def operate(self, verb: str, ask: dict[str, Any], timeout_s: float = 60.0) -> Any:
        """One request of an operator."""
        data = json.dumps(ask).encode()
        return json.loads(await self.ask(f"quintal.v1.ops.op.{verb}", data, "op", timeout_s))


class World:
    """Two servers, the floor on one, the placer on the other. Use `async with`."""

    def __init__(self, directory: Path, nodes: int, *, hands: bool = False) -> None:
        self.nodes = nodes
        self._with_hands = hands
        self._hands: subprocess.Popen[bytes] | None = None
        self.server = NatsServer(directory / "product")
        self.floor_server = NatsServer(directory / "floor")
        self.directory = directory
        self._floor: subprocess.Popen[bytes] | None = None
        self.placers: list[PlacerProcess] = []
        self.askers: list[Asker] = []

    async def __aenter__(self) -> Self:
        try:
            return await self._start()
        except BaseException:
            await self.__aexit__()
            raise

    async def _start(self) -> Self:
        self.server.start()
        self.server.declare()
        self.floor_server.start()
        credentials = unbounded(self.floor_server)
        client = await nats.connect(self.floor_server.url, user_credentials=str(credentials))
        await client.jetstream().add_stream(
            name="FLOOR", subjects=[floor.STREAM_SUBJECT], storage="file"
        )
        await client.close()
        env = {
            **os.environ,
            "BENCH_URL": self.floor_server.url,
            "BENCH_CREDENTIALS": str(credentials),
        }
        self._floor = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.floor"], env=env, stdout=subprocess.PIPE
        )
        assert self._floor.stdout is not None
        await asyncio.to_thread(self._floor.stdout.readline)
        async with await Bus.connect(
            Access(self.server.url, unbounded(self.server, "writer"), "writer")
        ) as bus:
            await write_catalog(bus, documents())
            for number in range(self.nodes):
                found = inventory(number)
                await bus.publish(subjects.INVENTORY, found, node=found.node)
                if number % 500 == 499:
                    await bus.flush(30)
            await bus.flush(30)
        if self._with_hands:
            env = {
                **os.environ,
                "BENCH_URL": self.server.url,
                "BENCH_CREDENTIALS": str(unbounded(self.server, "hands")),
                "BENCH_BEATS": str(self.nodes),
            }
            self._hands = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.hands"], env=env, stdout=subprocess.PIPE
            )
            assert self._hands.stdout is not None
            await asyncio.to_thread(self._hands.stdout.readline)
        self.placer = self.process(1)
        self.placer.start()
        self.asker = await Asker.connect(self.server)
        self.floor_asker = await Asker.connect(self.floor_server)
        self.askers = [self.asker, self.floor_asker]
        await self.until_known()
        return self

    def process(self, number: int) -> PlacerProcess:
        """A placer with the settings of production; its nodes do not beat, so silence is long."""
        day = str(86_400_000)
        silent = {"QUINTAL_PLACER_SUSPECT_MS": day, "QUINTAL_PLACER_LOST_MS": day}
        placer = PlacerProcess(
            self.server, number, self.directory / "placer", QUINTAL_LOG="WARNING",
            **({} if self._with_hands else silent),
        )  # fmt: skip
        self.placers.append(placer)
        return placer

    async def until_known(self, within_s: float = 300.0) -> None:
        """Until the placer answers for the whole fleet."""
        give_up = time.monotonic() + within_s
        while time.monotonic() < give_up:
            try:
                told = await self.asker.operate("capacity", {}, 5)
            except (TimeoutError, ValueError):  # nobody there yet: no answer, or an empty one
                await asyncio.sleep(0.2)
                continue
            if sum(row["devices"] for row in told.get("rows", ())) == self.nodes * CARDS:
                return
            await asyncio.sleep(0.2)
        raise AssertionError(self.placer.log()[-3000:])

    async def until_follows(self, placer: PlacerProcess, within_s: float = 120.0) -> None:
        """Until a standby says that it has read the ledger."""
        heard = asyncio.Event()

        async def hear(msg: Msg) -> None:
            if json.loads(msg.data)["sequence"] > 0:
                heard.set()

        subject = subjects.POSITION.subject(reader=placer.name)
        subscription = await self.asker.client.subscribe(subject, cb=hear)
        async with asyncio.timeout(within_s):
            await heard.wait()
        await subscription.unsubscribe()

    async def __aexit__(self, *_: object) -> None:
        for placer in self.placers:
            placer.kill()
        for process in (self._floor, self._hands):
            if process is not None:
                process.kill()
                process.wait()
        for asker in self.askers:
            await asker.client.close()
        self.server.kill()
        self.floor_server.kill()


__all__ = ["Asker", "Role", "World"]
