"""What a workload's variants become for the engine, and where software keeps them out. Pure.

The engine knows no versions: a node's software is a text to it, equal or not. Here each variant is
judged once for each (model, software) that the fleet has, and the engine is told which pairs are
barred and why. The pairs are few, and answers are kept until the catalog, the day or the pairs
change; so a workload costs hardly more than a profile.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from quintal.compatibility import Judge, StackKey, Subject, misfit, node_lacks, stack_key
from quintal.contracts.boundaries import CompatibilityVerdict
from quintal.contracts.documents import (
    AcceleratorNeed,
    Alternative,
    Approved,
    Catalog,
    ProfileSpec,
    WorkloadSpec,
)
from quintal.contracts.message import Reason, Refusal
from quintal.contracts.nodes import Stack
from quintal.contracts.placement import PlaceAsk
from quintal.contracts.workloads import Variant
from quintal.errors import Code, Owner
from quintal_placer.engine.asks import Ask, Bar, Option

REASONS_MAX: Final = 8
_DAY_MS: Final = 86_400_000
_EPOCH: Final = dt.date(1970, 1, 1)


def text_of(stack: Stack) -> str:
    """What stands for a node's software in the engine."""
    key = stack_key(stack)
    if key == StackKey():
        return ""
    return json.dumps([key.drivers, key.runtimes, key.firmware], separators=(",", ":"))


def key_of(text: str) -> StackKey:
    """The software that a text stands for."""
    if not text:
        return StackKey()
    drivers, runtimes, firmware = (tuple(map(tuple, pairs)) for pairs in json.loads(text))
    return StackKey(drivers, runtimes, firmware)


def variants_of(spec: WorkloadSpec, ask: PlaceAsk) -> tuple[Variant, ...]:
    """The variants that the request would take, best liked first."""
    return tuple(variant for variant in spec.variants if ask.variant in {"", variant.name})


def alternatives(
    variants: Iterable[Variant], ask: PlaceAsk, profile: ProfileSpec
) -> tuple[Alternative, ...]:
    """The variants as alternatives, with their own counts, image and arguments."""
    narrowed = ask.accelerator or AcceleratorNeed(kind=profile.accelerator.kind)
    return tuple(
        Alternative(
            accelerator=narrowed.model_copy(
                update={
                    "precision": variant.precision or narrowed.precision,
                    "kind": "cpu" if variant.runtime == "cpu" else narrowed.kind,
                }
            ),
            cards=ask.cards or variant.cards,
            nodes=ask.nodes or variant.nodes,
            members=ask.members,
            mixed=ask.mixed,
            variant=variant.name,
            image=variant.image,
            args=variant.args,
        )
        for variant in variants
    )


