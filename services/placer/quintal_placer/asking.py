"""From a request and the catalog to what the engine is asked. Pure.

`Market` is one revision of the catalog as it stands between two price instants: which models meet
a need, what each delivers in a class, and what an hour of it costs. Needs repeat, so its answers
are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from typing import Final, NamedTuple

from quintal import pricing
from quintal.contracts.documents import (
    AcceleratorModelSpec,
    AcceleratorNeed,
    Alternative,
    CardGroup,
    Catalog,
    GangMember,
    NodeNeed,
    ProfileSpec,
    ShareNeed,
    count_range,
    memory_range,
)
from quintal.contracts.message import Refusal
from quintal.contracts.placement import PlaceAsk
from quintal.errors import Code, Owner
from quintal.names import meant
from quintal.units import MS_PER_HOUR, PARTS, parse_bytes
from quintal_placer import legal, software
from quintal_placer.engine.asks import Arrangement, Ask, Group, Objective, Offer, Option, Share
from quintal_placer.software import Software

_NANO = 10**9

KEPT_MAX: Final = 10_000
"""Answers kept of each sort; whoever asks for ever new things only empties the shelf."""

FAULTS_MAX: Final = 8
"""Told in words; all of them are in the details."""

OFFERS_MAX: Final = 1_000
"""Needs whose models are kept: each holds a sentence for every model that will not do."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a grant freezes beside its devices."""

    profile: str
    project: str
    workload_class: str
    ttl_ms: int
    fence: str
    on_unhealthy: str
    billing: str
    nominal_micro: int | None
    image: str


class Offers(NamedTuple):
    """Models for one need, and why the others are none."""

    offers: tuple[Offer, ...]
    excluded: tuple[tuple[str, str], ...]
    """(model, why) of all others."""
    illegal: tuple[str, ...] = ()
    """Of these, why models that would do are not had in such a part or number."""


