"""Makes the starter catalog's models and cost list from tables of accelerators, ratings, prices.

    cd services/catalog && python -m tools.build_starter TABLES [OUT]

TABLES is a folder with `accelerators.csv`, `device_ratings.csv` and `prices.csv`; OUT is the
package's `starter/` by default. What it writes is committed; run it again when the tables change,
and read the diff. Every figure keeps where it comes from: the model's `sources` and `confidence`,
each rating's `evidence` and `provenance`.
"""

from __future__ import annotations

import csv
import statistics
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import yaml

from tools import starter_partitions
from tools.starter_models import SHORT, document, model
from tools.starter_ratings import Row, step

NO_PRICE: Final = 600
"""A catalog of cloud prices that we read writes 700 where it has none."""


def main(folder: Path, out: Path) -> None:
    """Read the tables, write the YAML files."""
    rows = _table(folder / "accelerators.csv")
    rated: dict[str, list[Row]] = {}
    for row in _table(folder / "device_ratings.csv"):
        rated.setdefault(row["key"], []).append(row)
    documents = {row["key"]: model(row, rated.get(row["key"], [])) for row in rows}
    starter_partitions.cut(documents)
    _generic_cpus(rows, documents)
    _drop_ambiguous(documents)
    groups: dict[str, list[dict[str, Any]]] = {}
    for made in documents.values():
        vendor = made["spec"]["vendor"]
        alone = vendor if vendor in {"nvidia", "amd", "intel", "huawei", "cpu"} else "others"
        groups.setdefault(alone, []).append(made)
    for group, its in groups.items():
        _write(out / f"models-{group}.yaml", its)
    _write(out / "cost.yaml", [_cost(_table(folder / "prices.csv"), documents)])


def _table(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# --- CPUs that no row names -------------------------------------------------------------------


def _generic_cpus(rows: list[Row], documents: dict[str, dict[str, Any]]) -> None:
    """A host whose processor is not listed: the lowest low end of all rated CPUs, by the thread."""
    cpus = [documents[row["key"]]["spec"] for row in rows if row["key"].startswith("cpu-")]
    ratings = []
    for name in ("llm_decode", "scientific"):
        lows = [r["low80"] for spec in cpus for r in spec.get("ratings", ()) if r["class"] == name]
        value = min(lows)
        ratings.append(
            {
                "class": name,
                "value": value,
                "low80": step(value, 2),
                "high80": step(value * 2),
                "provenance": "roofline",
                "evidence": "estimate, not measured: lowest low end of all listed CPUs, per thread",
                "per": "core",
            }
        )
    for name, machines in (("x86-64", ["x86_64", "amd64"]), ("aarch64", ["aarch64", "arm64"])):
        spec = {
            "vendor": "cpu",
            "family": "cpu-generic",
            "title": f"Any {name} processor that no other model names",
            "kind": "cpu",
            "memory_kind": "host",
            "features": ["fp64", "fp32"],
            "runtime": "cpu",
            "match": [{"vendor": "cpu", "architectures": machines}],
            "ratings": ratings,
            "confidence": "D",
            "sources": ["derived from the CPU rows of this catalog"],
        }
        documents[f"cpu-{name}"] = document("AcceleratorModel", f"cpu-{name}", spec)


# --- rules that would hold for two ------------------------------------------------------------


def _drop_ambiguous(documents: dict[str, dict[str, Any]]) -> None:
    """Take out every name or PCI id that, with its memory, would stand for two models.

    A short name of ours yields to a name that a tool prints.
    """
    claims: dict[tuple[str, str, str], list[tuple[str, dict[str, Any]]]] = {}
    for name, made in documents.items():
        for rule in made["spec"].get("match", ()):
            for field in ("names", "pci_ids"):
                for word in rule.get(field, ()):
                    claim = (rule["vendor"], field, word.casefold())
                    claims.setdefault(claim, []).append((name, rule))
    for (_, field, word), its in claims.items():
        for name, rule in its:
            rivals = [other for whose, other in its if whose != name and _meet(rule, other)]
            printed = [other for other in rivals if not _is_short(other, word)]
            if rivals and (printed or _is_short(rule, word)):
                rule[field] = [w for w in rule[field] if w.casefold() != word]
                sys.stderr.write(f"{name}: {word!r} may be another model: dropped\n")
    for made in documents.values():
        rules = made["spec"].get("match", [])
        for rule in rules:
            rule.pop(SHORT, None)
        useful = [r for r in rules if r.get("names") or r.get("pci_ids") or "architectures" in r]
        made["spec"]["match"] = useful


def _is_short(rule: dict[str, Any], word: str) -> bool:
    return word in {name.casefold() for name in rule.get(SHORT, ())}


def _meet(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return _windows_meet(one.get("memory", ""), other.get("memory", ""))


def _windows_meet(one: str, other: str) -> bool:
    def ends(window: str) -> tuple[int, int]:
        if not window:
            return 0, 2**60
        low, high = (
            int(edge[:-3]) * (1024 if edge.endswith("GiB") else 1) for edge in window.split("..")
        )
        return low, high

    (low, high), (its_low, its_high) = ends(one), ends(other)
    return low <= its_high and its_low <= high


# --- what the fleet costs ---------------------------------------------------------------------


def _cost(rows: list[Row], documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The median of published on-demand prices, where there are any: an example to replace."""
    seen: dict[str, list[Decimal]] = {}
    for row in rows:
        amount = Decimal(row["usd_per_card_hour"])
        if row["key"] in documents and amount < NO_PRICE:
            seen.setdefault(row["key"], []).append(amount)
    prices = [
        {
            "amount": statistics.median(amounts).quantize(Decimal("0.01")),
            "per": "card_hour",
            "model": key,
        }
        for key, amounts in sorted(seen.items())
    ]
    text = "Example: medians of published on-demand prices; put what your own fleet costs here"
    spec = {"type": "cost", "currency": "USD", "prices": prices}
    return document("PriceList", "cost-example", spec, text)


# --- writing ----------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Short lists and mappings on one line; no anchors, since readers refuse them."""

    def ignore_aliases(self, _data: object) -> bool:
        """Write everything out."""
        return True


_Dumper.add_representer(
    Decimal,
    lambda dumper, value: dumper.represent_scalar("tag:yaml.org,2002:float", _point(value)),
)


def _point(value: Decimal) -> str:
    text = format(value.normalize(), "f")
    return text if "." in text else f"{text}.0"


def _write(path: Path, documents: list[dict[str, Any]]) -> None:
    head = "# Made by services/catalog/tools/build_starter.py: change the tables, not this file.\n"
    text = yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=10_000,
        allow_unicode=True, explicit_start=True,
    )  # fmt: skip
    path.write_text(head + text, encoding="utf-8")


if __name__ == "__main__":
    here = Path(__file__).resolve().parent.parent
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else here / "quintal_catalog" / "starter"  # noqa: PLR2004
    main(Path(sys.argv[1]), target)