@dataclass(slots=True)
class Software:
    """Judges one catalog's workloads against the software that a fleet has."""

    catalog: Catalog
    _judge: Judge = field(init=False)
    _bars: dict[tuple[str, str, str, dt.date], tuple[frozenset[tuple[str, str]], tuple[Bar, ...]]]
    _required: dict[str, tuple[frozenset[tuple[str, str]], tuple[Bar, ...]]]
    _misfits: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._required = {}
        self._judge = Judge(catalog.boundaries)
        self._bars = {}
        self._misfits = {}

    def bar(
        self, asked: Ask, ask: PlaceAsk, kinds: frozenset[tuple[str, str]], at_ms: int
    ) -> Ask | Refusal:
        """The ask with what software rules out; or a refusal where no hardware would do at all."""
        assert ask.workload is not None
        spec = self.catalog.workloads[ask.workload]
        today = _EPOCH + dt.timedelta(days=at_ms // _DAY_MS)
        accept = self._accept(spec)
        options = []
        for variant, option in zip(variants_of(spec, ask), asked.options, strict=True):
            wrong = self._wrong(ask.workload, variant)
            offers = tuple(offer for offer in option.offers if offer.model not in wrong)
            excluded = {**dict(option.excluded), **wrong}
            options.append(
                replace(
                    option,
                    offers=offers,
                    excluded=tuple(sorted(excluded.items())),
                    bars=self._barred(ask.workload, variant, (accept, today), kinds),
                    unapproved=tuple(self._unapproved(spec, variant)),
                )
            )
        if not any(option.offers for option in options):
            return _nowhere(ask.workload, asked.options, options)
        return replace(asked, options=tuple(options))

    def required(self, asked: Ask, profile: str, kinds: frozenset[tuple[str, str]]) -> Ask:
        """The ask without nodes whose installed software is not what the profile asks."""
        known = self._required.get(profile)
        if known is None or known[0] != kinds:
            requires = self.catalog.profiles[profile].requires
            bars = []
            for model, software in sorted(kinds):
                spec = self.catalog.models.get(model)
                said = node_lacks(requires, spec, key_of(software)) if spec else None
                if said is not None:
                    code = Code.STACK_BLOCKED if said.verdict == "blocked" else Code.STACK_UNKNOWN
                    bars.append(Bar(model, software, code.value, said.told, said.owner.value))
            known = self._required[profile] = (kinds, tuple(bars))
        options = (replace(option, bars=(*option.bars, *known[1])) for option in asked.options)
        return replace(asked, options=tuple(options))

    def _accept(self, spec: WorkloadSpec) -> CompatibilityVerdict:
        return spec.accept or self.catalog.profiles[spec.profile].accept

    def _wrong(self, workload: str, variant: Variant) -> dict[str, str]:
        """Model -> why it cannot run the variant, whatever its software."""
        known = self._misfits.get((workload, variant.name))
        if known is None:
            found = (
                (name, misfit(name, spec, variant)) for name, spec in self.catalog.models.items()
            )
            known = {name: wrong.told for name, wrong in found if wrong is not None}
            self._misfits[workload, variant.name] = known
        return known

    def _barred(
        self,
        workload: str,
        variant: Variant,
        policy: tuple[CompatibilityVerdict, dt.date],
        kinds: frozenset[tuple[str, str]],
    ) -> tuple[Bar, ...]:
        accept, today = policy
        key = (workload, variant.name, accept, today)
        known = self._bars.get(key)
        if known is None or known[0] != kinds:
            wrong = self._wrong(workload, variant)
            bars = tuple(
                bar
                for model, software in sorted(kinds)
                if model in self.catalog.models and model not in wrong
                for bar in self._bar(model, software, variant, (accept, today))
            )
            known = self._bars[key] = (kinds, bars)
        return known[1]

    def _bar(
        self,
        model: str,
        software: str,
        variant: Variant,
        policy: tuple[CompatibilityVerdict, dt.date],
    ) -> Iterator[Bar]:
        accept, today = policy
        spec = self.catalog.models[model]
        said = self._judge.of(Subject(model, spec, key_of(software), variant, today))
        if said.accepted(accept):
            return
        code = Code.STACK_BLOCKED if said.verdict == "blocked" else Code.STACK_UNKNOWN
        told = said.told or f"{said.verdict}, and {accept} is asked"
        yield Bar(model, software, code.value, told, said.owner.value)

    def _unapproved(self, spec: WorkloadSpec, variant: Variant) -> Iterator[tuple[str, str]]:
        for name, pool in self.catalog.pools.items():
            if why := unapproved(pool.approved, spec, variant):
                yield name, f"pool {name}: {why}"


def unapproved(approved: Approved, spec: WorkloadSpec, variant: Variant) -> str:
    """What a pool has not approved of this variant, in words; empty if it may run there."""
    frameworks = tuple(
        part.name for part in variant.parts if part.component in {"framework", "serving_engine"}
    )
    checks = (
        ("image", approved.images, (variant.image,)),
        ("framework", approved.frameworks, frameworks),
        ("model type", approved.model_types, (spec.model_type,)),
        ("format", approved.formats, (variant.format,)),
    )
    for what, patterns, values in checks:
        for value in values:
            if patterns and not any(_matches(value, pattern) for pattern in patterns):
                return f"{what} {value or 'unnamed'} is not approved ({', '.join(patterns)} are)"
    return ""


def _matches(value: str, pattern: str) -> bool:
    if pattern.endswith("*"):
        return value.startswith(pattern[:-1])
    return value == pattern


def _nowhere(workload: str, asked: tuple[Option, ...], options: list[Option]) -> Refusal:
    """No model that is asked for can run any variant: which, why, and what would do instead."""
    counted: Counter[str] = Counter()
    for before, after in zip(asked, options, strict=True):
        excluded = dict(after.excluded)
        for offer in before.offers:
            counted[excluded[offer.model]] += 1
    reasons = tuple(
        Reason(code=Code.STACK_BLOCKED, message=message, owner=Owner.SUBMITTER, count=count)
        for message, count in sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    )[:REASONS_MAX]
    told = reasons[0].message if reasons else "no model is asked for"
    return Refusal(
        code=Code.STACK_BLOCKED,
        message=f"no hardware that is asked for runs workload {workload}: {told}",
        owner=Owner.SUBMITTER,
        verdict="never_fits",
        reasons=reasons,
    )