@dataclass(slots=True)
class Market:
    """A catalog between two price instants."""

    catalog: Catalog
    from_ms: int
    until_ms: int | None
    _offers: dict[tuple[object, ...], Offers]
    by_name: dict[str, str] = field(default_factory=dict)
    _software: Software | None = None
    _made: dict[tuple[str, str, str, str, str], Offer | None] = field(default_factory=dict)
    _hours: dict[pricing.Terms, tuple[pricing.Charge, ...]] = field(default_factory=dict)
    _priced: frozenset[str] = frozenset()
    """Tenants with a price of their own: to all others the same offers are made."""

    @property
    def software(self) -> Software:
        """Who judges workloads against this catalog."""
        if self._software is None:
            self._software = Software(self.catalog)
        return self._software

    @classmethod
    def at(cls, catalog: Catalog, at_ms: int) -> Market:
        """The market as it stands at `at_ms`."""
        edges = [
            edge
            for spec in catalog.prices.values()
            for edge in (spec.valid_from_ms, spec.valid_to_ms)
            if edge is not None and edge > at_ms
        ]
        priced = frozenset(
            price.tenant for spec in catalog.prices.values() for price in spec.prices
        )
        return cls(catalog, at_ms, min(edges, default=None), {}, _priced=priced)

    def serves(self, catalog: Catalog, at_ms: int) -> bool:
        """Whether this is still the market."""
        return self.catalog is catalog and (self.until_ms is None or at_ms < self.until_ms)

    def prices(self, tenant: str) -> bool:
        """Whether any price is this tenant's alone."""
        return tenant in self._priced

    def offers(
        self, needs: tuple[AcceleratorNeed, ...], workload_class: str, precision: str, tenant: str
    ) -> Offers:
        """Models that meet all needs and are rated in the class; and why the others do not."""
        whose = tenant if self.prices(tenant) else ""
        key = (needs, workload_class, precision, whose)
        known = self._offers.get(key)
        if known is None:
            if len(self._offers) >= OFFERS_MAX:
                self._offers.clear()
            known = self._offers[key] = self._look(needs, workload_class, precision, whose)
        return known

    def _look(
        self, needs: tuple[AcceleratorNeed, ...], workload_class: str, precision: str, tenant: str
    ) -> Offers:
        offers: list[Offer] = []
        excluded: list[tuple[str, str]] = []
        illegal: list[str] = []
        cut = cut_need(needs)
        ranks = {m: i for need in needs for i, m in enumerate(need.models)}
        for name, spec in sorted(self.catalog.models.items()):
            missing = next((why for need in needs if (why := lacks(name, spec, need, cut))), "")
            if not missing and (missing := legal.illegal_part(name, spec, cut)):
                illegal.append(missing)
            offer = None
            if not missing:
                key = (name, workload_class, precision, tenant, cut.partition)
                offer = self._offer(key)
                if offer is not None and cut.share is not None:
                    offer = replace(offer, legal_counts=(), together=1)
            if offer is None:
                excluded.append((name, missing or f"unrated in {workload_class}"))
            else:
                rank = ranks.get(name, 0)
                offers.append(replace(offer, rank=rank) if rank else offer)
        return Offers(tuple(offers), tuple(excluded), tuple(illegal))

    def offer(self, model: str, workload_class: str, partition: str = "") -> Offer | None:
        """A model, or a partition of it, at no tenant's price; none if unknown or unrated."""
        spec = self.catalog.models.get(model)
        if spec is None or (partition and legal.partition_of(spec, partition) is None):
            return None
        return self._offer((model, workload_class, "", "", partition))

    def _offer(self, key: tuple[str, str, str, str, str]) -> Offer | None:
        """What this model delivers and costs, whoever asks for it and why; none if unrated."""
        if key not in self._made:
            *whole, partition = key
            self._made[key] = self._slice(*key) if partition else self._make(*whole)
        return self._made[key]

    def _slice(
        self, name: str, workload_class: str, precision: str, tenant: str, partition: str
    ) -> Offer | None:
        """A partition: by its own model's rating, or as that part of its parent's."""
        whole = self._offer((name, workload_class, precision, tenant, ""))
        profile = legal.partition_of(self.catalog.models[name], partition)
        assert profile is not None
        parts = profile.parts
        if profile.model is None:
            if whole is None:
                return None
            price = whole.price_nano
            return replace(
                whole, parts=parts, charged=parts, provenance="derived", legal_counts=(),
                most=profile.count_max,
                price_nano=None if price is None else price * parts // PARTS,
            )  # fmt: skip
        spec = self.catalog.models[name]
        rating = self.catalog.rating(profile.model, workload_class, precision)
        if rating is None:
            return None
        return Offer(
            model=name, family=spec.family, kind=spec.kind, rating_micro=rating.micro,
            rating_version=rating.version, provenance=rating.provenance,
            most=profile.count_max,
            price_nano=self._price(name, rating.micro, workload_class, tenant, (parts, PARTS)),
            milliwatts=self._milliwatts(name, workload_class), parts=parts,
        )  # fmt: skip

    def _make(self, name: str, workload_class: str, precision: str, tenant: str) -> Offer | None:
        spec = self.catalog.models[name]
        rating = self.catalog.rating(name, workload_class, precision)
        if rating is None:
            return None
        return Offer(
            model=name,
            family=spec.family,
            kind=spec.kind,
            rating_micro=rating.micro,
            rating_version=rating.version,
            provenance=rating.provenance,
            per_core=rating.per == "core",
            price_nano=self._price(name, rating.micro, workload_class, tenant),
            milliwatts=self._milliwatts(name, workload_class),
            legal_counts=spec.legal_counts,
            together=spec.together,
        )

    def _milliwatts(self, model: str, workload_class: str) -> int | None:
        found = self.catalog.watts(model, workload_class)
        return None if found is None else int(found[0] * 1000)

    def ended(self) -> list[str]:
        """Charge lists that are all over: none is in force or still to come."""
        charges = [
            (name, spec) for name, spec in self.catalog.prices.items() if spec.type == "charge"
        ]
        over = [
            name
            for name, spec in charges
            if spec.valid_to_ms is not None and spec.valid_to_ms <= self.from_ms
        ]
        return sorted(over) if len(over) == len(charges) else []

    def _price(
        self,
        model: str,
        micro: int,
        workload_class: str,
        tenant: str,
        parts: tuple[int, int] = (PARTS, PARTS),
    ) -> int | None:
        terms = pricing.Terms(tenant, "", "", model, workload_class, 1, parts[0], micro, parts[1])
        charges = self._charges(terms)
        if any(charge.price is None for charge in charges):
            return None
        return int(sum((charge.cost for charge in charges), Decimal(0)) * _NANO)

    def _charges(self, terms: pricing.Terms) -> tuple[pricing.Charge, ...]:
        """One hour from the market's begin; the same terms cost the same for as long as it is."""
        if terms.tenant and terms.tenant not in self._priced:
            terms = terms._replace(tenant="")
        known = self._hours.get(terms)
        if known is None:
            if len(self._hours) >= KEPT_MAX:
                self._hours.clear()
            lists = list(self.catalog.prices.items())
            known = pricing.charge(terms, self.from_ms, self.from_ms + MS_PER_HOUR, lists)
            self._hours[terms] = known
        return known

    def quote(self, terms: Iterable[pricing.Terms]) -> tuple[Decimal | None, str]:
        """What an hour of this costs at today's prices, and in which currency."""
        total, currency = Decimal(0), ""
        for part in terms:
            for charge in self._charges(part):
                if charge.price is None:
                    return None, ""
                total, currency = total + charge.cost, charge.currency
        return total, currency


