"""A fake of NVML's library, built where a compiler is, and the state that it tells."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).parent / "fake_nvml.c"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
TOTAL = 85_520_809_984
RESERVED = 503_316_480


def build(folder: Path, *, without: tuple[str, ...] = ()) -> Path:
    """`libnvidia-ml.so.1` in `folder`; functions in `without` are not in it."""
    assert COMPILER is not None
    folder.mkdir(parents=True, exist_ok=True)
    renames = [f"-D{symbol}=withheld_{symbol}" for symbol in without]
    subprocess.run(
        [COMPILER, "-O1", "-shared", "-fPIC", "-D_GNU_SOURCE", *renames, "-o",
         str(folder / "libnvidia-ml.so.1"), str(SOURCE)],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


class State:
    """What the fake tells: keys and values, written whole so that it never reads half of them."""

    def __init__(self, path: Path, gpus: int = 0, **more: object) -> None:
        self.path = path
        self.keys: dict[str, object] = {
            "count": gpus, "driver": "570.133.20", "nvml": "12.570.133.20", "cuda": 12080,
        }  # fmt: skip
        for gpu in range(gpus):
            self.put_gpu(gpu)
        self.set(more)

    def put_gpu(self, gpu: int, like: int | None = None, **fields: object) -> None:
        """A healthy, idle device; `like` is the one whose identity it has."""
        who = gpu if like is None else like
        healthy: dict[str, object] = {
            "uuid": f"GPU-00000000-0000-4000-8000-{who:012d}",
            "name": "NVIDIA H100 80GB HBM3",
            "serial": f"16500000{who:05d}",
            "pci": f"00000000:{0x10 + who:02X}:00.0",
            "pci_id": "0x233010DE", "pci_subsystem": "0x16C110DE",
            "total": TOTAL, "reserved": RESERVED, "used": 0,
            "utilization": 0, "memory_utilization": 0,
            "power": 68_180 + who, "power_limit": 700_000, "temperature.0": 29,
            "clock.1": 1980, "clock.2": 2619, "energy": 1_234_567 + who,
            "mig_mode": 0, "processes": "", "event_types": 8, "remapped": "0,0,0,0",
        }  # fmt: skip
        for field, value in (healthy | fields).items():
            self.keys[f"gpu.{gpu}.{field}"] = value

    def set(self, keys: Mapping[str, object] | None = None, **more: object) -> None:
        """Change keys (`None` takes one away) and write the file."""
        for key, value in {**(keys or {}), **more}.items():
            if value is None:
                self.keys.pop(key, None)
            else:
                self.keys[key] = value
        draft = self.path.with_suffix(".draft")
        draft.write_text("".join(f"{key} {value}\n" for key, value in self.keys.items()))
        draft.replace(self.path)

    def environment(self, library: Path) -> dict[str, str]:
        """What makes an unmodified agent find the fake."""
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "FAKE_NVML_STATE": str(self.path),
        }


def put_on_bus(root: Path, gpu: int, *, suspended: bool = False, **files: str) -> Path:
    """The PCI function of device `gpu` in a /sys of the test's own."""
    folder = root / "bus/pci/devices" / f"0000:{0x10 + gpu:02x}:00.0"
    (folder / "power").mkdir(parents=True, exist_ok=True)
    body = {
        "vendor": "0x10de", "device": "0x2330", "class": "0x030200", "numa_node": str(gpu // 4),
        "subsystem_vendor": "0x10de", "subsystem_device": "0x16c1",
        "power/runtime_status": "suspended" if suspended else "active",
    } | files  # fmt: skip
    for name, text in body.items():
        (folder / name).write_text(f"{text}\n")
    return folder
