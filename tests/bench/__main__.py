"""`make bench`: every benchmark, each figure beside its bound."""

from __future__ import annotations

import sys

from tests.bench import agent, engine, gangs, memory, metering, placement, seen


def main() -> int:
    """Run them in order; none fails, they print."""
    parts = (
        engine.main,
        gangs.main,
        lambda: placement.main([]),
        memory.main,
        agent.main,
        metering.main,
        seen.main,
    )
    return max(part() for part in parts)


if __name__ == "__main__":
    sys.exit(main())
