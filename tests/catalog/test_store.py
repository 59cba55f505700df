"""Never half a revision: a crash between any two writes, a lost answer, two who race."""

from __future__ import annotations

import asyncio

import pytest

from quintal.catalog_reader import CatalogReader
from quintal.contracts.documents import Catalog
from quintal.errors import BusUnavailable, ProtocolError
from quintal_catalog.store import Standing, Store, Words
from tests.catalog.given import NOW_MS, SMALL, SMALL_CATALOG, Keys, document, judged

WORDS = Words("operator", "because", NOW_MS)

MORE = document("Tenant", "red", "{projects: [clay]}") + document("Pool", "p", "{selector: {}}")

WRITES = len(SMALL_CATALOG.documents) + 2
"""Documents, manifest, head."""


async def first(keys: Keys) -> Store:
    store = Store(keys)
    standing = await store.standing()
    made = await store.commit(standing, judged(SMALL).documents, WORDS)
    assert made is not None
    return store


async def added(store: Store, text: str = MORE) -> Catalog | None:
    standing = await store.standing()
    return await store.commit(standing, judged(text, over=standing.catalog).documents, WORDS)


async def test_before_the_first_revision_the_catalog_is_empty() -> None:
    reader = CatalogReader(Keys())
    assert await reader.head() is None
    assert (await reader.load()).revision == 0


async def test_what_was_committed_is_what_a_reader_loads() -> None:
    keys = Keys()
    await first(keys)
    read = await CatalogReader(keys).load()
    assert read.documents == SMALL_CATALOG.documents
    assert read.revision == 1
    assert keys.writes == WRITES


async def test_only_what_changed_is_written_again() -> None:
    keys = Keys()
    store = await first(keys)
    keys.writes = 0
    assert await added(store) is not None
    assert keys.writes == 2 + 2


@pytest.mark.crash
@pytest.mark.parametrize("nth", range(1, WRITES + 1))
async def test_a_crash_before_any_write_leaves_no_catalog_and_the_next_one_gets_through(
    nth: int,
) -> None:
    keys = Keys(fail_at=nth)
    with pytest.raises(BusUnavailable):
        await first(keys)
    keys.fail_at = None
    assert await CatalogReader(keys).head() is None
    await first(keys)
    assert (await CatalogReader(keys).load()).documents == SMALL_CATALOG.documents


@pytest.mark.crash
@pytest.mark.parametrize("stored", [False, True], ids=["write lost", "answer lost"])
@pytest.mark.parametrize("nth", range(1, 5))
async def test_a_crash_between_any_two_writes_leaves_the_old_head_whole_or_the_new(
    nth: int, stored: bool
) -> None:
    keys = Keys()
    store = await first(keys)
    before = await CatalogReader(keys).load()
    keys.writes, keys.fail_at, keys.lose_the_answer = 0, nth, stored
    moved = stored and nth == 4
    if moved:
        made = await added(store)
        assert made is not None
    else:
        with pytest.raises(BusUnavailable):
            await added(store)
    keys.fail_at = None
    read = await CatalogReader(keys).load()
    if moved:
        assert ("Tenant", "red") in read.documents
        return
    assert (read.revision, read.digest, read.documents) == (1, before.digest, before.documents)
    made = await added(Store(keys))
    assert made is not None
    read = await CatalogReader(keys).load()
    assert ("Tenant", "red") in read.documents
    assert read.revision == made.revision


async def test_a_number_that_an_orphan_took_is_skipped_and_never_written_over() -> None:
    keys = Keys()
    store = await first(keys)
    keys.writes, keys.fail_at = 0, 4
    with pytest.raises(BusUnavailable):
        await added(store)
    orphan = keys.values["rev.2"]
    keys.fail_at = None
    made = await added(store, document("Tenant", "grey", "{}"))
    assert made is not None
    assert made.revision == 3
    assert keys.values["rev.2"] == orphan
    assert await store.load(2) is None
    assert [each.revision async for each in store.lineage()] == [3, 1]
    assert (await store.load(1) or Catalog()).revision == 1


async def test_of_two_who_move_the_same_head_exactly_one_wins() -> None:
    keys = Keys()
    one, other = await first(keys), Store(keys)
    bases: list[Standing] = [await one.standing(), await other.standing()]
    texts = [document("Tenant", name, "{}") for name in ("red", "grey")]
    made = await asyncio.gather(
        *(
            store.commit(base, judged(text, over=base.catalog).documents, WORDS)
            for store, base, text in zip((one, other), bases, texts, strict=True)
        )
    )
    assert sorted(each is not None for each in made) == [False, True]
    read = await CatalogReader(keys).load()
    assert len({"red", "grey"} & set(read.tenants)) == 1


async def test_a_head_that_moved_while_its_answer_was_lost_is_no_failure_for_the_loser() -> None:
    keys = Keys()
    store = await first(keys)
    base = await store.standing()
    assert await added(Store(keys)) is not None
    late = judged(document("Tenant", "grey", "{}"), over=base.catalog).documents
    keys.writes, keys.fail_at = 0, 4
    assert await store.commit(base, late, WORDS) is None


async def test_a_reader_keeps_what_it_read_and_sees_a_new_head_at_once() -> None:
    keys = Keys()
    store = await first(keys)
    reader = CatalogReader(keys)
    before = await reader.load()
    assert await reader.load() is before
    await added(store)
    after = await reader.load()
    assert after.revision == 2
    kept = before.documents["Profile", "train"]
    assert after.documents["Profile", "train"] is kept
    assert (await reader.load(1)).documents.keys() == before.documents.keys()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("doc", "is not what its hash"),
        ("rev.1", "is not the one that the head names"),
        ("head", "head cannot be read"),
    ],
)
async def test_a_store_that_does_not_hold_what_its_hash_says_is_an_error_by_name(
    key: str, words: str
) -> None:
    keys = Keys()
    await first(keys)
    found = next(name for name in keys.values if name.startswith(key))
    value, sequence = keys.values[found]
    changed = b"{" if key == "head" else value.replace(b'"', b' "', 1)
    keys.values[found] = (changed, sequence)
    with pytest.raises(ProtocolError, match=words):
        await CatalogReader(keys).load()


async def test_a_document_that_is_gone_is_an_error_by_name() -> None:
    keys = Keys()
    await first(keys)
    del keys.values[next(name for name in keys.values if name.startswith("doc."))]
    with pytest.raises(ProtocolError, match="is not in the store"):
        await CatalogReader(keys).load()


async def test_an_outage_is_told_as_one_and_nothing_else() -> None:
    keys = Keys()
    await first(keys)
    reader = CatalogReader(keys)
    await reader.load()
    keys.cut = True
    with pytest.raises(BusUnavailable):
        await reader.head()
    with pytest.raises(BusUnavailable):
        await reader.load()
