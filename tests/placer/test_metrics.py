"""What a placer counts of itself: histograms by verdict, and the micro protocol's STATS."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from quintal.contracts import placement, subjects
from quintal.contracts.message import Refusal
from quintal.errors import SetupError
from quintal.micro import Endpoint as Counted, name_of
from quintal_placer.counting import DECISIONS, Buckets, Tally
from quintal_placer.metrics import Endpoint, _address
from tests.placer.town import Town, town
from tests.placer.world import cards, request, until
from tests.support.nats import NatsServer

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "quintal-placer.rules.yaml"


def test_a_value_counts_in_every_bucket_that_holds_it() -> None:
    buckets = Buckets(DECISIONS)
    for value in (1, 2, 3, 300):
        buckets.add(value)
    rows = dict(buckets.rows())
    assert (rows["1.0"], rows["2.0"], rows["4.0"], rows["256.0"], rows["+Inf"]) == (1, 2, 3, 3, 4)
    assert buckets.total == 306


def test_each_verdict_has_a_histogram_of_its_own() -> None:
    tally = Tally()
    tally.placed("placed", 0.002)
    tally.placed("never_fits", 0.0005)
    tally.placed("placed", 2.0)
    assert {v: b.rows()[-1][1] for v, b in tally.placements.items()} == {
        "placed": 2, "never_fits": 1,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["0.0.0.0:9465", "9465", "127.0.0.1:x", "example.org:1"])
def test_metrics_are_offered_to_this_machine_alone(text: str) -> None:
    with pytest.raises(SetupError, match=re.escape(text)):
        _address(text)
    assert _address("127.0.0.1:9465") == ("127.0.0.1", 9465)
    assert Endpoint("", None).port == 0  # type: ignore[arg-type]


def test_an_endpoint_is_named_by_its_verb() -> None:
    assert name_of(subjects.GET.pattern) == "placement-get"
    assert name_of(subjects.ALL_LEASES.pattern) == "ops-leases"
    counted = Counted("a", "b")
    assert counted.stats()["average_processing_time"] == 0


def scraped(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as said:
        text = said.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


async def asked(its: Town, subject: str) -> list[dict[str, Any]]:
    inbox = its.operator.client.new_inbox()
    heard = await its.operator.client.subscribe(inbox)
    await its.operator.client.publish(subject, b"", reply=inbox)
    found = []
    try:
        while True:
            found.append(json.loads((await heard.next_msg(timeout=0.7)).data))
    except TimeoutError:
        return found


@pytest.mark.bus
@pytest.mark.timeout(120)
async def test_a_placer_is_scraped_and_says_how_its_endpoints_do(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    devices = {"n1": cards("n1", "BIG-80", 2)}
    env = {"QUINTAL_PLACER_METRICS": "127.0.0.1:0"}
    async with town(fresh_nats, tmp_path, devices=devices, placers=2, **env) as its:
        for number in range(3):
            await its.place(request(f"r{number}"))
        assert isinstance(await its.place(request("never", cards=8)), Refusal)
        bad = await its.ml.client.request("quintal.v1.placement.ml.get", b"{", timeout=2)
        assert json.loads(bad.data)["code"] == "invalid_request"
        leader = its.leader()
        port = int(re.findall(r"metrics on 127.0.0.1:(\d+)", leader.log())[-1])
        families = await asyncio.to_thread(scraped, port)
        counts = {
            s.labels["verdict"]: s.value
            for s in families["quintal_placer_placement_seconds"].samples
            if s.name.endswith("_count")
        }
        assert counts == {"placed": 2, "not_now": 1, "never_fits": 1}
        values = {s.name: s.value for f in families.values() for s in f.samples if not s.labels}
        assert values["quintal_placer_leads"] == 1
        assert values["quintal_placer_leases_live"] == 2
        assert values["quintal_placer_append_seconds_count"] > 0
        assert (
            values["quintal_placer_group_decisions_count"]
            == values["quintal_placer_append_seconds_count"]
        )
        assert values["quintal_placer_explanations"] >= 4
        assert "ml" not in {
            v for f in families.values() for s in f.samples for v in s.labels.values()
        }
        _rules_speak_of(set(families))

        async def two() -> list[dict[str, Any]]:
            found = await asked(its, "$SRV.STATS.quintal-placer")
            return found if len(found) == 2 else []

        stats = await until(two)
        by_name = [{e["name"]: e for e in one["endpoints"]} for one in stats]
        heard = [one["placement-request"]["num_requests"] for one in by_name]
        assert min(heard) >= 4, "every placer hears every request"
        assert sum(one["placement-request"]["data"]["answered"] for one in by_name) >= 4
        gets = [one["placement-get"] for one in by_name]
        assert any(get["num_errors"] == 1 and get["last_error"] for get in gets)
        assert all(one["placement-request"]["processing_time"] > 0 for one in by_name)
        info = await asked(its, f"$SRV.INFO.quintal-placer.{stats[0]['id']}")
        assert len(info) == 1
        assert {e["subject"] for e in info[0]["endpoints"]} >= {subjects.PLACE.subject()}
        assert isinstance(await its.place(request("more")), placement.Lease | Refusal)


def _rules_speak_of(known: set[str]) -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    assert len(rules) > 7
    for rule in rules:
        names = set(re.findall(r"quintal_placer_\w+", rule["expr"]))
        assert names, rule
        for name in names:
            plain = re.sub(r"_(total|bucket|count|sum)$", "", name)
            assert plain in known, f"{rule['alert']} speaks of {name}"
