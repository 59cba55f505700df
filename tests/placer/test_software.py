"""Workloads at the placer: nodes whose software does not do are left out, and the bound is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quintal.contracts import ledger, nodes, placement
from quintal.contracts.documents import Catalog, Document
from quintal.contracts.message import Refusal
from quintal.errors import Code, Owner
from quintal.settings import Access
from quintal_placer import facts
from quintal_placer.asking import Market, translate
from quintal_placer.desk import Desk
from quintal_placer.engine import placing
from quintal_placer.engine.asks import Ask
from quintal_placer.engine.placing import Chosen
from quintal_placer.engine.why import barred, why
from quintal_placer.promises import Promises
from quintal_placer.queue import Queue
from quintal_placer.settings import Settings
from quintal_placer.software import key_of, text_of
from quintal_placer.state import PlacerState
from quintal_placer.views import refusal
from tests.placer.world import doc

NOW_MS = 1_780_000_000_000
NOWHERE = Access("", Path(), "placer")
SETTINGS = Settings(front=NOWHERE, back=NOWHERE, state_dir=Path())


def gpu(name: str, *features: str, vendor: str = "nvidia", runtime: str = "cuda") -> Document:
    return doc(
        "AcceleratorModel",
        name,
        vendor=vendor,
        family=name,
        memory_bytes=80 * 2**30,
        features=features or ["bf16"],
        runtime=runtime,
        match=[{"vendor": vendor, "names": [name.upper()]}],
        ratings=[{"class": "train_llm", "value": "1", "provenance": "benchmark"}],
    )


def floor(runtime: str, versions: str, driver: str, **more: Any) -> Document:
    return doc(
        "Boundary",
        f"{runtime}-{driver.strip('>=')}",
        runtimes=[runtime],
        when=[{"component": "runtime", "name": runtime, "versions": versions}],
        requires=[{"component": "driver", "name": "nvidia", "versions": driver}],
        source="CUDA Toolkit release notes",
        **more,
    )


def work(name: str, *variants: dict[str, Any], **more: Any) -> Document:
    return doc("Workload", name, profile="train", variants=list(variants), **more)


def cuda(version: str, **more: Any) -> dict[str, Any]:
    return {
        "name": "cuda", "runtime": "cuda", "runtime_version": version, "image": f"x:cuda{version}",
        **more,
    }  # fmt: skip


def catalog(*documents: Document) -> Catalog:
    standard = (
        gpu("big", "bf16", "fp8"),
        gpu("old", "bf16"),
        doc(
            "AcceleratorModel",
            "epyc",
            vendor="cpu",
            family="epyc",
            kind="cpu",
            runtime="cpu",
            match=[{"vendor": "cpu", "names": ["EPYC"]}],
            ratings=[{"class": "train_llm", "value": "0.01", "provenance": "roofline"}],
        ),
        doc("Profile", "train", **{"class": "train_llm", "cards": "1..8"}),
        doc("Tenant", "ml", projects=["a"]),
        doc("Tenant", "bio", projects=["b"]),
        floor("cuda", "==11.7.*", ">=515.43.04", otherwise="unknown"),
        floor("cuda", "==10.2.*", ">=440.33"),
        floor("cuda", "==12.*", ">=525.60.13"),
    )
    return Catalog((*standard, *documents), revision=1, digest="d")


def house(its: Catalog, **drivers: str) -> PlacerState:
    """A node with two cards `big` for each driver; named by the keyword."""
    state = PlacerState()
    state.adopt_catalog(its)
    for name, driver in drivers.items():
        add(state, name, driver)
    return state


def add(
    state: PlacerState, name: str, driver: str, model: str = "BIG", vendor: str = "nvidia"
) -> None:
    cards = tuple(
        nodes.RawDevice(uuid=f"{name}-{index}", index=index, vendor=vendor, name=model, cores=8)
        for index in range(2)
    )
    inventory = nodes.Inventory(
        node=name,
        boot_id="b",
        sequence=1,
        at_ms=NOW_MS,
        cpu_milli=64_000,
        memory_bytes=2**40,
        stack=nodes.Stack(drivers={"nvidia": driver} if driver else {}),
        devices=cards,
    )
    record: ledger.AnyRecord
    for record in facts.inventory_records(state, inventory, NOW_MS):
        state.apply(record)


def asked(state: PlacerState, **more: Any) -> Ask | Refusal:
    """What the engine is asked, as the desk does it."""
    market = Market.at(state.catalog, NOW_MS)
    ask = placement.PlaceAsk.model_validate({"request_id": "r", **more})
    translated = translate(market, "ml", ask)
    if isinstance(translated, Refusal):
        return translated
    return market.software.bar(translated[0], ask, state.fleet.kinds(), NOW_MS)


def placed(state: PlacerState, **more: Any) -> Chosen | Refusal:
    its = asked(state, **more)
    if isinstance(its, Refusal):
        return its
    outcome = placing.decide(state.fleet, state.quotas, its)
    if isinstance(outcome, Chosen):
        return outcome
    return refusal(why(state.fleet, its))


@pytest.mark.parametrize(("fit", "other"), [("a", "b"), ("b", "a")])
def test_case_b01_only_the_node_with_the_newer_driver_is_eligible_and_the_other_is_listed(
    fit: str, other: str
) -> None:
    state = house(catalog(work("w", cuda("11.7"))), **{fit: "515.48.07", other: "470.57.02"})
    chosen = placed(state, workload="w")
    assert isinstance(chosen, Chosen)
    assert [pick.node for pick in chosen.picks] == [fit]
    its = asked(state, workload="w")
    assert isinstance(its, Ask)
    (cause,) = barred(state.fleet, its)
    assert (cause.code, cause.names, cause.count) == ("stack_unknown", (other,), 1)
    assert "driver nvidia 470.57.02 is not >=515.43.04" in cause.message


def test_case_b02_a_driver_below_the_floor_is_refused_by_a_message_that_names_the_minimum() -> None:
    state = house(catalog(work("w", cuda("10.2"))), a="418.87")
    said = placed(state, workload="w")
    assert isinstance(said, Refusal)
    assert said.code is Code.STACK_BLOCKED
    assert "440.33" in said.message
    assert said.owner is Owner.INFRASTRUCTURE
    assert said.reasons[0].names == ("a",)


def test_a_driver_that_was_never_reported_is_refused_as_unknown_unless_policy_takes_it() -> None:
    state = house(catalog(work("w", cuda("12.4"))), a="")
    said = placed(state, workload="w")
    assert isinstance(said, Refusal)
    assert said.code is Code.STACK_UNKNOWN
    bold = house(catalog(work("w", cuda("12.4"), accept="unknown")), a="")
    assert isinstance(placed(bold, workload="w"), Chosen)


def test_case_b05_a_cuda_image_is_never_placed_on_a_cpu_node() -> None:
    its = catalog(work("w", cuda("12.4")))
    state = house(its)
    add(state, "host", "", model="EPYC", vendor="cpu")
    said = placed(state, workload="w")
    assert isinstance(said, Refusal)
    assert said.verdict == "never_fits"
    assert "runtime cuda does not run on epyc" in said.reasons[0].message
    assert "would pass: a variant for cpu" in said.reasons[0].message


def test_fp8_on_hardware_without_it_is_refused_and_the_alternative_named() -> None:
    state = house(catalog(work("w", cuda("12.4", precision="fp8"))))
    add(state, "n", "550.54.14", model="OLD")
    said = placed(state, workload="w", accelerator={"models": ["old"]})
    assert isinstance(said, Refusal)
    assert said.code is Code.STACK_BLOCKED
    assert (said.verdict, said.owner) == ("never_fits", Owner.SUBMITTER)
    assert "precision fp8 is not in old; would pass: bf16" in said.message


def test_what_only_another_image_could_mend_never_fits_and_is_the_submitters_move() -> None:
    known = doc(
        "Boundary",
        "big-cuda",
        models=["big"],
        requires=[{"component": "runtime", "name": "cuda", "versions": ">=12"}],
        source="CUDA release notes",
    )
    state = house(catalog(work("w", cuda("11.7")), known), a="515.48.07")
    said = placed(state, workload="w")
    assert isinstance(said, Refusal)
    assert (said.code, said.verdict) == (Code.STACK_BLOCKED, "never_fits")
    assert said.owner is Owner.SUBMITTER
    assert "runtime cuda 11.7 is not >=12" in said.message


def test_a_variant_that_fits_is_taken_where_the_first_one_does_not() -> None:
    newer = {**cuda("12.4"), "name": "new", "args": ["--new"]}
    older = {**cuda("11.7"), "name": "old", "args": ["--old"]}
    state = house(catalog(work("w", newer, older)), a="515.48.07")
    chosen = placed(state, workload="w")
    assert isinstance(chosen, Chosen)
    assert (chosen.option.variant, chosen.option.args) == ("old", ("--old",))
    said = placed(state, workload="w", variant="new")
    assert isinstance(said, Refusal)
    assert "525.60.13" in said.message


def test_when_the_driver_is_upgraded_the_node_is_eligible_at_once() -> None:
    state = house(catalog(work("w", cuda("12.4"))), a="515.48.07")
    assert isinstance(placed(state, workload="w"), Refusal)
    add(state, "a", "550.54.14")
    assert isinstance(placed(state, workload="w"), Chosen)


def test_what_waits_behind_a_barred_node_is_told_apart_from_what_is_held() -> None:
    state = house(catalog(work("w", cuda("12.4"))), a="550.54.14", b="515.48.07")
    for device in state.fleet.nodes["a"].devices.values():
        device.holder = "somebody"
    state.fleet.touch("a")
    said = placed(state, workload="w")
    assert isinstance(said, Refusal)
    assert {reason.code for reason in said.reasons} == {Code.STACK_BLOCKED, Code.NO_CAPACITY}


def test_a_pool_that_did_not_approve_the_image_is_left_out() -> None:
    pool = doc("Pool", "strict", selector={"vendors": ["nvidia"]}, approved={"images": ["ours/*"]})
    state = house(catalog(work("w", cuda("12.4")), pool), a="550.54.14")
    said = placed(state, workload="w")
    assert isinstance(said, Refusal)
    assert "image x:cuda12.4 is not approved (ours/* are)" in said.message
    assert said.owner is Owner.CATALOG
    ours = house(catalog(work("w", cuda("12.4", image="ours/x:1")), pool), a="550.54.14")
    assert isinstance(placed(ours, workload="w"), Chosen)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"workload": "q"}, "no such workload"),
        ({"workload": "secret"}, "no such workload"),
        ({"workload": "w", "variant": "gpu"}, "no such variant"),
        ({"workload": "w", "profile": "other"}, "is of profile train"),
    ],
)
def test_a_workload_that_is_not_the_tenants_to_name_is_refused(
    more: dict[str, str], word: str
) -> None:
    secret = work("secret", cuda("12.4"), tenants=["bio"])
    state = house(catalog(work("w", cuda("12.4")), secret), a="550.54.14")
    said = asked(state, **more)
    assert isinstance(said, Refusal)
    assert said.code is Code.INVALID_REQUEST
    assert word in said.message
    assert "secret?" not in said.message, "nor is it hinted at"


def test_software_as_the_engine_has_it_reads_back_as_it_was() -> None:
    stack = nodes.Stack(drivers={"nvidia": "1.2", "amd": "3"}, firmware={"huawei": "7.1"})
    assert key_of(text_of(stack)).drivers == (("amd", "3"), ("nvidia", "1.2"))
    assert text_of(nodes.Stack(os="Linux", kernel="6.8")) == ""
    assert key_of("").drivers == ()


@dataclass
class StillWriter:
    """As much of a ledger's writer as a decision needs: the time, and that there is room."""

    full: bool = False
    sequence: int = 0

    def now_ms(self) -> int:
        return NOW_MS


