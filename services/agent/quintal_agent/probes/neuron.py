"""AWS Neuron: `neuron-ls` (JSON, table) and `neuron-monitor` (an object of JSON per period).

Each section of neuron-monitor has an `error` of its own: where it is not empty, the section is
unavailable. Its numbers are those of one period, not counters. `nc_count` is how many cores the
tool shows; the logical configuration says how many physical ones make one.
"""

from __future__ import annotations

import re
from typing import Any, Final

from quintal_agent.probes import boxes, captured, tool, values
from quintal_agent.probes.probe import Device, Link, Observation, Process, Trouble, Value

_NAMES: Final = {"trn1": "Trainium", "trn1n": "Trainium", "trn2": "Trainium2", "trn2u": "Trainium2",
                 "trn3": "Trainium3", "inf1": "Inferentia", "inf2": "Inferentia2"}  # fmt: skip


def recognises(data: bytes) -> bool:
    """Whether a Neuron tool printed it."""
    said = captured.head(data)
    return (
        '"neuron_device"' in said
        or '"neuron_runtime_data"' in said
        or '"neuron_hardware_info"' in said
        or re.search(r"\|\s*NEURON\s*\|", said) is not None
    )


def parse(data: bytes) -> Observation:
    """The observation. Raises ValueError where it is none of the forms."""
    said = captured.text(data)
    if not re.search(r"^\s*[\[{]", said, re.MULTILINE):
        return _table(said)
    root = captured.json_in(said)
    if isinstance(root, list):
        return _listed([entry for entry in root if isinstance(entry, dict)], said)
    return _monitor(root)


def _listed(entries: list[dict[str, Any]], said: str) -> Observation:
    banner = said[: said.find("[")].strip()
    troubles = [Trouble("tool_said", banner[:1000])] if banner else []
    devices = []
    links: list[Link] = []
    versions: set[str] = set()
    for place, entry in enumerate(entries):
        index = captured.whole(entry.get("neuron_device"))
        index = place if index is None else index
        at = captured.address(entry.get("bdf"))
        kind = captured.known(entry.get("instance_type")) or ""
        processes = []
        for told in _dicts(entry.get("neuron_processes")):
            pid = captured.whole(told.get("pid"))
            if pid is not None:
                processes.append(Process(pid, captured.known(told.get("command")) or ""))
            version = captured.known(told.get("neuron_runtime_version"))
            versions |= {version} if version else set()
        peers = entry.get("connected_to")
        links.extend(
            Link(f"neuron{index}", f"neuron{peer}", "NeuronLink")
            for peer in (peers if isinstance(peers, list) else [])
            if captured.whole(peer) is not None
        )
        size = entry.get("memory_size")
        devices.append(
            Device(
                captured.identity(at=at, index=index),
                index,
                "aws",
                _NAMES.get(kind.partition(".")[0], ""),
                values.size(None if size is None else str(size)),
                pci_address=at,
                numa_node=captured.whole(entry.get("numa_node")),
                cores=captured.whole(entry.get("nc_count")),
                processes=tuple(processes),
            )
        )
    runtimes = {"neuron": max(versions)} if versions else {}
    return captured.observed(
        "aws", "neuron-ls", devices, troubles=troubles, runtimes=runtimes, links=links
    )


def _dicts(said: Any) -> list[dict[str, Any]]:
    return [entry for entry in said if isinstance(entry, dict)] if isinstance(said, list) else []


def _table(said: str) -> Observation:
    """The table for people: headers stand over two rows."""
    found = list(boxes.groups(said))
    heads = found[0] if found else []
    names = (
        [" ".join(row[n] for row in heads if n < len(row)) for n in range(len(heads[0]))]
        if heads
        else []
    )
    devices = []
    for row in (row for group in found[1:] for row in group):
        told = {name.strip(): cell for name, cell in zip(names, row, strict=False)}
        index = captured.whole(told.get("NEURON DEVICE"))
        at = captured.address(told.get("PCI BDF"))
        if index is not None:
            memory = values.size(re.sub(r"GB$", "GiB", told.get("NEURON MEMORY", "")))
            uuid = captured.identity(at=at, index=index)
            cores = captured.whole(told.get("NEURON CORES"))
            devices.append(Device(uuid, index, "aws", "", memory, pci_address=at, cores=cores))
    return captured.observed("aws", "neuron-ls", devices)


