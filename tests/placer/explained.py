"""Writes docs/explain.md: ten situations, asked of the engine and printed as the CLI prints them.

python -m tests.placer.explained > docs/explain.md
"""

from __future__ import annotations

import contextlib
import io
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from quintal.cli.choices import Output, chosen
from quintal.cli.placement import show_explanation
from quintal.contracts import ledger, nodes, placement
from quintal.contracts.documents import Document
from quintal.contracts.nodes import DeviceHealth
from quintal_placer import explaining, hints, redaction
from quintal_placer.instant import Instant
from tests.placer.site import AT_MS, Site, inventory
from tests.placer.world import cards, doc, model

VISION, SPEECH = "vision", "speech"
HEAD = """# Why did my request get that?

`quintal explain REQUEST-ID` says why a request got what it got; `--hints` adds the smallest changes
with which it would be placed now, each checked by the code that decides. This page is generated
from the placer itself (`make docs`): ten situations, one for each kind of reason.

How to read an answer:

- The **title** has the verdict. `placed`; `not_now` (it could fit when somebody lets go, mends or
  raises something: a request may wait for it, `quintal place --wait 10m`); `never_fits` (nothing
  that is known could ever meet it, so that waiting does not help).
- The **table** takes the fleet apart: each node is counted once, under the last thing that stood
  between it and a grant. What somebody can mend stands above what is merely full.
- **whose move** says who can change it: the `submitter` (ask for something else), the
  `infrastructure` (whoever runs the nodes), the `catalog` (whoever writes quotas and documents).
- The **last lines** sum up, and say what would help.

A tenant sees names of nodes only in pools that are open to it, and of others how many devices they
hold. An operator sees everything: `quintal explain REQUEST-ID` without `--tenant`.

The fleet of these examples has four nodes, `gpu-01` and `gpu-02` with four H100 each, `gpu-03` with
four A100, `gpu-04` with two MI300X in a pool of its own. Two tenants ask, `vision` and `speech`.
"""


@dataclass(frozen=True)
class Situation:
    """What is so, what is asked, and what is to be learnt from the answer."""

    title: str
    scene: str
    command: str
    ask: dict[str, Any]
    before: Callable[[Site], None] = lambda _: None
    documents: tuple[Document, ...] = ()
    lesson: str = ""
    operator: bool = False
    """Whether an operator's view is shown too."""
    drivers: dict[str, str] = field(default_factory=dict)


def h100_for_cuda() -> Document:
    """The same model, which says what its runtime is."""
    plain = model("h100-80", memory=80, family="h100", train_llm="1")
    return plain.model_copy(update={"spec": plain.spec.model_copy(update={"runtime": "cuda"})})


def documents(*more: Document) -> list[Document]:
    """A small catalog with names that a reader knows; what is given replaces its namesake."""
    wide = [{"class": "train_llm", "units": "100"}]
    standard = [
        model("h100-80", memory=80, family="h100", train_llm="1"),
        model("a100-80", memory=80, family="a100", train_llm="0.4"),
        model("mi300x-192", memory=192, vendor="amd", family="mi300x", train_llm="1.1"),
        doc("Profile", "train", **{"class": "train_llm", "cards": "1..8", "nodes": "1..16"}),
        doc("Pool", "green", order=2, selector={"vendors": ["nvidia"]}),
        doc("Pool", "red", order=2, selector={"vendors": ["amd"]}),
        doc("Tenant", VISION, projects=["a"]),
        doc("Tenant", SPEECH, projects=["a"]),
        doc("Quota", VISION, tenant=VISION, caps=wide),
        doc("Quota", SPEECH, tenant=SPEECH, caps=wide),
    ]
    replaced = {document.key for document in more}
    return [*(each for each in standard if each.key not in replaced), *more]


def fleet(situation: Situation) -> Site:
    drivers = situation.drivers

    def stack(node: str) -> nodes.Stack:
        return nodes.Stack(drivers={"nvidia": drivers[node]} if node in drivers else {})

    return Site(
        documents(*situation.documents),
        inventory("gpu-01", *cards("gpu-01", "H100-80", 4), stack=stack("gpu-01")),
        inventory("gpu-02", *cards("gpu-02", "H100-80", 4), stack=stack("gpu-02")),
        inventory("gpu-03", *cards("gpu-03", "A100-80", 4), stack=stack("gpu-03")),
        inventory("gpu-04", *cards("gpu-04", "MI300X-192", 2, "amd")),
    )


