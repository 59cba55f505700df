"""What the options that every command has say, for this run. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Output(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@dataclass(slots=True)
class Chosen:
    """One command line's."""

    output: Output = Output.TABLE
    data: Path | None = None
    principal: str = ""
    tenant: str = ""

    def forget(self) -> None:
        """Another command line of the same process begins."""
        self.output, self.data = Output.TABLE, None
        self.principal = self.tenant = ""


chosen = Chosen()
