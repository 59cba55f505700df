"""What statements add up to: exclusions, holes, evidence that expires, policy, whose move it is."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from pydantic import ValidationError

from quintal.compatibility import Judgement, StackKey, Subject, judge
from quintal.contracts.boundaries import BoundarySpec
from quintal.contracts.models import AcceleratorModelSpec
from quintal.contracts.workloads import Variant
from quintal.errors import Owner

CARD = AcceleratorModelSpec(
    vendor="acme",
    family="acme-big",
    memory_bytes=80 * 10**9,
    features=("bf16", "fp8"),
    runtime="acme",
)
TODAY = dt.date(2026, 6, 1)
FLOOR: dict[str, Any] = {"requires": [{"component": "driver", "name": "acme", "versions": ">=10"}]}


def boundary(**spec: Any) -> BoundarySpec:
    return BoundarySpec.model_validate(
        {"source": "the vendor's table", "runtimes": ["acme"], **spec}
    )


def variant(**more: Any) -> Variant:
    return Variant.model_validate(
        {"name": "v", "runtime": "acme", "runtime_version": "3.1", "precision": "bf16", **more}
    )


def said(
    boundaries: dict[str, BoundarySpec], driver: str = "12", today: dt.date = TODAY, **more: Any
) -> Judgement:
    stack = StackKey(drivers=(("acme", driver),) if driver else ())
    return judge(Subject("acme-big-80gb", CARD, stack, variant(**more), today), boundaries)


def test_a_broken_floor_is_blocked_and_says_what_would_pass_and_whose_move_it_is() -> None:
    found = said({"floor": boundary(**FLOOR)}, driver="9.9")
    assert found.verdict == "blocked"
    assert found.bound == "driver acme 9.9 is not >=10"
    assert found.passing == "driver acme >=10"
    assert found.owner is Owner.INFRASTRUCTURE
    assert (found.boundary, found.source) == ("floor", "the vendor's table")


def test_a_bound_that_the_image_breaks_is_the_submitters_move() -> None:
    needs = [{"component": "framework", "name": "pytorch", "versions": ">=2.6"}]
    when = [{"component": "framework", "name": "pytorch"}]
    old = [{"component": "framework", "name": "PyTorch", "version": "2.5.1"}]
    found = said({"torch": boundary(when=when, requires=needs)}, parts=old)
    assert (found.verdict, found.owner) == ("blocked", Owner.SUBMITTER)


def test_a_component_that_an_image_does_not_have_is_not_concerned() -> None:
    needs = [{"component": "framework", "name": "pytorch", "versions": ">=2.6"}]
    when = [{"component": "framework", "name": "pytorch"}]
    found = said({"torch": boundary(when=when, requires=needs), "floor": boundary(**FLOOR)})
    assert found.verdict == "supported_unvalidated"


def test_of_statements_on_one_component_the_best_counts() -> None:
    tried = boundary(
        requires=[{"component": "driver", "name": "acme", "versions": "==12"}],
        verdict="validated",
        otherwise="unknown",
        evidence=["resnet50 and llama-3-8b ran for a day on a1, 2026-05-02"],
    )
    both = {"floor": boundary(**FLOOR), "tried": tried}
    assert said(both, driver="12").verdict == "validated"
    assert said(both, driver="13").verdict == "supported_unvalidated"
    assert said(both, driver="9").verdict == "blocked"


def test_over_components_the_worst_counts() -> None:
    firmware = boundary(
        requires=[{"component": "firmware", "name": "acme", "versions": ">=7"}], otherwise="unknown"
    )
    found = said({"floor": boundary(**FLOOR), "firmware": firmware})
    assert found.verdict == "unknown"
    assert "firmware acme is not known" in found.bound


def test_an_exclusion_combines_versions_with_modes_and_precision() -> None:
    exclusion = {
        "when": [{"component": "driver", "name": "acme", "versions": "<13"}],
        "modes": ["multi_node"],
        "precisions": ["fp8"],
        "reason": "fp8 over several nodes hangs below driver acme 13",
    }
    both = {"floor": boundary(**FLOOR), "hangs": boundary(exclusions=[exclusion])}
    caught = said(both, precision="fp8", modes=["multi_node"])
    assert caught.verdict == "blocked"
    assert caught.bound == exclusion["reason"]
    assert said(both, precision="bf16", modes=["multi_node"]).verdict == "supported_unvalidated"
    assert said(both, precision="fp8").verdict == "supported_unvalidated"
    spared = said(both, driver="13", precision="fp8", modes=["multi_node"])
    assert spared.verdict == "supported_unvalidated"


def test_a_hole_in_a_range_is_outside_it() -> None:
    bound = {"component": "driver", "name": "acme", "versions": ">=10", "holes": ["==11.2.*"]}
    found = said({"floor": boundary(requires=[bound])}, driver="11.2.7")
    assert found.verdict == "blocked"
    assert found.bound == "driver acme 11.2.7 lies in the hole ==11.2.*"
    assert said({"floor": boundary(requires=[bound])}, driver="11.3").verdict != "blocked"


def test_evidence_that_expired_makes_unknown_but_a_block_stays() -> None:
    old = {"floor": boundary(**FLOOR, expires="2026-06-01")}
    assert said(old).verdict == "supported_unvalidated", "the last day still counts"
    found = said(old, today=dt.date(2026, 6, 2))
    assert (found.verdict, found.owner) == ("unknown", Owner.CATALOG)
    assert "2026-06-01" in found.bound
    assert said(old, driver="9", today=dt.date(2026, 6, 2)).verdict == "blocked"


def test_a_driver_that_nobody_reports_is_unknown_and_never_passes_as_0() -> None:
    found = said({"floor": boundary(**FLOOR)}, driver="")
    assert found.verdict == "unknown"
    assert not found.accepted("supported_unvalidated")
    assert found.accepted("unknown")


def test_what_the_image_itself_asks_counts_as_well() -> None:
    asked = [{"component": "driver", "name": "acme", "versions": ">=14"}]
    found = said({"floor": boundary(**FLOOR)}, requires=asked)
    assert found.verdict == "blocked"
    assert found.bound == "driver acme 12 is not >=14, as the image asks"


@pytest.mark.parametrize(
    ("lowest", "passes"),
    [
        ("validated", ["validated"]),
        ("supported_unvalidated", ["validated", "supported_unvalidated"]),
        ("unknown", ["validated", "supported_unvalidated", "unknown"]),
    ],
)
def test_the_lowest_verdict_is_policy_and_blocked_never_passes(
    lowest: Any, passes: list[str]
) -> None:
    every: tuple[Any, ...] = ("validated", "supported_unvalidated", "unknown", "blocked")
    assert [each for each in every if Judgement(each).accepted(lowest)] == passes


@pytest.mark.parametrize(
    "spec",
    [
        {"verdict": "validated"},
        {"verdict": "unknown"},
        {"requires": [{"component": "driver", "name": "acme", "versions": ">=13, <12"}]},
        {"requires": [{"component": "driver", "name": "acme", "versions": "new"}]},
        {"requires": [{"component": "wheel", "name": "acme"}]},
        {"exclusions": [{"reason": "nothing in particular"}]},
        {"expires": "soon"},
        {"source": ""},
    ],
)
def test_a_boundary_that_cannot_be_meant_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        boundary(**spec)