def held(*what: tuple[str, str, int]) -> Callable[[Site], None]:
    """(tenant, node, cards) that are leased already."""

    def before(site: Site) -> None:
        for tenant, node, count in what:
            site.granted(tenant, cards=count, constraints={"nodes": [node]})

    return before


def told(*records: ledger.AnyRecord) -> Callable[[Site], None]:
    return lambda site: site.apply(*records)


def failed(node: str, count: int) -> Callable[[Site], None]:
    def before(site: Site) -> None:
        for uuid in sorted(site.state.fleet.nodes[node].devices)[:count]:
            site.apply(
                ledger.DeviceHealthChanged(
                    at_ms=AT_MS, node=node, uuid=uuid, health=DeviceHealth.FAILED, reason="Xid 79"
                )
            )

    return before


H100 = {"accelerator": {"models": ["h100-80"]}}
SITUATIONS = (
    Situation(
        "placed",
        "Four cards are asked for; two nodes have them.",
        "quintal place train --cards 4 --model h100-80 --request-id demo",
        {"cards": 4, **H100},
        lesson="A grant is explained too: what was chosen, by which objective, of how many groups"
        " of like nodes that would do.",
    ),
    Situation(
        "no_capacity: others hold it",
        "Every H100 is leased, most of them by another team.",
        "quintal place train --cards 4 --model h100-80 --request-id demo",
        {"cards": 4, **H100},
        held((SPEECH, "gpu-01", 4), (SPEECH, "gpu-02", 3), (VISION, "gpu-02", 1)),
        operator=True,
        lesson="Devices that would do are counted by who holds them. Wait for them (`--wait`), or"
        " take a hint.",
    ),
    Situation(
        "fragmented: enough in sum, not together",
        "Two cards are free on each of two nodes; four are asked for on one.",
        "quintal place train --cards 4 --model h100-80 --request-id demo",
        {"cards": 4, **H100},
        held((SPEECH, "gpu-01", 2), (SPEECH, "gpu-02", 2)),
        lesson="If the job can run over nodes, spread it: two cards on each of two nodes.",
    ),
    Situation(
        "cordoned: taken out for maintenance",
        "An operator has cordoned the node that is free.",
        "quintal place train --cards 4 --model h100-80 --request-id demo",
        {"cards": 4, **H100},
        lambda site: (
            held((SPEECH, "gpu-02", 4))(site),
            told(
                ledger.CordonChanged(
                    at_ms=AT_MS, node="gpu-01", cordoned=True, by="operator", reason="fan"
                )
            )(site),
        )[1],
        lesson="It stands above the full node, since somebody can end it; by whom and why it was"
        " cordoned, `quintal nodes` tells an operator.",
    ),
    Situation(
        "tainted: kept for requests that tolerate it",
        "Both nodes carry the taint `nightly`.",
        "quintal place train --cards 4 --model h100-80 --request-id demo",
        {"cards": 4, **H100},
        told(
            ledger.TaintChanged(
                at_ms=AT_MS, node="gpu-01", taint="nightly", present=True, by="operator"
            ),
            ledger.TaintChanged(
                at_ms=AT_MS, node="gpu-02", taint="nightly", present=True, by="operator"
            ),
        ),
        lesson="`quintal place --tolerate nightly` says that the job puts up with it.",
    ),
    Situation(
        "node_suspect: the node is not heard",
        "Of the two nodes one is silent; the other is leased.",
        "quintal place train --cards 4 --model h100-80 --request-id demo",
        {"cards": 4, **H100},
        lambda site: (
            held((SPEECH, "gpu-02", 4))(site),
            told(
                ledger.LivenessChanged(
                    at_ms=AT_MS, node="gpu-01", liveness="suspect", heard_ms=AT_MS - 20_000
                )
            )(site),
        )[1],
        lesson="Nothing is granted on a node whose agent is silent; it comes back by itself.",
    ),
    Situation(
        "device_unhealthy: cards have failed",
        "One card of each node has failed; four are asked for.",
        "quintal place train --cards 4 --model h100-80 --request-id demo",
        {"cards": 4, **H100},
        lambda site: (failed("gpu-01", 1)(site), failed("gpu-02", 1)(site))[1],
        lesson="An unhealthy device is given to nobody until its agent reports it healthy.",
    ),
    Situation(
        "stack_blocked: the driver is too old",
        "The workload's image needs CUDA 12.4; its boundary wants driver 550.54.14 or newer.",
        "quintal place --workload llama --request-id demo",
        {"profile": None, "workload": "llama"},
        documents=(
            doc(
                "Workload",
                "llama",
                profile="train",
                variants=[
                    {
                        "name": "cuda",
                        "runtime": "cuda",
                        "runtime_version": "12.4",
                        "image": "llama:cuda12.4",
                    }
                ],
            ),
            doc(
                "Boundary",
                "cuda-12.4",
                runtimes=["cuda"],
                when=[{"component": "runtime", "name": "cuda", "versions": "==12.4.*"}],
                requires=[{"component": "driver", "name": "nvidia", "versions": ">=550.54.14"}],
                source="release notes of the toolkit",
            ),
            h100_for_cuda(),
        ),
        drivers={"gpu-01": "535.104.05", "gpu-02": "535.104.05"},
        lesson="The message names what is there and what would pass. An upgrade of a node mends it;"
        " `quintal check -f WORKLOAD --node NODE` tells the same beforehand.",
    ),
    Situation(
        "model_quota_exceeded: a cap bars it",
        "The cards are free, but the team may hold four H100 at once and has two.",
        "quintal place train --cards 4 --model h100-80 --request-id demo",
        {"cards": 4, **H100},
        held((VISION, "gpu-01", 2)),
        documents=(
            doc(
                "Quota",
                VISION,
                tenant=VISION,
                caps=[
                    {"class": "train_llm", "units": "100"},
                    {"model": "h100-80", "cards": 4},
                ],
            ),
        ),
        lesson="The sentence names the cap, what is held of it and by how much it would be passed;"
        " the table says where it would have fitted.",
    ),
    Situation(
        "never_fits: nothing known could ever meet it",
        "Six cards are asked for on one node; no node has more than four.",
        "quintal place train --cards 6 --model h100-80 --request-id demo",
        {"cards": 6, **H100},
        lesson="Waiting would not help, so such a request is not queued.",
    ),
)


