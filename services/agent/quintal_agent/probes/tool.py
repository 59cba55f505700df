"""A vendor's tool, run as it must be: alone, under a deadline, without a terminal.

stdin is closed, the locale is C, stderr is kept apart (banners and warnings precede what is
asked for), and what is printed has a bound. A tool that ends with an error may still have printed
usable rows, and one that ends well may have printed a refusal: what counts is what it printed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from quintal_agent.probes import captured
from quintal_agent.probes.probe import Device, Observation, Probe, Trouble

OUTPUT_BYTES_MAX: Final = 8 * 2**20
DEADLINE_S: Final = 6.0
"""For all commands of one look together; less than the look's own."""

_WORDS_MAX: Final = 500
_ERROR_BYTES_MAX: Final = 64 * 1024

Command = tuple[str, ...]
Parse = Callable[[bytes], Observation]


@dataclass(frozen=True, slots=True)
class Ran:
    """What one run of a tool gave."""

    output: bytes = b""
    said: str = ""
    status: int | None = None
    """None where it was ended at its deadline."""
    flooded: bool = False


def run(command: Sequence[str], *, deadline_s: float, lines: int = 0) -> Ran:
    """Run it. `lines` ends a tool that prints on and on after so many. Raises OSError.

    A process that does not die is left behind: its own parent, the probe's child, is abandoned
    with it by the agent.
    """
    environment = {**os.environ, "LC_ALL": "C", "TERM": "dumb", "NO_COLOR": "1"}
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    late = threading.Event()

    def end() -> None:
        late.set()
        _kill(process)

    watch = threading.Timer(deadline_s, end)
    watch.daemon = True
    watch.start()
    errors: list[bytes] = []
    reader = threading.Thread(target=_drain, args=(process, errors), daemon=True)
    reader.start()
    try:
        output, flooded = _read(process, lines)
        if flooded or lines:
            _kill(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=deadline_s)
    finally:
        watch.cancel()
    reader.join(timeout=1)
    status = None if late.is_set() else process.returncode
    words = captured.plain(b"".join(errors).decode("utf-8", "replace")).strip()
    return Ran(output, words[:_WORDS_MAX], status, flooded)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _read(process: subprocess.Popen[bytes], lines: int) -> tuple[bytes, bool]:
    if process.stdout is None:
        return b"", False
    if lines:
        told = b"".join(process.stdout.readline(OUTPUT_BYTES_MAX) for _ in range(lines))
        return told, False
    output = process.stdout.read(OUTPUT_BYTES_MAX + 1)
    return output[:OUTPUT_BYTES_MAX], len(output) > OUTPUT_BYTES_MAX


def _drain(process: subprocess.Popen[bytes], errors: list[bytes]) -> None:
    """Read stderr to its end, so that the tool does not block on it; keep its beginning."""
    kept = 0
    while process.stderr is not None and (chunk := process.stderr.read(4096)):
        if kept < _ERROR_BYTES_MAX:
            errors.append(chunk)
            kept += len(chunk)


