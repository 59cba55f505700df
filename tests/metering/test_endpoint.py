"""The endpoint over the embedded engine: ClickHouse's own clients read, nothing else happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import clickhouse_connect
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, StreamFailureError

from quintal_metering.endpoint import Endpoint, Place
from quintal_metering.guard import NotAllowed, statement
from quintal_metering.readers import BOUNDS, Readers
from quintal_metering.store import Store

engine = pytest.mark.engine
TABLE_FUNCTIONS = ("numbers", "url", "s3", "remote", "mysql", "executable")


def allowed(text: str) -> bool:
    try:
        statement(text, "TabSeparated", TABLE_FUNCTIONS)
    except NotAllowed:
        return False
    return True


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1", "  select 1 ;", "WITH 1 AS a SELECT a -- done", "SHOW TABLES", "(SELECT 1)",
        "EXPLAIN SELECT 1", "DESCRIBE TABLE slices", "SELECT ';', 'INTO OUTFILE'",
        "SELECT 'it''s', \"a b\", `c` FROM numbers(3)", "SELECT {a:Int64} /* ; */ FORMAT Native",
        "SELECT file FROM t", "SELECT format('{}', 1)",
    ],
)  # fmt: skip
def test_what_reads_is_allowed(text: str) -> None:
    assert allowed(text)


@pytest.mark.parametrize(
    "text",
    [
        "", ";", "INSERT INTO t VALUES (1)", "insert into t select 1", "CREATE TABLE a (b Int64)",
        "DROP TABLE slices", "ALTER TABLE slices DELETE WHERE 1", "SET readonly = 0", "USE system",
        "KILL QUERY WHERE 1", "SYSTEM FLUSH LOGS", "SELECT 1; SELECT 2", "SELECT 1;;DROP TABLE a",
        "SELECT 1 INTO OUTFILE '/tmp/x'", "SELECT 1 into/**/outfile '/tmp/x'",
        "SELECT file('/etc/passwd')", "SELECT FILE ('/etc/passwd')", "SELECT `file`('/etc/passwd')",
        "SELECT \"file\"/* */('/etc/passwd')", "SELECT * FROM python(x)", "SELECT * FROM Python(x)",
        "SELECT * FROM url('http://x', 'CSV')", "SELECT * FROM S3('x')", "SELECT 'open",
        "SELECT $$'$$ INTO OUTFILE 'x' $$'$$", "SELECT \u2018a\u2019", "SELECT 1 /* open",
        "SELECT 1 # INTO", "SELECT 1 FORMAT Template", "SELECT 1\x00; DROP TABLE a",
        "EXECUTE AS x SELECT 1", "TRUNCATE slices", "GRANT ALL ON *.* TO me", "BACKUP TABLE a TO b",
    ],
)  # fmt: skip
def test_what_writes_or_leaves_the_store_is_refused(text: str) -> None:
    assert not allowed(text)


@contextlib.asynccontextmanager
async def served(store: Store, folder: Path, engine_path: Path) -> AsyncIterator[dict[str, object]]:
    """The endpoint over the test's database; how a client finds it."""
    database = store._client.database
    readers = Readers(str(engine_path), database)
    endpoint = Endpoint(Place(folder), readers, database, lambda: b"quintal_metering_rows 1\n")
    try:
        url = await endpoint.open()
        port = int(url.rpartition(":")[2])
        token = Place(folder).token.read_text().strip()
        yield {"host": "127.0.0.1", "port": port, "password": token, "database": database}
    finally:
        await endpoint.close()
        readers.close()


async def http(port: int, text: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text.replace("\n", "\r\n").encode())
    answer = await asyncio.wait_for(reader.read(), 15)
    writer.close()
    return answer.decode(errors="replace")


def asked(query: str, host: str = "127.0.0.1", more: str = "") -> str:
    return (
        f"POST / HTTP/1.1\nHost: {host}\n{more}Connection: close\n"
        f"Content-Length: {len(query)}\n\n{query}"
    )


@engine
async def test_clients_of_clickhouse_read_rows_frames_arrow_and_streams(
    open_store: Callable[[], Store], tmp_path: Path, engine_path: Path
) -> None:
    store = open_store()
    store.insert("writers", {"generation": [1, 2], "writer": ["a", "b'"], "at_ms": [1, 2]})

    def read(place: dict[str, object]) -> None:
        client = clickhouse_connect.get_client(**place)
        query = "SELECT writer FROM writers WHERE generation >= {least:Int64} ORDER BY generation"
        assert client.query(query, parameters={"least": 2}).result_rows == [("b'",)]
        assert client.query_arrow("SELECT * FROM writers").num_rows == 2
        assert client.query_df("SELECT * FROM writers").shape == (2, 3)
        assert b'"rows": 2' in client.raw_query("SELECT * FROM writers", fmt="JSON")
        with client.query_row_block_stream("SELECT number FROM numbers(300000)") as blocks:
            assert sum(len(block) for block in blocks) == 300_000
        with client.query_arrow_stream("SELECT number FROM numbers(300000)") as batches:
            assert sum(batch.num_rows for batch in batches) == 300_000
        shown = client.query("DESCRIBE TABLE writers").result_rows
        assert [row[0] for row in shown] == ["generation", "writer", "at_ms"]
        hands = "SELECT displayName(), version(), revision(), timezone()"
        assert client.query(hands).result_rows[0][3] == "UTC"
        client.close()

    async with served(store, tmp_path, engine_path) as place:
        await asyncio.to_thread(read, place)
        client = await clickhouse_connect.get_async_client(**place)
        eight = [client.query("SELECT count() FROM writers") for _ in range(8)]
        assert [r.result_rows for r in await asyncio.gather(*eight)] == [[(2,)]] * 8
        await client.close()


