"""A line that cannot be read is named, whatever is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintal.errors import SetupError
from quintal_placer.simulate import trace


@pytest.mark.parametrize(
    "line",
    ['{"name":"a","model":"m","cards":1e999}', '{"name":"a","model":"m","cards":1,"rating":"inf"}',
     '{"name":' + "[" * 100_000, '{"name":"a","model":"m","cards":1,"rating":NaN}'],
)  # fmt: skip
def test_a_node_that_cannot_be_read_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "nodes.json"
    path.write_text(line)
    with pytest.raises(SetupError, match=r"nodes\.json:1"):
        trace.nodes(path)


@pytest.mark.parametrize("name", ["at_ms", "duration_ms"])
def test_a_time_that_is_none_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "requests.json"
    path.write_text('{"name":"a","%s":"soon"}' % name)  # noqa: UP031 - braces
    with pytest.raises(SetupError, match=r"requests\.json:1"):
        trace.requests(path)
