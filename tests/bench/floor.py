"""The floor: a durable echo. A request in, its bytes into a synced stream, its bytes back.

Group commit and nothing else: no contract is read, nothing is decided, nobody is checked. What a
placer costs above this is what deciding costs. Run it as a process: `python -m tests.bench.floor`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque

import nats
import uvloop
from nats.aio.msg import Msg

SUBJECT = "bench.echo"
PLAIN_SUBJECT = "bench.plain"
"""An echo that nothing is written for."""
STREAM_SUBJECT = "bench.ledger"
GROUP_MAX = 256


async def main() -> None:
    """Answer until killed."""
    client = await nats.connect(
        os.environ["BENCH_URL"], user_credentials=os.environ["BENCH_CREDENTIALS"]
    )
    pending: deque[Msg] = deque()
    wake = asyncio.Event()

    async def hear(msg: Msg) -> None:
        pending.append(msg)
        wake.set()

    async def echo(msg: Msg) -> None:
        await client.publish(msg.reply, msg.data)

    await client.subscribe(SUBJECT, cb=hear)
    await client.subscribe(PLAIN_SUBJECT, cb=echo)
    sequence = 0
    print("ready", flush=True)
    while True:
        await wake.wait()
        wake.clear()
        while pending:
            batch = [pending.popleft() for _ in range(min(GROUP_MAX, len(pending)))]
            data = b'{"transitions":[' + b",".join(msg.data for msg in batch) + b"]}"
            headers = {"Nats-Expected-Last-Sequence": str(sequence)}
            await client.request(STREAM_SUBJECT, data, timeout=5, headers=headers)
            sequence += 1
            for msg in batch:
                await client.publish(msg.reply, msg.data)


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
