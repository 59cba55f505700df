"""Recompute every tenant's unit-seconds from the LEDGER stream, and hold metering's answer to it.

Imports nothing of quintal: what is shared is the ledger's format and the question's subject.
Usage: recompute.py URL METERING_CREDENTIALS FINANCE_CREDENTIALS  (the stems are the principals)
"""

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import nats

LEDGER, SUMMARY = "LEDGER", "quintal.v1.usage.{}.summary"
MICRO = 1_000_000 * 1_000  # an undivided quantity by this is micro-unit-seconds


async def connect(url: str, credentials: str) -> tuple[nats.NATS, str]:
    name = Path(credentials).stem
    inbox = f"_INBOX.{name}".encode()
    return await nats.connect(url, user_credentials=credentials, inbox_prefix=inbox), name


async def asked(url: str, credentials: str) -> tuple[int, int, dict]:
    """Metering's own answer: (sequence, watermark, {(tenant, class): quantity})."""
    client, name = await connect(url, credentials)
    reply = await client.request(SUMMARY.format(name), b'{"by": ["tenant"]}', timeout=30)
    await client.close()
    answer = json.loads(reply.data)
    if answer.get("kind") != "usage":
        sys.exit(f"metering refused: {answer}")
    found = {(r["group"]["tenant"], r["class"]): int(r["quantity"]) for r in answer["rows"]}
    return answer["sequence"], answer["watermark_ms"], found


async def messages(client: nats.NATS, last: int) -> AsyncIterator[dict]:
    """Every message of the ledger up to `last`, in order, by batched direct get."""
    following = 1
    while following <= last:
        inbox = client.new_inbox()
        replies = await client.subscribe(inbox)
        ask = {"seq": following, "batch": 500, "max_bytes": 4 * 2**20}
        await client.publish(f"$JS.API.DIRECT.GET.{LEDGER}", json.dumps(ask).encode(), reply=inbox)
        seen = 0
        while True:
            message = await replies.next_msg(timeout=10)
            headers = message.headers or {}
            if headers.get("Status"):
                break
            sequence = int(headers["Nats-Sequence"])
            if sequence != following:
                sys.exit(f"the ledger lacks {following}..{sequence - 1}: purged, cannot recompute")
            following, seen = sequence + 1, seen + 1
            if sequence <= last:
                yield json.loads(message.data)
        await replies.unsubscribe()
        if not seen:
            sys.exit(f"the ledger ends at {following - 1}, metering is at {last}")


class Reckoning:
    """Who used what: a lease's devices from `bound` to its effective end."""

    def __init__(self) -> None:
        self.granted, self.open = {}, {}
        self.used = defaultdict(int)

    def apply(self, record: dict) -> None:
        kind, lease = record["kind"], record.get("lease")
        if kind == "granted":
            self.granted[lease] = record
            if record.get("bound"):
                self.open[lease] = [(record["at_ms"], record["devices"])]
        elif kind == "moved" and lease in self.granted:
            self.granted[lease] = {**self.granted[lease], "devices": record["devices"]}
            if lease in self.open:
                self.open[lease].append((record["at_ms"], record["devices"]))
        elif kind == "bound" and lease in self.granted:
            self.open.setdefault(lease, [(record["at_ms"], self.granted[lease]["devices"])])
        elif kind == "ending":
            self.close(lease, min(record["effective_ms"], record["at_ms"]))
        elif kind in {"ended", "failed"}:
            self.close(lease, record["at_ms"])
            self.granted.pop(lease, None)

    def close(self, lease: str, end: int) -> None:
        stretches = self.open.pop(lease, [])
        stops = [start for start, _ in stretches[1:]] + [end] if stretches else []
        for (start, devices), stop in zip(stretches, stops, strict=True):
            passed = max(0, min(stop, end) - start)
            owner = (self.granted[lease]["tenant"], self.granted[lease]["class"])
            for device in devices:
                parts = int(device.get("charged_parts") or device.get("parts", 1_000_000))
                self.used[owner] += passed * parts * int(device["rating_micro"])


async def main(url: str, metering: str, finance: str) -> int:
    sequence, watermark, told = await asked(url, finance)
    client, _ = await connect(url, metering)
    reckoning = Reckoning()
    async for group in messages(client, sequence):
        for record in group["transitions"]:
            reckoning.apply(record)
    await client.close()
    for lease in list(reckoning.open):
        reckoning.close(lease, watermark)
    equal = True
    for owner in sorted({**reckoning.used, **told}):
        ours, theirs = reckoning.used.get(owner, 0), told.get(owner, 0)
        equal = equal and ours == theirs
        verdict = "=" if ours == theirs else f"metering differs by {theirs - ours:+}"
        print(f"{owner[0]:<24}{owner[1]:<14}{ours / MICRO / 1e6:>18.6f} unit-seconds  {verdict}")
    print(f"ledger 1..{sequence}, up to {watermark}: {'equal' if equal else 'NOT EQUAL'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:4])))
