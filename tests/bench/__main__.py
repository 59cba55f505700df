"""`make bench`: every benchmark, each figure beside its bound."""

from __future__ import annotations

import sys

from tests.bench import agent, engine, metering


def main() -> int:
    """Run them in order; none fails, they print."""
    return max(engine.main(), agent.main(), metering.main())


if __name__ == "__main__":
    sys.exit(main())
