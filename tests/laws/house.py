"""Two placers over one ledger, four nodes, three tenants: what the generated histories act upon.

The parts are the real ones: state, writer, desk, binding, ends, promises, watch. What stands for
`lead.Placer` is a few lines here, since that one is tied to processes and time; the live tests
have it whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Any

from quintal.clock import SteadyClock
from quintal.contracts import ledger, nodes, placement
from quintal.contracts.documents import Catalog, Document
from quintal.contracts.message import Refusal
from quintal.settings import Access
from quintal.units import PARTS
from quintal_placer import facts, operations, snapshots
from quintal_placer.announcer import Announcer
from quintal_placer.ledger import Deposed, LedgerWriter, claim
from quintal_placer.promises import Promises
from quintal_placer.settings import Settings
from quintal_placer.state import PlacerState
from quintal_placer.watch import Watch
from tests.laws.audit import Auditor, Still, check_state, restored
from tests.laws.memory import MemoryAgent, MemoryAgents, MemoryLedger, Wire
from tests.laws.virtual import VirtualClock, VirtualLoop
from tests.placer.world import GIB, cards, doc, model

TENANTS = ("ml", "bio", "poor")


HALVES, QUARTERS = ("half", "half"), ("quarter", "quarter", "quarter")


def parted(revision: int) -> Document:
    """`mid-40`, which is shared and cut; how small a share may be the second revision changes."""
    whole = model("mid-40", memory=40, train_llm="0.25").spec.model_dump(mode="json")
    shapes = [
        {"name": "half", "parts": 500_000, "memory_bytes": 20 * GIB, "count_max": 2},
        {"name": "quarter", "parts": 250_000, "memory_bytes": 10 * GIB, "count_max": 4},
    ]
    shares = {"smallest_milli": 300 if revision == 2 else 100, "step_milli": 100}
    return doc("AcceleratorModel", "mid-40", **{**whole, "partitions": shapes, "shares": shares})


def cut(device: nodes.RawDevice, shapes: tuple[str, ...], times: int) -> nodes.RawDevice:
    """The card in this mode; its partitions are new ones each time."""
    parts = tuple(
        nodes.RawPartition(uuid=f"{device.uuid}/{times}.{i}", profile=name, index=i)
        for i, name in enumerate(shapes)
    )
    return device.model_copy(update={"partitions": parts})


def catalog(revision: int, ml_units: str) -> Catalog:
    """Four models in two pools, one of them closed; three tenants, one of them without quota."""

    def caps(units: str) -> list[dict[str, Any]]:
        return [
            {"class": "train_llm", "units": units},
            {"model": "big-80", "cards": 5},
            {"class": "train_llm", "family": "red", "units": "1.64"},
        ]

    documents = [
        model("big-80", memory=80, train_llm="1"),
        parted(revision),
        model("red-192", memory=192, vendor="amd", train_llm="0.82"),
        doc(
            "AcceleratorModel",
            "epyc",
            vendor="cpu",
            family="epyc",
            kind="cpu",
            match=[{"vendor": "cpu", "names": ["EPYC"]}],
            ratings=[
                {"class": "train_llm", "value": "0.001", "provenance": "roofline", "per": "core"}
            ],
        ),
        doc("Profile", "train", **{"class": "train_llm", "cards": "1..8", "nodes": "1..64"}),
        *(
            doc(
                "Profile",
                f"train-{policy}",
                on_unhealthy=policy,
                **{"class": "train_llm", "cards": "1..8", "nodes": "1..64"},
            )
            for policy in ("drain", "evict")
        ),
        doc("PriorityClass", "high", value=100),
        doc("Pool", "green", selector={"vendors": ["nvidia"]}),
        doc("Pool", "red", selector={"vendors": ["amd", "cpu"]}, tenants=["ml", "poor"]),
        *(doc("Tenant", name, projects=["a"]) for name in TENANTS),
        doc("Quota", "ml", tenant="ml", caps=caps(ml_units)),
        doc("Quota", "bio", tenant="bio", caps=caps("3"), adopt="refuse"),
    ]
    return Catalog(tuple(documents), revision=revision, digest=f"digest-{revision}")


CATALOGS = {1: catalog(1, "6"), 2: catalog(2, "1.5"), 3: catalog(3, "6")}


def fleet() -> dict[str, MemoryAgent]:
    cpu = nodes.RawDevice(uuid="CPU-n4", index=0, vendor="cpu", name="EPYC", cores=64)
    one, two = cards("n1", "BIG-80", 4), cards("n2", "BIG-80", 2)
    return {
        "n1": MemoryAgent("n1", one, topology=lying(one[:2], one[2:])),
        "n2": MemoryAgent("n2", two, topology=lying(two), labels={"zone": "b"}),
        "n3": MemoryAgent("n3", cards("n3", "MID-40", 3), cpu_milli=8_000),
        "n4": MemoryAgent("n4", (*cards("n4", "RED-192", 2, "amd"), cpu)),
    }


def lying(*islands: tuple[nodes.RawDevice, ...]) -> nodes.Topology:
    """These islands, in a fabric that both nodes are in."""
    return nodes.Topology(
        islands=tuple(
            nodes.Island(kind="nvlink", devices=tuple(card.uuid for card in its)) for its in islands
        ),
        fabrics=(nodes.FabricDomain(kind="nvlink", domain="f1"),),
    )


class Replica:
    """One placer: follows, leads, is deposed and follows again."""

    def __init__(self, house: House, name: str, skew_ms: int) -> None:
        self.name = name
        self._house = house
        self._clock = VirtualClock(house.loop, skew_ms)
        access = Access("", Path(), name)
        self.settings = Settings(
            access, access, Path(), suspect_ms=6_000, lost_ms=20_000, flap_ms=5_000
        )
        self._wire: Any = Wire(house.book, house.inventories)
        self._hands: Any = MemoryAgents(house.agents)
        self._writing: asyncio.Task[None] | None = None
        self.claiming: asyncio.Task[Any] | None = None
        self.acts: set[asyncio.Task[Any]] = set()
        self.start()

    def start(self) -> None:
        """As a process does that was just started."""
        self.state = PlacerState()
        self.position = 0
        self.promises: Promises | None = None
        self.writer: LedgerWriter | None = None
        self._outages = 0
        self.watch = Watch(self.settings, self._wire, self.state, self._hands)
        data = self._house.snapshot
        if data is not None:
            header = snapshots.header_of(data)
            if header["adopted"][0]:
                self.state.adopt_catalog(CATALOGS[header["adopted"][0]])
            snapshots.fill(self.state, data)
            self.position = header["sequence"]

    def follow(self) -> None:
        for data in self._house.book.messages[self.position :]:
            for record in ledger.GROUP.validate_json(data).transitions:
                if isinstance(record, ledger.CatalogAdopted):
                    self.state.adopt_catalog(CATALOGS[record.revision])
                self.state.apply(record)
            self.position += 1

    async def take_over(self) -> bool:
        assert self.writer is None
        self.follow()
        clock = SteadyClock(self._clock, self.state.at_ms)
        sequence = await claim(
            self._wire, self.state, clock, writer=self.name, sequence=self.position
        )
        if sequence is None:
            self.claiming = None
            return False
        self.position = sequence
        self.writer = LedgerWriter(
            self._wire, self.state, clock, writer=self.name, sequence=sequence
        )
        self._writing = asyncio.create_task(self.writer.run())
        self._writing.add_done_callback(self._over)
        promises = Promises(
            self.settings, self.state, self.writer, self._hands, Announcer(self._wire)
        )
        self.promises = promises
        self.adopt_catalog()
        await self.watch.lead(promises, self.writer)
        promises.resume()
        self.claiming = None
        return True

    def adopt_catalog(self) -> None:
        revision = self._house.head
        if self.promises is None or self.writer is None or revision <= self.state.adopted[0]:
            return
        found = CATALOGS[revision]
        records = facts.adoption_records(self.state, found, self.writer.now_ms())
        self.state.adopt_catalog(found)
        self.promises.desk.commit(records)

    def _over(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        self._house.deposed += 1
        if not isinstance(error, Deposed):
            self._house.faults.append(f"{self.name}: {error!r}")
        self.stop()
        self.start()

    def stop(self) -> None:
        """Nothing of it lives on: neither memory nor tasks."""
        for act in self.acts:
            act.cancel()
        self.claiming = None
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        if self.promises is not None:
            binding, ends = self.promises.binding, self.promises.ends
            for task in [*binding._tasks.values(), *ends._tasks, *self.promises.queue._tasks]:
                task.cancel()
        for task in self.watch._tasks:
            task.cancel()
        self.promises = self.writer = None

    async def confirm(self) -> Promises | None:
        """As `Placer.confirm`: who cannot be sure to lead proves it by an append."""
        if self.promises is None or self.writer is None:
            return None
        if self._house.auditor.state.writer != self.name or self._house.book.on_the_way:
            await self.promises.desk.commit([ledger.Tick(at_ms=self.writer.now_ms())])
        return self.promises

    def housekeeping(self) -> None:
        """One round, as `Placer._housekeeping` has it."""
        if self.promises is None or self.writer is None:
            return
        self.adopt_catalog()
        if self.writer.stalled_s is not None:
            return  # time does not count while nothing can be appended
        if self.writer.outages != self._outages:
            self._outages = self.writer.outages
            self.promises.ends.grace()
            self.watch.pardon()
        if self._house.leader is self:
            self.watch.count_silence()
        self.promises.ends.expire()
        self.promises.work_queue()
        self.promises.ends.send_ends(self._house.loop.time())


class House:
    """The whole of it, and what clients were told."""

    def __init__(self) -> None:
        logging.getLogger("quintal_placer").setLevel(logging.CRITICAL)
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.agents = fleet()
        self.inventories = {name: agent.inventory() for name, agent in self.agents.items()}
        self.auditor = Auditor(CATALOGS, self.agents, self.loop.time)
        self.book = MemoryLedger(self.auditor.hear)
        self.head = 1
        self.snapshot: bytes | None = None
        self.faults: list[str] = []
        """What went wrong in a task that nobody awaits."""
        self.loop.set_exception_handler(self._fault)
        self.told: dict[str, placement.Lease] = {}
        """Lease -> what its tenant was told of it last."""
        self.until_s: dict[str, float] = {}
        """Lease -> loop time until which it was promised."""
        self.let_go: set[str] = set()
        """Leases that somebody asked to end."""
        self.sick: set[str] = set()
        """Devices that have failed, ever."""
        self.gone: set[str] = set()
        """Nodes that rebooted or were retired, ever."""
        self.asked: dict[tuple[str, str], placement.PlaceAsk] = {}
        self.got: dict[tuple[str, str], str] = {}
        """(tenant, request id) -> the lease that was answered."""
        self.deposed = 0
        self.replicas = [Replica(self, "placer-1", 0), Replica(self, "placer-2", 1_500)]
        self.lead(0)

    def close(self) -> None:
        for replica in self.replicas:
            replica.stop()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.spin(0)
        self.loop.close()
        logging.getLogger("quintal_placer").setLevel(logging.NOTSET)
        asyncio.set_event_loop(None)

    def _fault(self, _: Any, context: dict[str, Any]) -> None:
        self.faults.append(f"{context.get('message')}: {context.get('exception')!r}")

    @property
    def leader(self) -> Replica | None:
        """Whoever the ledger says it is, if it knows."""
        for replica in self.replicas:
            if replica.promises is not None and replica.name == self.auditor.state.writer:
                return replica
        return None

    def leader_or_elect(self) -> Replica | None:
        """The leader; where there is none, the next in the row tries to become it."""
        if self.leader is None:
            self.lead(len(self.auditor.groups) % 2)
        return self.leader

    def lead(self, number: int) -> None:
        replica = self.replicas[number]
        if replica.writer is None and replica.claiming is None:
            replica.claiming = self.start(replica, replica.take_over())
        self.loop.spin()

    def start(self, replica: Replica, coroutine: Any) -> asyncio.Task[Any]:
        """What this placer does for somebody; it may hang for as long as the ledger does."""
        task = self.loop.create_task(coroutine)
        replica.acts.add(task)
        task.add_done_callback(replica.acts.discard)
        task.add_done_callback(self._act_done)
        return task

    def _act_done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.faults.append(f"a client's act: {task.exception()!r}")

    # --- what clients do ----------------------------------------------------------------------

    async def place(self, replica: Replica, tenant: str, ask: placement.PlaceAsk) -> Any:
        promises = await replica.confirm()
        if promises is None:
            return None
        key = (tenant, ask.request_id)
        fresh = promises.desk.by_request(tenant, ask.request_id) is None
        dry = promises.dry_run(tenant, ask) if fresh else None
        answer = await promises.place(tenant, ask)
        self._told(answer)
        if dry is not None:
            _same_verdict(ask, dry, answer)
        before = self.got.get(key)
        if before is not None and before in self.told:
            if self.asked[key] != ask:
                assert isinstance(answer, Refusal), f"law 3: {answer}"
                assert answer.code == "conflict", f"law 3: {answer}"
            else:
                assert isinstance(answer, placement.Lease), f"law 3: {before} was told, {answer}"
                assert answer.lease == before, f"law 3: {before} was told, now {answer.lease}"
        if isinstance(answer, placement.Lease) and before is None:
            self.got[key], self.asked[key] = answer.lease, ask
        return answer

    def _told(self, answer: Any) -> None:
        """Law 2, at the very moment of a reply: what is said is in the ledger."""
        if isinstance(answer, placement.Pending):
            assert answer.lease in self.auditor.state.leases, f"law 2: {answer} is not stored"
        if not isinstance(answer, placement.Lease):
            return
        stored = self.auditor.state.leases.get(answer.lease)
        assert stored is not None, f"law 2: {answer.lease} was answered and is not stored"
        if answer.token == stored.token:
            assert answer.devices == stored.devices
        assert _AGE[answer.state] <= _AGE[stored.state.value], (
            f"law 2: {answer.lease} was said to be {answer.state}, the ledger has {stored.state}"
        )
        self.told[answer.lease] = answer
        if answer.state in {"granted", "bound"}:
            until_s = self.loop.time() + answer.expires_in_ms / 1000
            self.until_s[answer.lease] = max(self.until_s.get(answer.lease, 0), until_s)

    async def renew(self, replica: Replica, tenant: str, ask: placement.RenewAsk) -> Any:
        if (promises := await replica.confirm()) is not None:
            self._told(answer := await promises.renew(tenant, ask))
            return answer
        return None

    async def release(self, replica: Replica, tenant: str, ask: placement.ReleaseAsk) -> Any:
        if (promises := await replica.confirm()) is not None:
            self.let_go.add(ask.lease)
            self._told(answer := await promises.release(tenant, ask))
            return answer
        return None

    async def cancel(self, replica: Replica, tenant: str, ask: placement.CancelAsk) -> Any:
        if (promises := await replica.confirm()) is not None:
            self._told(answer := await promises.cancel(tenant, ask))
            return answer
        return None

    async def adopt(self, replica: Replica, ask: placement.AdoptAsk) -> Any:
        if (promises := await replica.confirm()) is not None:
            self._told(answer := await promises.adopt(ask))
            return answer
        return None

    async def end(self, replica: Replica, lease: str) -> Any:
        if (promises := await replica.confirm()) is not None:
            self.let_go.add(lease)
            self._told(answer := await promises.end_adopted(placement.EndAdoptedAsk(lease=lease)))
            return answer
        return None

    # --- what the world does ------------------------------------------------------------------

    def heartbeat(self, node: str) -> None:
        leader = self.leader
        if leader is not None and node in leader.state.fleet.nodes:
            beat = self.agents[node].heartbeat()
            self.loop.act(lambda: leader.watch._heartbeat(beat))

    def fails(self, node: str, uuid: str, *, well: bool = False) -> None:
        """A device fails (or recovers), and its agent says so."""
        sick = self.agents[node].sick
        sick.discard(uuid) if well else sick.add(uuid)
        self.sick |= sick
        self.report(node)

    def report(self, node: str) -> None:
        inventory = self.agents[node].inventory()
        self.inventories[node] = inventory
        leader = self.leader
        if leader is not None:
            self.loop.act(lambda: leader.watch._inventory(inventory))

    def operate(self, records: Any) -> None:
        """Commit what `records(state, at_ms)` gives, as an operator's verb does."""
        leader = self.leader
        if leader is None or leader.promises is None or leader.writer is None:
            return
        found = records(leader.state, leader.writer.now_ms())
        desk = leader.promises.desk
        if found and not isinstance(found, Refusal):
            self.loop.act(lambda: desk.commit(found))

    def cordon(self, node: str, *, on: bool) -> None:
        ask = placement.CordonAsk(nodes=(node,))
        self.operate(
            lambda state, at_ms: operations.cordon(state, ask, by="op", at_ms=at_ms, on=on)
        )

    def retire(self, node: str) -> None:
        """An operator who retires a node has pulled its plug."""
        leader = self.leader
        if leader is None or node not in leader.state.fleet.nodes:
            return
        self.gone.add(node)
        self.agents[node].reboot()
        ask = placement.RetireAsk(nodes=(node,))
        self.operate(lambda state, at_ms: operations.retire(state, ask, by="op", at_ms=at_ms))

    def pass_time(self, seconds: float) -> None:
        """Every node that is well is heard, and every placer keeps house, meanwhile."""
        self.loop.spin(seconds)
        if seconds >= 5:
            self.book.deliver()
            self.loop.spin()
        for name, agent in self.agents.items():
            if agent.mood not in {"absent", "silent, not done"}:
                leader = self.leader
                if leader is not None and name not in leader.state.fleet.nodes:
                    self.report(name)
                self.heartbeat(name)
        for replica in self.replicas:
            self.loop.act(replica.housekeeping)
        self.loop.spin()

    def seen(self) -> Counter[str]:
        """What this history came to."""
        found: Counter[str] = Counter()
        for group in self.auditor.groups:
            for record in group.transitions:
                found[record.kind] += 1
                if isinstance(record, ledger.LeaseEnding):
                    found[f"ending {record.reason}"] += 1
                if isinstance(record, ledger.LeaseGranted):
                    found["gang"] += len({d.node for d in record.devices}) > 1
                    found["adopted"] += record.adopt is not None
                    found["over_by"] += bool(record.over_by)
                    found["share"] += any(
                        d.parts < PARTS and d.partition is None for d in record.devices
                    )
                    found["partition"] += any(d.partition is not None for d in record.devices)
                    found["groups"] += bool(record.request and record.request.groups)
                    found["beside a share"] += len({d.parts for d in record.devices}) > 1
                    asked = record.request
                    found["arranged"] += asked is not None and asked.topology is not None
                    found["members"] += asked is not None and bool(asked.members)
                    found["repair"] += asked is not None and asked.repairs is not None
        found["deposed"] += self.deposed
        found["told"] += len(self.told)
        found["conflict"] += self.book.conflicts
        found["groups of several"] += sum(len(g.transitions) > 1 for g in self.auditor.groups)
        return found

    # --- what must hold -----------------------------------------------------------------------

    def check(self, *, deep: bool = True) -> None:
        assert not self.faults, self.faults
        for agent in self.agents.values():
            assert not agent.collisions, f"law 1: {agent.collisions}"
        check_state(self.auditor.state)
        for replica in self.replicas:
            if replica.promises is not None:
                check_state(replica.state)
        self._nothing_told_is_lost()
        if deep:
            self.check_replay()

    def _nothing_told_is_lost(self) -> None:
        """Law 2: an acknowledged lease lives until something that may end it did."""
        for name, told in self.told.items():
            lease = self.auditor.state.leases.get(name)
            assert lease is not None, f"law 2: {name} was told, and is lost"
            assert _AGE[told.state] <= _AGE[lease.state.value]
            if told.state not in {"granted", "bound"}:
                continue
            match lease.reason if name in self.auditor.ended_at_s else "":
                case "expired" | "node_lost":
                    ended_s = self.auditor.ended_at_s[name]
                    assert ended_s >= self.until_s[name] - 0.002, (
                        f"law 2: {name} was promised until {self.until_s[name]}, ended {ended_s}"
                    )
                case "released" | "ended_outside":
                    assert name in self.let_go, f"law 2: nobody released {name}"
                case "revoked":
                    assert lease.granted is not None
                    assert lease.granted.on_unhealthy == "evict", f"law 2: {name} was revoked"
                    assert self.sick & {d.uuid for d in lease.devices}, "law 2: nothing had failed"
                case "rebooted" | "retired":
                    assert self.gone & set(lease.nodes), f"law 2: no node of {name} went away"
                case "":
                    assert lease.state.value in {"granted", "bound"}
                case other:
                    raise AssertionError(f"law 2: {name} was told, and ended: {other}")

    def check_replay(self) -> None:
        """Law 11: a state that comes out of a snapshot is the same, and decides the same."""
        state = self.auditor.state
        again = restored(state, len(self.book.messages))
        check_state(again)
        once = list(snapshots.records_of(state))
        assert list(snapshots.records_of(again)) == once, "law 11: a snapshot loses something"
        assert again.census() == state.census()
        assert list(again.queue) == list(state.queue)
        assert again.by_request == state.by_request
        assert decisions(again) == decisions(state), "law 11: replayed, it decides otherwise"