def cut_need(needs: Iterable[AcceleratorNeed]) -> AcceleratorNeed:
    """The last of these that says in which part or shape the cards are to be had."""
    cut = AcceleratorNeed()
    for need in needs:
        if need.share is not None or need.partition or need.shape:
            cut = need
    return cut


def lacks(
    name: str, spec: AcceleratorModelSpec, need: AcceleratorNeed, cut: AcceleratorNeed
) -> str:
    """What a model lacks for a need, in words; empty if it meets it.

    Where a partition is asked for, its memory counts, and not its card's.
    """
    if spec.kind != need.kind:
        return f"{name}: not of kind {need.kind}"
    if need.models and name not in need.models:
        return f"{name}: another model was asked for"
    if need.families and spec.family not in need.families:
        return f"{name}: another family was asked for"
    if need.vendors and spec.vendor not in need.vendors:
        return f"{name}: another vendor was asked for"
    low, high = _range(need.memory)
    profile = legal.partition_of(spec, cut.partition) if cut.partition else None
    memory_bytes = profile.memory_bytes if profile else spec.memory_bytes
    if memory_bytes < low:
        return f"{name}: less memory than {need.memory}"
    if high is not None and memory_bytes > high:
        return f"{name}: more memory than {need.memory}"
    missing = [feature for feature in need.features if feature not in spec.features]
    return f"{name}: without {', '.join(missing[:3])}" if missing else ""


_range = lru_cache(maxsize=1024)(memory_range)


Standing = tuple[object, ...]


def standing(market: Market, tenant: str) -> Standing:
    """What `translate` reads of a tenant: of equal standing, equal translations."""
    catalog = market.catalog
    its = {name for name, work in catalog.workloads.items() if tenant in work.tenants}
    return (
        catalog.tenants[tenant].model_dump_json(),
        frozenset(closed_pools(catalog, tenant)),
        frozenset(its),
        tenant if market.prices(tenant) else "",
    )


