"""Timing: sizes grow until one run is long enough to be timed, then it is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from quintal.clock import Clock
from quintal_agent.calibration.arithmetic import Timed
from quintal_agent.calibration.backends import Backend, Run

FIRST_SIZE: Final = 512
LAST_SIZE: Final = 16_384
LONG_ENOUGH_S: Final = 0.2
COPY_BYTES: Final = 256 * 2**20
"""Well beyond any cache of one device."""

Progress = Callable[[str], None]


def timed(backend: Backend, clock: Clock, repeats: int, progress: Progress) -> Iterator[Timed]:
    """Products in each precision, then copies; what a device cannot do is left out, and said."""
    for precision in backend.precisions:
        try:
            yield _product(backend, clock, precision, repeats, progress)
        except (MemoryError, RuntimeError, TypeError) as exc:
            why = (str(exc) or type(exc).__name__).splitlines()[0]
            progress(f"{precision}: left out: {why}")
    progress("bandwidth")
    run = backend.copy(COPY_BYTES)
    run()
    times = tuple(_once(clock, run) for _ in range(repeats))
    yield Timed("bandwidth", 2 * COPY_BYTES, times)


def _product(
    backend: Backend, clock: Clock, precision: str, repeats: int, progress: Progress
) -> Timed:
    size = FIRST_SIZE
    while True:
        run = backend.product(precision, size)
        run()
        if _once(clock, run) >= LONG_ENOUGH_S or size >= LAST_SIZE:
            break
        size *= 2
    progress(f"{precision}: products of {size} x {size}")
    times = tuple(_once(clock, run) for _ in range(repeats))
    return Timed(precision, 2 * size**3, times)


def _once(clock: Clock, run: Run) -> float:
    before = clock.monotonic_s()
    run()
    return clock.monotonic_s() - before
