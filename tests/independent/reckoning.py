"""Every slice, idle and unavailable part of a ledger, reckoned anew. Imports nothing of quintal.

Slow and plain: what a lease's end says of the past is put where it belongs before anything is
counted, and then every part of every device is counted from each event to the next.
"""

from collections import Counter, defaultdict
from decimal import Decimal

from inventory import PARTS, Inventory
from tariff import pieces

ENDS = {"over", "ending", "ended", "failed"}


def binds(r):
    return r["kind"] == "bound" or (r["kind"] == "granted" and r.get("bound"))


def ordered(records):
    """The records with an event `over` where each bound lease's use truly ended; and those ends."""
    over, bound, events = {}, {}, []
    for r in records:
        name = r.get("lease")
        if binds(r):
            bound.setdefault(name, r["at_ms"])
        elif r["kind"] in ENDS and name in bound and name not in over:
            said = max(r.get("effective_ms", r["at_ms"]), bound[name])
            over[name] = min(said, r["at_ms"])
    ends = sorted((at, name) for name, at in over.items())
    for r in records:
        while ends and ends[0][0] < r["at_ms"]:
            at, name = ends.pop(0)
            events.append({"kind": "over", "lease": name, "at_ms": at})
        events.append(r)
    return events, over


class Reckoning(Inventory):
    def __init__(self, prices):
        super().__init__()
        self.prices, self.revision, self.over = prices, 0, {}
        self.slices = defaultdict(lambda: [0, 0, Decimal(0)])

    def shape(self, lease):
        """What a slice names, and how many cards are so."""
        cards = Counter()
        for d in lease["devices"]:
            home = self.devices.get((d["node"], d["uuid"]), {})
            place = (home["pool"], home["model"] or "") if home.get("here") else ("", "")
            parts = d.get("parts", PARTS)
            named = (d["vendor"], d["model"], d["pool"], parts, d["rating_micro"])
            cards[(*named, *place, d.get("charged_parts") or parts)] += 1
        return self.revision, sorted(cards.items())

    def bill(self, lease, to):
        revision = lease["use"][0]
        lists = self.prices.get(revision, {})
        for group, begin, name, currency, *sums in pieces(lists, lease, lease["since"], to):
            key = (lease["lease"], lease["tenant"], *group[:-1], begin, revision, name, currency)
            self.slices[key] = [a + b for a, b in zip(self.slices[key], sums, strict=True)]
        lease["since"] = max(lease["since"], to)

    def apply(self, r):
        self.pass_to(r["at_ms"])
        lease = self.leases.get(r.get("lease"))
        self.revision = r["revision"] if r["kind"] == "catalog_adopted" else self.revision
        if "node" in r and r["kind"] != "node_released":
            self.of_node(r, r["kind"], r["node"])
        elif r["kind"] == "granted" and lease is None:
            lease = self.leases[r["lease"]] = {**r, "state": "granted", "left": set()}
        elif lease:
            self.of_lease(r, r["kind"], lease)
        if binds(r) and lease and lease["state"] == "granted":
            lease.update(state="bound", since=self.now, use=self.shape(lease))
        for one in self.leases.values():
            if one["state"] == "bound" and one["use"] != self.shape(one):
                self.bill(one, self.now)
                one["use"] = self.shape(one)

    def of_lease(self, r, kind, lease):
        if kind == "moved":
            lease["devices"] = r["devices"]
        elif kind == "node_released":
            lease["left"].add(r["node"])
        elif kind in ENDS:
            if lease["state"] == "bound":
                self.bill(lease, self.over[r["lease"]])
            lease["state"] = "ending"
            if kind in {"ended", "failed"}:
                del self.leases[r["lease"]]


def reckon(groups, prices, watermark=None):
    """({slice: [quantity, parts x ms, cost]}, {(pool, model, hour, reason): parts x ms})."""
    records = [r for group in groups for r in group["transitions"]]
    found = Reckoning(prices)
    events, found.over = ordered(records)
    for r in events:
        found.apply(r)
    found.apply({"kind": "tick", "at_ms": watermark or found.now or 0})
    for lease in found.leases.values():
        if lease["state"] == "bound":
            found.bill(lease, found.now)
    slices = {key: sums for key, sums in found.slices.items() if any(sums)}
    return slices, {key: parts for key, parts in found.capacity.items() if parts}
