"""How every process of Quintal runs: one event loop, one way to log, one way to stop.

Also the two words that a process says to whoever supervises it (systemd, or `quintal up`):
READY and the watchdog's ping, over the datagram socket that NOTIFY_SOCKET names.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable

from quintal.errors import QuintalError

EXIT_DEPOSED = 75
"""Another took the lead, or a lock is held: start me again, as a standby (EX_TEMPFAIL)."""


def notify(state: str) -> None:
    """Tell the supervisor (`READY=1`, `WATCHDOG=1`, `STATUS=...`); nobody there is no error."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)  # noqa: FBT003
        sock.sendto(state.encode(), address)


def run(main: Callable[[asyncio.Event], Awaitable[int | None]]) -> int:
    """Run `main(stop)` until it returns; SIGTERM and SIGINT set `stop`. Gives the exit status.

    An error of ours is one line on stderr with its causes, and status 1; any other is a trace.
    """
    logging.basicConfig(
        stream=sys.stderr,
        level=os.environ.get("QUINTAL_LOG", "INFO").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )

    async def body() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, stop.set)
        return await main(stop) or 0

    try:
        import uvloop
    except ImportError:
        runner = asyncio.run
    else:
        runner = uvloop.run
    try:
        return runner(body())
    except QuintalError as exc:
        logging.getLogger("quintal").error("%s", chain(exc))  # noqa: TRY400 - no trace wanted
        return 1


def chain(error: BaseException) -> str:
    """An error and its causes in one line, none of them twice."""
    words: list[str] = []
    at: BaseException | None = error
    while at is not None:
        text = str(at) or type(at).__name__
        if text not in words:
            words.append(text)
        at = at.__cause__
    return ": ".join(words)
