"""Which accelerator model a device is, from what its vendor's tool says of it.

Pure, and the only place: the placer's truth, and what `quintal probe` shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from quintal.contracts.documents import (
    AcceleratorModelSpec,
    Catalog,
    MatchRule,
    PartitionProfile,
    PoolSelector,
    memory_range,
)
from quintal.contracts.nodes import RawDevice, RawPartition

UNASSIGNED = "unassigned"
"""The pool of a device that no pool's selector takes."""


def resolve(raw: RawDevice, models: Mapping[str, AcceleratorModelSpec]) -> str | None:
    """The model whose rule names this device; none if no rule does, or rules of two models do.

    A rule that says more (name and memory and PCI id) goes before one that says less; names are
    compared as whole words without regard to case, never as parts of one another.
    """
    best: dict[int, set[str]] = {}
    for name, spec in models.items():
        for rule in spec.match:
            weight = _weight(rule, raw)
            if weight:
                best.setdefault(weight, set()).add(name)
    if not best:
        return None
    strongest = best[max(best)]
    return next(iter(strongest)) if len(strongest) == 1 else None


def partitions(
    raw: RawDevice, model: str | None, spec: AcceleratorModelSpec | None
) -> Iterator[tuple[RawPartition, PartitionProfile | None]]:
    """What the device is cut into, each with its profile; none where no document knows it.

    A tool that calls the whole device a partition (`SPX`) has cut nothing. Profiles are compared
    without regard to case.
    """
    profiles = {profile.name.casefold(): profile for profile in spec.partitions} if spec else {}
    for part in raw.partitions:
        profile = profiles.get(part.profile.casefold())
        if profile is None or profile.model is None or profile.model != model:
            yield part, profile


def _weight(rule: MatchRule, raw: RawDevice) -> int:
    """0 if the rule does not hold; else the more, the more it checked."""
    if rule.vendor != raw.vendor:
        return 0
    weights = (_names(rule, raw), _pci(rule, raw), _memory(rule, raw), _architecture(rule, raw))
    return 0 if None in weights else sum(weight or 0 for weight in weights)


def _names(rule: MatchRule, raw: RawDevice) -> int | None:
    if not rule.names:
        return 0
    return 8 if _fold(raw.name) in {_fold(name) for name in rule.names} else None


def _pci(rule: MatchRule, raw: RawDevice) -> int | None:
    """A tool that shows no PCI id leaves it to the name."""
    if not rule.pci_ids or (raw.pci_id is None and rule.names):
        return 0
    return 4 if (raw.pci_id or "").lower() in {pci.lower() for pci in rule.pci_ids} else None


def _memory(rule: MatchRule, raw: RawDevice) -> int | None:
    if not rule.memory:
        return 0
    low, high = memory_range(rule.memory)
    size = raw.memory_bytes
    return 2 if size is not None and low <= size <= (high or size) else None


def _architecture(rule: MatchRule, raw: RawDevice) -> int | None:
    if not rule.architectures:
        return 0
    return 1 if raw.architecture in rule.architectures else None


def _fold(name: str) -> str:
    return " ".join(name.split()).casefold()


def pool_of(  # noqa: PLR0913 - what a selector can name
    catalog: Catalog,
    *,
    model: str | None,
    vendor: str,
    node: str,
    cluster: str,
    location: str,
    labels: Mapping[str, str],
) -> str:
    """The matching pool of the lowest order (then by name), or `unassigned`."""
    spec = catalog.models.get(model) if model else None
    family, kind = (spec.family, spec.kind) if spec else ("", "accelerator")
    if spec is None and vendor == "cpu":
        kind = "cpu"
    for name, pool in sorted(catalog.pools.items(), key=lambda item: (item[1].order, item[0])):
        wants: PoolSelector = pool.selector
        checks = (
            (wants.clusters, cluster),
            (wants.locations, location),
            (wants.nodes, node),
            (wants.vendors, vendor),
            (wants.models, model),
            (wants.families, family),
            (wants.kinds, kind),
        )
        if any(wanted and value not in wanted for wanted, value in checks):
            continue
        if any(labels.get(key) != value for key, value in wants.labels.items()):
            continue
        return name
    return UNASSIGNED