def translate(market: Market, tenant: str, ask: PlaceAsk) -> tuple[Ask, Terms] | Refusal:
    """The engine's ask, or why the request contradicts the catalog."""
    catalog = market.catalog
    spec = catalog.tenants.get(tenant)
    if spec is None:
        return _refuse(
            Code.NO_QUOTA_DEFINED, f"the catalog has no Tenant {tenant}", owner=Owner.CATALOG
        )
    profile: ProfileSpec | None = None
    if ask.workload is not None:
        work = catalog.workloads.get(ask.workload)
        if work is None or (work.tenants and tenant not in work.tenants):
            seen = [n for n, w in catalog.workloads.items() if not w.tenants or tenant in w.tenants]
            return _unknown("workload", ask.workload, seen)
        if ask.profile not in {None, work.profile}:
            return _contradiction(f"workload {ask.workload} is of profile {work.profile}")
        if not software.variants_of(work, ask):
            return _unknown("variant", ask.variant, [v.name for v in work.variants])
        ask = ask.model_copy(update={"profile": work.profile})
    if ask.profile is not None:
        shown = {name: spec for name, spec in catalog.profiles.items() if spec.public}
        profile = shown.get(ask.profile)
        if profile is None:
            return _unknown("profile", ask.profile, shown)
    faults = _faults(ask, profile, spec.projects, catalog)
    if faults:
        return _refuse(Code.INVALID_REQUEST, "; ".join(faults), faults=faults)
    workload_class = profile.workload_class if profile else ask.workload_class
    assert workload_class is not None
    options = _options(market, tenant, ask, profile, workload_class)
    if isinstance(options, Refusal):
        return options
    node = _node_need(ask.node, profile.node if profile else None)
    where = ask.constraints
    engine_ask = Ask(
        tenant=tenant,
        workload_class=workload_class,
        options=options,
        objective=_objective(ask, profile),
        pools=frozenset(where.pools),
        closed_pools=frozenset(closed_pools(catalog, tenant)),
        tainted_pools=frozenset(
            name
            for name, pool in catalog.pools.items()
            if not set(pool.taints) <= set(where.tolerations)
        ),
        clusters=frozenset(where.clusters),
        locations=frozenset(where.locations),
        nodes=frozenset(where.nodes),
        labels=tuple(sorted({**node.labels, **where.labels}.items())),
        tolerations=frozenset(where.tolerations),
        cpu_milli=node.cpu_milli,
        memory_bytes=node.memory_bytes,
        network_mbits=node.network_mbits,
        strict=profile is not None and profile.fence == "strict",
    )
    return engine_ask, _terms(ask, profile, workload_class)


def _terms(ask: PlaceAsk, profile: ProfileSpec | None, workload_class: str) -> Terms:
    nominal = profile.nominal_units if profile and profile.billing == "nominal" else None
    return Terms(
        profile=ask.profile or "",
        project=ask.project or "",
        workload_class=workload_class,
        ttl_ms=ask.ttl_ms or (profile.ttl_ms if profile else 300_000),
        fence=profile.fence if profile else "keep",
        on_unhealthy=profile.on_unhealthy if profile else "none",
        billing=profile.billing if profile else "delivered",
        nominal_micro=int(nominal * 1_000_000) if nominal is not None else None,
        image=profile.image if profile else "",
    )


def _objective(ask: PlaceAsk, profile: ProfileSpec | None) -> Objective:
    objective = ask.objective or (profile.objective if profile else "pack")
    return "cheapest" if objective == "commitment_first" else objective


def closed_pools(catalog: Catalog, tenant: str) -> Iterable[str]:
    """Pools that this tenant may not use."""
    return (
        name for name, pool in catalog.pools.items() if pool.tenants and tenant not in pool.tenants
    )


