"""A small catalog as its author would write it, and a store that keeps keys as the bus does."""

from __future__ import annotations

from dataclasses import dataclass, field

from quintal.contracts.catalog import SourceFile
from quintal.contracts.documents import Catalog
from quintal.errors import BusUnavailable
from quintal_catalog.judging import Judgement, judge

NOW_MS = 1_800_000_000_000

SMALL = """\
apiVersion: quintal/v1
kind: AcceleratorModel
metadata: {name: big-80gb}
spec:
  vendor: acme
  family: acme-big
  memory_bytes: 85899345920
  features: [bf16, fp64]
  match:
  - {vendor: acme, names: [Acme Big], memory: 78GiB..81GiB}
  ratings:
  - {class: train_llm, value: 0.8, low80: 0.7, high80: 0.9, provenance: benchmark}
---
apiVersion: quintal/v1
kind: Profile
metadata: {name: train}
spec:
  class: train_llm
  accelerator: {memory: 80GB.., models: [big-80gb]}
  cards: 1..8
---
apiVersion: quintal/v1
kind: Pool
metadata: {name: acme}
spec:
  selector: {vendors: [acme]}
  tenants: [blue, green]
---
apiVersion: quintal/v1
kind: Tenant
metadata: {name: blue}
spec: {projects: [sky]}
---
apiVersion: quintal/v1
kind: Tenant
metadata: {name: green}
spec: {projects: [grass]}
---
apiVersion: quintal/v1
kind: Quota
metadata: {name: blue}
spec:
  tenant: blue
  caps:
  - {class: train_llm, units: 8}
  - {model: big-80gb, cards: 4}
---
apiVersion: quintal/v1
kind: PriceList
metadata: {name: standard}
spec:
  currency: EUR
  prices:
  - {amount: 1.5, per: unit_hour, class: train_llm, tenant: green}
  - {amount: 2, per: unit_hour, class: train_llm}
---
apiVersion: quintal/v1
kind: PriorityClass
metadata: {name: normal}
spec: {value: 0, default: true}
"""


def file(text: str, path: str = "set.yaml") -> SourceFile:
    return SourceFile(path=path, text=text)


def document(kind: str, name: str, spec: str) -> str:
    return f"---\napiVersion: quintal/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n"


def judged(*texts: str, over: Catalog | None = None, delete: tuple[str, ...] = ()) -> Judgement:
    files = tuple(file(text, f"{index}.yaml") for index, text in enumerate(texts))
    return judge(over or Catalog(), files, delete, NOW_MS)


def catalog(*texts: str) -> Catalog:
    judgement = judged(*texts)
    assert judgement.ok, judgement.faults
    return Catalog(tuple(judgement.documents.values()), revision=1)


SMALL_CATALOG = catalog(SMALL)


@dataclass(slots=True)
class Keys:
    """A bucket in memory with the bus's own rules; `fail_at` breaks the nth write from now on."""

    values: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    sequence: int = 0
    writes: int = 0
    fail_at: int | None = None
    lose_the_answer: bool = False
    """The failing write is stored all the same: only its answer is lost."""
    cut: bool = False

    async def key_get(self, bucket: str, key: str) -> tuple[bytes, int] | None:
        if self.cut:
            raise BusUnavailable(f"reading {bucket}/{key}")
        return self.values.get(key)

    async def key_put(self, bucket: str, key: str, value: bytes, revision: int) -> int | None:
        self.writes += 1
        broken = self.cut or (self.fail_at is not None and self.writes >= self.fail_at)
        if broken and not self.lose_the_answer:
            raise BusUnavailable(f"writing {bucket}/{key}")
        has = self.values.get(key)
        if (has[1] if has else 0) != revision:
            return None
        self.sequence += 1
        self.values[key] = (value, self.sequence)
        if broken:
            raise BusUnavailable(f"writing {bucket}/{key}")
        return self.sequence


@dataclass(slots=True)
class StoppedClock:
    """Stands still until told."""

    ms: int = NOW_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000
