"""Whether a variant runs on a model under a node's software, who says so, and what is missing.

Pure, and the only place: the placer's refusals, `quintal check`, `portability` and `can-run` come
from here, so that they cannot differ.

How statements add up: what an exclusion or a broken floor blocks is blocked, whoever else says
that it runs. Else statements are parted by the components that they bound (driver, firmware, ...);
for each component the best statement counts, since one list of tried combinations says nothing
against another; and over all components the worst counts. A fact that a bound needs and nobody
reports makes it unknown, and so does a runtime of which no statement speaks.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from quintal.contracts.boundaries import BoundarySpec, CompatibilityVerdict, Exclusion, VersionBound
from quintal.contracts.models import AcceleratorModelSpec
from quintal.contracts.nodes import Stack
from quintal.contracts.spec import memory_range
from quintal.contracts.workloads import Variant
from quintal.errors import Owner
from quintal.versions import Version, parse, parse_range

VERDICTS: Final[tuple[CompatibilityVerdict, ...]] = (
    "validated",
    "supported_unvalidated",
    "unknown",
    "blocked",
)
"""Best first."""

OURS: Final = frozenset({"driver", "firmware"})
"""Components that are infrastructure's to move."""

PRECISIONS: Final = frozenset(
    {"fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp6", "fp4", "int8", "int4"}
)
"""Features of a model that are precisions."""


@dataclass(frozen=True, slots=True, order=True)
class StackKey:
    """A node's software, hashable: nodes of equal software share every judgement."""

    drivers: tuple[tuple[str, str], ...] = ()
    runtimes: tuple[tuple[str, str], ...] = ()
    firmware: tuple[tuple[str, str], ...] = ()


def stack_key(stack: Stack) -> StackKey:
    """The part of a node's stack that can decide; kernel and OS do not."""
    return StackKey(
        tuple(sorted(stack.drivers.items())),
        tuple(sorted(stack.runtimes.items())),
        tuple(sorted(stack.firmware.items())),
    )