def desk(state: PlacerState) -> Desk:
    return Desk(SETTINGS, state, StillWriter(), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("drivers", [{"a": "515.48.07"}, {"a": "470.57.02"}, {"a": "418.87"}])
def test_case_b03_a_dry_run_says_of_software_what_a_real_request_is_told(
    drivers: dict[str, str],
) -> None:
    quota = doc("Quota", "ml", tenant="ml", caps=[{"class": "train_llm", "units": "8"}])
    state = house(catalog(work("w", cuda("11.7")), quota), **drivers)
    ask = placement.PlaceAsk(request_id="r", workload="w")
    promises = Promises.__new__(Promises)
    promises.desk = desk(state)
    nobody: Any = None
    promises.queue = Queue(promises.desk, nobody, lambda _: False)
    dry = promises.dry_run("ml", ask)
    real = desk(state).decide("ml", ask)
    if isinstance(real, Refusal):
        assert dry.refusal == real
        assert real.code in {Code.STACK_BLOCKED, Code.STACK_UNKNOWN}
    else:
        assert dry.lease is not None
        assert dry.lease.variant == "cuda"
        assert [d.uuid for d in dry.lease.devices] == [
            device.uuid for pick in real[2].picks for device in pick.devices
        ]


def test_case_d01_what_software_ruled_out_is_kept_for_a_grant_too() -> None:
    quota = doc("Quota", "ml", tenant="ml", caps=[{"class": "train_llm", "units": "8"}])
    state = house(catalog(work("w", cuda("11.7")), quota), a="515.48.07", b="470.57.02", c="")
    its = desk(state)
    its.decide("ml", placement.PlaceAsk(request_id="r", workload="w"))
    told = its.explanation("ml", "r")
    assert told.verdict == "placed"
    assert {reason.names for reason in told.reasons} == {("b",), ("c",)}
    assert all("515.43.04" in reason.message for reason in told.reasons)
