"""The checks on a device, in one process: probe beside raw tool, readings idle and at work, rating.

Written for a machine where nothing can be installed: of Quintal only what runs on the standard
library (the probe's child, calibration) is used. Each check prints one line; a check that cannot
run here says why. Ends with 1 where one failed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

IDLE_LOOKS, BUSY_LOOKS, PERIOD_S = 8, 12, 1.0
LOAD_S = 40
LOOK_S_MAX = 8.0
TOOL_S_MAX = 30

LOAD = """
import sys, time
import torch
if not torch.cuda.is_available():
    sys.exit("torch sees no device")
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("ready", flush=True)
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    for _ in range(50):
        a @ b
    torch.cuda.synchronize()
"""

FIELDS = (
    "index,uuid,name,memory.total,memory.used,power.draw,temperature.gpu,utilization.gpu,"
    "clocks.sm,mig.mode.current,driver_version"
)
TOOLS = (
    ("-L",),
    ("topo", "-m"),
    ("nvlink", "-s"),
    (f"--query-gpu={FIELDS}", "--format=csv"),
)


class Results:
    """What was checked, as it is printed and kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.failed = 0

    def say(self, verdict: str, what: str, detail: object = "") -> None:
        """One line."""
        self.failed += verdict == "FAIL"
        line = f"{verdict:<4}  {what}" + (f": {detail}" if detail != "" else "")
        self.lines.append(line)
        print(line)

    def check(self, holds: bool, what: str, detail: object = "") -> None:
        """Pass or fail."""
        self.say("ok" if holds else "FAIL", what, detail)

    def keep(self, name: str, text: str) -> None:
        """A file of the results."""
        (self.folder / name).write_text(text)


class Probe:
    """The nvidia probe in its child, asked as the agent asks it."""

    def __init__(self) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "quintal_agent.probes.child", "nvidia", "here", "/sys"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.took_s: list[float] = []

    def look(self) -> dict[str, Any]:
        """One look. Raises EOFError where the child has ended."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        began = time.monotonic()
        self.child.stdin.write("observe\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        self.took_s.append(time.monotonic() - began)
        if not line:
            raise EOFError("the probe's child ended")
        return dict(json.loads(line))

    def cpu_s(self) -> float:
        """What the child has used."""
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End it."""
        self.child.kill()
        self.child.wait()


def tool(*arguments: str) -> str | None:
    """What nvidia-smi prints; none where it is not there or hangs."""
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments],
            capture_output=True, text=True, timeout=TOOL_S_MAX, stdin=subprocess.DEVNULL,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no answer within {TOOL_S_MAX} s\n"
    return done.stdout + done.stderr


def raw(results: Results) -> str:
    """The tool's own output, kept beside the probe's; gives the XML."""
    xml = tool("-q", "-x")
    if xml is None:
        results.say("skip", "raw tool output", "no nvidia-smi here")
        return ""
    results.keep("nvidia-smi.xml", xml)
    results.keep(
        "nvidia-smi.txt", "\n".join(f"$ nvidia-smi {' '.join(a)}\n{tool(*a)}" for a in TOOLS)
    )
    results.say("ok", "raw tool output kept", "nvidia-smi.xml, nvidia-smi.txt")
    return xml


def beside(results: Results, seen: dict[str, Any], xml: str) -> None:
    """The probe's document against what the tool prints, read by nothing of ours."""
    if not xml:
        return
    blocks = re.findall(r"<gpu id=\"([^\"]+)\">(.*?)</gpu>", xml, re.DOTALL)
    devices = {device["uuid"]: device for device in seen["devices"]}
    results.check(len(blocks) == len(devices), "as many devices", f"{len(blocks)}, {len(devices)}")
    driver = re.search(r"<driver_version>([^<]+)", xml)
    results.check(
        driver is not None and seen["drivers"].get("nvidia") == driver[1],
        "driver's version", seen["drivers"],
    )  # fmt: skip
    for bus, block in blocks:
        uuid = leaf(block, "uuid")
        device = devices.get(uuid, {})
        results.check(bool(device), f"{uuid} is known to the probe")
        if not device:
            continue
        results.check(device["name"] == leaf(block, "product_name"), "name", device["name"])
        results.check(
            device["pci_address"] == bus.lower()[4:], "PCI address", device["pci_address"]
        )
        memory = re.search(r"<fb_memory_usage>.*?<total>(\d+) MiB", block, re.DOTALL)
        if memory and device["memory_bytes"] is not None:
            off = abs(device["memory_bytes"] / 2**20 - int(memory[1]))
            results.check(off <= 1, "memory", f"{device['memory_bytes']} B, {memory[1]} MiB")
        limit = re.search(r"<(?:current|enforced)_power_limit>([\d.]+) W", block)
        ours = device["readings"]["power_limit_watts"]["value"]
        if limit and ours is not None:
            results.check(abs(ours - float(limit[1])) < 1, "power limit", f"{ours} W")


def leaf(block: str, name: str) -> str:
    """The first element of that name."""
    found = re.search(rf"<{name}>([^<]*)", block)
    return found[1] if found else ""


