"""`amd-smi`: its JSON of 6.x and 7.x, and its indented text and tables.

The root of the JSON is a list or `{"gpu_data": [...]}`; the same key is an object on one device
and `N/A` on the next; keys moved between versions. So each value is looked up under every path it
has had, in text and JSON alike, since the text has the same tree. Its MB are counted in 2^20.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from quintal_agent.probes import captured, values
from quintal_agent.probes.captured import refused
from quintal_agent.probes.probe import Device, Observation, Process, Trouble, Value

Tree = dict[str, Any]

_READINGS: Final[dict[str, tuple[str, ...]]] = {
    "utilization_percent": ("usage/gfx_activity", "usage/gfx_usage"),
    "memory_utilization_percent": ("usage/umc_activity", "usage/mem_activity"),
    "memory_used_bytes": ("mem_usage/used_vram", "vram/used", "fb_memory_usage/used"),
    "power_watts": (
        "power/socket_power",
        "power/current_socket_power",
        "power/average_socket_power",
    ),
    "power_limit_watts": (
        "limit/socket_power",
        "limit/ppt0/socket_power_limit",
        "limit/power_limit",
        "power/power_cap",
    ),
    "temperature_celsius": ("temperature/edge", "temperature/edge_temperature"),
    "hotspot_temperature_celsius": ("temperature/hotspot", "temperature/hotspot_temperature"),
    "memory_temperature_celsius": ("temperature/mem", "temperature/mem_temperature"),
    "sm_clock_hertz": ("clock/gfx_0/clk", "clock/gfx/clk", "clock/gfx/cur_clk"),
    "memory_clock_hertz": ("clock/mem_0/clk", "clock/mem/clk", "clock/mem/cur_clk"),
    "energy_joules": ("energy/total_energy_consumption",),
    "ecc_corrected_count": ("ecc/total_correctable_count", "ecc/total_correctable"),
    "ecc_uncorrected_count": ("ecc/total_uncorrectable_count", "ecc/total_uncorrectable"),
    "pcie_replay_count": ("pcie/replay_count",),
}
_NAME: Final = ("asic/market_name", "board/product_name")
_TOTAL: Final = ("mem_usage/total_vram", "vram/size", "vram/vram_size", "fb_memory_usage/total")
_BINARY: Final = {"KB": "KiB", "MB": "MiB", "GB": "GiB", "TB": "TiB"}
_IDLE: Final = "no running processes"
_PROMPT: Final = re.compile(r"^\$ (?:sudo )?(amd-smi[^\n]*)", re.MULTILINE)
_SCHEMA: Final = (
    '"gpu_data"', '"partition_profiles"', '"process_list"', '"socket_power"', '"umc_activity"',
    '"market_name"', '"vram"', '"kfd_id"', '"mem_usage"', '"target_graphics_version"',
)  # fmt: skip
_STATUS: Final = re.compile(r"AMDSMI_STATUS_\w+")
_MONITOR: Final = {
    "POWER": "power_watts",
    "GPU_TEMP": "hotspot_temperature_celsius",
    "MEM_TEMP": "memory_temperature_celsius",
    "GFX_UTIL": "utilization_percent",
    "GFX%": "utilization_percent",
    "MEM_UTIL": "memory_utilization_percent",
    "GFX_CLOCK": "sm_clock_hertz",
    "GFX_CLK": "sm_clock_hertz",
    "MEM_CLOCK": "memory_clock_hertz",
    "VRAM_USED": "memory_used_bytes",
    "SINGLE_ECC": "ecc_corrected_count",
    "DOUBLE_ECC": "ecc_uncorrected_count",
    "PCIE_REPLAY": "pcie_replay_count",
    "PVIOL": "power_violation_percent",
    "TVIOL": "thermal_violation_percent",
}


def recognises(data: bytes) -> bool:
    """Whether amd-smi printed it."""
    said = captured.head(data)
    if _PROMPT.search(said) or _STATUS.search(said):
        return "TABLE:" not in said
    if re.search(r"^\s*[\[{]", said, re.MULTILINE):
        return any(key in said for key in _SCHEMA) and '"manufacturer"' not in said
    text_form = re.search(r"^GPU: \d+\s*$", said, re.MULTILINE) and re.search(
        r"^ {2,}[A-Z_0-9]+:", said, re.MULTILINE
    )
    return (
        bool(text_form)
        or re.search(r"^GPU +.*(GFX_UTIL|PVIOL|PCIE_BW)", said, re.MULTILINE) is not None
    )


def parse(data: bytes) -> Observation:
    """The observation. Raises ValueError where it is none of amd-smi's forms."""
    said = captured.text(data)
    if _STATUS.search(said):
        return _error(said)
    prompt = _PROMPT.search(said)
    tool = prompt[1].strip() if prompt else "amd-smi"
    if re.search(r"^GPU +[A-Z]", said, re.MULTILINE):
        return _monitor(said, tool)
    trees = list(_text(said) if re.search(r"^GPU: \d", said, re.MULTILINE) else _json(said))
    if any("partition_profiles" in tree for tree in trees):
        return _profiles(trees[0], said)
    devices = [_device(tree, place) for place, tree in enumerate(trees) if _is_gpu(tree)]
    if not devices:
        return refused("amd", tool, f"{tool}: no device in it", said)
    versions = [
        _at(tree, f"driver/{key}") for tree in trees for key in ("version", "driver_version")
    ]
    driver = next((word for said in versions if (word := captured.known(said))), None)
    drivers = {"amd": driver} if driver else {}
    return captured.observed("amd", tool, _board_once(devices), drivers=drivers)