@dataclass(frozen=True, slots=True)
class Judgement:
    """One verdict, and where it is not the best: which bound, what would pass, whose move."""

    verdict: CompatibilityVerdict
    bound: str = ""
    """The failing bound, in words: `driver nvidia 470.57.02 is not >=515.43.04`."""
    passing: str = ""
    """What would pass."""
    owner: Owner = Owner.INFRASTRUCTURE
    boundary: str = ""
    """The document that says so; empty where model and variant themselves do."""
    source: str = ""

    @property
    def told(self) -> str:
        """The failing bound and what would pass, as one text for people."""
        return f"{self.bound}; would pass: {self.passing}" if self.passing else self.bound

    @property
    def rank(self) -> int:
        """0 is best."""
        return VERDICTS.index(self.verdict)

    def accepted(self, lowest: CompatibilityVerdict) -> bool:
        """Whether policy lets this through; what is blocked never is."""
        return self.verdict != "blocked" and self.rank <= VERDICTS.index(lowest)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What has which version: (component, name) -> text, of node and image together."""

    versions: Mapping[tuple[str, str], str]
    runtime: str
    modes: frozenset[str]
    precision: str


@dataclass(frozen=True, slots=True)
class Subject:
    """What is judged: a model under a stack, and a variant as it would run there."""

    model: str
    spec: AcceleratorModelSpec
    stack: StackKey
    variant: Variant
    today: dt.date
    """Against which boundaries expire."""


@dataclass(slots=True)
class Judge:
    """Judges against one set of boundaries, and remembers: stacks repeat over a fleet."""

    boundaries: Mapping[str, BoundarySpec]
    _known: dict[tuple[str, StackKey, Variant, dt.date], Judgement] = field(default_factory=dict)

    def of(self, subject: Subject) -> Judgement:
        """The verdict on this subject."""
        key = (subject.model, subject.stack, subject.variant, subject.today)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= JUDGEMENTS_MAX:
                self._known.clear()
            known = self._known[key] = judge(subject, self.boundaries)
        return known


JUDGEMENTS_MAX: Final = 50_000
"""Kept judgements; above it they are made anew."""


def judge(subject: Subject, boundaries: Mapping[str, BoundarySpec]) -> Judgement:
    """The verdict of all boundaries together, and of what model and variant say themselves."""
    if (wrong := misfit(subject.model, subject.spec, subject.variant)) is not None:
        return wrong
    facts = _facts(subject)
    stated: dict[str, Judgement] = {}
    for name, boundary in sorted(boundaries.items()):
        if not _concerns(boundary, subject, facts):
            continue
        for about, said in _statements(name, boundary, subject, facts):
            if said.verdict == "blocked":
                return said
            stated[about] = min(stated.get(about, said), said, key=_telling)
    asked = [_holds(bound, facts, "the image") for bound in subject.variant.requires]
    found = [*stated.values(), *(wrong for wrong in asked if wrong is not None)]
    if not stated and subject.variant.runtime != "cpu":
        return _unspoken(subject.variant)
    said = max(found, key=lambda j: j.rank, default=Judgement("supported_unvalidated"))
    if said.verdict == "unknown" and not said.bound:
        return _unspoken(subject.variant)  # floors alone: nothing says that it runs
    return said


def _telling(judgement: Judgement) -> tuple[int, bool]:
    """The best first; among equals one that says what would have to change."""
    return judgement.rank, not judgement.bound


# --- what model and variant say of themselves -------------------------------------------------


def misfit(model: str, spec: AcceleratorModelSpec, variant: Variant) -> Judgement | None:
    """Why this hardware cannot run the variant at all, whatever its software; none if it can."""
    low, high = memory_range(variant.memory)
    lacking = [feature for feature in variant.features if feature not in spec.features]
    checks = (
        (
            spec.runtime == variant.runtime,
            f"runtime {variant.runtime} does not run on {model}",
            f"a variant for {spec.runtime or 'its own runtime'}",
        ),
        (
            not variant.precision or variant.precision in spec.features,
            f"precision {variant.precision} is not in {model}",
            " or ".join(_precisions(spec)) or "a model that has it",
        ),
        (not lacking, f"{model} is without {', '.join(lacking)}", "a model that has it"),
        (
            spec.memory_bytes >= low and (high is None or spec.memory_bytes <= high),
            f"the memory of {model} is not {variant.memory}",
            f"a model with {variant.memory}",
        ),
    )
    for holds, bound, passing in checks:
        if not holds:
            return Judgement("blocked", bound, passing, Owner.SUBMITTER)
    return None


def _precisions(spec: AcceleratorModelSpec) -> list[str]:
    return [feature for feature in spec.features if feature in PRECISIONS]


def _unspoken(variant: Variant) -> Judgement:
    version = f" {variant.runtime_version}" if variant.runtime_version else ""
    return Judgement(
        "unknown",
        f"no boundary speaks of {variant.runtime}{version} here",
        "a Boundary that says with which drivers it runs",
        Owner.CATALOG,
    )


# --- what boundaries say ----------------------------------------------------------------------


def _facts(subject: Subject) -> _Facts:
    """The node's versions, and over them the image's: it brings its own."""
    variant = subject.variant
    versions = _installed(subject.stack)
    if variant.runtime_version or variant.image:
        versions["runtime", variant.runtime.casefold()] = variant.runtime_version
    versions.setdefault(("runtime", variant.runtime.casefold()), "")
    versions |= {(part.component, part.name.casefold()): part.version for part in variant.parts}
    if variant.format:
        versions.setdefault(("format", variant.format.casefold()), "")
    if variant.image:
        name, _, tag = variant.image.partition("@")[0].rpartition(":")
        plain = (variant.image, "") if not name or "/" in tag else (name, tag)
        versions.setdefault(("image", plain[0].casefold()), plain[1])
    return _Facts(versions, variant.runtime, frozenset(variant.modes), variant.precision)


def _installed(stack: StackKey) -> dict[tuple[str, str], str]:
    """(component, name) -> version, of the node alone."""
    versions: dict[tuple[str, str], str] = {}
    for component, pairs in (
        ("driver", stack.drivers),
        ("runtime", stack.runtimes),
        ("firmware", stack.firmware),
    ):
        versions |= {(component, name.casefold()): version for name, version in pairs}
    return versions


def node_lacks(
    requires: Iterable[VersionBound], spec: AcceleratorModelSpec, stack: StackKey
) -> Judgement | None:
    """What a node's own software lacks of what a profile asks; the worst, or none.

    A bound on a driver or firmware concerns the devices of its vendor, one on a runtime those
    whose runtime it is: a profile may say one of each.
    """
    facts = _Facts(_installed(stack), "", frozenset(), "")
    found = [
        said
        for bound in requires
        if bound.name in {spec.vendor, spec.runtime}
        and (said := _holds(bound, facts, "the profile")) is not None
    ]
    return max(found, key=lambda said: said.rank, default=None)


def _concerns(boundary: BoundarySpec, subject: Subject, facts: _Facts) -> bool:
    checks = (
        (boundary.runtimes, facts.runtime),
        (boundary.vendors, subject.spec.vendor),
        (boundary.families, subject.spec.family),
        (boundary.models, subject.model),
        (boundary.precisions, facts.precision),
    )
    if any(wanted and value not in wanted for wanted, value in checks):
        return False
    return not boundary.modes or bool(facts.modes & set(boundary.modes))


def _statements(
    name: str, boundary: BoundarySpec, subject: Subject, facts: _Facts
) -> Iterator[tuple[str, Judgement]]:
    """(component it is about, judgement); nothing where its versions are not concerned."""
    met = [_met(bound, facts) for bound in boundary.when]
    if False in met:
        return
    for exclusion in boundary.exclusions:
        if _excluded(exclusion, facts):
            said = Judgement("blocked", exclusion.reason, "", _mover(exclusion.when))
            yield "", _sourced(said, name, boundary)
            return
    about = [f"{bound.component}/{bound.name}" for bound in boundary.requires] or [""]
    if None in met:
        bound = boundary.when[met.index(None)]
        lacking = _sourced(_lacking(bound, facts), name, boundary)
        yield from ((each, lacking) for each in about)
    elif (judged := _said(boundary, subject, facts)) is not None:
        yield from ((each, _sourced(judged, name, boundary)) for each in about)


def _sourced(judgement: Judgement, name: str, boundary: BoundarySpec) -> Judgement:
    return replace(judgement, boundary=name, source=boundary.source)


def _said(boundary: BoundarySpec, subject: Subject, facts: _Facts) -> Judgement | None:
    wrong = [_holds(bound, facts, "", boundary.otherwise) for bound in boundary.requires]
    failing = [said for said in wrong if said is not None]
    if failing:
        worst = max(failing, key=lambda j: j.rank)
        floor = boundary.verdict == "unknown" and worst.verdict == "unknown"
        return Judgement("unknown") if floor else worst
    if boundary.exclusions and not boundary.requires and boundary.verdict != "validated":
        return None  # it says what does not run, and nothing of what does
    if boundary.expires and subject.today > dt.date.fromisoformat(boundary.expires):
        bound = f"the evidence for it expired on {boundary.expires}"
        return Judgement("unknown", bound, "a Boundary with newer evidence", Owner.CATALOG)
    return Judgement(boundary.verdict)


def _excluded(exclusion: Exclusion, facts: _Facts) -> bool:
    if exclusion.modes and not facts.modes & set(exclusion.modes):
        return False
    if exclusion.precisions and facts.precision not in exclusion.precisions:
        return False
    return all(_met(bound, facts) is True for bound in exclusion.when)


def _mover(bounds: Iterable[VersionBound]) -> Owner:
    owners = [_owner(bound) for bound in bounds]
    return Owner.INFRASTRUCTURE if Owner.INFRASTRUCTURE in owners else Owner.SUBMITTER


def _owner(bound: VersionBound) -> Owner:
    if bound.owner is not None:
        return bound.owner
    return Owner.INFRASTRUCTURE if bound.component in OURS else Owner.SUBMITTER


# --- one bound --------------------------------------------------------------------------------


def _version(bound: VersionBound, facts: _Facts) -> Version | None:
    text = facts.versions.get((bound.component, bound.name.casefold()), "")
    try:
        return parse(text)
    except ValueError:
        return None


def _met(bound: VersionBound, facts: _Facts) -> bool | None:
    """Whether a condition is met; a component that is not there at all does not meet it.

    None where the component is there and nobody knows of what version.
    """
    if (bound.component, bound.name.casefold()) not in facts.versions:
        return False
    if bound.versions == "*" and not bound.holes:
        return True
    version = _version(bound, facts)
    return None if version is None else _within(bound, version)


def _within(bound: VersionBound, version: Version) -> bool:
    if version not in parse_range(bound.versions):
        return False
    return not any(version in parse_range(hole) for hole in bound.holes)


def _holds(
    bound: VersionBound,
    facts: _Facts,
    asker: str,
    otherwise: CompatibilityVerdict = "blocked",
) -> Judgement | None:
    """None where the bound holds; else what is wrong, and what would pass."""
    version = _version(bound, facts)
    if version is None:
        return _lacking(bound, facts)
    if _within(bound, version):
        return None
    wanted = parse_range(bound.versions)
    failing = wanted.failing(version)
    hole = next((hole for hole in bound.holes if version in parse_range(hole)), "")
    what = f"is not {failing}" if failing else f"lies in the hole {hole}"
    by = f", as {asker} asks" if asker else ""
    holes = f" but not {', '.join(bound.holes)}" if bound.holes else ""
    return Judgement(
        otherwise,
        f"{bound.component} {bound.name} {version} {what}{by}",
        f"{bound.component} {bound.name} {bound.versions}{holes}",
        _owner(bound),
    )


def _lacking(bound: VersionBound, facts: _Facts) -> Judgement:
    text = facts.versions.get((bound.component, bound.name.casefold()), "")
    says = f"{text!r} is no version" if text else "is not known"
    return Judgement(
        "unknown",
        f"the version of {bound.component} {bound.name} {says}: {bound.versions} is needed",
        f"{bound.component} {bound.name} {bound.versions}",
        _owner(bound),
    )
