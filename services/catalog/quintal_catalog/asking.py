"""The edge of `fit`, `portability`, `can_run`: which workload, which places, who may see them."""

from __future__ import annotations

from collections.abc import Mapping

from quintal.bus import Caller
from quintal.clock import Clock
from quintal.compatibility import StackKey, misfit, stack_key
from quintal.contracts.boundaries import NodeStack
from quintal.contracts.catalog import SourceFile
from quintal.contracts.documents import Catalog, WorkloadSpec
from quintal.contracts.nodes import Stack
from quintal.contracts.portability import (
    CanRun,
    CanRunAsk,
    Fit,
    FitAsk,
    FitRow,
    Portability,
    PortabilityAsk,
)
from quintal.contracts.subjects import Role
from quintal.errors import Code, Refused
from quintal.names import meant
from quintal_catalog import reading, sources
from quintal_catalog.fleet import FleetReader, Held, Place, places
from quintal_catalog.handlers import told
from quintal_catalog.portability import View, Work, can_run, fit, portability
from quintal_catalog.redaction import Redaction
from quintal_catalog.roles import Roles
from quintal_catalog.store import Store


class FitHandlers:
    """One method per subject. A tenant sees its own workloads and the pools open to it."""

    def __init__(self, store: Store, fleet: FleetReader, roles: Roles, clock: Clock) -> None:
        self._store = store
        self._fleet = fleet
        self._roles = roles
        self._clock = clock

    async def fit(self, caller: Caller, ask: FitAsk) -> Fit:
        """Whether a workload runs on a node, on a pool, or under a stack."""
        view = await self._view(caller)
        work = self._work(view, ask.workload, ask.file)
        if ask.stack is not None:
            where: Mapping[Place, Held] = _under(view.catalog, work, ask.stack, ask.models)
        else:
            where = await self._where(view, node=ask.node, pool=ask.pool)
        found = fit(view, work, where)
        return found.model_copy(update={"rows": _read_by(view, found.rows)})

    async def portability(self, caller: Caller, ask: PortabilityAsk) -> Portability:
        """Where a workload runs over the whole fleet."""
        view = await self._view(caller)
        work = self._work(view, ask.workload, ask.file)
        return portability(view, work, await self._where(view))

    async def can_run(self, caller: Caller, ask: CanRunAsk) -> CanRun:
        """What runs on a node or pool."""
        view = await self._view(caller)
        where = await self._where(view, node=ask.node, pool=ask.pool)
        works = [
            Work(name, spec)
            for name, spec in sorted(view.catalog.workloads.items())
            if _open(spec.tenants, view.tenant)
        ]
        rows = _read_by(view, tuple(can_run(view, works, where)))
        return CanRun(rows=rows, revision=view.catalog.revision)

    async def _view(self, caller: Caller) -> View:
        async with told():
            catalog = (await self._store.standing()).catalog
        own = self._roles.of(caller.principal) not in {Role.OPERATOR, Role.FINANCE}
        return View(catalog, caller.principal if own else "", self._clock.now_ms())

    async def _where(
        self, view: View, *, node: str | None = None, pool: str | None = None
    ) -> Mapping[Place, Held]:
        """The places that the asker may see; a place that is not there is not told from those."""
        async with told():
            inventories = await self._fleet.inventories()
        if node is not None:
            inventories = tuple(each for each in inventories if each.node == node)
        found = {
            place: held
            for place, held in places(view.catalog, inventories).items()
            if pool in {None, place.pool} and _seen(view, place.pool)
        }
        if not found and (node or pool):
            what = f"node {node}" if node else f"pool {pool}"
            raise Refused(Code.NOT_FOUND, f"no device of {what} is known, or none you may see")
        return found

    def _work(self, view: View, name: str | None, file: SourceFile | None) -> Work:
        catalog = view.catalog
        if file is not None:
            work = _written(file)
        else:
            assert name is not None
            known = {
                its: spec
                for its, spec in catalog.workloads.items()
                if _open(spec.tenants, view.tenant)
            }
            if name not in known:
                hint = meant(name, known)
                raise Refused(Code.NOT_FOUND, f"there is no Workload {name!r}{hint}")
            work = Work(name, known[name])
        profile = catalog.profiles.get(work.spec.profile)
        if profile is None or (view.tenant and not profile.public):
            hint = meant(work.spec.profile, catalog.profiles)
            raise Refused(
                Code.INVALID_REQUEST,
                f"Workload/{work.name}: there is no Profile {work.spec.profile!r}{hint}",
            )
        return work


def _read_by(view: View, rows: tuple[FitRow, ...]) -> tuple[FitRow, ...]:
    """Rows without texts that speak of other tenants."""
    if not view.tenant:
        return rows
    redaction = Redaction(view.tenant, view.catalog)
    return tuple(row.model_copy(update={"source": redaction.told(row.source)}) for row in rows)


def _written(file: SourceFile) -> Work:
    """The one workload of a file. Raises Refused with every fault."""
    found, faults = sources.read(file)
    works = []
    for source in found:
        sourced, wrong = reading.document(source)
        faults += wrong
        if sourced is not None and isinstance(sourced.document.spec, WorkloadSpec):
            works.append(Work(sourced.document.metadata.name, sourced.document.spec))
    if faults:
        raise Refused(
            Code.INVALID_REQUEST,
            f"{len(faults)} {'fault' if len(faults) == 1 else 'faults'} in {file.path}",
            details={"faults": [fault.model_dump(mode="json") for fault in faults]},
        )
    if len(works) != 1:
        raise Refused(
            Code.INVALID_REQUEST, f"{file.path} holds {len(works)} workloads; give one at a time"
        )
    return works[0]


def _open(tenants: tuple[str, ...], tenant: str) -> bool:
    return not tenants or not tenant or tenant in tenants


def _seen(view: View, pool: str) -> bool:
    """A tenant sees pools open to it; devices in no pool are an operator's matter."""
    if not view.tenant:
        return True
    spec = view.catalog.pools.get(pool)
    return spec is not None and _open(spec.tenants, view.tenant)


def _under(
    catalog: Catalog, work: Work, stack: NodeStack, models: tuple[str, ...]
) -> dict[Place, Held]:
    """A stack that no node need have, with the models named, or those the variants can run on."""
    for name in models:
        if name not in catalog.models:
            hint = meant(name, catalog.models)
            raise Refused(Code.INVALID_REQUEST, f"there is no AcceleratorModel {name!r}{hint}")
    wanted = models or tuple(
        name
        for name, spec in catalog.models.items()
        if any(misfit(name, spec, variant) is None for variant in work.spec.variants)
        and spec.vendor in {*stack.drivers, "cpu"}
    )
    key = _key(stack)
    return {Place("", name, key): Held() for name in sorted(wanted)}


def _key(stack: NodeStack) -> StackKey:
    return stack_key(Stack(drivers=stack.drivers, runtimes=stack.runtimes, firmware=stack.firmware))
