"""`make packing`: the public trace by the study's protocol, the published figures beside ours.

The trace is not part of this repository; it is looked for beside the checkout, or where
`--data` says. Each list is one run of every policy over the same ten seeds. With `--json FILE` the
answers are kept, and lists already in it are not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from random import Random
from statistics import fmean, pstdev

from quintal.units import PARTS
from quintal_placer.simulate import policies, protocol, run, summary, trace
from quintal_placer.simulate.yard import shapes

DATA = Path(__file__).parents[3] / "shared" / "data" / "openb"
NODES = "openb_node_list_gpu_node.csv"
NAMES = {
    "random": "01-Random", "dot-product": "02-DotProd", "clustering": "03-GpuClustering",
    "packing": "04-GpuPacking", "best-fit": "05-BestFit", "fgd": "06-FGD",
    "first-fit": "", "tight": "",
}  # fmt: skip
BOUNDS = {
    "default": (95.6, 95.7), "gpuspec33": (93.0, 95.1), "cpu250": (94.0, 94.2),
}  # fmt: skip
NEAR = 0.3
"""How near the published figures our own run of their policies must come."""
CHURNED = ("tight", "fgd", "best-fit", "first-fit")


def published(path: Path) -> dict[tuple[str, str], tuple[float, float, float]]:
    """(list, policy) -> mean at 100 %, at 130 %, deviation at 130 %, over the published seeds."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    at = {name: place for place, name in enumerate(header.split(","))}
    for line in lines:
        cells = line.split(",")
        key = (cells[at["workload"]].removeprefix("openb_pod_list_"), cells[at["sc_policy"]])
        found.setdefault(key, []).append((float(cells[at["100"]]), float(cells[at["130"]])))
    return {
        key: (fmean(a for a, _ in its), fmean(b for _, b in its), pstdev([b for _, b in its]))
        for key, its in found.items()
    }


def fill(nodes: list, lines: list, name: str, seeds: range, load: float = 1.3) -> dict:
    """One policy over the seeds, the protocol's fill-up."""
    setup = _setup(nodes, lines, name)
    outs = []
    for seed in seeds:
        chance = Random(seed)
        stream = protocol.fill(lines, _capacity(nodes), load, chance)
        outs.append(run.fill_up(setup, name.partition("+")[0], seed, stream))
        print(f"  {name} seed {seed}: {outs[-1].at(130)}", file=sys.stderr, flush=True)
    return summary.policy(outs)


def churned(nodes: list, lines: list, name: str, seeds: range) -> dict:
    """One policy over the seeds, with departures at load 1.0."""
    setup, shape = _setup(nodes, lines, name), protocol.Churn(1.0)
    outs = []
    for seed in seeds:
        stream = protocol.churn(lines, _capacity(nodes), shape, Random(seed))
        span = (shape.from_ms, shape.until_ms)
        outs.append(run.timed(setup, name.partition("+")[0], seed, stream, span))
        print(f"  {name} seed {seed}: {outs[-1].mean_allocation}", file=sys.stderr, flush=True)
    return summary.policy(outs)


def _setup(nodes: list, lines: list, name: str) -> run.Setup:
    known = policies.list_target(shapes(nodes, lines))
    return run.Setup(nodes, known, time.thread_time_ns, warm=name.endswith("+list"))


def _capacity(nodes: list) -> int:
    return sum(line.cards for line in nodes) * PARTS


def table(told: str, found: dict[str, dict], known: dict) -> int:
    """Print ours beside the published; how many figures miss their bound."""
    print(f"\n{told}: allocated, % of the cards, at 100 / 130 % arrived (mean, sd of the seeds)")
    print(
        f"{'policy':<14}{'published':>22}{'ours':>22}{'off':>8}{'fragmented':>12}{'p50/p99 us':>14}"
    )
    missed = 0
    for name, its in found.items():
        at = its["allocation_percent"]
        low, high, sd = at["100"]["mean"], at["130"]["mean"], at["130"]["sd"]
        ours = f"{low:.2f} / {high:.2f} ({sd:.2f})"
        theirs = known.get((told, NAMES.get(name, "")))
        said, off = "", ""
        if theirs:
            said = f"{theirs[0]:.2f} / {theirs[1]:.2f} ({theirs[2]:.2f})"
            off = f"{high - theirs[1]:+.2f}"
            if abs(high - theirs[1]) > NEAR:
                missed, off = missed + 1, f"{off} !"
        if name.startswith("tight") and told in BOUNDS:
            least = BOUNDS[told]
            holds = low >= least[0] and high >= least[1]
            said, off = f"at least {least[0]} / {least[1]}", "holds" if holds else "MISSES"
            missed += not holds
        speed = f"{its['decision_us']['p50']:.0f}/{its['decision_us']['p99']:.0f}"
        lost = its["fragmentation_percent"]["mean"]
        print(f"{name:<14}{said:>22}{ours:>22}{off:>8}{lost:>12.2f}{speed:>14}")
    seeds = next(iter(found.values()))["seeds"]
    print("seeds: " + "; ".join(
        f"{each['seed']}: {each['arrivals']} arrivals, {each['demand_percent']} %" for each in seeds
    ))  # fmt: skip
    if {"fgd", "tight"} <= set(found):
        ours, theirs = (found[n]["allocation_percent"]["90"]["mean"] for n in ("tight", "fgd"))
        print(f"at 90 %: tight {ours:.2f}, fgd {theirs:.2f} (no more than 0.5 lost)")
    return missed


def main(argv: list[str]) -> int:
    """Run what is asked for; 1 where a figure misses its bound, 0 too where there is no trace."""
    asked = argparse.ArgumentParser(prog="make packing")
    asked.add_argument("--data", type=Path, default=DATA)
    asked.add_argument("--lists", nargs="*")
    asked.add_argument("--policies", nargs="*", default=[*NAMES, "tight+list"])
    asked.add_argument("--seeds", type=int, default=10)
    asked.add_argument("--departures", action="store_true")
    asked.add_argument("--json", type=Path)
    said = asked.parse_args(argv)
    if not (said.data / NODES).exists():
        print(f"skipped: no trace at {said.data} (the public openb trace; it is not ours to ship)")
        return 0
    nodes = trace.nodes(said.data / NODES)
    known = published(said.data / "published_allocation.csv")
    paths = sorted(said.data.glob("openb_pod_list_*.csv"))
    kept = json.loads(said.json.read_text()) if said.json and said.json.exists() else {}
    missed = 0
    for path in paths:
        told = path.stem.removeprefix("openb_pod_list_")
        if said.lists and told not in said.lists:
            continue
        lines = trace.requests(path)
        found = kept.setdefault(told, {})
        names = CHURNED if said.departures else said.policies
        for name in names:
            if name not in found:
                how = churned if said.departures else fill
                found[name] = how(nodes, lines, name, range(1, said.seeds + 1))
                if said.json:
                    said.json.write_text(json.dumps(kept))
        if said.departures:
            print(f"\n{told}, with departures at load 1.0: allocated over time / demand lost, %")
            for name, its in found.items():
                mean, lost = its["mean_allocation_percent"], its["lost_percent"]
                print(f"{name:<14}{mean['mean']:>8.2f} / {lost['mean']:.2f} (sd {mean['sd']:.2f})")
        else:
            missed += table(told, found, known)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
