"""A folder with ten seeded faults: all are listed with file and line, and nothing is changed."""

from __future__ import annotations

import pytest

from tests.catalog.given import SMALL
from tests.catalog.test_commands import Shell, shell

pytestmark = pytest.mark.bus

__all__ = ["shell"]

FILES = {
    "models.yaml": """\
apiVersion: quintal/v1
kind: AcceleratorModel
metadata: {name: cut-80gb}
spec:
  vendor: acme
  famly: acme-cut
  family: acme-cut
  memory_bytes: 8
  partitions:
  - {name: one, parts: 125000, memory_bytes: 1, count_max: 9}
  ratings:
  - {class: train_llm, value: 0.5, low80: 0.6, high80: 0.7, provenance: benchmark}
""",
    "prices.yaml": """\
apiVersion: quintal/v1
kind: PriceList
metadata: {name: next}
spec:
  currency: USD
  valid_from_ms: 1900000000000
  prices:
  - {amount: 2.1234567, per: unit_hour, class: train_llm}
---
apiVersion: quintal/v1
kind: PriceList
metadata: {name: later}
spec:
  currency: EUR
  valid_from_ms: 1900000000001
  prices:
  - {amount: 3, per: unit_hour, class: train_llm}
""",
    "teams/quota.yaml": """\
apiVersion: quintal/v1
kind: Quota
metadata: {name: green}
spec:
  tenant: green
  caps:
  - {class: train_llm, units: 4}
  - {model: big-80, cards: 1}
  - {class: train_lm, units: 4}
---
apiVersion: quintal/v1
kind: Quota
metadata: {name: red}
spec:
  tenant: red
  caps: [{class: train_llm, units: -1}]
""",
}

SEEDED = {
    ("models.yaml", 6, "no such field; did you mean 'family'?"),
    ("models.yaml", 10, "9 x 125000 parts are more than the whole's 1000000"),
    ("models.yaml", 12, "the value 0.5 lies outside 0.6..0.7"),
    ("prices.yaml", 8, "Decimal input should have no more than 6 decimal places"),
    ("prices.yaml", 5, "an installation has one currency"),
    ("prices.yaml", 15, "overlaps PriceList 'standard'"),
    ("quota.yaml", 8, "there is no AcceleratorModel 'big-80'"),
    ("quota.yaml", 9, "did you mean 'train_llm'?"),
    ("quota.yaml", 15, "there is no Tenant 'red'"),
    ("quota.yaml", 16, "a cap is not below 0"),
}


async def test_all_ten_seeded_faults_are_listed_and_nothing_is_changed(shell: Shell) -> None:
    (shell.directory / "first.yaml").write_text(SMALL)
    assert (await shell.quintal("apply", "-f", "first.yaml")).code == 0
    before = (await shell.quintal("list", "-o", "json")).json
    for path, text in FILES.items():
        file = shell.directory / "site" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    said = await shell.quintal("apply", "-f", "site", "-o", "json")
    assert said.code == 3
    faults = said.json["details"]["faults"]
    told = {(fault["file"].rsplit("/", 1)[-1], fault["line"], fault["message"]) for fault in faults}
    missed = [
        (file, line, words)
        for file, line, words in sorted(SEEDED)
        if not any((its, at) == (file, line) and words in said for its, at, said in told)
    ]
    assert missed == [], sorted(told)
    assert len(told) == len(SEEDED) == 10, "no fault that nobody seeded"
    assert (await shell.quintal("list", "-o", "json")).json == before
    assert len((await shell.quintal("history", "-o", "json")).json["revisions"]) == 1