def _faults(
    ask: PlaceAsk, profile: ProfileSpec | None, projects: tuple[str, ...], catalog: Catalog
) -> list[str]:
    """Everything that contradicts the profile or the tenant, at once."""
    faults = []
    if ask.project is not None and ask.project not in projects:
        faults.append(f"project {ask.project}: the tenant has {', '.join(projects) or 'none'}")
    if ask.objective == "commitment_first":
        faults.append("objective commitment_first: commitments are not enabled yet")
    if ask.priority is not None and ask.priority not in catalog.priorities:
        faults.append(
            f"priority {ask.priority}: there is {', '.join(catalog.priorities) or 'none'}"
        )
    groups = (*ask.groups, *(group for option in ask.alternatives for group in option.groups))
    needs = [
        ask.accelerator,
        *(option.accelerator for option in ask.alternatives),
        *(group.accelerator for group in groups),
    ]
    named = [need for need in needs if need is not None]
    unknown = dict.fromkeys(m for need in named for m in need.models if m not in catalog.models)
    faults += _no_such("model {}: no such model", unknown, catalog.models)
    vendors = {spec.vendor for spec in catalog.models.values()}
    strange = dict.fromkeys(v for need in named for v in need.vendors if v not in vendors)
    faults += _no_such("vendor {}: no model of that vendor", strange, vendors)
    if profile is not None:
        if ask.workload_class not in {None, profile.workload_class}:
            faults.append(
                f"class {ask.workload_class}: profile {ask.profile} is of {profile.workload_class}"
            )
        faults += _other_cut(ask, profile)
        for cards, nodes in _counts(ask):
            faults += _out_of("cards", cards, profile.cards)
            faults += _out_of("nodes", nodes, profile.nodes)
    faults += _unarranged(ask, profile)
    return faults


def _no_such(told: str, unknown: Iterable[str], known: Collection[str]) -> Iterator[str]:
    """Each name that is unknown, once; what it probably stands for is looked for of the first."""
    for number, name in enumerate(unknown):
        yield told.format(name) + (meant(name, known) if number < FAULTS_MAX else "")


def _unarranged(ask: PlaceAsk, profile: ProfileSpec | None) -> Iterator[str]:
    """Topology, and members that differ, are of whole cards of one kind."""
    base = profile.accelerator if profile else AcceleratorNeed()
    ones: tuple[PlaceAsk | Alternative, ...] = ask.alternatives or (ask,)
    for one in ones:
        need = one.accelerator or AcceleratorNeed()
        parted = one.groups or any(n.share or n.partition for n in (base, need))
        named = {"members": one.members, "mixed": one.mixed, "topology": one.topology}
        for name in (name for name, value in named.items() if value and parted):
            yield f"{name}: of whole cards of one kind, not of shares, partitions or groups"


def _counts(ask: PlaceAsk) -> Iterator[tuple[int | None, int | None]]:
    """(cards, nodes) of every member of every alternative; a gang's nodes are all it has."""
    ones: tuple[PlaceAsk | Alternative, ...] = (ask, *ask.alternatives)
    for one in ones:
        if one.members:
            yield from ((member.cards, None) for member in one.members)
            yield None, sum(member.nodes for member in one.members)
        else:
            cards = one.cards if one.cards is None else one.cards + _beside(one.groups)
            yield cards, one.nodes


def _beside(groups: tuple[CardGroup, ...]) -> int:
    return sum(group.cards for group in groups)


def _other_cut(ask: PlaceAsk, profile: ProfileSpec) -> list[str]:
    """A profile that sells a part of a card sells no other part under its name."""
    sold, need = profile.accelerator, ask.accelerator
    if need is None or not (sold.share or sold.partition):
        return []
    if (need.share, need.partition) in {(None, ""), (sold.share, sold.partition)}:
        return []
    part = sold.partition or (f"{sold.share.compute_milli} milli" if sold.share else "")
    return [f"accelerator: profile {ask.profile} gives {part} of a card, and no other part"]


def _out_of(what: str, count: int | None, text: str) -> list[str]:
    low, high = count_range(text)
    if count is None or (count >= low and (high is None or count <= high)):
        return []
    return [f"{what} {count}: the profile allows {text}"]


