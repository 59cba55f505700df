"""A probe's own process: one line in, one observation out, until its stdin closes.

A vendor's library can hang in the kernel, crash, or print to stdout; here it does so alone. What
goes to the parent is written to a copy of stdout that was set aside before any library loaded.
"""

from __future__ import annotations

import os
import signal
import sys

from quintal_agent.probes.probe import Observation, Trouble, encode
from quintal_agent.probes.table import live_probe


def main(arguments: list[str]) -> int:
    """`child.py VENDOR NODE SYS_ROOT`; ends when the parent does."""
    vendor, node, sys_root = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.dup(1)
    os.dup2(2, 1)
    probe = live_probe(vendor, node=node, sys_root=sys_root)
    for _ in sys.stdin:
        try:
            observation = probe.observe()
        except Exception as exc:
            message = f"{type(exc).__name__}: {exc}"
            observation = Observation(vendor, vendor, troubles=(Trouble("probe_failed", message),))
        _write(answers, encode(observation))
    return 0


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
