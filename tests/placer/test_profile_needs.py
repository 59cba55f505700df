"""What a profile asks of nodes beside their cards: a network, a driver, a runtime."""

from __future__ import annotations

import pytest

from quintal.contracts.message import Refusal
from quintal.contracts.nodes import Network, Stack
from tests.placer.site import Site, inventory, models, quota
from tests.placer.world import cards, doc


def a_site(**profile: object) -> Site:
    spec = {"class": "train_llm", "cards": "1..8", **profile}
    documents = [*models(), *quota("ml"), doc("Profile", "needy", **spec)]
    fast = (Network(name="ib0", speed_mbits=400_000), Network(name="eth0", speed_mbits=1_000))
    slow = (Network(name="eth0", speed_mbits=10_000), Network(name="eth1"))
    return Site(
        documents,
        inventory(
            "new",
            *cards("new", "A-80", 1),
            networks=slow,
            stack=Stack(drivers={"nvidia": "570.10"}),
        ),
        inventory(
            "old",
            *cards("old", "A-80", 1),
            networks=fast,
            stack=Stack(drivers={"nvidia": "470.57"}),
        ),
        inventory("red", *cards("red", "RED-192", 1, "amd"), networks=slow),
    )


def where(site: Site) -> set[str]:
    """The nodes that requests of this profile come to, one after the other."""
    found = set()
    for _ in range(3):
        answer = site.ask(profile="needy")
        if not hasattr(answer, "devices"):
            break
        found |= {device.node for device in answer.devices}
    return found


def test_without_needs_every_node_serves() -> None:
    assert where(a_site()) == {"new", "old", "red"}


def test_a_network_is_that_of_the_fastest_interface() -> None:
    site = a_site(node={"network_mbits": 100_000})
    assert where(site) == {"old"}
    told = a_site(node={"network_mbits": 800_000}).refused(profile="needy")
    assert told.code == "never_fits"
    assert any("800000 Mbit/s" in reason.message for reason in told.reasons)


def test_a_driver_bound_concerns_its_own_vendor_alone() -> None:
    bound = {"component": "driver", "name": "nvidia", "versions": ">=550"}
    assert where(a_site(requires=[bound])) == {"new", "red"}


def test_the_failing_bound_is_told() -> None:
    bound = {"component": "driver", "name": "nvidia", "versions": ">=600"}
    told = a_site(requires=[bound], accelerator={"vendors": ["nvidia"]}).refused(profile="needy")
    assert told.code == "stack_blocked"
    assert any("570.10" in reason.message for reason in told.reasons)
    assert told.owner == "infrastructure"


def test_what_strange_names_stand_for_is_looked_for_of_a_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One message has room for ten thousand names that are none."""
    looked: list[str] = []

    def meant(word: str, _: object) -> str:
        looked.append(word)
        return ""

    monkeypatch.setattr("quintal_placer.asking.meant", meant)
    site = Site([*models(), *quota("ml")], inventory("n1", *cards("n1", "A-80", 4)))
    strange = [{"accelerator": {"models": [f"a{n}-{i}" for i in range(64)]}} for n in range(16)]
    refused = site.decide(profile=None, **{"class": "train_llm"}, alternatives=strange)
    assert isinstance(refused, Refusal)
    assert len(looked) <= 8
    assert len(refused.details["faults"]) == 16 * 64