def _options(
    market: Market, tenant: str, ask: PlaceAsk, profile: ProfileSpec | None, workload_class: str
) -> tuple[Option, ...] | Refusal:
    if _objective(ask, profile) == "cheapest" and market.ended():
        return _refuse(
            Code.PRICE_STALE,
            "nothing is cheapest: the prices have ended; ask for another objective until a price"
            " list is in force",
            owner=Owner.CATALOG,
            verdict="not_now",
        )
    base = (profile.accelerator,) if profile else ()
    options = []
    illegal: list[str] = []
    for alternative in _alternatives(market.catalog, ask, profile):
        members = gang_members(alternative.members)
        named = (alternative.accelerator, *(g.accelerator for g in alternative.groups))
        precision = next((n.precision for n in reversed((*base, *named)) if n.precision), "")
        cards = members[0][0] if members else alternative.cards
        nodes = sum(nodes for _, nodes in members) or alternative.nodes
        own, *beside = (
            _group(market, (*base, need), (cards, nodes), (workload_class, precision, tenant))
            for need, cards in zip(
                named, (cards, *(g.cards for g in alternative.groups)), strict=True
            )
        )
        illegal += [why for group, told in (own, *beside) if not group.offers for why in told]
        options.append(
            Option(
                offers=own[0].offers if all(group.offers for group, _ in beside) else (),
                cards=own[0].cards,
                share=own[0].share,
                partition=own[0].partition,
                beside=tuple(group for group, _ in beside),
                nodes=nodes,
                members=members if len(members) > 1 else (),
                mixed=alternative.mixed,
                arrangement=arrangement(ask, profile, alternative),
                variant=alternative.variant,
                image=alternative.image,
                args=alternative.args,
                precision=precision,
                excluded=own[0].excluded,
            )
        )
    if any(option.offers for option in options):
        return tuple(options)
    return _no_offer(options, illegal, workload_class)


def _group(
    market: Market,
    needs: tuple[AcceleratorNeed, ...],
    counts: tuple[int, int],
    what: tuple[str, str, str],
) -> tuple[Group, tuple[str, ...]]:
    """One group as the engine is asked for it, and why models are not had so."""
    cards, nodes = counts
    offers, excluded, illegal = market.offers(needs, *what)
    cut = cut_need(needs)
    if cut.shape or any(
        (o.legal_counts and cards not in o.legal_counts) or cards % o.together for o in offers
    ):
        models = market.catalog.models
        told = {
            offer.model: why
            for offer in offers
            if (why := legal.illegal_count(offer.model, models[offer.model], cut, cards, nodes))
        }
        offers = tuple(offer for offer in offers if offer.model not in told)
        excluded, illegal = (*excluded, *told.items()), (*illegal, *told.values())
    return Group(offers, cards, share_of(cut.share), _profile_name(market, cut), excluded), illegal


def share_of(share: ShareNeed | None) -> Share | None:
    """The share as the engine has it; none for the whole card."""
    if share is None or share.compute_milli == 1000:  # noqa: PLR2004 - the whole card
        return None
    return Share(share.compute_milli * 1000, parse_bytes(share.memory) if share.memory else 0)


def _profile_name(market: Market, cut: AcceleratorNeed) -> str:
    """The partition as the catalog spells it."""
    if not cut.partition:
        return ""
    found = (legal.partition_of(spec, cut.partition) for spec in market.catalog.models.values())
    return next((profile.name for profile in found if profile is not None), cut.partition)


def _no_offer(options: list[Option], illegal: list[str], workload_class: str) -> Refusal:
    """No model will do: because of how it is to be had, or unrated, or no such model at all."""
    if illegal:
        faults = list(dict.fromkeys(illegal))
        return _refuse(Code.INVALID_REQUEST, "; ".join(faults[:FAULTS_MAX]), faults=faults)
    groups = (group for option in options for group in option.groups if not group.offers)
    unrated = [why for group in groups for _, why in group.excluded if why.startswith("unrated")]
    if unrated:
        return _refuse(
            Code.UNRATED,
            f"models that would do have no rating in {workload_class}",
            owner=Owner.CATALOG,
            verdict="never_fits",
        )
    return _refuse(
        Code.NEVER_FITS, "no model of the catalog meets what is asked", verdict="never_fits"
    )


