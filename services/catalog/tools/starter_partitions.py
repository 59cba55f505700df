"""How cards can be cut: the shapes of each, where they begin, what a layout leaves over.

Geometry of MIG after NVIDIA's MIG user guide (supported profiles): a card with 7 compute and 8
memory slices, or one with 4 (or 2) of both. A shape's parts are its share of memory slices, since
those run out: seven shapes of one slice leave an eighth of the card that nobody can use. Shapes
with media engines or graphics (`+me`, `+gfx`) are the same cut of compute and memory; the one
with media engines can be had once.

A slice is rated as its parent times its share of multiprocessors, which measured slices exceed a
little; not in the classes that are measured over several cards (train_llm, llm_large).
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from tools.starter_ratings import step

PARTS: Final = 1_000_000

SLICED: Final = ("train_other", "llm_small", "vision", "scientific")
"""Classes in which a slice is rated by its share of compute."""

SLICE_BAND: Final = Decimal("1.1078")
"""The 80 % factor of a slice's rating, at least: exp(1.28 x 0.08)."""

SEVEN: Final = {
    1: (7, (0, 1, 2, 3, 4, 5, 6), 1),
    2: (3, (0, 2, 4), 2),
    3: (2, (0, 4), 4),
    4: (1, (0,), 4),
    7: (1, (0,), 8),
}
"""Compute slices -> how many fit, where each begins, memory slices; of 7 and 8."""

WIDE: Final = (4, (0, 2, 4, 6), 2)
"""One compute slice with the memory of two."""

FOUR: Final = {1: (4, (0, 1, 2, 3), 1), 2: (2, (0, 2), 2), 4: (1, (0,), 4)}
TWO: Final = {1: (2, (0, 1), 1), 2: (1, (0,), 2)}


@dataclass(frozen=True, slots=True)
class Cut:
    """How a card can be cut. `shapes` are names; a second one of one slice is the wide one."""

    shapes: tuple[str, ...]
    share: dict[int, str]
    """Compute slices -> multiprocessors, `14/108`; or a plain share where they are not known."""
    slices: int = 8
    media: bool = True
    graphics: bool = False
    note: str = ""


_A100: Final = {1: "14/108", 2: "28/108", 3: "42/108", 4: "56/108", 7: "98/108"}
_H100: Final = {1: "16/132", 2: "32/132", 3: "60/132", 4: "64/132", 7: "132/132"}
_EIGHTHS: Final = {1: "1/8", 2: "2/8", 3: "3/8", 4: "4/8", 7: "7/8"}
_B200: Final = {1: "18/148", 2: "36/148", 3: "54/148", 4: "72/148", 7: "126/148"}
_GB200: Final = {1: "18/152", 2: "36/152", 3: "54/152", 4: "72/152", 7: "126/152"}
_QUARTERS: Final = {1: "1/4", 2: "2/4", 4: "4/4"}

_UNSURE: Final = "multiprocessors of a slice are not published: taken as an eighth of the card each"
_COUNTED: Final = "multiprocessors of a slice as counted on such a card, 18 each"