@engine
async def test_nothing_can_be_written_and_no_bound_be_loosened(
    open_store: Callable[[], Store], tmp_path: Path, engine_path: Path
) -> None:
    store = open_store()

    def attempt(place: dict[str, object]) -> None:
        client = clickhouse_connect.get_client(**place)
        with pytest.raises(DatabaseError, match="only reads"):
            client.insert("writers", [[1, "x", 1]], column_names=["generation", "writer", "at_ms"])
        for text in (
            "INSERT INTO writers VALUES (1, 'x', 1)",
            "SELECT 1 SETTINGS max_execution_time = 0",
            "SELECT 1 SETTINGS readonly = 0",
            "SELECT * FROM file('/etc/hostname', 'LineAsString')",
            "SELECT file('/etc/hostname')",
            "SELECT 1 INTO OUTFILE '/tmp/never'",
            "SELECT 1; SELECT 2",
        ):
            with pytest.raises(DatabaseError):
                client.command(text)
        with pytest.raises(DatabaseError, match=r"(?i)memory"):
            client.query("SELECT groupArray(repeat(toString(number), 500)) FROM numbers(5000000)")
        with pytest.raises(StreamFailureError, match="max rows"):
            _ = client.query("SELECT number FROM numbers(6000000)").result_rows
        client.close()

    async with served(store, tmp_path, engine_path) as place:
        await asyncio.to_thread(attempt, place)
    assert store.rows("SELECT count() AS n FROM writers") == [{"n": 0}]
    assert BOUNDS["readonly"] == list(BOUNDS.values())[-1] == 1


@engine
async def test_who_has_no_token_or_calls_it_by_another_name_gets_nothing(
    open_store: Callable[[], Store], tmp_path: Path, engine_path: Path
) -> None:
    async with served(open_store(), tmp_path, engine_path) as place:
        port, token = place["port"], place["password"]
        key = f"X-ClickHouse-Key: {token}\n"
        assert "403 Forbidden" in await http(port, asked("SELECT 1"))
        assert "403" in await http(port, asked("SELECT 1", more="X-ClickHouse-Key: wrong\n"))
        assert "421 " in await http(port, asked("SELECT 1", "evil.example", key))
        assert "421 " in await http(port, asked("SELECT 1", "127.0.0.1.evil.example:80", key))
        told = await http(port, asked("SELECT 41 + 1", f"localhost:{port}", key))
        assert "200 OK" in told
        assert "42" in told
        assert "Ok." in await http(
            port, "GET /ping HTTP/1.1\nHost: localhost\nConnection: close\n\n"
        )
        metrics = "GET /metrics HTTP/1.1\nHost: localhost\nConnection: close\n\n"
        assert "quintal_metering_rows" in await http(port, metrics)
        for torn in (
            "GET\n\n", "GET / HTTP/1.1\nHost localhost\n\n",
            "POST / HTTP/1.1\nHost: localhost\nContent-Length: 99999999999\n\n",
            "POST / HTTP/1.1\nHost: localhost\nTransfer-Encoding: chunked\n\nzz\n",
        ):  # fmt: skip
            assert "HTTP/1.1 4" in await http(port, torn)
    kept = json.loads(Place(tmp_path).address.read_text())
    assert kept["url"] == f"http://127.0.0.1:{port}"
    assert stat.S_IMODE(Place(tmp_path).token.stat().st_mode) == 0o600


@engine
async def test_it_comes_back_on_the_same_port_with_the_same_token(
    open_store: Callable[[], Store], tmp_path: Path, engine_path: Path
) -> None:
    store = open_store()
    async with served(store, tmp_path, engine_path) as first:
        pass
    async with served(store, tmp_path, engine_path) as second:
        assert first == second


@engine
async def test_the_slowest_question_delays_no_row_by_more_than_two_seconds(
    open_store: Callable[[], Store], tmp_path: Path, engine_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setitem(BOUNDS, "max_execution_time", 3)
    store = open_store()
    slow = "SELECT max(sipHash64(repeat(toString(number), 50))) FROM numbers(400000000)"
    row = {"generation": [1], "writer": ["a"], "at_ms": [1]}
    loop = asyncio.get_running_loop()
    async with served(store, tmp_path, engine_path) as place:
        more = f"X-ClickHouse-Key: {place['password']}\n"
        asks = [asyncio.create_task(http(place["port"], asked(slow, more=more))) for _ in range(2)]
        await asyncio.sleep(0.3)
        worst = 0.0
        while not all(task.done() for task in asks):
            began = loop.time()
            await asyncio.to_thread(store.insert, "writers", row)
            worst = max(worst, loop.time() - began)
        assert all("Code: 159" in task.result() for task in asks), "they were not the slowest"
    assert worst < 2.0
