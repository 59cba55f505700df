"""The first revision of a new installation: the starter catalog, from the package's own YAML."""

from __future__ import annotations

import logging
from importlib.resources import files

from quintal.contracts.catalog import ApplyAsk, SourceFile
from quintal.errors import Code, Refused, SetupError
from quintal_catalog.handlers import Handlers
from quintal_catalog.store import Store

log = logging.getLogger(__name__)

AUTHOR = "quintal"


def starter() -> tuple[SourceFile, ...]:
    """The starter catalog's files, by name."""
    found = sorted(
        (
            item
            for item in files("quintal_catalog.starter").iterdir()
            if item.name.endswith(".yaml")
        ),
        key=lambda item: item.name,
    )
    return tuple(
        SourceFile(path=f"starter/{item.name}", text=item.read_text(encoding="utf-8"))
        for item in found
    )


async def begin(store: Store, handlers: Handlers) -> None:
    """Apply the starter catalog where there is no revision yet. Raises SetupError if it cannot."""
    if (await store.standing()).catalog.revision:
        return
    ask = ApplyAsk(files=starter(), why="starter catalog", base_revision=0)
    try:
        await handlers.put(AUTHOR, ask)
    except Refused as exc:
        if exc.code is not Code.CONFLICT:
            raise SetupError(f"applying the starter catalog: {exc.details}") from exc
        log.info("another was first: its catalog stands")
