"""How the cards of a request must lie: to one another, to the network, over the nodes of a gang."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from quintal.contracts.spec import Spec

Wish = Literal["required", "preferred"]
"""What is required is refused where it cannot be had; what is preferred is told where it was not
met, with what that cost."""


class TopologyNeed(Spec):
    """How near the cards lie. What nobody knows of a node meets nothing that is required."""

    island: Wish | None = None
    """The cards of each node are of one island: linked to one another, not over PCIe."""
    nic: Wish | None = None
    """The cards of each node have a network interface in common: below one switch or bridge, or
    on one NUMA node."""
    domain: Wish | None = None
    """All nodes of a gang are in one domain between nodes."""
    over: Literal["fabric", "rack"] = "fabric"
    """Which sort: the fabric that the devices tell (else the node's label `fabric`), or the
    node's label `rack` (else its location)."""

    def stricter(self, other: TopologyNeed) -> TopologyNeed:
        """What meets both; of two sorts of domain the required one, else this one's."""
        mine = self.domain is not None and (
            other.domain is None or "required" in {self.domain} - {other.domain} or
            self.over == other.over
        )  # fmt: skip
        return TopologyNeed(
            island=_stricter(self.island, other.island),
            nic=_stricter(self.nic, other.nic),
            domain=_stricter(self.domain, other.domain),
            over=self.over if mine else other.over,
        )


def _stricter(one: Wish | None, other: Wish | None) -> Wish | None:
    return "required" if "required" in {one, other} else one or other


class GangMember(Spec):
    """Nodes of a gang that give as many cards each; a gang may have unlike ones."""

    cards: Annotated[int, Field(ge=1, le=100_000)]
    nodes: Annotated[int, Field(ge=1, le=10_000)] = 1


Members = Annotated[tuple[GangMember, ...], Field(max_length=64)]
