"""How every part reads the catalog: head, manifest, documents, each held against its hash.

The store is a key-value bucket that can change one key at a time. It is atomic all the same:
documents and manifests are immutable and named by what they hold, and `head`, moved last, is the
only key that ever changes. So a reader that loads head, then the manifest it names, then the
documents that the manifest names, sees one revision whole, whatever is being written meanwhile,
and whether or not the catalog service is up.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Final, Protocol

from pydantic import ValidationError

from quintal.contracts.catalog import Head, Manifest, ManifestEntry
from quintal.contracts.documents import Catalog, Document
from quintal.contracts.streams import CATALOG_BUCKET
from quintal.errors import ProtocolError

HEAD_KEY: Final = "head"

READS_AT_ONCE: Final = 64
"""Documents asked for together: enough to hide the way to the server, not enough to flood it."""

KEPT_DOCUMENTS: Final = 10_000
"""Read documents kept by hash; above it the cache is emptied and fills again."""


def revision_key(revision: int) -> str:
    """The key of a revision's manifest."""
    return f"rev.{revision}"


def document_key(digest: str) -> str:
    """The key of a document."""
    return f"doc.{digest}"


class Keys(Protocol):
    """What a reader needs of the bus: `Bus.key_get`."""

    async def key_get(self, bucket: str, key: str) -> tuple[bytes, int] | None:
        """The value and its revision in the bucket. Raises BusUnavailable."""


class CatalogReader:
    """Reads revisions and keeps what it read: documents never change under their hash.

    Every method raises BusUnavailable where the bus does not answer, and ProtocolError where the
    store holds something else than its hash says; the last good `Catalog` is the caller's to keep.
    """

    def __init__(self, bus: Keys) -> None:
        self._bus = bus
        self._documents: dict[str, Document] = {}
        self._last: Catalog | None = None

    async def head(self) -> Head | None:
        """Which revision holds now; none before the first."""
        found = await self.head_entry()
        return found[0] if found else None

    async def head_entry(self) -> tuple[Head, int] | None:
        """The head, and the key's own revision, by which a writer moves it."""
        found = await self._bus.key_get(CATALOG_BUCKET, HEAD_KEY)
        if found is None:
            return None
        try:
            return Head.model_validate_json(found[0]), found[1]
        except ValidationError as exc:
            raise ProtocolError("the catalog's head cannot be read") from exc

    async def load(self, revision: int | None = None) -> Catalog:
        """One revision, or the head's; before the first, an empty catalog of revision 0."""
        wanted = ""
        if revision is None:
            head = await self.head()
            if head is None:
                return Catalog()
            revision, wanted = head.revision, head.digest
            if self._last is not None and self._last.digest == wanted:
                return self._last
        manifest, digest = await self.manifest(revision)
        if wanted and digest != wanted:
            raise ProtocolError(
                f"catalog revision {revision} is not the one that the head names: "
                f"its manifest hashes to {digest[:12]}, not {wanted[:12]}"
            )
        catalog = Catalog(await self.documents(manifest.entries), revision=revision, digest=digest)
        if wanted:
            self._last = catalog
        return catalog

    async def manifest(self, revision: int) -> tuple[Manifest, str]:
        """What a revision consists of, and the hash of the manifest's bytes."""
        found = await self._bus.key_get(CATALOG_BUCKET, revision_key(revision))
        if found is None:
            raise ProtocolError(f"the catalog has no revision {revision}")
        try:
            manifest = Manifest.model_validate_json(found[0])
        except ValidationError as exc:
            raise ProtocolError(f"catalog revision {revision} cannot be read") from exc
        if manifest.revision != revision:
            raise ProtocolError(
                f"the key of catalog revision {revision} holds revision {manifest.revision}"
            )
        return manifest, sha256(found[0]).hexdigest()

    async def documents(self, entries: tuple[ManifestEntry, ...]) -> tuple[Document, ...]:
        """The documents that a manifest names, in its order."""
        if len(self._documents) > KEPT_DOCUMENTS:
            self._documents.clear()
        gate = asyncio.Semaphore(READS_AT_ONCE)

        async def one(entry: ManifestEntry) -> Document:
            async with gate:
                return await self._document(entry)

        return tuple(await asyncio.gather(*(one(entry) for entry in entries)))

    async def _document(self, entry: ManifestEntry) -> Document:
        if (kept := self._documents.get(entry.digest)) is not None:
            return kept
        found = await self._bus.key_get(CATALOG_BUCKET, document_key(entry.digest))
        what = f"catalog document {entry.kind}/{entry.name}"
        if found is None:
            raise ProtocolError(f"{what} ({entry.digest[:12]}) is not in the store")
        if sha256(found[0]).hexdigest() != entry.digest:
            raise ProtocolError(f"{what} is not what its hash {entry.digest[:12]} says")
        try:
            document = Document.model_validate_json(found[0])
        except ValidationError as exc:
            raise ProtocolError(f"{what} cannot be read by this version") from exc
        if document.key != (entry.kind, entry.name):
            raise ProtocolError(f"{what} holds {'/'.join(document.key)}")
        self._documents[entry.digest] = document
        return document


async def head(bus: Keys) -> Head | None:
    """Which revision holds now, asked once; none before the first."""
    return await CatalogReader(bus).head()


async def load(bus: Keys, revision: int | None = None) -> Catalog:
    """One revision, or the head's, read once. Who reads again keeps a `CatalogReader`."""
    return await CatalogReader(bus).load(revision)
