"""From asks to answers: who may, what the pure middle says, what the store keeps."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from quintal.bus import Caller
from quintal.clock import Clock
from quintal.contracts.catalog import (
    Applied,
    ApplyAsk,
    Change,
    CheckAsk,
    Checked,
    Diff,
    DiffAsk,
    DocumentList,
    DocumentRow,
    Documents,
    DocumentsAsk,
    Fault,
    History,
    HistoryAsk,
    Manifest,
    RateAsk,
    Rated,
    Revision,
)
from quintal.contracts.documents import SPECS, Catalog, Document
from quintal.contracts.subjects import Role
from quintal.errors import BusUnavailable, Code, Owner, ProtocolError, Refused
from quintal.names import meant
from quintal.process import chain
from quintal_catalog.canonical import canonical, digest
from quintal_catalog.changes import changes
from quintal_catalog.fitting import unmet
from quintal_catalog.fleet import FleetReader, places
from quintal_catalog.judging import Judgement, judge
from quintal_catalog.rating import rated
from quintal_catalog.redaction import Redaction
from quintal_catalog.roles import Roles
from quintal_catalog.settings import APPLY_TRIES
from quintal_catalog.store import Store, Words

log = logging.getLogger(__name__)


class Handlers:
    """One method per subject of `catalog.*`."""

    def __init__(
        self, store: Store, roles: Roles, clock: Clock, fleet: FleetReader | None = None
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._roles = roles
        self._clock = clock
        self._applying = asyncio.Lock()

    # --- writing ------------------------------------------------------------------------------

    async def apply(self, caller: Caller, ask: ApplyAsk) -> Applied:
        """Make the files part of the catalog: all of them, or none."""
        self._only(caller, Role.OPERATOR)
        async with told():
            applied = await self.put(caller.principal, ask)
            if applied.dry_run or not applied.changes:
                return applied
            catalog = (await self._store.standing()).catalog
            found = await self._out_of_reach(catalog, applied.changes)
            return applied.model_copy(update={"warnings": (*applied.warnings, *found)})

    async def _out_of_reach(self, catalog: Catalog, changed: Iterable[Change]) -> list[Fault]:
        """Profiles that changed and that nothing in the fleet could meet: accepted, and told."""
        names = [c.name for c in changed if c.kind == "Profile" and c.name in catalog.profiles]
        if self._fleet is None or not names:
            return []
        there = {place.model for place in places(catalog, await self._fleet.inventories())}
        models = {name: catalog.models[name] for name in sorted(there)}
        return [
            Fault(
                file="", document=f"Profile/{name}", field=".".join(map(str, path)),
                message=why, severity="warning",
            )
            for name in (names if models else ())
            for path, why in unmet(catalog.profiles[name], models, "the fleet")
        ]  # fmt: skip

    async def put(self, author: str, ask: ApplyAsk) -> Applied:
        """Judge and commit in this author's name, one apply after the other."""
        async with self._applying:
            return await self._put(author, ask)

    async def _put(self, author: str, ask: ApplyAsk) -> Applied:
        """Against a head that another service moved meanwhile, judge anew."""
        for _ in range(APPLY_TRIES):
            standing = await self._store.standing()
            revision = standing.catalog.revision
            now_ms = self._clock.now_ms()
            judgement = judge(standing.catalog, ask.files, ask.delete, now_ms)
            if judgement.ok and not judgement.changes:
                return _applied(standing.catalog, judgement, dry_run=ask.dry_run)
            if ask.base_revision not in {None, revision}:
                break
            if not judgement.ok:
                raise _faulty(judgement)
            if ask.dry_run:
                would = Catalog(revision=revision + 1)
                return _applied(would, judgement, dry_run=True)
            made = await self._store.commit(
                standing, judgement.documents, Words(author, ask.why, now_ms)
            )
            if made is not None:
                log.info("revision %d by %s: %s", made.revision, author, ask.why or "no reason")
                return _applied(made, judgement, dry_run=False)
            if ask.base_revision is not None:
                break
        raise await self._conflict(ask.base_revision)

    async def _conflict(self, base: int | None) -> Refused:
        standing = await self._store.standing()
        details: dict[str, Any] = {"head": standing.catalog.revision, "base": base}
        text = f"the catalog is at revision {standing.catalog.revision} now"
        before = await self._store.load(base) if base is not None else None
        if before is not None:
            changed = changes(before.documents, standing.catalog.documents)
            details["changes"] = [change.model_dump(mode="json") for change in changed]
            names = ", ".join(f"{change.kind}/{change.name}" for change in changed[:10])
            text += f"; since {base} there changed: {names}"
        return Refused(Code.CONFLICT, f"{text}; look at that and apply again", details=details)

    async def check(self, caller: Caller, ask: CheckAsk) -> Checked:
        """What apply would say; nothing is kept."""
        self._only(caller, Role.OPERATOR, Role.FINANCE)
        async with told():
            standing = await self._store.standing()
        judgement = judge(standing.catalog, ask.files, ask.delete, self._clock.now_ms())
        return Checked(
            ok=judgement.ok,
            faults=judgement.faults,
            changes=judgement.changes if judgement.ok else (),
        )

    # --- reading ------------------------------------------------------------------------------

    async def documents(self, caller: Caller, ask: DocumentsAsk) -> Documents:
        """Documents as of one revision; a tenant gets what it may see of them."""
        catalog, found = await self._find(caller, ask)
        return Documents(revision=catalog.revision, documents=tuple(found))

    async def rows(self, caller: Caller, ask: DocumentsAsk) -> DocumentList:
        """The same as lines."""
        catalog, found = await self._find(caller, ask)
        rows = tuple(
            DocumentRow(
                kind=document.kind,
                name=document.metadata.name,
                digest=digest(canonical(document)),
                title=getattr(document.spec, "title", "") or document.metadata.description,
            )
            for document in found
        )
        return DocumentList(revision=catalog.revision, rows=rows)

    async def _find(self, caller: Caller, ask: DocumentsAsk) -> tuple[Catalog, list[Document]]:
        if ask.kind is not None and ask.kind not in SPECS:
            known = meant(ask.kind, SPECS) or f"; known are {', '.join(SPECS)}"
            raise Refused(Code.INVALID_REQUEST, f"kind {ask.kind!r} is not known{known}")
        async with told():
            catalog = await self._load(ask.revision)
        role = self._roles.of(caller.principal)
        found = list(_seen(catalog, ask, role, caller.principal))
        if ask.name is not None and not found:
            what = f"{ask.kind or 'document'} {ask.name!r}"
            raise Refused(Code.NOT_FOUND, f"there is no {what}, or none that you may see")
        return catalog, found

    async def _load(self, revision: int | None) -> Catalog:
        catalog = await self._store.load(revision)
        if catalog is None:
            raise Refused(Code.NOT_FOUND, f"the catalog has no revision {revision}")
        return catalog

    async def diff(self, caller: Caller, ask: DiffAsk) -> Diff:
        """What differs between two revisions, field by field."""
        self._only(caller, Role.OPERATOR, Role.FINANCE)
        async with told():
            before, after = await self._load(ask.before), await self._load(ask.after)
        return Diff(
            before=before.revision,
            after=after.revision,
            changes=changes(before.documents, after.documents),
        )

    async def history(self, caller: Caller, ask: HistoryAsk) -> History:
        """The revisions, newest first; with a kind or name, those that touched it."""
        self._only(caller, Role.OPERATOR, Role.FINANCE)
        revisions: list[Revision] = []
        async with told():
            async for manifest in self._store.lineage():
                revision = await self._revision(manifest)
                touched = any(
                    ask.kind in {None, change.kind} and ask.name in {None, change.name}
                    for change in revision.changes
                )
                if touched or (ask.kind is None and ask.name is None):
                    revisions.append(revision)
                if len(revisions) >= ask.limit:
                    break
        return History(revisions=tuple(revisions))

    async def _revision(self, manifest: Manifest) -> Revision:
        parent = await self._store.entries(manifest.parent)
        own = {(entry.kind, entry.name): entry for entry in manifest.entries}
        before = [entry for key, entry in parent.items() if own.get(key) != entry]
        after = [entry for key, entry in own.items() if parent.get(key) != entry]
        at = dt.datetime.fromtimestamp(manifest.at_ms / 1000, dt.UTC)
        return Revision(
            revision=manifest.revision,
            author=manifest.author,
            why=manifest.why,
            at=at.isoformat(timespec="seconds").replace("+00:00", "Z"),
            at_ms=manifest.at_ms,
            changes=changes(
                await self._store.documents(before), await self._store.documents(after)
            ),
        )

    async def rate(self, caller: Caller, ask: RateAsk) -> Rated:
        """What a model is worth; a tenant sees the evidence that it may see."""
        async with told():
            catalog = await self._load(ask.revision)
        role = self._roles.of(caller.principal)
        if role not in {Role.OPERATOR, Role.FINANCE}:
            catalog = Redaction(caller.principal, catalog).catalog()
        return rated(catalog, ask)

    def _only(self, caller: Caller, *roles: Role) -> None:
        """The server refuses others already; this holds where a permission was set too wide."""
        if self._roles.of(caller.principal) not in roles:
            raise Refused(Code.NOT_YOURS, f"this is for {' and '.join(roles)}")


