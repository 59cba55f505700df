"""Law 11, the first half: a dry run says what the real run then says, and keeps nothing.

On states that chance made: 400 of them, 10,000 under QUINTAL_PROOF.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter

import pytest

from quintal.contracts import placement
from quintal.contracts.message import Refusal
from quintal_placer import snapshots
from tests.placer.counterpart import Counterpart
from tests.placer.site import asked
from tests.placer.states import random_shape, random_site

STATES = int(
    os.environ.get("QUINTAL_DRY_RUN_STATES")
    or ("10000" if os.environ.get("QUINTAL_PROOF") else "400")
)


def same(dry: placement.Verdict, real: object) -> str:
    """The real answer's verdict, which must be the dry one's, with all that was said."""
    if isinstance(real, placement.Lease):
        assert dry.lease is not None, f"law 11: {dry} / {real}"
        one, other = dry.lease, real
        said = ("devices", "units_micro", "price_per_hour", "variant", "over_by", "ttl_ms")
        for name in said:
            assert getattr(one, name) == getattr(other, name), f"law 11: {name}"
        return "placed"
    assert dry.refusal is not None, f"law 11: {dry} / {real}"
    if isinstance(real, placement.Pending):
        assert dry.verdict == "not_now", "law 11: only what does not fit now waits"
        assert dry.refusal.reasons == real.reasons
        return "queued"
    assert isinstance(real, Refusal)
    assert dry.refusal == real, f"law 11: {dry} / {real}"
    assert dry.verdict == (real.verdict or "refused")
    return str(real.code)


async def one_state(chance: random.Random, seen: Counter[str]) -> None:
    site = random_site(chance)
    promises = Counterpart(site).promises
    for number in range(3):
        ask = asked(1_000 + number, **random_shape(chance))
        before = snapshots.dump(site.state, 0)
        dry = promises.dry_run("ml", ask)
        assert snapshots.dump(site.state, 0) == before, "law 11: a dry run keeps nothing"
        seen[same(dry, await promises.place("ml", ask))] += 1
    await promises.close()


@pytest.mark.laws
@pytest.mark.timeout(max(120, STATES // 10))
def test_law_11_a_dry_run_says_what_the_real_run_says() -> None:
    seed = os.environ.get("QUINTAL_LAW_SEED") or str(random.SystemRandom().getrandbits(32))
    print(f"QUINTAL_LAW_SEED={seed}")
    seen: Counter[str] = Counter()
    with asyncio.Runner() as runner:
        for number in range(STATES):
            runner.run(one_state(random.Random(f"{seed}-{number}"), seen))
    print(dict(seen))
    wanted = {"placed", "queued", "never_fits", "no_capacity", "quota_exceeded", "cordoned"}
    assert wanted <= set(seen), f"never seen: {wanted - set(seen)}"