def _alternatives(
    catalog: Catalog, ask: PlaceAsk, profile: ProfileSpec | None
) -> tuple[Alternative, ...]:
    if ask.workload is not None and profile is not None:
        variants = software.variants_of(catalog.workloads[ask.workload], ask)
        return software.alternatives(variants, ask, profile)
    if ask.alternatives:
        return ask.alternatives
    plain = ask.accelerator is None and ask.cards is None and ask.nodes is None
    plain = plain and not ask.members
    if profile and profile.alternatives and plain:
        return profile.alternatives
    if ask.members:
        kind = profile.accelerator.kind if profile else "accelerator"
        need = ask.accelerator or AcceleratorNeed(kind=kind)
        return (Alternative(accelerator=need, members=ask.members, mixed=ask.mixed),)
    cards = ask.cards or (max(1, count_range(profile.cards)[0]) if profile else 1)
    nodes = ask.nodes or (max(1, count_range(profile.nodes)[0]) if profile else 1)
    kind = profile.accelerator.kind if profile else "accelerator"
    need = ask.accelerator or AcceleratorNeed(kind=kind)
    return (
        Alternative(accelerator=need, cards=cards, nodes=nodes, mixed=ask.mixed, groups=ask.groups),
    )


def wanted(
    catalog: Catalog, ask: PlaceAsk
) -> tuple[tuple[AcceleratorNeed, ...], int, NodeNeed] | None:
    """What a request's first alternative asks of each node: a card, so many, and of the host.

    None where the catalog no longer knows what the request names.
    """
    work = catalog.workloads.get(ask.workload) if ask.workload is not None else None
    name = work.profile if work is not None else ask.profile
    profile = catalog.profiles.get(name) if name is not None else None
    if (work is None) != (ask.workload is None) or (profile is None) != (name is None):
        return None
    first = next(iter(_alternatives(catalog, ask, profile)), None)
    if first is None:
        return None
    base = (profile.accelerator,) if profile is not None else ()
    members = gang_members(first.members)
    cards = members[0][0] if members else first.cards
    node = _node_need(ask.node, profile.node if profile is not None else None)
    return (*base, first.accelerator), cards, node


def gang_members(members: Sequence[GangMember]) -> tuple[tuple[int, int], ...]:
    """(cards, nodes), the largest first, like ones together."""
    counted: dict[int, int] = {}
    for member in members:
        counted[member.cards] = counted.get(member.cards, 0) + member.nodes
    return tuple(sorted(counted.items(), reverse=True))


def arrangement(
    ask: PlaceAsk, profile: ProfileSpec | None, alternative: Alternative
) -> Arrangement | None:
    """How the cards must lie: an alternative's word, else the request's; a profile's with it."""
    own = alternative.topology or ask.topology
    profiled = profile.topology if profile is not None else None
    need = own.stricter(profiled) if own is not None and profiled is not None else own or profiled
    if need is None:
        return None
    found = Arrangement(need.island, need.nic, need.domain, need.over)
    return None if found == Arrangement(over=need.over) else found


def _node_need(asked: NodeNeed | None, profiled: NodeNeed | None) -> NodeNeed:
    one, two = asked or NodeNeed(), profiled or NodeNeed()
    return NodeNeed(
        cpu_milli=max(one.cpu_milli, two.cpu_milli),
        memory_bytes=max(one.memory_bytes, two.memory_bytes),
        network_mbits=max(one.network_mbits, two.network_mbits),
        labels={**two.labels, **one.labels},
    )


def _contradiction(message: str) -> Refusal:
    return _refuse(Code.INVALID_REQUEST, message, faults=[message])


def _unknown(what: str, name: str, known: Iterable[str]) -> Refusal:
    return _refuse(Code.INVALID_REQUEST, f"{what} {name}: no such {what}{meant(name, known)}")


def _refuse(
    code: Code,
    message: str,
    *,
    owner: Owner = Owner.SUBMITTER,
    verdict: str | None = None,
    faults: list[str] | None = None,
) -> Refusal:
    never = "never_fits" if verdict == "never_fits" else None
    details = {"faults": faults} if faults else {}
    return Refusal(code=code, message=message, owner=owner, verdict=never, details=details)
