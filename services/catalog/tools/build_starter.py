"""Makes the starter catalog's models and cost list from tables of accelerators, ratings, prices.

    python services/catalog/tools/build_starter.py TABLES [OUT]

TABLES is a folder with `accelerators.csv`, `device_ratings.csv` and `prices.csv`; OUT is the
package's `starter/` by default. What it writes is committed; run it again when the tables change,
and read the diff. Every figure keeps where it comes from: the model's `sources` and `confidence`,
each rating's `evidence` and `provenance`.

The scientific class has no benchmark here. Its rating is the geometric mean of two ratios to the
reference card: dense *vector* fp64 (33.5 TFLOPS) and memory bandwidth (3350 GB/s). Matrix units
are left out on purpose, since most codes of that kind do not use them. The band is a factor of
1.65 either way, by judgement. A device whose fp64 rate is not known has no rating.
"""

from __future__ import annotations

import csv
import re
import statistics
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import starter_tables as tables
import yaml

GIB: Final = 2**30
PARTS: Final = 1_000_000
REFERENCE: Final = "nvidia-h100-sxm5-80gb"
REFERENCE_FP64: Final = Decimal("33.5")
REFERENCE_BANDWIDTH: Final = Decimal(3350)
SCIENTIFIC_BAND: Final = Decimal("1.65")
NO_PRICE: Final = 600
"""A catalog of cloud prices that we read writes 700 where it has none."""

SHORT: Final = "short names"
"""A rule's own note while it is being made: names that yield to another model's."""

PRECISIONS: Final = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")

Row = dict[str, str]


def main(folder: Path, out: Path) -> None:
    """Read the tables, write the YAML files."""
    rows = _table(folder / "accelerators.csv")
    rated: dict[str, list[Row]] = {}
    for row in _table(folder / "device_ratings.csv"):
        rated.setdefault(row["key"], []).append(row)
    documents = {row["key"]: _model(row, rated.get(row["key"], [])) for row in rows}
    _slices(rows, documents)
    _generic_cpus(rows, documents)
    _drop_ambiguous(documents)
    groups: dict[str, list[dict[str, Any]]] = {}
    for document in documents.values():
        vendor = document["spec"]["vendor"]
        alone = vendor if vendor in {"nvidia", "amd", "intel", "huawei", "cpu"} else "others"
        groups.setdefault(alone, []).append(document)
    for group, its in groups.items():
        _write(out / f"models-{group}.yaml", its)
    _write(out / "cost.yaml", [_cost(_table(folder / "prices.csv"), documents)])


