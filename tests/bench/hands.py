"""Ten thousand agents behind one connection: they bind what they are told, and beat.

A process of its own, so that its time is nobody else's. It keeps what agents keep (a lease set for
each node, and its version) and has no devices. Run it as `python -m tests.bench.hands`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import nats
import uvloop
from nats.aio.msg import Msg

from quintal.contracts import nodes, subjects

BEAT_S = 5.0
SLICES = 250
"""Parts of a period, so that beats come as evenly as those of many machines do."""


class Hands:
    """The lease sets of all nodes."""

    def __init__(self) -> None:
        self.sets: dict[str, dict[str, int]] = {}

    def bind(self, node: str, ask: dict[str, Any]) -> tuple[str, ...]:
        self.sets.setdefault(node, {})[ask["lease"]["lease"]] = ask["lease"]["token"]
        return ()

    def end(self, node: str, ask: dict[str, Any]) -> tuple[str, ...]:
        self.sets.get(node, {}).pop(ask["lease"], None)
        return ()

    def set(self, node: str, ask: dict[str, Any]) -> tuple[str, ...]:
        kept = [lease for lease in ask["leases"] if lease["bind"] == "wait"]
        self.sets[node] = {lease["lease"]: lease["token"] for lease in kept}
        return tuple(ask.get("ended", ()))

    def beat(self, node: str) -> bytes:
        heartbeat = {
            "node": node, "boot_id": "boot", "sequence": 1, "at_ms": time.time_ns() // 1_000_000,
            "lease_version": nodes.lease_set_version(self.sets.get(node, {})),
            "inventory_sequence": 1,
        }  # fmt: skip
        return json.dumps(heartbeat).encode()


async def main() -> None:
    """Answer, and beat, until killed."""
    client = await nats.connect(
        os.environ["BENCH_URL"], user_credentials=os.environ["BENCH_CREDENTIALS"]
    )
    hands = Hands()
    for request, act in (
        (subjects.BIND, hands.bind), (subjects.END, hands.end), (subjects.SET, hands.set),
    ):  # fmt: skip

        async def answer(msg: Msg, act: Any = act) -> None:
            released = act(msg.subject.split(".")[3], json.loads(msg.data))
            told = {"kind": "bound", "boot_id": "boot", "released": released}
            await client.publish(msg.reply, json.dumps(told).encode())

        await client.subscribe(request.subject(), cb=answer)
    await client.flush()
    print("ready", flush=True)
    count = int(os.environ["BENCH_BEATS"])
    names = [f"n{number:05d}" for number in range(count)]
    begin, sent = time.monotonic(), 0
    while True:
        await asyncio.sleep(BEAT_S / SLICES)
        due = int((time.monotonic() - begin) / BEAT_S * count)
        for number in range(sent, due):
            node = names[number % count]
            await client.publish(subjects.HEARTBEAT.subject(node=node), hands.beat(node))
        sent = due


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