def _seen(catalog: Catalog, ask: DocumentsAsk, role: Role, principal: str) -> Iterator[Document]:
    view = Redaction(principal, catalog)
    for (kind, name), document in sorted(catalog.documents.items()):
        if ask.kind not in {None, kind} or ask.name not in {None, name}:
            continue
        if role in {Role.OPERATOR, Role.FINANCE}:
            yield document
        elif (shown := view.of(document)) is not None:
            yield shown


def _applied(catalog: Catalog, judgement: Judgement, *, dry_run: bool) -> Applied:
    return Applied(
        revision=catalog.revision,
        digest=catalog.digest,
        changes=judgement.changes,
        warnings=judgement.warnings,
        dry_run=dry_run,
    )


def _faulty(judgement: Judgement) -> Refused:
    errors = sum(1 for fault in judgement.faults if fault.severity == "error")
    return Refused(
        Code.INVALID_REQUEST,
        f"{errors} {'fault' if errors == 1 else 'faults'}; nothing was applied",
        details={"faults": [fault.model_dump(mode="json") for fault in judgement.faults]},
    )


@asynccontextmanager
async def told() -> AsyncIterator[None]:
    """A store that does not answer, or is broken, as a refusal that says so."""
    try:
        yield
    except (BusUnavailable, ProtocolError) as exc:
        log.warning("%s", chain(exc))
        raise Refused(Code.INTERNAL, chain(exc), owner=Owner.INFRASTRUCTURE) from exc