def explained(situation: Situation) -> tuple[placement.Explanation, placement.Explanation]:
    """As the tenant sees it and as an operator does."""
    site = fleet(situation)
    situation.before(site)
    ask = placement.PlaceAsk.model_validate(
        {"request_id": "demo", "profile": "train", **situation.ask}
    )
    desk = site.desk
    desk.decide(VISION, ask)
    its = Instant(site.state, desk.market, desk.explanations, AT_MS, 1, True, {})
    whole = desk.explanation(VISION, "demo")
    assert whole is not None
    kept = desk.explanations.newest(VISION, "demo")
    whole = explaining.with_holders(its.state, its.market, VISION, kept, whole)
    if whole.verdict != "placed":
        tries = hints.search(
            site.state, desk.market, VISION, ask, lambda changed: desk.evaluate(VISION, changed)
        )
        whole = whole.model_copy(update={"hints": tuple(hint for hint in tries if hint)})
    own = redaction.for_tenant(site.state.catalog, VISION, whole)
    assert isinstance(own, placement.Explanation)
    return own, whole


def printed(told_: placement.Explanation) -> str:
    out = io.StringIO()
    before, chosen.output = chosen.output, Output.TABLE
    try:
        with contextlib.redirect_stdout(out):
            show_explanation(told_)
    finally:
        chosen.output = before
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def page() -> str:
    return HEAD + "".join(_sections())


def _sections() -> Iterator[str]:
    for number, situation in enumerate(SITUATIONS, start=1):
        own, whole = explained(situation)
        more = "" if own.verdict == "placed" else " --hints"
        yield f"\n## {number}. {situation.title}\n\n{textwrap.fill(situation.scene, 100)}\n\n"
        yield f"```console\n$ {situation.command}\n$ quintal explain demo{more}\n"
        yield f"{printed(own)}\n```\n"
        if situation.operator:
            yield f"\nAn operator sees:\n\n```console\n{printed(whole)}\n```\n"
        if situation.lesson:
            yield f"\n{textwrap.fill(situation.lesson, 100)}\n"


if __name__ == "__main__":
    sys.stdout.write(page())
