"""Groups that fit nowhere cost a look, however many they are and over however many nodes.

What a tenant may ask in one message: sixteen alternatives, of nine groups each. Tried out one by
one that is 3^9 ways on a node with three models, and every node of the fleet.
"""

from __future__ import annotations

from typing import Any

import pytest

from quintal.contracts.message import Refusal
from quintal_placer.engine import pieces
from tests.placer.site import Site, inventory, models, quota
from tests.placer.world import cards

MANY: dict[str, Any] = {
    "accelerator": {},
    "cards": 2,
    "groups": [{"accelerator": {}, "cards": 2}] * 8,
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often a node is looked at, and how often devices are matched on one."""
    counts = {"nodes": 0, "ways": 0}
    filled, matched = pieces.filled, pieces._matched

    def counted_filled(*what: Any) -> Any:
        counts["nodes"] += 1
        return filled(*what)

    def counted_matched(*what: Any) -> Any:
        counts["ways"] += 1
        return matched(*what)

    monkeypatch.setattr("quintal_placer.engine.placing.filled", counted_filled)
    monkeypatch.setattr(pieces, "_matched", counted_matched)
    return counts


def mixed(node: str) -> list[Any]:
    """Three cards of each of three models: each has room for one group of two, and one is left."""
    return [card for m in ("A-80", "A-40", "B-24") for card in cards(f"{node}-{m.lower()}", m, 3)]


def test_what_numbers_rule_out_is_not_tried_card_by_card(calls: dict[str, int]) -> None:
    site = Site([*models(), *quota("ml")], inventory("n1", *mixed("n1")))
    asked: dict[str, Any] = {"profile": None, "class": "train_llm", "alternatives": [MANY] * 16}
    assert isinstance(site.decide(**asked), Refusal)
    assert calls["ways"] == 0
    three = {**MANY, "groups": MANY["groups"][:2]}
    assert not isinstance(site.decide(**asked | {"alternatives": [three]}), Refusal)
    assert calls["ways"] == 3, "one for each model that the first of them could have"


def test_of_nodes_that_are_alike_one_is_looked_at_in_vain(calls: dict[str, int]) -> None:
    fleet = [inventory(f"n{n}", *cards(f"n{n}", "A-80", 8)) for n in range(200)]
    site = Site([*models(), *quota("ml")], *fleet)
    more: dict[str, Any] = {
        "cards": 8,
        "groups": [{"accelerator": {"models": ["a-80"]}, "cards": 1}],
    }
    assert isinstance(site.decide(**more), Refusal)
    assert calls["nodes"] == 1
    site.report(inventory("n150", *cards("n150", "A-80", 16)))
    found = site.decide(**more)
    assert [pick.node for pick in found[2].picks] == ["n150"]
