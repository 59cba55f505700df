"""One row of the table of accelerators as a document: what it is, how tools name it."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

from tools import starter_tables as tables
from tools.starter_ratings import Row, ratings_of

GIB: Final = 2**30

SHORT: Final = "short names"
"""A rule's own note while it is being made: names that yield to another model's."""

PRECISIONS: Final[tuple[str, ...]] = (
    "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4",
)  # fmt: skip


def model(row: Row, ratings: list[Row]) -> dict[str, Any]:
    """The model of a row and its ratings."""
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
        "together": tables.TOGETHER.get(key),
        "legal_shapes": list(tables.LEGAL_SHAPES.get(key, ())),
        "ratings": ratings_of(row, ratings, share),
        "confidence": row["confidence"],
        "sources": _sources(row),
        "notes": _notes(row, share),
    }
    return document("AcceleratorModel", key, spec)


def document(kind: str, name: str, spec: dict[str, Any], text: str = "") -> dict[str, Any]:
    """A document without the fields that say nothing."""
    metadata = {"name": name, "description": text} if text else {"name": name}
    kept = {field: value for field, value in spec.items() if value not in (None, "", [], {}, 0)}
    return {"apiVersion": "quintal/v1", "kind": kind, "metadata": metadata, "spec": kept}


def _vendor(row: Row) -> str:
    return str(tables.VENDORS.get(row["vendor"], row["vendor"].lower()))


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
