"""Revisions in a store that can change one key at a time, and yet never half a revision.

Documents first, then the manifest that names them, then `head`, by compare-and-set. A crash after
each leaves: some documents that nobody names; a manifest that is nobody's; the new revision. So
whatever a crash or a lost race leaves behind is never read, and is not cleaned up: it is small,
and removing it could race with the one who is about to name it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Protocol

from quintal.catalog_reader import (
    HEAD_KEY,
    READS_AT_ONCE,
    CatalogReader,
    Keys,
    document_key,
    revision_key,
)
from quintal.contracts.catalog import Head, Manifest, ManifestEntry
from quintal.contracts.documents import Catalog, Document
from quintal.contracts.streams import CATALOG_BUCKET
from quintal.errors import BusUnavailable, ProtocolError
from quintal_catalog.canonical import canonical, digest

ORPHANS_MAX: Final = 10_000
"""Numbers skipped since a manifest that never became the head has them."""

Key = tuple[str, str]


class WritableKeys(Keys, Protocol):
    """What the store needs of the bus: `Bus.key_get` and `Bus.key_put`."""

    async def key_put(self, bucket: str, key: str, value: bytes, revision: int) -> int | None:
        """Set the key if its revision is this; none if it is not. Raises BusUnavailable."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The catalog as it holds, and by what its head can be moved on."""

    catalog: Catalog
    entries: dict[Key, ManifestEntry]
    head_sequence: int = 0


@dataclass(frozen=True, slots=True)
class Words:
    """Who changes the catalog, why, and when."""

    author: str
    why: str
    at_ms: int


class Store:
    """Reads revisions and makes new ones. Raises BusUnavailable, ProtocolError."""

    def __init__(self, bus: WritableKeys) -> None:
        self._bus = bus
        self._reader = CatalogReader(bus)
        self._parents: dict[int, int] = {}

    async def standing(self) -> Standing:
        """The head's revision, whole."""
        found = await self._reader.head_entry()
        if found is None:
            return Standing(Catalog(), {})
        head, sequence = found
        manifest, its_digest = await self._reader.manifest(head.revision)
        if its_digest != head.digest:
            raise ProtocolError(f"catalog revision {head.revision} is not what the head names")
        documents = await self._reader.documents(manifest.entries)
        catalog = Catalog(documents, revision=head.revision, digest=head.digest)
        return Standing(catalog, _by_key(manifest), sequence)

    async def load(self, revision: int | None = None) -> Catalog | None:
        """One revision, or the head's; none if it never was the head."""
        if revision is None:
            return await self._reader.load()
        if revision == 0:
            return Catalog()
        if not await self._was_head(revision):
            return None
        return await self._reader.load(revision)

    async def _was_head(self, revision: int) -> bool:
        """Whether the revision is the head or one of its forebears, and no orphan's number."""
        head = await self._reader.head()
        at = head.revision if head else 0
        while at > revision:
            if at not in self._parents:
                manifest, _ = await self._reader.manifest(at)
                self._parents[at] = manifest.parent
            at = self._parents[at]
        return at == revision > 0

    async def lineage(self, after: int = 0) -> AsyncIterator[Manifest]:
        """The manifests from the head back, down to the last one above `after`."""
        head = await self._reader.head()
        at = head.revision if head else 0
        while at > after:
            manifest, _ = await self._reader.manifest(at)
            yield manifest
            at = manifest.parent

    async def documents(self, entries: list[ManifestEntry]) -> dict[Key, Document]:
        """The documents of these entries, by kind and name."""
        found = await self._reader.documents(tuple(entries))
        return {document.key: document for document in found}

    async def entries(self, revision: int) -> dict[Key, ManifestEntry]:
        """What a revision consists of; revision 0 is empty."""
        if revision == 0:
            return {}
        manifest, _ = await self._reader.manifest(revision)
        return _by_key(manifest)

    async def commit(
        self, standing: Standing, documents: dict[Key, Document], words: Words
    ) -> Catalog | None:
        """Make the documents the next revision; none if the head is no longer `standing`'s.

        Raises BusUnavailable where it is not known whether the head moved.
        """
        entries = await self._write_documents(standing, documents)
        manifest, data = await self._write_manifest(standing, entries, words)
        head = Head(revision=manifest.revision, digest=digest(data))
        if not await self._move(head, standing.head_sequence):
            return None
        return Catalog(tuple(documents.values()), revision=head.revision, digest=head.digest)

    async def _write_documents(
        self, standing: Standing, documents: dict[Key, Document]
    ) -> tuple[ManifestEntry, ...]:
        gate = asyncio.Semaphore(READS_AT_ONCE)

        async def one(key: Key, document: Document) -> ManifestEntry:
            if standing.catalog.documents.get(key) is document:
                return standing.entries[key]
            data = canonical(document)
            entry = ManifestEntry(kind=key[0], name=key[1], digest=digest(data))
            async with gate:
                await self._write_once(document_key(entry.digest), data)
            return entry

        return tuple(
            await asyncio.gather(*(one(key, doc) for key, doc in sorted(documents.items())))
        )

    async def _write_once(self, key: str, data: bytes) -> None:
        """A key that is named by its content: there already is as good as written."""
        if await self._bus.key_put(CATALOG_BUCKET, key, data, 0) is not None:
            return
        found = await self._bus.key_get(CATALOG_BUCKET, key)
        if found is None or sha256(found[0]).digest() != sha256(data).digest():
            raise ProtocolError(f"{key} in the catalog's store is not what its hash says")

    async def _write_manifest(
        self, standing: Standing, entries: tuple[ManifestEntry, ...], words: Words
    ) -> tuple[Manifest, bytes]:
        """Under the next free number: one that an orphan has is never written over."""
        parent = standing.catalog.revision
        for revision in range(parent + 1, parent + 1 + ORPHANS_MAX):
            manifest = Manifest(
                revision=revision,
                entries=entries,
                author=words.author,
                why=words.why,
                at_ms=words.at_ms,
                parent=parent,
            )
            data = canonical(manifest)
            if await self._bus.key_put(CATALOG_BUCKET, revision_key(revision), data, 0) is not None:
                return manifest, data
        raise ProtocolError(f"no free revision within {ORPHANS_MAX} of {parent}")

    async def _move(self, head: Head, sequence: int) -> bool:
        """Move the head by compare-and-set; where the answer is lost, look whether it moved."""
        try:
            put = await self._bus.key_put(CATALOG_BUCKET, HEAD_KEY, canonical(head), sequence)
        except BusUnavailable as exc:
            found = await self._reader.head_entry()
            if found is not None and found[0].digest == head.digest:
                return True
            if (found[1] if found else 0) == sequence:
                raise BusUnavailable(
                    f"moving the catalog to revision {head.revision}: whether it did is not "
                    f"known; look at its history before you apply again"
                ) from exc
            return False
        return put is not None


def _by_key(manifest: Manifest) -> dict[Key, ManifestEntry]:
    return {(entry.kind, entry.name): entry for entry in manifest.entries}