def column(looks: list[dict[str, Any]], name: str) -> list[float]:
    """A reading of the first device over the looks, where it was there."""
    values = [look["devices"][0]["readings"].get(name, {}) for look in looks]
    return [v["value"] for v in values if v.get("quality") == "ok" and v["value"] is not None]


def several(probe: Probe, count: int) -> list[dict[str, Any]]:
    """Looks, a second apart."""
    found = []
    for _ in range(count):
        found.append(probe.look())
        time.sleep(PERIOD_S)
    return found


def under_load(results: Results, probe: Probe, idle: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same device under a matrix product; gives the looks."""
    load = subprocess.Popen(
        [sys.executable, "-c", LOAD, str(LOAD_S)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert load.stdout is not None
        if load.stdout.readline().strip() != "ready":
            results.say("skip", "readings under a matrix product", "torch sees no device here")
            return []
        time.sleep(3)
        busy = several(probe, BUSY_LOOKS)
        alive = load.poll() is None
    finally:
        load.kill()
        load.wait()
    results.check(alive, "the load outlived the looks")
    for name, least in (
        ("power_watts", 1.5), ("utilization_percent", None), ("memory_used_bytes", None),
        ("temperature_celsius", None), ("sm_clock_hertz", None),
    ):  # fmt: skip
        low, high = column(idle, name), column(busy, name)
        if not low or not high:
            results.say("skip", f"{name} under load", "no such reading here")
            continue
        before, after = statistics.median(low), statistics.median(high)
        holds = after >= before * least if least else after >= before
        results.check(holds, f"{name} rises under load", f"{before:g} -> {after:g}")
    energy = column([*idle, *busy], "energy_joules")
    results.check(energy == sorted(energy), "energy only grows", energy[-1:] or "none")
    processes = [p["pid"] for look in busy for p in look["devices"][0]["processes"]]
    detail = "seen" if load.pid in processes else "not seen (another pid namespace, or hidden)"
    results.say("ok" if load.pid in processes else "note", "the process on the device", detail)
    held = [look["devices"][0]["busy_bytes"] for look in busy]
    results.check(any(held), "memory that somebody holds", held[-1])
    return busy


def polling_is_light(results: Results, probe: Probe, idle: list[dict[str, Any]]) -> None:
    """The probe itself must neither load the device nor cost its host."""
    busy = column(idle, "utilization_percent")
    if busy:
        results.check(statistics.median(busy) <= 5, "polling leaves the device idle", busy)
    before, began = probe.cpu_s(), time.monotonic()
    for _ in range(20):
        probe.look()
    used = (probe.cpu_s() - before) / 20
    results.check(
        used < 0.1, "a look costs less than 1 % of a core at 10 s", f"{used * 1000:.1f} ms"
    )
    wall = (time.monotonic() - began) / 20
    results.check(max(probe.took_s) < LOOK_S_MAX, "a look's duration", f"{wall * 1000:.0f} ms")


def calibrated(results: Results, name: str) -> None:
    """`quintal calibrate`, as a node without its other parts runs it."""
    code = (
        "import typer\n"
        "from quintal.cli.choices import Output, chosen\n"
        "from quintal_agent.calibration.command import calibrate\n"
        "chosen.output = Output.JSON\n"
        "app = typer.Typer(); app.command()(calibrate); app()\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, "--model", name, "--library", "torch"],
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        results.check(False, "quintal calibrate", "no end within 240 s")
        return
    results.keep("calibrate.json", done.stdout or done.stderr)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1][:300]
        absent = "not installed here" in done.stderr or "No module named" in done.stderr
        results.say("skip" if absent else "FAIL", "quintal calibrate", last)
        return
    body = json.loads(done.stdout)
    results.check(bool(body["document"]["spec"]), "quintal calibrate", f"{body['device']}")
    for rate in body["rates"]:
        results.say("note", f"measured {rate['name']}", rate["value"])


def main(folder: Path) -> int:
    """Every check, in order."""
    results = Results(folder)
    results.say("note", "python", sys.version.split()[0])
    xml = raw(results)
    probe = Probe()
    try:
        began = time.monotonic()
        first = probe.look()
        results.say("note", "first look", f"{(time.monotonic() - began) * 1000:.0f} ms")
        results.keep("probe.json", json.dumps(first, indent=1))
        troubles = [f"{t['code']}: {t['message']}" for t in first["troubles"]]
        results.check(bool(first["devices"]), "the probe finds a device", "; ".join(troubles))
        if not first["devices"]:
            return finish(results)
        beside(results, first, xml)
        idle = several(probe, IDLE_LOOKS)
        polling_is_light(results, probe, idle)
        busy = under_load(results, probe, idle)
        results.keep("telemetry.json", json.dumps({"idle": idle, "busy": busy}))
    except EOFError as exc:
        results.check(False, "the probe", exc)
    finally:
        probe.close()
    calibrated(results, "nvidia-h100-sxm5-80gb")
    return finish(results)


def finish(results: Results) -> int:
    """The last line."""
    print(f"{results.failed} failed")
    results.keep("summary.txt", "\n".join(results.lines) + "\n")
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
