"""The libraries that a device can be measured with. Each is imported when it is asked for.

One interface: make a product of two square matrices, or a copy, that one call does once and waits
for. The agent itself needs none of them, and a node gains none by installing it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, Protocol

from quintal.errors import SetupError

ORDER: Final = ("torch", "cupy", "numpy")
"""Tried in this order: the first two reach an accelerator."""

WAY_OUT: Final = (
    "calibrate needs torch, cupy or numpy, and none is installed here: "
    "`pip install numpy` measures the processor, torch or cupy an accelerator"
)

Run = Callable[[], object]


class Backend(Protocol):
    """One library on one device."""

    name: str
    device: str
    cpu: bool
    precisions: tuple[str, ...]

    def product(self, precision: str, size: int) -> Run:
        """A product of two `size` x `size` matrices. Raises MemoryError, RuntimeError."""

    def copy(self, count: int) -> Run:
        """A copy of so many bytes."""


def backend(wanted: str | None, device: int) -> Backend:
    """The library that was named, or the best that is here. Raises SetupError with the way out."""
    for name in ORDER if wanted is None else (wanted,):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        made = _MAKERS[name](module, device)
        if made is not None:
            return made
    if wanted is None:
        raise SetupError(WAY_OUT)
    raise SetupError(
        f"{wanted} is not installed here, or sees no device {device}: pip install {wanted}"
    )


class _Numpy:
    """The processor. 16 bits are left out: numpy multiplies them one by one."""

    cpu = True
    precisions: tuple[str, ...] = ("fp64", "fp32")

    def __init__(self, module: Any, device: str) -> None:
        self._np = module
        self.name = f"numpy {module.__version__}"
        self.device = device

    def product(self, precision: str, size: int) -> Run:
        kind = self._np.float64 if precision == "fp64" else self._np.float32
        one = self._np.full((size, size), 1.0 / 3, dtype=kind)
        out = self._np.empty_like(one)
        return lambda: self._np.matmul(one, one, out=out)

    def copy(self, count: int) -> Run:
        source = self._np.ones(count // 8, dtype=self._np.float64)
        target = self._np.empty_like(source)
        return lambda: self._np.copyto(target, source)


class _Torch:
    """Whatever torch reaches: an accelerator if it sees one, else the processor."""

    def __init__(self, module: Any, place: str, name: str, wait: Run) -> None:
        self._torch = module
        self._place = place
        self._wait = wait
        self.name = f"torch {module.__version__}"
        self.device = name
        self.cpu = place == "cpu"
        self.precisions = ("fp64", "fp32", "bf16", *(() if self.cpu else ("fp16",)))

    def product(self, precision: str, size: int) -> Run:
        kinds = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
        kind = getattr(self._torch, kinds[precision])
        one = self._torch.full((size, size), 1.0 / 3, dtype=kind, device=self._place)
        out = self._torch.empty_like(one)

        def run() -> None:
            self._torch.matmul(one, one, out=out)
            self._wait()

        return run

    def copy(self, count: int) -> Run:
        source = self._torch.ones(count // 8, dtype=self._torch.float64, device=self._place)
        target = self._torch.empty_like(source)

        def run() -> None:
            target.copy_(source)
            self._wait()

        return run


class _Cupy:
    """An accelerator by cupy."""

    cpu = False
    precisions: tuple[str, ...] = ("fp64", "fp32", "fp16")

    def __init__(self, module: Any, device: int, name: str) -> None:
        self._cp = module
        self._index = device
        self.name = f"cupy {module.__version__}"
        self.device = name

    def product(self, precision: str, size: int) -> Run:
        kind = {"fp64": "float64", "fp32": "float32", "fp16": "float16"}[precision]
        with self._cp.cuda.Device(self._index):
            one = self._cp.full((size, size), 1.0 / 3, dtype=kind)
            out = self._cp.empty_like(one)
        return self._held(lambda: self._cp.matmul(one, one, out=out))

    def copy(self, count: int) -> Run:
        with self._cp.cuda.Device(self._index):
            source = self._cp.ones(count // 8, dtype="float64")
            target = self._cp.empty_like(source)
        return self._held(lambda: self._cp.copyto(target, source))

    def _held(self, work: Callable[[], object]) -> Run:
        def run() -> None:
            with self._cp.cuda.Device(self._index) as device:
                work()
                device.synchronize()

        return run


def _numpy(module: Any, device: int) -> Backend | None:
    return _Numpy(module, "this processor") if device == 0 else None


def _torch(module: Any, device: int) -> Backend | None:
    for place in ("cuda", "xpu", "npu", "mps"):
        found = getattr(module, place, None)
        try:
            if found is not None and found.is_available() and device < found.device_count():
                named = getattr(found, "get_device_name", str)(device)
                return _Torch(module, f"{place}:{device}", str(named), found.synchronize)
        except (AttributeError, RuntimeError, AssertionError):
            continue
    return _Torch(module, "cpu", "this processor", lambda: None) if device == 0 else None


def _cupy(module: Any, device: int) -> Backend | None:
    try:
        if device >= module.cuda.runtime.getDeviceCount():
            return None
        name = module.cuda.runtime.getDeviceProperties(device)["name"]
    except Exception:
        # Its driver is absent or too old; the next library may still do.
        return None
    return _Cupy(module, device, name.decode() if isinstance(name, bytes) else str(name))


_MAKERS: Final[dict[str, Callable[[Any, int], Backend | None]]] = {
    "torch": _torch,
    "cupy": _cupy,
    "numpy": _numpy,
}
