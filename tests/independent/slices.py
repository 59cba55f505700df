"""Hold metering's stored rows to a reckoning of the LEDGER stream and the catalog's price lists.

Imports nothing of quintal. Equal means: to the micro-unit, and to the last digit of every cost.
Usage: slices.py URL METERING_CREDENTIALS ENDPOINT_JSON  (the last is in metering's state folder)
"""

import asyncio
import json
import sys
import urllib.parse
import urllib.request
from decimal import Decimal
from pathlib import Path

from reckoning import reckon
from recompute import connect, messages

HOUR = 3_600_000
ONCE = "(SELECT * FROM {} WHERE sequence <= {} LIMIT 1 BY id)"
GROUP = "vendor, model, pool, parts, rating_micro, home_pool, home_model"


def ask(place, query):
    """Rows of metering's store, through its endpoint."""
    token = Path(place["token_file"]).read_text().strip()
    asked = urllib.parse.urlencode({"database": place["database"], "default_format": "JSONEachRow"})
    request = urllib.request.Request(
        f"{place['url']}/?{asked}", query.encode(), {"X-ClickHouse-Key": token}
    )
    with urllib.request.urlopen(request) as answer:
        return [json.loads(line, parse_float=Decimal) for line in answer.read().splitlines()]


def stored(place, until):
    """(slices, capacity) as metering has them; corrections by people are left out."""
    own = ONCE.format("slices", until)
    slices, starts = {}, {}
    ours = "correction = '' OR startsWith(correction, 'refold:')"
    for r in ask(place, f"SELECT * FROM {own} WHERE {ours} ORDER BY kind DESC, from_ms"):
        group = tuple(r[name] for name in GROUP.split(", "))
        group = (*group[:3], int(group[3]), int(group[4]), *group[5:])
        named = (r["lease"], r["tenant"], *group, int(r["revision"]))
        begin, end = int(r["from_ms"]), int(r["to_ms"])
        if r["kind"] == "usage":
            starts.setdefault(named, []).append((begin, end))
        begin = next(a for a, b in starts[named] if a <= begin < b)
        key = (*named[:-1], begin, named[-1], r["price_list"], r["currency"])
        sums = slices.setdefault(key, [0, 0, Decimal(0)])
        sums[0] += int(r["quantity"])
        sums[1] += int(r["part_ms"])
        sums[2] += Decimal(r["cost"])
    query = f"""SELECT pool, model, hour_ms, reason, toString(sum(toInt256(part_ms))) AS parts
        FROM {ONCE.format("capacity", until)} WHERE reason != 'total' GROUP BY ALL"""
    cells = {
        (r["pool"], r["model"], int(r["hour_ms"]), r["reason"]): int(r["parts"])
        for r in ask(place, query)
    }
    return {k: v for k, v in slices.items() if any(v)}, {k: n for k, n in cells.items() if n}


async def price_lists(client, revision):
    """A revision's price lists from the catalog's bucket: manifest, then documents."""

    async def get(key):
        subject = "$JS.API.DIRECT.GET.KV_CATALOG.$KV.CATALOG."
        return json.loads((await client.request(subject + key, b"", timeout=10)).data)

    found = {}
    for entry in (await get(f"rev.{revision}"))["entries"]:
        if entry["kind"] == "PriceList":
            found[entry["name"]] = (await get(f"doc.{entry['digest']}"))["spec"]
    return found


def differing(groups, prices, place, until):
    """(names of what differs, what was compared) of a ledger up to `until` and the store."""
    records = [record for group in groups for record in group["transitions"]]
    ours, cells = reckon(groups, prices)
    theirs, kept = stored(place, until)
    last = records[-1]["at_ms"] if records else 0
    # What an open lease used since the last full hour is not stored yet.
    over = {r["lease"] for r in records if r["kind"] in {"ending", "ended", "failed"}}
    ours = {k: v for k, v in ours.items() if k in theirs or k[0] in over}
    cells = {k: n for k, n in cells.items() if k[2] + HOUR <= last}
    off = {str(k) for a, b in ((ours, theirs), (cells, kept)) for k in {*a, *b}
           if a.get(k) != b.get(k)}  # fmt: skip
    cost = sum((sums[2] for sums in ours.values()), Decimal(0))
    return sorted(off), f"{len(ours)} slices, cost {cost}, {len(cells)} parts of hours"


async def main(url, metering, endpoint):
    place = json.loads(Path(endpoint).read_text())
    [row] = ask(place, "SELECT max(sequence) AS newest FROM transitions")
    await asyncio.sleep(2)  # the rows of a batch follow its archive
    until = int(row["newest"])
    client, _ = await connect(url, metering)
    groups = [group async for group in messages(client, until)]
    records = [record for group in groups for record in group["transitions"]]
    adopted = {r["revision"] for r in records if r["kind"] == "catalog_adopted"}
    prices = {revision: await price_lists(client, revision) for revision in adopted}
    await client.close()
    off, compared = differing(groups, prices, place, until)
    for name in off[:20]:
        print("differs:", name)
    print(f"ledger 1..{until}: {compared}: {f'{len(off)} DIFFER' if off else 'equal'}")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:4])))