def _monitor(root: dict[str, Any]) -> Observation:
    hardware = _section(root, "neuron_hardware_info")
    count = captured.whole(hardware.get("neuron_device_count")) or 0
    per = captured.whole(hardware.get("neuroncore_per_device_count")) or 0
    kind = captured.known(_section(root, "instance_info").get("instance_type")) or ""
    troubles = [
        Trouble("section_unavailable", f"{path}: {words}") for path, words in _errors(root, "")
    ]
    runtimes = _dicts(root.get("neuron_runtime_data"))
    counters = _section(_section(root, "system_data"), "neuron_hw_counters")
    told = {
        captured.whole(entry.get("neuron_device_index")): entry
        for entry in _dicts(counters.get("neuron_devices"))
    }
    devices = []
    for index in range(min(count, 64)):
        readings = _runtime(runtimes, index, per, only=count == 1)
        for name, keys in _ECC.items():
            entry = told.get(index)
            if entry is not None and not counters.get("error"):
                readings[name] = values.read_json(name, entry.get(keys))
        processes = tuple(
            Process(pid)
            for runtime in runtimes
            if count == 1 and (pid := captured.whole(runtime.get("pid"))) is not None
        )
        name = _NAMES.get(kind.partition(".")[0], "")
        uuid = captured.identity(index=index)
        devices.append(
            Device(
                uuid, index, "aws", name, cores=per or None, processes=processes, readings=readings
            )
        )
    return captured.observed("aws", "neuron-monitor", devices, troubles=troubles)


_ECC: Final = {
    "ecc_uncorrected_count": "mem_ecc_uncorrected",
    "ecc_corrected_count": "mem_ecc_corrected",
}


def _section(tree: Any, name: str) -> dict[str, Any]:
    found = tree.get(name) if isinstance(tree, dict) else None
    return found if isinstance(found, dict) else {}


def _errors(tree: Any, path: str) -> list[tuple[str, str]]:
    """Every section whose own error is not empty."""
    found: list[tuple[str, str]] = []
    if isinstance(tree, dict):
        if isinstance(tree.get("error"), str) and tree["error"]:
            found.append((path.strip("."), tree["error"][:500]))
        for key, value in tree.items():
            found.extend(_errors(value, f"{path}.{key}"))
    elif isinstance(tree, list):
        for value in tree:
            found.extend(_errors(value, path))
    return found


def _runtime(
    runtimes: list[dict[str, Any]], index: int, per: int, *, only: bool
) -> dict[str, Value]:
    """Utilization: the mean over the device's cores, so derived unless it has but one."""
    busy: list[float] = []
    used = Value(quality="unavailable" if runtimes else "unsupported")
    for runtime in runtimes:
        report = _section(runtime, "report")
        counters = _section(report, "neuroncore_counters")
        cores = _section(counters, "neuroncores_in_use")
        for key, core in cores.items() if not counters.get("error") else ():
            number = captured.whole(key)
            if number is not None and per and number // per == index and isinstance(core, dict):
                value = values.read_json("utilization_percent", core.get("neuroncore_utilization"))
                if value.value is not None:
                    busy.append(value.value)
        memory = _section(report, "memory_used")
        if only and not memory.get("error"):
            told = _section(memory, "neuron_runtime_used_bytes").get("neuron_device")
            used = values.read_json("memory_used_bytes", told)
    readings = {"memory_used_bytes": used}
    if busy:
        mean = sum(busy) / max(per, 1)
        readings["utilization_percent"] = Value(mean, derived=len(busy) > 1 or per > 1)
    return readings


class NeuronProbe:
    """The devices by neuron-ls, their readings by one line of neuron-monitor."""

    def __init__(self, *, node: str = "", sys_root: str = "/sys") -> None:
        del node, sys_root
        self._list = tool.ToolProbe("aws", parse, (("neuron-ls", "--json-output"),), deadline_s=3)
        self._monitor = tool.ToolProbe("aws", parse, (("neuron-monitor",),), lines=1, deadline_s=4)

    def observe(self) -> Observation:
        """Look once."""
        listed = self._list.observe()
        if not listed.devices:
            return listed
        return tool.merge("aws", (listed, self._monitor.observe()))