class ToolProbe:
    """Looks through one or more commands of a vendor's tool, merged by device."""

    def __init__(
        self,
        vendor: str,
        parse: Parse,
        commands: Sequence[Command],
        *,
        lines: int = 0,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._vendor = vendor
        self._parse = parse
        self._commands = tuple(commands)
        self._lines = lines
        self._deadline_s = deadline_s

    def observe(self) -> Observation:
        """Run each command and read what it printed; one that fails takes nothing from others."""
        seen: list[Observation] = []
        troubles: list[Trouble] = []
        for command in self._commands:
            told = self._one(command)
            if isinstance(told, Trouble):
                troubles.append(told)
            else:
                seen.append(told)
        merged = merge(self._vendor, seen)
        once = dict.fromkeys((*merged.troubles, *troubles))
        return replace(merged, troubles=tuple(once), idle=not merged.devices)

    def _one(self, command: Command) -> Observation | Trouble:
        name = command[0]
        if shutil.which(name) is None:
            return Trouble("no_library", f"{name} is not installed, or not on the PATH")
        deadline_s = self._deadline_s / len(self._commands)
        try:
            ran = run(command, deadline_s=deadline_s, lines=self._lines)
        except OSError as exc:
            return Trouble("no_permission", f"{name}: {exc.strerror or exc}")
        if ran.status is None:
            return Trouble("probe_timeout", f"{name} did not end within {deadline_s:g} s")
        try:
            told = self._parse(ran.output)
        except Exception as exc:
            words = f"{name} ended with {ran.status}; {ran.said or exc}"
            raw = captured.text(ran.output)[: captured.RAW_MAX]
            return Trouble(_code(ran.said), words[:_WORDS_MAX], raw=raw)
        return replace(told, troubles=(*told.troubles, *_said(name, ran)))


def _said(name: str, ran: Ran) -> tuple[Trouble, ...]:
    found = []
    if ran.flooded:
        found.append(Trouble("truncated", f"{name} printed more than {OUTPUT_BYTES_MAX} bytes"))
    if ran.status:
        found.append(Trouble("tool_failed", f"{name} ended with {ran.status}; {ran.said}"))
    elif ran.said:
        found.append(Trouble("tool_said", f"{name}: {ran.said}"))
    return tuple(found)


def _code(said: str) -> str:
    """Why a tool printed nothing that can be read, as far as its words tell."""
    words = said.casefold()
    if "permission" in words or "not permitted" in words or "access denied" in words:
        return "no_permission"
    if "mismatch" in words:
        return "driver_mismatch"
    if "driver" in words and ("not loaded" in words or "not found" in words):
        return "no_driver"
    return "unparsed"


def merge(vendor: str, seen: Sequence[Observation]) -> Observation:
    """Several commands' devices as one list: by address where both have it, else by index.

    What an earlier command says stands; a later one fills what it left open.
    """
    devices: list[Device] = []
    for observation in seen:
        for device in observation.devices:
            place = _same(devices, device)
            if place is None:
                devices.append(device)
            else:
                devices[place] = filled(devices[place], device)
    return Observation(
        vendor,
        ", ".join(dict.fromkeys(observation.tool for observation in seen)) or vendor,
        tuple(devices),
        tuple(trouble for observation in seen for trouble in observation.troubles),
        {key: value for o in reversed(seen) for key, value in o.drivers.items()},
        {key: value for o in reversed(seen) for key, value in o.runtimes.items()},
        {key: value for o in reversed(seen) for key, value in o.firmware.items()},
        links=tuple(link for observation in seen for link in observation.links),
    )


def _same(devices: Sequence[Device], device: Device) -> int | None:
    for place, other in enumerate(devices):
        if other.pci_address and device.pci_address:
            if other.pci_address == device.pci_address:
                return place
        elif other.index == device.index:
            return place
    return None


def filled(device: Device, other: Device, source: str = "") -> Device:
    """The device, with what it leaves open taken from another view of it."""
    changes: dict[str, object] = {
        field.name: getattr(other, field.name)
        for field in fields(Device)
        if field.name not in {"uuid", "readings", "health", "health_reason", "index"}
        and not getattr(device, field.name)
        and getattr(other, field.name)
    }
    if device.uuid.startswith("pci-index") or (
        device.uuid.startswith("pci-") and not other.uuid.startswith("pci-")
    ):
        changes["uuid"] = other.uuid
    if device.health == "ok" and other.health != "ok":
        changes |= {"health": other.health, "health_reason": other.health_reason}
    readings = dict(device.readings)
    for name, value in other.readings.items():
        if readings.get(name) is None or (readings[name].value is None and value.value is not None):
            readings[name] = replace(value, source=source) if source else value
    return replace(device, readings=readings, **changes)  # type: ignore[arg-type]


def probe(vendor: str, parse: Parse, *commands: Command, lines: int = 0) -> Callable[..., Probe]:
    """What a vendor's row names as its live probe."""

    def make(*, node: str = "", sys_root: str = "/sys") -> Probe:  # noqa: ARG001 - every probe's
        return ToolProbe(vendor, parse, commands, lines=lines)

    return make
