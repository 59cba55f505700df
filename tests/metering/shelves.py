"""A catalog made by hand, on a shelf that hands out its revisions, and a counter over a story."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from quintal.bus import Caller
from quintal.contracts.documents import Catalog, Document
from quintal_metering.counter import Counter
from quintal_metering.engine import Engine
from quintal_metering.handlers import Handlers, Principals
from quintal_metering.meter import Meter
from tests.metering.story import MODEL

VENDOR = {"vendor": "nvidia", "family": "nvidia-h100", "memory_bytes": 80 * 10**9}


def document(kind: str, name: str, **spec: Any) -> Document:
    return Document.model_validate(
        {"apiVersion": "quintal/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    )


def rating(value: str, version: str = "1", **more: Any) -> dict[str, Any]:
    return {
        "class": "train_llm", "value": value, "provenance": "benchmark", "version": version, **more,
    }  # fmt: skip


def model(*ratings: dict[str, Any], name: str = MODEL, **more: Any) -> Document:
    return document("AcceleratorModel", name, **{**VENDOR, **more}, ratings=list(ratings))


def charges(amount: str, name: str = "list-0", per: str = "unit_hour", **more: Any) -> Document:
    spec: dict[str, Any] = {"currency": "EUR", "prices": [{"amount": amount, "per": per}], **more}
    return document("PriceList", name, **spec)


def profile(name: str = "train", **more: Any) -> Document:
    return document("Profile", name, **{"class": "train_llm", **more})


class Shelf:
    """Revisions by number, as the catalog reader gives them."""

    def __init__(self, **revisions: tuple[Document, ...]) -> None:
        self.revisions = {
            int(name[1:]): Catalog(documents, revision=int(name[1:]))
            for name, documents in revisions.items()
        }

    async def load(self, revision: int | None = None) -> Catalog:
        return self.revisions[max(self.revisions) if revision is None else revision]


class Clock:
    """Always the same instant."""

    def now_ms(self) -> int:
        return 1_800_000_000_000

    def monotonic_s(self) -> float:
        return 0.0


def counter(meter: Meter, shelf: Shelf, folder: Path) -> Counter:
    path = folder / "principals.json"
    path.write_text(json.dumps({"finance": "finance", "operator": "operator"}))
    return Counter(Handlers(Engine(), meter, Principals(path)), shelf, Clock())  # type: ignore[arg-type]


def caller(name: str) -> Caller:
    return Caller(name, "", "")


def prices_of(catalog: Catalog) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(catalog.prices.items()))


def money(text: str) -> Decimal:
    return Decimal(text)
