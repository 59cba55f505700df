"""Matrices of how devices reach one another: NVIDIA's and Ascend's `topo -m`, Intel's, AMD's.

Each names its columns in a header and its rows in a first cell. A row may have more cells than
the header (NVIDIA puts an empty one before the last), and the header of a terminal is underlined
by escape codes; so cells are looked up by the header's names, from the left, devices first.
"""

from __future__ import annotations

import re
from typing import Final

from quintal_agent.probes import captured
from quintal_agent.probes.captured import refused
from quintal_agent.probes.nvidia_text import lines_of
from quintal_agent.probes.probe import Device, Link, Observation

_NODE: Final = re.compile(r"^(?:(?:GPU|NPU|NIC) ?\d[\d/]*|mlx\w+)$")
_SELF: Final = frozenset({"X", "S", "SELF"})
_INTEL: Final = re.compile(r"^\s*GPU \d+/\d+\s*\|", re.MULTILINE)


def recognises(data: bytes) -> bool:
    """Whether a header of such a matrix is there."""
    said = captured.head(data)
    return (
        "CPU Affinity" in said
        or "LINK METRIC TABLE" in said
        or "CACHE COHERANCY TABLE" in said
        or _INTEL.search(said) is not None
    ) and "NVSMI LOG" not in said


def parse(data: bytes) -> Observation:
    """The observation. Raises ValueError where no matrix is found."""
    said = captured.text(data)
    if re.search(r"TABLE:$", said, re.MULTILINE):
        return _amd(said)
    if _INTEL.search(said):
        return _of_rows("intel", "xpu-smi topology -m", _cut(said, "|"))
    if re.search(r"\bNPU\d", said):
        return _of_rows("huawei", "npu-smi info -t topo", _cut(said, None))
    return _of_rows("nvidia", "nvidia-smi topo -m", _cut(said, "\t"))


def _cut(said: str, by: str | None) -> list[list[str]]:
    rows = []
    for line in lines_of(said):
        cells = re.split(r"\s{2,}|\t", line.strip()) if by is None else line.split(by)
        rows.append([cell.strip() for cell in cells])
    return rows


def _of_rows(vendor: str, tool: str, rows: list[list[str]]) -> Observation:
    head: list[str] | None = None
    devices: list[Device] = []
    links: list[Link] = []
    for row in rows:
        if head is None:
            if "CPU Affinity" in row:
                head = [cell for cell in row if _NODE.match(cell)]
            continue
        name = row[0]
        if not _NODE.match(name):
            continue
        for other, kind in zip(head, row[1:], strict=False):
            if kind and kind not in _SELF:
                links.append(Link(name, other, kind))
        number = re.match(r"(?:GPU|NPU) ?(\d{1,6})(?:/(\d{1,6}))?$", name)
        if number and (number[2] or "0") == "0":
            index = int(number[1])
            node = _numa(row)
            uuid = captured.identity(index=index)
            devices.append(Device(uuid, index, vendor, "", numa_node=node))
    if head is None:
        raise ValueError("no matrix")
    return captured.observed(vendor, tool, devices, links=links)


def _numa(row: list[str]) -> int | None:
    """The cell after the CPU list; never the last, which is the memory's own node."""
    for place, cell in enumerate(row[:-1]):
        if re.fullmatch(r"\d+-\d+(,\d+-\d+)*", cell) and place + 1 < len(row) - 1:
            return captured.whole(row[place + 1])
    return None


def _amd(said: str) -> Observation:
    """AMD's tables have PCI addresses on both sides; the first table names the devices."""
    tool = "amd-smi xgmi" if "LINK METRIC" in said else "amd-smi topology"
    links: list[Link] = []
    names: list[str] = []
    title = ""
    head: list[str] = []
    row_of = ""
    for line in lines_of(said):
        cells = line.split()
        if line.rstrip().endswith("TABLE:"):
            title, head = line.strip()[: -len(" TABLE:")].casefold(), []
        elif cells and not head:
            head = [at for cell in cells if (at := captured.address(cell))]
            names = names or head
        elif head and cells:
            own = [at for cell in cells[:2] if (at := captured.address(cell))]
            row_of = own[0] if own else row_of
            links.extend(_amd_row(title, row_of, head, cells))
    if not names:
        return refused("amd", tool, f"{tool}: a table whose columns no device names", said)
    devices = [
        Device(captured.identity(at=at, index=place), place, "amd", "", pci_address=at)
        for place, at in enumerate(names)
    ]
    return captured.observed("amd", tool, devices, links=links)


def _amd_row(title: str, name: str, head: list[str], cells: list[str]) -> list[Link]:
    if not name or cells[0] in {"Read", "Write"} or cells[0].startswith("GPU"):
        return []
    return [
        Link(name, other, f"{title}: {kind}")
        for other, kind in zip(head, cells[1:], strict=False)
        if kind not in _SELF
    ]
