"""`make captures`: every captured file beside the checkout, read under a shuffled name.

A row per file: vendor, tool, devices, readings by quality, problems. Nothing is told of where a
file came from but its content. Ends with 1 where a reader raised, or a file is nobody's.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from quintal_agent.probes.probe import Observation
from quintal_agent.probes.table import read_capture
from quintal_agent.readings import plausible

ROOT = Path(__file__).parents[3] / "shared" / "data" / "probes"

VENDORS = {"ascend": "huawei", "habana": "intel"}
"""The index's name for a vendor, where the project has another."""


@dataclass(frozen=True)
class Row:
    """One file, and what was read of it."""

    file: str
    vendor: str
    kind: str
    seen: Observation | None
    error: str = ""

    @property
    def outcome(self) -> str:
        """What became of it: readings, devices, facts, refused, or an error."""
        if self.seen is None:
            return "error"
        if any(device.readings for device in self.seen.devices):
            return "readings"
        if self.seen.devices:
            return "devices"
        if any(trouble.raw for trouble in self.seen.troubles):
            return "refused"
        return "facts"


def index() -> list[dict[str, str]]:
    """The rows of INDEX.tsv; none where there is none."""
    path = ROOT / "INDEX.tsv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def read(entry: dict[str, str]) -> Row:
    """One file by its content alone."""
    vendor = VENDORS.get(entry["vendor"], entry["vendor"])
    try:
        seen = read_capture((ROOT / entry["file"]).read_bytes())
    except Exception as exc:
        return Row(entry["file"], vendor, entry["kind"], None, f"{type(exc).__name__}: {exc}")
    return Row(entry["file"], vendor, entry["kind"], seen)


def main() -> int:
    """Print the table; 1 where something was not read and not refused by name."""
    entries = index()
    if not entries:
        print("no captures beside the checkout (../shared)")
        return 0
    rows = [read(entry) for entry in entries]
    for row in rows:
        print(line(row))
    print()
    outcomes = Counter(row.outcome for row in rows)
    print(f"{len(rows)} files: " + ", ".join(f"{n} {name}" for name, n in outcomes.most_common()))
    wrong = [row for row in rows if row.seen and row.seen.vendor not in {row.vendor, "pci", ""}]
    for row in wrong:
        print(f"taken for {row.seen.vendor if row.seen else ''}: {row.file}")
    return 1 if outcomes["error"] or wrong else 0


def line(row: Row) -> str:
    """The row for people."""
    if row.seen is None:
        return f"{row.file}: {row.error}"
    qualities = Counter(
        value.quality
        for device in row.seen.devices
        for value in plausible(device.readings).values()
    )
    told = " ".join(f"{name}={count}" for name, count in sorted(qualities.items())) or "-"
    problems = ",".join(trouble.code for trouble in row.seen.troubles) or "-"
    return (
        f"{row.file:<75} {row.seen.vendor:<11} {row.seen.tool:<32.32} "
        f"{len(row.seen.devices):>3} {told} problems: {problems}"
    )


if __name__ == "__main__":
    sys.exit(main())
