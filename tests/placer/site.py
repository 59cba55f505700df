"""A fleet and a catalog without bus or time: engine and desk, asked and answered at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quintal.contracts import ledger, nodes, placement
from quintal.contracts.documents import Catalog, Document
from quintal.contracts.message import Refusal
from quintal.settings import Access
from quintal.units import PARTS
from quintal_placer import facts
from quintal_placer.desk import Desk
from quintal_placer.settings import Settings
from quintal_placer.state import PlacerState
from tests.placer.world import GIB, doc, model

AT_MS = 1_800_000_000_000


class StillWriter:
    """What a desk needs in order to decide; nothing is ever appended."""

    full = False
    sequence = 0

    def __init__(self) -> None:
        self.at_ms = AT_MS

    def now_ms(self) -> int:
        return self.at_ms


class Site:
    """One state and one desk. `ask` decides, and applies what it grants."""

    def __init__(self, documents: list[Document], *inventories: nodes.Inventory) -> None:
        self.state = PlacerState()
        self.writer = StillWriter()
        self.adopt(documents, 1)
        for inventory in inventories:
            self.report(inventory)
        access = Access("", Path(), "site")
        writer: Any = self.writer
        announcer: Any = None
        self.desk = Desk(Settings(access, access, Path()), self.state, writer, announcer)
        self._count = 0

    def adopt(self, documents: list[Document], revision: int) -> None:
        catalog = Catalog(tuple(documents), revision=revision, digest=str(revision))
        records = facts.adoption_records(self.state, catalog, AT_MS)
        self.state.adopt_catalog(catalog)
        self.apply(*records)

    def report(self, inventory: nodes.Inventory) -> list[ledger.AnyRecord]:
        records = facts.inventory_records(self.state, inventory, self.writer.at_ms)
        self.apply(*records)
        return records

    def apply(self, *records: ledger.AnyRecord) -> None:
        for record in records:
            self.state.apply(record)

    def decide(self, tenant: str = "ml", **more: Any) -> Any:
        """The decision alone."""
        return self.desk.decide(tenant, asked(self._count, **more))

    def ask(self, tenant: str = "ml", **more: Any) -> ledger.LeaseGranted | Refusal:
        """The decision, and its grant applied."""
        self._count += 1
        request = asked(self._count, **more)
        decided = self.desk.decide(tenant, request)
        if isinstance(decided, Refusal):
            return decided
        name, token = self.desk.next()
        record = self.desk.record(name, token, tenant, request, decided)
        self.apply(record)
        return record

    def granted(self, tenant: str = "ml", **more: Any) -> ledger.LeaseGranted:
        found = self.ask(tenant, **more)
        assert isinstance(found, ledger.LeaseGranted), found
        return found

    def refused(self, tenant: str = "ml", **more: Any) -> Refusal:
        found = self.ask(tenant, **more)
        assert isinstance(found, Refusal), found
        return found

    def over(self, record: ledger.LeaseGranted, at_ms: int = AT_MS) -> None:
        """The lease ends, and its agents have said so."""
        self.end(record, at_ms)
        for name in self.state.leases[record.lease].nodes:
            self.apply(ledger.NodeReleased(at_ms=at_ms, lease=record.lease, node=name, by="agent"))
        self.apply(ledger.LeaseEnded(at_ms=at_ms, lease=record.lease))

    def end(self, record: ledger.LeaseGranted, at_ms: int = AT_MS) -> None:
        self.apply(
            ledger.LeaseEnding(
                at_ms=at_ms, lease=record.lease, reason="released", effective_ms=at_ms
            )
        )

    def used(self, tenant: str = "ml") -> dict[str, tuple[int, int]]:
        """Model -> (cards, micro-units) that count against the tenant's quota in train_llm."""
        return {
            meter.name: (usage.parts // PARTS, usage.micro)
            for meter, usage in self.state.quotas.used.items()
            if (meter.tenant, meter.workload_class, meter.scope) == (tenant, "train_llm", "model")
        }


def asked(number: int, **more: Any) -> placement.PlaceAsk:
    return placement.PlaceAsk.model_validate(
        {"request_id": f"r{number}", "profile": "train", **more}
    )


def inventory(node: str, *devices: nodes.RawDevice, **more: Any) -> nodes.Inventory:
    fields = {"cpu_milli": 64_000, "memory_bytes": 512 * GIB, **more}
    return nodes.Inventory(
        node=node, boot_id="boot-1", sequence=1, at_ms=1, devices=devices, **fields
    )


def quota(tenant: str, *caps: dict[str, Any], **more: Any) -> list[Document]:
    """The tenant, and its caps; a wide one on the class unless one is given."""
    if not any(not cap.get("model") and not cap.get("family") for cap in caps):
        caps = ({"class": "train_llm", "units": "1000"}, *caps)
    return [
        doc("Tenant", tenant, projects=["a"]),
        doc("Quota", tenant, tenant=tenant, caps=list(caps), **more),
    ]


def models() -> list[Document]:
    """Three of one vendor (two of a family), one of another; a profile that allows them all."""
    return [
        model("a-80", memory=80, family="a", train_llm="1"),
        model("a-40", memory=40, family="a", train_llm="0.5"),
        model("b-24", memory=24, family="b", train_llm="0.2"),
        model("red-192", memory=192, vendor="amd", family="red", train_llm="0.8"),
        doc("Profile", "train", **{"class": "train_llm", "cards": "1..64", "nodes": "1..200"}),
    ]


def only(*names: str) -> dict[str, Any]:
    return {"models": list(names)}
