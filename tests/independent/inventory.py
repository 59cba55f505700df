"""What every part of every device was, hour by hour, and for how long. Nothing of quintal."""

from collections import Counter, defaultdict

HOUR, PARTS = 3_600_000, 1_000_000
HELD_AS = {"bound": "leased", "granted": "binding", "ending": "releasing"}
NAMED = ("model", "pool", "health", "disputed")


def cut_of(r):
    there = [p for p in r.get("partitions", ()) if not p.get("missing")]
    cut = {p["uuid"]: p["parts"] for p in there}
    return {"smallest": r.get("smallest_parts", PARTS), "cut": cut}


class Inventory:
    """Nodes and devices; who holds them is told by the leases of whoever counts."""

    def __init__(self):
        self.now, self.devices, self.leases, self.capacity = None, {}, {}, Counter()
        self.nodes = defaultdict(lambda: {"cordon": set(), "taint": set(), "liveness": "ready"})

    def parts(self, key, d):
        held, taken, whole = Counter(), set(), False
        for lease in self.leases.values():
            for card in lease["devices"]:
                if (card["node"], card["uuid"]) == key and card["node"] not in lease["left"]:
                    held[HELD_AS[lease["state"]]] += card.get("parts", PARTS)
                    taken.add(card.get("partition"))
                    whole = whole or not card.get("partition")
        node = self.nodes[d["node"]]
        why = {
            "lost": node["liveness"] == "lost", "suspect": node["liveness"] == "suspect",
            "cordoned": node["cordon"], "tainted": node["taint"], "disputed": d["disputed"],
            "unhealthy": d["health"] not in ("ok", "degraded"), "unresolved": d["model"] is None,
        }  # fmt: skip
        base = next((name for name, holds in why.items() if holds), "free")
        rest, cut = PARTS - held.total(), d["cut"]
        if not held and not cut:
            held[base] += rest
        elif not whole:
            unheld = sum(parts for uuid, parts in cut.items() if uuid not in taken)
            held.update({base: unheld, "partition_overhead": rest - unheld})
        else:
            held[base if rest >= d["smallest"] and not cut else "stranded"] += rest
        return held

    def pass_to(self, at):
        while self.now is not None and self.now < at:
            hour = self.now - self.now % HOUR
            stop = min(at, hour + HOUR)
            for key, d in self.devices.items():
                for reason, parts in self.parts(key, d).items() if d["here"] else ():
                    cell = (d["pool"], d["model"] or "", hour, reason)
                    self.capacity[cell] += parts * (stop - self.now)
            self.now = stop
        self.now = at

    def of_node(self, r, kind, node):
        key = (node, r.get("uuid") or (r.get("device") or {}).get("uuid"))
        old = self.devices.get(key, {"here": False})
        if kind == "liveness":
            self.nodes[node]["liveness"] = r["liveness"]
        elif kind in {"cordon", "taint"}:
            names = self.nodes[node][kind]
            there = r.get("cordoned", r.get("present"))
            (names.add if there else names.discard)(r["by" if kind == "cordon" else "taint"])
        elif kind == "retired":
            self.nodes.pop(node, None)
            for device in self.devices.values():
                device["here"] = device["here"] and device["node"] != node
        elif kind in {"device_appeared", "device_changed"}:
            now = {"model": r["model"], "pool": r["pool"], "health": r["device"]["health"]}
            now |= cut_of(r)
            disputed = old["here"] and old["disputed"]
            self.devices[key] = {"node": node, "here": True, "disputed": disputed, **now}
        elif old["here"]:
            gone = {"here": False} if kind == "device_gone" else {}
            old.update(gone or {name: r[name] for name in NAMED if name in r})
            if kind == "device_resolved":
                old.update(cut_of(r))
