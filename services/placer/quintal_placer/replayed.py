"""`quintal simulate --snapshot FILE --requests FILE`: requests decided on a saved snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import typer

from quintal.cli import render
from quintal.cli.render import Table
from quintal.errors import SetupError
from quintal_placer.replay import Replayed, replay

DIFFERS: Final = 1
COLUMNS: Final = ("tenant", "request", "verdict", "", "decision", "as then")


def show(snapshot: Path, requests: Path) -> None:
    """Decide each request of the file on the state of the snapshot; exit 1 where one differs.

    Each stands alone: none sees what another would have been given.
    """
    try:
        data, lines = snapshot.read_bytes(), requests.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise SetupError(
            f"{exc.filename if isinstance(exc, OSError) else requests}: {exc}"
        ) from exc
    found = replay(data, lines)
    known = [one for one in found if one.same is not None]
    same = sum(bool(one.same) for one in known)
    footer = f"{same} of {len(known)} whose decision was written down are the same"
    answer = {"decisions": [_plain(one) for one in found], "compared": len(known), "same": same}
    render.show(answer, Table(COLUMNS, [_row(one) for one in found], footer=footer))
    if same < len(known):
        raise typer.Exit(DIFFERS)


def _row(one: Replayed) -> tuple[object, ...]:
    same = {None: None, True: "yes", False: f"no: {one.before}"}[one.same]
    return (one.tenant, one.request_id, one.verdict, one.said, one.decision, same)


def _plain(one: Replayed) -> dict[str, object]:
    return {
        "tenant": one.tenant,
        "request_id": one.request_id,
        "verdict": one.verdict,
        "said": one.said,
        "decision": one.decision,
        "before": one.before,
        "same": one.same,
    }
