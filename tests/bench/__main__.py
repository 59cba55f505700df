"""`make bench`: every benchmark, each figure beside its bound."""

from __future__ import annotations

import sys

from tests.bench import agent, decision, engine, gangs, memory, metering, nodes, placement, seen


def main() -> int:
    """Run them in order; none fails, they print."""
    parts = (
        engine.main,
        gangs.main,
        lambda: decision.main([]),
        lambda: placement.main([]),
        lambda: nodes.main([]),
        memory.main,
        agent.main,
        metering.main,
        seen.main,
    )
    return max(part() for part in parts)


if __name__ == "__main__":
    sys.exit(main())