_GB80: Final = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
_GB40: Final = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
_GB94: Final = ("1g.12gb", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb")
_GB96: Final = ("1g.12gb", "1g.24gb", "2g.24gb", "3g.48gb", "4g.48gb", "7g.96gb")
_GB141: Final = ("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb")
_GB180: Final = ("1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb")
_GB186: Final = ("1g.23gb", "1g.47gb", "2g.47gb", "3g.93gb", "4g.93gb", "7g.186gb")
_GB269: Final = ("1g.34gb", "1g.67gb", "2g.67gb", "3g.135gb", "4g.135gb", "7g.269gb")
_GB278: Final = ("1g.35gb", "1g.70gb", "2g.70gb", "3g.139gb", "4g.139gb", "7g.278gb")
_PRO96: Final = ("1g.24gb", "2g.48gb", "4g.96gb")

CUTS: Final = {
    "nvidia-a30-24gb": Cut(
        ("1g.6gb", "2g.12gb", "4g.24gb"), {1: "14/56", 2: "28/56", 4: "56/56"}, slices=4
    ),
    "nvidia-a100-pcie-40gb": Cut(_GB40, _A100),
    "nvidia-a100-sxm4-40gb": Cut(_GB40, _A100),
    "nvidia-a100-pcie-80gb": Cut(_GB80, _A100),
    "nvidia-a100-sxm4-80gb": Cut(_GB80, _A100),
    "nvidia-a800-pcie-80gb": Cut(_GB80, _A100),
    "nvidia-a800-sxm4-80gb": Cut(_GB80, _A100),
    "nvidia-h100-pcie-80gb": Cut(_GB80, _EIGHTHS, note=_UNSURE),
    "nvidia-h800-pcie-80gb": Cut(_GB80, _EIGHTHS, note=_UNSURE),
    "nvidia-h100-sxm5-80gb": Cut(_GB80, _H100),
    "nvidia-h800-sxm5-80gb": Cut(_GB80, _H100),
    "nvidia-h100-sxm5-96gb": Cut(_GB96, _H100),
    "nvidia-gh200-96gb": Cut(_GB96, _H100),
    "nvidia-h100-nvl-94gb": Cut(_GB94, _H100),
    "nvidia-h20-96gb": Cut(_GB96, _EIGHTHS, note=_UNSURE),
    "nvidia-h200-sxm5-141gb": Cut(_GB141, _H100),
    "nvidia-h200-nvl-141gb": Cut(_GB141, _H100),
    "nvidia-b200-sxm6-180gb": Cut(_GB180, _B200, note=_COUNTED),
    "nvidia-gb200-186gb": Cut(_GB186, _GB200, note=_COUNTED),
    "nvidia-b300-sxm6-288gb": Cut(_GB269, _B200, note=_COUNTED),
    "nvidia-gb300-288gb": Cut(_GB278, _GB200, note=_COUNTED),
    "nvidia-rtx-pro-6000-blackwell-server-96gb": Cut(_PRO96, _QUARTERS, slices=4, graphics=True),
    "nvidia-rtx-pro-6000-blackwell-ws-96gb": Cut(_PRO96, _QUARTERS, slices=4, graphics=True),
    "nvidia-rtx-pro-6000-blackwell-maxq-96gb": Cut(_PRO96, _QUARTERS, slices=4, graphics=True),
    "nvidia-rtx-pro-4500-blackwell-32gb": Cut(
        ("1g.16gb", "2g.32gb"), {1: "1/2", 2: "2/2"}, slices=2, media=False, graphics=True
    ),
}

MIG_SOURCE: Final = "NVIDIA MIG user guide, supported profiles"

SLICE_NAMES: Final = {
    "nvidia-a30-24gb": "nvidia-a30",
    "nvidia-rtx-pro-6000-blackwell-server-96gb": "nvidia-rtx-pro-6000-blackwell-server",
}
"""Parents whose slices go by a shorter name."""

AMD: Final = {
    "amd-mi300x-192gb": (1, 2, 4, 8),
    "amd-mi308x-192gb": (1, 4),
    "amd-mi325x-256gb": (1, 2, 4, 8),
    "amd-mi350x-288gb": (1, 2, 4, 8),
    "amd-mi355x-288gb": (1, 2, 4, 8),
    "amd-mi300a-128gb": (1, 3, 6),
}
"""Into how many equal devices the compute dies of a module can be put together."""

AMD_MODES: Final = {1: "SPX", 2: "DPX", 3: "TPX", 4: "QPX", 6: "CPX", 8: "CPX"}
AMD_SOURCE: Final = "AMD GPU partitioning guide; modes as amd-smi lists them"


def cut(documents: dict[str, dict[str, Any]]) -> None:
    """Give every card that can be cut its shapes and layouts, and each slice a model."""
    for name, how in CUTS.items():
        _mig(name, documents, how)
    for name, modes in AMD.items():
        _amd(name, documents, modes)


# --- MIG --------------------------------------------------------------------------------------


def _mig(name: str, documents: dict[str, dict[str, Any]], how: Cut) -> None:
    parent = documents[name]["spec"]
    parent["memory_slices"] = how.slices
    parent["partitions"] = []
    if "mig" not in parent["features"]:
        parent["features"].append("mig")
    parent["sources"].append(MIG_SOURCE)
    if how.note:
        parent["notes"] = "; ".join(
            text for text in (parent.get("notes"), f"MIG: {how.note}") if text
        )
    seen: set[int] = set()
    for shape in how.shapes:
        compute = int(shape.split("g.")[0])
        geometry = WIDE if compute in seen else _table(how.slices)[compute]
        seen.add(compute)
        model = f"{SLICE_NAMES.get(name, name)}-mig-{shape}"
        partition = _partition(shape, model, compute, geometry, how.slices)
        _slice_model(model, name, documents, partition, how)
        parent["partitions"].append(partition)
        parent["partitions"] += _extras(partition, how, wide=geometry is WIDE)
    parent["layouts"] = list(_layouts(parent["partitions"]))


def _table(slices: int) -> dict[int, tuple[int, tuple[int, ...], int]]:
    return {8: SEVEN, 4: FOUR, 2: TWO}[slices]


def _partition(
    shape: str,
    model: str,
    compute: int,
    geometry: tuple[int, tuple[int, ...], int],
    slices: int,
) -> dict[str, Any]:
    count, starts, memory = geometry
    return {
        "name": shape,
        "model": model,
        "parts": PARTS * memory // slices,
        "memory_bytes": int(shape.split(".")[1].removesuffix("gb")) * 2**30,
        "count_max": count,
        "placements": list(starts),
        "compute_slices": compute,
        "memory_slices": memory,
    }


def _extras(partition: dict[str, Any], how: Cut, *, wide: bool) -> list[dict[str, Any]]:
    """The same cut with media engines (once a card), or with graphics."""
    compute = partition["compute_slices"]
    extras = []
    if how.media and not wide and (compute == 1 or (how.slices == 4 and compute == 2)):  # noqa: PLR2004
        extras.append(partition | {"name": f"{partition['name']}+me", "count_max": 1})
    if how.graphics:
        extras.append(partition | {"name": f"{partition['name']}+gfx"})
    return extras


def _layouts(partitions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many of one shape as fit; and, of seven slices, the mixed cuts that people use."""
    plain = [p for p in partitions if "+" not in p["name"]]
    found = [_layout({p["name"]: p["count_max"]}, plain) for p in plain]
    by_slices: dict[int, str] = {}
    for partition in plain:
        by_slices.setdefault(partition["compute_slices"], partition["name"])
    if 3 in by_slices:  # noqa: PLR2004
        one, two, three, four = (by_slices[n] for n in (1, 2, 3, 4))
        found.append(_layout({one: 2, two: 1, three: 1}, plain))
        found.append(_layout({four: 1, three: 1}, plain))
        found.append(_layout({four: 1, two: 1, one: 1}, plain))
        found.append(_layout({two: 3, one: 1}, plain))
    return found


def _layout(shapes: dict[str, int], partitions: list[dict[str, Any]]) -> dict[str, Any]:
    parts = {p["name"]: p["parts"] for p in partitions}
    return {
        "name": " + ".join(f"{count}x{shape}" for shape, count in shapes.items()),
        "shapes": shapes,
        "overhead_parts": PARTS - sum(parts[shape] * count for shape, count in shapes.items()),
    }


def _slice_model(
    model: str,
    parent_name: str,
    documents: dict[str, dict[str, Any]],
    partition: dict[str, Any],
    how: Cut,
) -> None:
    """A model for the slice, by its parent; where the tables have a row, its figures stand."""
    parent = documents[parent_name]["spec"]
    share = how.share[partition["compute_slices"]]
    known = documents.get(model, {}).get("spec")
    made = _specs(model, parent, partition, share)
    made["ratings"] = _ratings(
        parent, known, share, partition["memory_slices"] / Decimal(how.slices)
    )
    if known is not None:
        for field in ("tflops", "memory_bandwidth_gbs", "confidence", "sources", "notes"):
            if known.get(field):
                made[field] = known[field]
    elif how.note:
        made["notes"] = how.note
    documents[model] = {
        "apiVersion": "quintal/v1",
        "kind": "AcceleratorModel",
        "metadata": {"name": model},
        "spec": {field: value for field, value in made.items() if value not in (None, "", [], {})},
    }


def _specs(
    model: str, parent: dict[str, Any], partition: dict[str, Any], share: str
) -> dict[str, Any]:
    part = _share(share)
    width = Decimal(partition["memory_slices"]) / parent["memory_slices"]
    bandwidth = parent.get("memory_bandwidth_gbs")
    shape = partition["name"]
    names = [
        f"{name} MIG {cut_as}" for name in _tool_names(parent) for cut_as in (shape, f"{shape}+me")
    ]
    window = partition["memory_bytes"] // 2**20
    return {
        "vendor": parent["vendor"],
        "family": parent["family"],
        "title": f"{parent['title']} MIG {partition['name']}",
        "kind": "accelerator",
        "architecture": parent.get("architecture", ""),
        "form_factor": "MIG",
        "release_year": parent.get("release_year"),
        "memory_bytes": partition["memory_bytes"],
        "memory_kind": parent.get("memory_kind", "device"),
        "memory_bandwidth_gbs": None
        if bandwidth is None
        else (bandwidth * width).quantize(Decimal(1)),
        "tflops": {
            name: (peak * part).quantize(Decimal("0.1"))
            for name, peak in parent.get("tflops", {}).items()
        },
        "features": [
            feature
            for feature in parent["features"]
            if feature != "mig" and not feature.startswith("nvlink")
        ],
        "runtime": parent.get("runtime", ""),
        "match": [
            {
                "vendor": parent["vendor"],
                "names": [*names, model],
                "memory": f"{window * 85 // 100}MiB..{window * 102 // 100}MiB",
            }
        ],
        "confidence": "C",
        "sources": [f"{MIG_SOURCE}; figures derived from the whole card by its share ({share})"],
    }


def _tool_names(parent: dict[str, Any]) -> list[str]:
    """Names that the tool prints for the whole card; those that only people use are left out."""
    rule = parent["match"][0]
    short = {name.casefold() for name in rule.get("short names", ())}
    return [name for name in rule["names"] if name.casefold() not in short]


def _share(text: str) -> Decimal:
    top, bottom = text.split("/")
    return Decimal(top) / Decimal(bottom)


def _ratings(
    parent: dict[str, Any], known: dict[str, Any] | None, share: str, width: Decimal
) -> list[dict[str, Any]]:
    """What was measured on the slice itself stands; else the parent's times the share."""
    measured = {
        rating["class"]: rating
        for rating in (known or {}).get("ratings", ())
        if rating["provenance"] == "benchmark"
    }
    made = []
    for rating in parent["ratings"]:
        name = rating["class"]
        if name in measured:
            made.append(measured[name])
        elif name in SLICED and not rating.get("precision"):
            made.append(_derived(rating, _share(share), f"parent x SM share {share}"))
        elif name == "llm_decode":
            made.append(_derived(rating, width, f"parent x share of memory slices {width:f}"))
    return made


def _derived(rating: dict[str, Any], part: Decimal, words: str) -> dict[str, Any]:
    value, low, high = (Decimal(rating[field]) for field in ("value", "low80", "high80"))
    low, high = min(low, value / SLICE_BAND), max(high, value * SLICE_BAND)
    by = {"benchmark": "MLPerf, not an official MLPerf result", "roofline": "an estimate itself"}
    return {
        "class": rating["class"],
        "value": step(value * part),
        "low80": step(low * part),
        "high80": step(high * part),
        "provenance": "derived",
        "evidence": f"derived: {words}; the parent's is {by.get(rating['provenance'], 'derived')}",
    }


# --- AMD --------------------------------------------------------------------------------------


def _amd(name: str, documents: dict[str, dict[str, Any]], modes: tuple[int, ...]) -> None:
    """Equal devices from the compute dies of one module; nothing is left over."""
    spec = documents[name]["spec"]
    spec["sources"].append(AMD_SOURCE)
    slots = modes[-1]
    spec["memory_slices"] = slots
    spec["partitions"], spec["layouts"] = [], []
    for count in modes:
        mode, width = AMD_MODES[count], slots // count
        parts = PARTS // count
        model = name if count == 1 else f"{name}-{mode.lower()}"
        if count > 1:
            documents[model] = _amd_slice(model, spec, mode, count)
        spec["partitions"].append(
            {
                "name": mode.lower(),
                "model": model,
                "parts": parts,
                "memory_bytes": spec["memory_bytes"] // count,
                "count_max": count,
                "placements": list(range(0, slots, width)),
                "compute_slices": width,
                "memory_slices": width,
            }
        )
        spec["layouts"].append(
            {
                "name": mode,
                "mode": mode,
                "shapes": {mode.lower(): count},
                "overhead_parts": PARTS - parts * count,
            }
        )


def _amd_slice(model: str, parent: dict[str, Any], mode: str, count: int) -> dict[str, Any]:
    """One of the equal devices. Its tool calls it by the whole module's name: no match rule."""
    part = Decimal(1) / count
    share = f"1/{count}"
    bandwidth = parent.get("memory_bandwidth_gbs")
    spec = {
        "vendor": parent["vendor"],
        "family": parent["family"],
        "title": f"{parent['title']} {mode}",
        "kind": "accelerator",
        "architecture": parent.get("architecture", ""),
        "form_factor": "partition",
        "release_year": parent.get("release_year"),
        "memory_bytes": parent["memory_bytes"] // count,
        "memory_bandwidth_gbs": None
        if bandwidth is None
        else (bandwidth * part).quantize(Decimal(1)),
        "tflops": {
            name: (peak * part).quantize(Decimal("0.1"))
            for name, peak in parent.get("tflops", {}).items()
        },
        "features": [feature for feature in parent["features"] if feature != "xgmi"],
        "runtime": parent.get("runtime", ""),
        "ratings": _ratings(parent, None, share, part),
        "confidence": "D",
        "sources": [f"{AMD_SOURCE}; figures derived from the whole module by its share ({share})"],
        "notes": "no match rule: its tool shows the module's name; the reported partition says it",
    }
    kept = {field: value for field, value in spec.items() if value not in (None, "", [], {})}
    return {
        "apiVersion": "quintal/v1",
        "kind": "AcceleratorModel",
        "metadata": {"name": model},
        "spec": kept,
    }