def _table(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# --- one model --------------------------------------------------------------------------------


def _model(row: Row, ratings: list[Row]) -> dict[str, Any]:
    key = row["key"]
    cpu = key.startswith("cpu-")
    share = tables.COUNTED.get(key, 1)
    memory = Decimal(row["memory_gib"]) / share if row["memory_gib"] else None
    spec: dict[str, Any] = {
        "vendor": "cpu" if cpu else _vendor(row),
        "family": _family(row),
        "title": f"{row['vendor']} {row['model']} {row['variant']}",
        "kind": "cpu" if cpu else "accelerator",
        "architecture": row["architecture"],
        "form_factor": row["form_factor"],
        "release_year": int(row["release_year"]) if row["release_year"] else None,
        "memory_bytes": 0 if memory is None or cpu else int(memory * GIB),
        "memory_kind": "host" if cpu else "unified" if key in tables.UNIFIED else "device",
        "memory_bandwidth_gbs": _number(row["memory_bandwidth_gbs"], share),
        "interconnect": "" if row["interconnect"].startswith("none") else row["interconnect"],
        "interconnect_gbs": _interconnect(row, share),
        "tdp_watts": _number(row["tdp_w"], share),
        "tflops": _peaks(row, share),
        "features": _features(row),
        "runtime": row["runtime"].split(" (")[0],
        "match": [] if key in tables.UNMATCHED else _rules(row, memory),
        "legal_counts": list(tables.LEGAL_COUNTS.get(key, ())),
        "ratings": _ratings(row, ratings, share),
        "confidence": row["confidence"],
        "sources": _sources(row),
        "notes": _notes(row, share),
    }
    return _document("AcceleratorModel", key, spec)


def _document(kind: str, name: str, spec: dict[str, Any], text: str = "") -> dict[str, Any]:
    metadata = {"name": name, "description": text} if text else {"name": name}
    kept = {field: value for field, value in spec.items() if value not in (None, "", [], {}, 0)}
    return {"apiVersion": "quintal/v1", "kind": kind, "metadata": metadata, "spec": kept}


def _vendor(row: Row) -> str:
    return tables.VENDORS.get(row["vendor"], row["vendor"].lower())


def _family(row: Row) -> str:
    """The vendor and the model, whatever the form or memory: what a family quota sums over."""
    if row["key"].startswith("cpu-"):
        return "cpu-" + next(w for w in ("xeon", "epyc", "grace") if w in row["model"].lower())
    model = re.sub(r"\(.*?\)|Instinct|GeForce|Data Center GPU|Radeon|\bx2\b", "", row["model"])
    model = re.sub(r"(Ascend) (910B|310P).*", r"\1 \2", model)
    slug = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    slug = re.sub(r"^gaudi-", "gaudi", slug)
    return f"{_vendor(row)}-{slug}"


def _number(text: str, share: int = 1) -> Decimal | None:
    return (Decimal(text) / share).quantize(Decimal("0.0001")).normalize() if text else None


def _interconnect(row: Row, share: int) -> Decimal | None:
    """Both directions together: some vendors give one only."""
    value = _number(row["interconnect_bandwidth_gbs"], share)
    if value is not None and row["interconnect_convention"].startswith("unidirectional"):
        return value * 2
    return value if row["interconnect_convention"].endswith("directional total") else None


def _peaks(row: Row, share: int) -> dict[str, Decimal]:
    columns = {p: f"{p}_tops" if p == "int8" else f"{p}_tflops" for p in PRECISIONS}
    return {p: v for p, c in columns.items() if (v := _number(row[c], share)) is not None}


def _features(row: Row) -> list[str]:
    """Precisions that it has; fp64 only where it runs at a quarter of fp32 or better."""
    peaks = _peaks(row, 1)
    features = [precision for precision in PRECISIONS if precision in peaks]
    if "fp64" in peaks and peaks["fp64"] * 4 < peaks.get("fp32", Decimal(0)):
        features.remove("fp64")
    link = row["interconnect"]
    if link and not link.startswith("none") and not row["key"].startswith("cpu-"):
        words = [word for name, word in tables.LINKS if name in link][:1]
        features += ["nvlink-bridge" if w == "bridge" and "NVLink" in link else w for w in words]
    if row["key"].startswith("cpu-"):
        features += ["amx"] if "AMX" in row["runtime"] else []
        features += ["avx512"] if row["vendor"] in {"Intel", "AMD"} else ["sve2"]
    return features


def _rules(row: Row, memory: Decimal | None) -> list[dict[str, Any]]:
    key = row["key"]
    vendor = "cpu" if key.startswith("cpu-") else _vendor(row)
    names, short = _names(row)
    rule: dict[str, Any] = {"vendor": vendor, "names": [*names, *short], SHORT: short}
    window = tables.WINDOWS.get(key, "")
    if not window and memory and vendor not in tables.NO_WINDOW and key not in tables.UNIFIED:
        nominal = memory * 1024
        low, high = (int(nominal * Decimal(edge)) for edge in (tables.LOW, tables.HIGH))
        window = f"{low}MiB..{high}MiB"
    if window:
        rule["memory"] = window
    rules = [rule] if rule["names"] else []
    if pci := _pci_ids(row):
        rules.append({"vendor": vendor, "pci_ids": pci, "memory": window})
    return rules


def _names(row: Row) -> tuple[list[str], list[str]]:
    """What tools print; then the short names that people use, and the document's own."""
    text = re.sub(r"\s*\((?!R\)|TM\))[^)]*\)", "", row["tool_name_strings"])
    names = [name.strip() for name in text.split(";")]
    names += tables.NAMES.get(row["key"], ())
    short: list[str] = []
    if row["form_factor"] != "MIG":
        model = re.sub(r"\s*\(.*?\)", "", row["model"]).replace("Instinct ", "").strip()
        short = [model, f"{row['vendor']} {model}", row["key"]]
        if row["vendor"] == "Huawei":
            short.append(model.replace(" ", ""))
    names = _once(names, [])
    short += [name.removeprefix("NVIDIA ") for name in names]
    return names, _once(short, names)


def _once(names: list[str], before: list[str]) -> list[str]:
    """Each name once, whatever its case."""
    seen = {name.casefold() for name in before}
    kept = []
    for name in names:
        if name and name.casefold() not in seen:
            seen.add(name.casefold())
            kept.append(name)
    return kept


def _pci_ids(row: Row) -> list[str]:
    """Checked ids of vendors whose tools at times give no name; shared ids are dropped later."""
    if row["pci_checked"] != "yes" or row["vendor"] in {"NVIDIA", "AWS"}:
        return []
    vendor = row["pci_ids"][:4]
    devices = re.findall(r"(?:^|[ :(])([0-9a-f]{4})(?=$|[ ,)])", row["pci_ids"])
    return [f"{vendor}:{device}" for device in devices]


def _sources(row: Row) -> list[str]:
    first = row["source"].replace("(recalled)", "(quoted from memory)")
    second = [text.strip() for text in row["second_sources"].split(";") if text.strip()]
    conflicts = [f"differs: {text.strip()}" for text in row["conflicts"].split(";") if text.strip()]
    return [first, *second, *conflicts]


def _notes(row: Row, share: int) -> str:
    notes = [row["notes"]] if row["notes"] else []
    if share > 1:
        notes.append(f"figures are for one of the {share} devices that its tool shows")
    if why := tables.UNMATCHED.get(row["key"]):
        notes.append(f"no match rule: {why}")
    return "; ".join(notes)


# --- ratings ----------------------------------------------------------------------------------


def _ratings(row: Row, ratings: list[Row], share: int) -> list[dict[str, Any]]:
    cores, threads = _cores(row)
    made = [_rating(row["key"], rating, share, cores * threads) for rating in ratings]
    made += _without_fp4(row, made)
    if row["form_factor"] != "MIG" and (rating := _scientific(row, share, cores * threads)):
        made.append(rating)
    return made


def _cores(row: Row) -> tuple[int, int]:
    """Cores and threads a core of a socket; 1, 1 for what is no CPU."""
    if not row["key"].startswith("cpu-"):
        return 1, 1
    if row["key"] in tables.THREADS:
        return tables.THREADS[row["key"]]
    return int(row["variant"].split()[0]), tables.X86_THREADS


def _rating(key: str, rating: Row, share: int, threads: int) -> dict[str, Any]:
    text = rating["provenance"]
    made: dict[str, Any] = {
        "class": tables.CLASSES.get(rating["rating_class"], rating["rating_class"]),
        "value": _step(rating["rating_vs_h100_sxm"], share * threads),
        "low80": _step(rating["low80"], share * threads),
        "high80": _step(rating["high80"], share * threads),
    }
    if text == "mlperf-measured":
        made["provenance"] = "benchmark"
        cells = rating["mlperf_cells"]
        made["evidence"] = (
            f"MLPerf {rating['mlperf_rounds']}, {cells} {'cell' if cells == '1' else 'cells'}, "
            f"chained to the reference card; not an official MLPerf result"
        )
    else:
        made["provenance"] = "derived" if text.startswith("derived") else "roofline"
        made["evidence"] = text
    if key == REFERENCE:
        made |= {"value": Decimal(1), "low80": Decimal(1), "high80": Decimal(1)}
        made["evidence"] += "; 1 by definition"
    return _counted(made, share, threads)


def _counted(made: dict[str, Any], share: int, threads: int) -> dict[str, Any]:
    if share > 1:
        made["evidence"] += f"; module / {share}"
    if threads > 1:
        made["evidence"] += f"; socket / {threads} hardware threads"
        made["per"] = "core"
    return made


def _step(value: str | Decimal, divisor: int = 1) -> Decimal:
    return (Decimal(value) / divisor).quantize(Decimal("0.000001")).normalize()


def _without_fp4(row: Row, made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Large-model inference is rated with FP4 where the card has it; without, it is like training.

    The reference precision of that class is fp8, and it holds when a request names none: so the
    FP4 figure is kept for `fp4` alone.
    """
    if not row["fp4_tflops"]:
        return []
    by_class = {rating["class"]: rating for rating in made}
    large, train = by_class.get("llm_large"), by_class.get("train_llm")
    if large is None:
        return []
    large["precision"] = "fp4"
    if train is None:
        return []
    base = min(large, train, key=lambda rating: rating["value"])
    other = dict(base)
    other.pop("precision", None)
    other["class"] = "llm_large"
    other["provenance"] = "roofline" if base["provenance"] == "roofline" else "derived"
    other["evidence"] = f"without fp4, taken as the lesser of training and fp4 ({base['evidence']})"
    return [other]


def _scientific(row: Row, share: int, threads: int) -> dict[str, Any] | None:
    if not row["fp64_tflops"] or not row["memory_bandwidth_gbs"]:
        return None
    compute = Decimal(row["fp64_tflops"]) / REFERENCE_FP64
    bandwidth = Decimal(row["memory_bandwidth_gbs"]) / REFERENCE_BANDWIDTH
    value = (compute * bandwidth).sqrt()
    low, high = value / SCIENTIFIC_BAND, value * SCIENTIFIC_BAND
    evidence = "estimate, not measured: geometric mean of vector fp64 and bandwidth ratios"
    if row["key"] == REFERENCE:
        low = high = value
        evidence += "; 1 by definition"
    made = {
        "class": "scientific",
        "value": _step(value, share * threads),
        "low80": _step(low, share * threads),
        "high80": _step(high, share * threads),
        "provenance": "roofline",
        "evidence": evidence,
    }
    return _counted(made, share, threads)


# --- slices of a card -------------------------------------------------------------------------


def _slices(rows: list[Row], documents: dict[str, dict[str, Any]]) -> None:
    """Give each parent its partitions; each slice is a model of its own, rated by its share."""
    for row in rows:
        if row["form_factor"] != "MIG":
            continue
        parent = documents[_parent(row["key"], documents)]["spec"]
        shape = row["key"].rsplit("mig-", 1)[1]
        small = parent["family"] in {"nvidia-a30", "nvidia-rtx-pro-6000-blackwell"}
        places = tables.MIG_SMALL if small else tables.MIG_PLACES
        slices = int(shape.split("g.")[0])
        count, starts = places[slices]
        whole = 4 if small else 8
        memory = _memory_slices(slices, whole)
        partition = {
            "name": shape,
            "model": row["key"],
            "parts": PARTS * memory // whole,
            "memory_bytes": int(Decimal(row["memory_gib"]) * GIB),
            "count_max": count,
            "placements": list(starts),
        }
        parent.setdefault("partitions", []).append(partition)
        if "mig" not in parent["features"]:
            parent["features"].append("mig")
        spec = documents[row["key"]]["spec"]
        spec["features"] = [f for f in spec.get("features", []) if not f.startswith("nvlink")]
        science = next((r for r in parent["ratings"] if r["class"] == "scientific"), None)
        derived = next((r for r in spec["ratings"] if r["provenance"] == "derived"), None)
        if science and derived and (share := re.search(r"(\d+)/(\d+)", derived["evidence"])):
            part = Decimal(share[1]) / Decimal(share[2])
            spec["ratings"].append(
                science
                | {edge: _step(science[edge] * part) for edge in ("value", "low80", "high80")}
                | {"provenance": "derived", "evidence": f"derived: parent x SM share {share[0]}"}
            )


def _memory_slices(compute: int, whole: int) -> int:
    """Memory slices of a shape: 3 and 4 compute slices take half of a card with 8, 7 take all."""
    return {3: whole // 2, 4: whole // 2 if whole > 4 else 4, 7: whole}.get(compute, compute)  # noqa: PLR2004


def _parent(key: str, documents: dict[str, dict[str, Any]]) -> str:
    stem = key.split("-mig-", maxsplit=1)[0]
    return next(name for name in documents if name.startswith(stem) and "-mig-" not in name)


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
                "low80": _step(value, 2),
                "high80": _step(value * 2),
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
        documents[f"cpu-{name}"] = _document("AcceleratorModel", f"cpu-{name}", spec)


# --- rules that would hold for two ------------------------------------------------------------


def _drop_ambiguous(documents: dict[str, dict[str, Any]]) -> None:
    """Take out every name or PCI id that, with its memory, would stand for two models.

    A short name of ours yields to a name that a tool prints.
    """
    claims: dict[tuple[str, str, str], list[tuple[str, dict[str, Any]]]] = {}
    for name, document in documents.items():
        for rule in document["spec"].get("match", ()):
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
    for document in documents.values():
        rules = document["spec"].get("match", [])
        for rule in rules:
            rule.pop(SHORT, None)
        useful = [r for r in rules if r.get("names") or r.get("pci_ids") or "architectures" in r]
        document["spec"]["match"] = useful


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
    return _document("PriceList", "cost-example", spec, text)


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
