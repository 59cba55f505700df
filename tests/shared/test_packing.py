"""The public trace, thinned to an eighth: the engine against the policy that was published."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from quintal.units import PARTS
from quintal_placer.simulate import policies, protocol, run, trace
from quintal_placer.simulate.yard import shapes

pytestmark = pytest.mark.shared

TRACE = Path(__file__).parents[3] / "shared" / "data" / "openb"


@pytest.mark.parametrize("name", ["default", "gpuspec33", "cpu250"])
def test_an_eighth_of_the_trace_is_packed_as_tightly_as_by_the_published_policy(name: str) -> None:
    if not TRACE.exists():
        pytest.skip("no trace beside the checkout")
    nodes = trace.nodes(TRACE / "openb_node_list_gpu_node.csv")[::8]
    lines = trace.requests(TRACE / f"openb_pod_list_{name}.csv")[::8]
    capacity = sum(node.cards for node in nodes) * PARTS
    known = policies.list_target(shapes(nodes, lines))
    setup = run.Setup(nodes, known, lambda: 0)
    stream = protocol.fill(lines, capacity, 1.3, random.Random(42))
    found = {policy: run.fill_up(setup, policy, 42, stream) for policy in ("fgd", "tight")}
    fgd, tight = (found[policy].at(130) for policy in ("fgd", "tight"))
    assert fgd is not None
    assert tight is not None
    assert tight >= fgd - 0.5, (name, fgd, tight)