def _error(said: str) -> Observation:
    """An error's text: its numeric status stands on a line of its own."""
    found = re.search(r"(\d+)\s*\|\s*(AMDSMI_STATUS_\w+)[ -]*([^\n]*)", said)
    code = found[2].removeprefix("AMDSMI_STATUS_").casefold() if found else "error"
    at = (
        captured.address(word[1])
        if (word := re.search(r"BDF:([0-9a-fA-F:.]+?)\.?\s*$", said, re.MULTILINE))
        else None
    )
    words = f"amd-smi failed: {found[1]} {found[3].strip()}" if found else "amd-smi failed"
    trouble = Trouble(code, words, at or "", said[: captured.RAW_MAX])
    return captured.observed("amd", "amd-smi", troubles=(trouble,))


def _json(said: str) -> Iterator[Tree]:
    root = captured.json_in(said)
    if isinstance(root, dict):
        root = root.get("gpu_data", [root])
    for tree in root if isinstance(root, list) else []:
        if isinstance(tree, dict):
            yield _lower(tree)


def _lower(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {str(key).casefold(): _lower(value) for key, value in tree.items()}
    return tree


def _text(said: str) -> Iterator[Tree]:
    """The indented text as the tree that the JSON is."""
    gpu: Tree | None = None
    stack: list[tuple[int, Tree]] = []
    for depth, key, value in captured.pairs(said):
        name = key.casefold()
        if name == "gpu" and depth == 0:
            if gpu is not None:
                yield gpu
            gpu = {"gpu": value}
            stack = [(0, gpu)]
            continue
        if gpu is None or not re.fullmatch(r"[a-z0-9_ ]+", name):
            continue
        while len(stack) > 1 and stack[-1][0] >= depth:
            stack.pop()
        parent = stack[-1][1]
        if value:
            parent[name] = value
        else:
            branch: Tree = {}
            if name == "process_info":
                parent.setdefault("process_list", []).append({name: branch})
            else:
                parent[name] = branch
            stack.append((depth, branch))
    if gpu is not None:
        yield gpu


def _is_gpu(tree: Tree) -> bool:
    return captured.whole(tree.get("gpu", tree.get("gpu_id"))) is not None


def _at(tree: Tree, path: str) -> Any:
    found: Any = tree
    for name in path.split("/"):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _first(tree: Tree, paths: tuple[str, ...]) -> Any:
    """The first path that holds something; a word for 'no value' only where none holds more."""
    found = [value for path in paths if (value := _at(tree, path)) is not None]
    return next(
        (value for value in found if captured.known(value) or isinstance(value, dict)),
        found[0] if found else None,
    )


def _read(name: str, value: Any) -> Value:
    if isinstance(value, dict):
        unit = str(value.get("unit") or "")
        return values.read_json(name, value.get("value"), _BINARY.get(unit, unit))
    if isinstance(value, str):
        value = re.sub(r"\b([KMGT]B)$", lambda unit: _BINARY[unit[1]], value.strip())
    return values.read_json(name, value)


def _size(value: Any) -> int | None:
    found = _read("size_bytes", value).value
    return int(found) if found else None


def _device(tree: Tree, place: int) -> Device:
    index = captured.whole(tree.get("gpu", tree.get("gpu_id")))
    index = place if index is None else index
    at = captured.address(tree.get("bdf") or _at(tree, "bus/bdf"))
    name = _first(tree, _NAME)
    die = captured.whole(tree.get("partition_id"))
    readings = {}
    for reading, paths in _READINGS.items():
        found = _first(tree, paths)
        if found is not None:
            readings[reading] = _read(reading, found)
    return Device(
        uuid=captured.identity(
            uuid=tree.get("uuid"),
            at=at,
            serial=_serial(_at(tree, "asic/asic_serial")),
            die=f"partition-{die}" if die else None,
            index=index,
        ),
        index=index,
        vendor="amd",
        name=captured.known(name) or "",
        memory_bytes=_size(_first(tree, _TOTAL)),
        pci_address=at,
        pci_id=_pci_id(tree),
        serial=_serial(_at(tree, "asic/asic_serial")),
        numa_node=captured.whole(_at(tree, "numa/node")),
        architecture=captured.known(_at(tree, "asic/target_graphics_version")),
        processes=tuple(_processes(tree)),
        readings=readings,
    )


def _serial(said: Any) -> str | None:
    word = captured.known(said)
    return None if word is None or "<" in word or not re.search(r"[1-9a-fA-F]", word[2:]) else word


def _pci_id(tree: Tree) -> str | None:
    vendor, device = _at(tree, "asic/vendor_id"), _at(tree, "asic/device_id")
    if not isinstance(vendor, str) or not isinstance(device, str):
        return None
    digits = [re.fullmatch(r"0x([0-9a-fA-F]{4})", word) for word in (vendor, device)]
    return None if None in digits else ":".join(d[1].lower() for d in digits if d)


def _processes(tree: Tree) -> Iterator[Process]:
    """Idle is a sentence in the list, or instead of it: neither is a process."""
    listed = tree.get("process_list")
    for entry in listed if isinstance(listed, list) else []:
        told = entry.get("process_info", entry) if isinstance(entry, dict) else None
        pid = captured.whole(told.get("pid")) if isinstance(told, dict) else None
        if isinstance(told, dict) and pid is not None:
            memory = _at(told, "memory_usage/vram_mem") or told.get("vram_mem")
            yield Process(pid, captured.known(told.get("name")) or "", _size(memory))


def _board_once(devices: list[Device]) -> list[Device]:
    """What a package draws stands on its first partition; the others share it, and have none."""
    seen: set[str] = set()
    told = []
    for device in devices:
        package = (device.pci_address or "").partition(".")[0]
        if package and package in seen:
            own = {n: v for n, v in device.readings.items() if n not in _BOARD}
            told.append(replace(device, readings=own, memory_bytes=None))
        else:
            told.append(device)
        seen.add(package)
    return told


_BOARD: Final = frozenset(
    {
        "power_watts", "power_limit_watts", "energy_joules", "temperature_celsius",
        "hotspot_temperature_celsius", "memory_temperature_celsius", "memory_used_bytes",
    }
)  # fmt: skip


def _monitor(said: str, tool: str) -> Observation:
    """The table of `monitor`: numbers with units, so cells are told by two blanks or more."""
    devices: dict[int, Device] = {}
    processes: list[tuple[int, Process]] = []
    head: list[str] = []
    for line in said.splitlines():
        names = line.split()
        if names[:1] == ["GPU"] and len(names) > 1:
            head = names
        elif head and names and captured.whole(names[0]) is not None:
            cells = re.split(r"\s{2,}", line.strip())
            row = dict(zip(head, cells, strict=False)) if len(cells) == len(head) else {}
            index = int(names[0][:9])
            if "PID" in head:
                pid = captured.whole(row.get("PID"))
                if pid is not None:
                    name = captured.known(row.get("NAME")) or ""
                    processes.append((index, Process(pid, name, _size(row.get("VRAM_MEM")))))
            elif row:
                devices[index] = _row(index, row)
        elif not names:
            head = []
    held = captured.by_index(processes)
    told = [replace(device, processes=held.get(index, ())) for index, device in devices.items()]
    return captured.observed("amd", tool, told)


def _row(index: int, row: dict[str, str]) -> Device:
    readings = {name: _read(name, row[head]) for head, name in _MONITOR.items() if head in row}
    uuid = captured.identity(index=index)
    return Device(uuid, index, "amd", "", _size(row.get("VRAM_TOTAL")), readings=readings)


def _profiles(tree: Tree, said: str) -> Observation:
    """Partition profiles: a row without identity goes on with the one before it; `*` is live."""
    rows = tree.get("partition_profiles")
    modes: dict[int, str] = {}
    unknown = False
    index = 0
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, dict):
            continue
        gpu = captured.whole(row.get("gpu_id"))
        index = index if gpu is None else gpu
        modes.setdefault(index, "")
        kind = captured.known(row.get("accelerator_type"))
        unknown = unknown or row.get("accelerator_type") == "N/A"
        if kind is not None and kind.endswith("*"):
            modes[index] = kind[:-1]
    troubles = []
    if unknown:
        words = "amd-smi shows no partition profile without privilege: unknown, not none"
        troubles.append(Trouble("no_permission", words, raw=said[: captured.RAW_MAX]))
    told = [Device(captured.identity(index=gpu), gpu, "amd", "") for gpu in modes]
    live = {f"partition/{gpu}": mode for gpu, mode in modes.items() if mode}
    return captured.observed("amd", "amd-smi partition", told, troubles=troubles, runtimes=live)
