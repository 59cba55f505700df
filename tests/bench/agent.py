"""What an agent costs its node: eight devices through the faked NVML, 10 s, a real bus.

The library is a fake that reads a file: what the real one costs inside its calls is not in it. That
is the point: this is our share. `python -m tests.bench.agent [SECONDS]`; AGENT_PYTHON names another
interpreter, such as an installed agent's own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from quintal.contracts import nodes, subjects
from quintal.contracts.subjects import Role
from tests.agent import nvml
from tests.agent.nvml import State, put_on_bus
from tests.support.nats import NatsServer

ROOT = Path(__file__).parents[2]
GPUS = 8
WARM_S = 25.0
BOUND_CORE_PERCENT, BOUND_MIB, BOUND_INVENTORY_S, BOUND_TELEMETRY_BYTES = 1.0, 90.0, 2.0, 2_048


def cost(process: psutil.Process) -> tuple[float, float, float, int]:
    """CPU seconds so far, MiB resident summed, MiB as shares (PSS), processes: the whole tree.

    The CPU seconds of children that have ended are in their parent's.
    """
    seconds = resident = shares = 0.0
    everyone = [process, *process.children(recursive=True)]
    for one in everyone:
        times, memory = one.cpu_times(), one.memory_full_info()
        seconds += times.user + times.system
        if one is process:
            seconds += times.children_user + times.children_system
        resident += memory.rss / 2**20
        shares += memory.pss / 2**20
    return seconds, resident, shares, len(everyone)


async def measure(window_s: float) -> None:
    """Print each figure beside its bound."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = nvml.build(folder / "lib")
        state = State(folder / "state", GPUS)
        for gpu in range(GPUS):
            put_on_bus(folder / "sys", gpu)
        server = NatsServer(folder / "nats")
        server.start()
        await asyncio.to_thread(server.declare)
        access = server.access("gpu-01", Role.AGENT)
        inventories: list[tuple[float, nodes.Inventory]] = []
        sizes: list[int] = []
        placer = await server.bus("placer-1", Role.PLACER_BACK)
        meter = await server.bus("metering", Role.METERING_BACK)
        await placer.hear(
            subjects.INVENTORY, lambda m, _: inventories.append((time.perf_counter(), m))
        )

        async def weigh(message: object) -> None:
            sizes.append(len(message.data))  # type: ignore[attr-defined]

        await meter.client.subscribe(subjects.TELEMETRY.subject(node="gpu-01"), cb=weigh)
        await placer.flush()
        await meter.flush()
        began = time.perf_counter()
        process = subprocess.Popen(
            [os.environ.get("AGENT_PYTHON", sys.executable), "-m", "quintal_agent"],
            env={
                **state.environment(library),
                "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'services/agent'}",
                "QUINTAL_URL": access.url,
                "QUINTAL_CREDENTIALS": str(access.credentials),
                "QUINTAL_STATE": str(folder / "agent"),
                "QUINTAL_LEASE_DIR": str(folder / "leases"),
                "QUINTAL_SYS_ROOT": str(folder / "sys"),
                "QUINTAL_LOG": "WARNING",
            },
        )  # fmt: skip
        try:
            while not inventories:
                await asyncio.sleep(0.01)
            heard_s = inventories[0][0] - began
            start_cpu_s = cost(psutil.Process(process.pid))[0]
            devices = [d for d in inventories[0][1].devices if d.vendor == "nvidia"]
            await asyncio.sleep(WARM_S)
            tree = psutil.Process(process.pid)
            before = cost(tree)
            start = time.perf_counter()
            await asyncio.sleep(window_s)
            passed = time.perf_counter() - start
            after = cost(tree)
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait, 15)
            await placer.close()
            await meter.close()
            server.kill()
    percent = (after[0] - before[0]) / passed * 100
    print(f"agent, {len(devices)} faked NVML devices at 10 s, {passed:.0f} s after a warm-up")
    print(f"  core                 {percent:6.2f} %    bound {BOUND_CORE_PERCENT} %")
    print(
        f"  memory (PSS)         {after[2]:6.1f} MiB  bound {BOUND_MIB} MiB, {after[3]} processes"
    )
    print(f"  memory (RSS, summed) {after[1]:6.1f} MiB  shared pages counted in each process")
    print(f"  memory grew          {after[2] - before[2]:+6.1f} MiB")
    print(f"  first inventory      {heard_s:6.2f} s    bound {BOUND_INVENTORY_S} s")
    load = os.getloadavg()[0]
    print(f"    of that, processor {start_cpu_s:6.2f} s    load of the machine {load:.1f}")
    print(f"  telemetry message    {max(sizes):6d} B    bound {BOUND_TELEMETRY_BYTES} B")


def main(window_s: float = 60.0) -> int:
    """Where a compiler is."""
    if nvml.COMPILER is None:
        print("agent: no C compiler here to build the faked NVML with")
        return 0
    asyncio.run(measure(window_s))
    return 0


if __name__ == "__main__":
    sys.exit(main(*(float(word) for word in sys.argv[1:])))