_AGE = {
    "queued": 0, "granted": 1, "bound": 1, "ending": 2,
    "ended": 3, "failed": 3, "refused": 3, "cancelled": 3,
}  # fmt: skip


def _same_verdict(ask: placement.PlaceAsk, dry: placement.Verdict, answer: Any) -> None:
    """Law 11; a bind that failed afterwards is no part of the decision.

    Nor is what became of one who waits before its append came back: granted, cancelled, too late.
    """
    of_lease = isinstance(answer, Refusal) and "lease" in answer.details
    if dry.verdict == "placed":
        waits = isinstance(answer, placement.Pending)  # for a second try
        assert of_lease or waits or isinstance(answer, placement.Lease), f"law 11: {dry} / {answer}"
    elif isinstance(answer, Refusal) and not of_lease:
        assert dry.refusal is not None
        assert (answer.code, answer.verdict) == (dry.refusal.code, dry.refusal.verdict), "law 11"
    else:
        waits = (dry.verdict, ask.wait.mode) == ("not_now", "queue")
        assert waits, f"law 11: {dry.verdict} / {answer}"


PROBES = tuple(
    placement.PlaceAsk.model_validate({"request_id": f"probe-{i}", "profile": "train", **more})
    for i, more in enumerate(
        (
            {},
            {"cards": 2, "objective": "fastest"},
            {"cards": 2, "nodes": 2},
            {"cards": 1, "objective": "spread", "node": {"cpu_milli": 8_000}},
            {"cards": 8},
            {"accelerator": {"share": {"compute_milli": 300}}},
            {"accelerator": {"partition": "half"}},
            {"groups": [{"accelerator": {"share": {"compute_milli": 500}}}]},
        )
    )
)


def decisions(state: PlacerState) -> list[str]:
    """The canonical decisions of this state on a few asks."""
    from quintal_placer.desk import Desk

    access = Access("", Path(), "probe")
    writer: Any = Still(state.at_ms)
    nowhere: Any = None
    desk = Desk(Settings(access, access, Path()), state, writer, nowhere)
    found = []
    for tenant in TENANTS:
        for ask in PROBES:
            decided = desk.decide(tenant, ask)
            if isinstance(decided, Refusal):
                found.append(decided.model_dump_json())
            else:
                chosen = decided[2]
                keys = [
                    (*piece.device.key, piece.parts, piece.partition and piece.partition.uuid)
                    for pick in chosen.picks
                    for piece in pick.pieces
                ]
                found.append(f"{chosen.offer.model} {chosen.pool} {keys} {chosen.micro}")
    return found
