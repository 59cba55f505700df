"""`python -m quintal_agent`: the agent of this host."""

from __future__ import annotations

import asyncio
import sys

from quintal import process
from quintal.settings import environment
from quintal_agent import app, settings


def main() -> None:
    """Run until SIGTERM or Ctrl-C."""

    async def body(stop: asyncio.Event) -> int:
        return await app.run(settings.read(environment()), stop)

    sys.exit(process.run(body))


if __name__ == "__main__":
    main()
