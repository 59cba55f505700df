"""Boundary documents: what is known of which software runs on which hardware, and how it is known.

One document is one statement: for these models and these versions (`when`), in these modes, it is
so (`verdict`) if every bound of `requires` holds, and `otherwise` if one fails; `exclusions` are
blocked whatever else is said. What the statements add up to is `quintal.compatibility`.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from quintal.contracts.message import Message, Name
from quintal.contracts.spec import Spec
from quintal.errors import Owner
from quintal.versions import parse_range

Component = Literal[
    "driver",
    "firmware",
    "runtime",
    "compiler",
    "library",
    "framework",
    "serving_engine",
    "image",
    "format",
]
"""What has a version. A node brings driver, firmware and what is installed on it; a workload's
image brings the rest, and where both have one (a runtime), the image's is used."""

CompatibilityVerdict = Literal["validated", "supported_unvalidated", "unknown", "blocked"]
"""Best first. `validated`: somebody ran this very combination, see the evidence.
`supported_unvalidated`: its vendor says that it runs. `unknown`: nobody said. `blocked`: it does
not run, or must not."""

Accepted = Literal["validated", "supported_unvalidated", "unknown"]
"""The lowest verdict that policy accepts; `blocked` never is."""


def _range_reads(text: str) -> str:
    parse_range(text)
    return text


Versions = Annotated[str, AfterValidator(_range_reads)]
"""`>=525.60.13, <580`, `==12.4.* | >=12.6`, `*`; the ends of `>=` and `<=` belong to it."""

Mode = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,64}$")]
"""A way of running: `minor_version_compatibility`, `ptx_jit`, `training`, `multi_node`, ..."""


class VersionBound(Spec):
    """Versions of one component."""

    component: Component
    name: str
    """nvidia, cuda, pytorch, vllm, onnx, ..., in lower case. Of `driver` and `firmware`: the
    vendor."""
    versions: Versions = "*"
    holes: tuple[Versions, ...] = ()
    """Versions inside the range that are known not to do."""
    owner: Owner | None = None
    """Whose move it is when this fails; else infrastructure's for driver and firmware, and the
    submitter's for what an image brings."""


class Exclusion(Spec):
    """A combination that does not run: all that is given must hold."""

    when: tuple[VersionBound, ...] = ()
    modes: tuple[Mode, ...] = ()
    """Any of these."""
    precisions: tuple[str, ...] = ()
    """Any of these."""
    reason: Annotated[str, Field(min_length=1)]

    @model_validator(mode="after")
    def _says_something(self) -> Exclusion:
        if not (self.when or self.modes or self.precisions):
            raise ValueError("an exclusion needs versions, modes or precisions")
        return self


class BoundarySpec(Spec):
    """One statement on what runs where. Selectors that are empty hold for all."""

    title: str = ""
    runtimes: tuple[str, ...] = ()
    """Of these ecosystems (cuda, rocm, cann, ...)."""
    vendors: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    models: tuple[Name, ...] = ()
    modes: tuple[Mode, ...] = ()
    """Only for work that runs in one of these."""
    precisions: tuple[str, ...] = ()
    when: tuple[VersionBound, ...] = ()
    """Only for these versions; a component that is not there at all is not concerned."""
    requires: tuple[VersionBound, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()
    verdict: Literal["validated", "supported_unvalidated", "unknown"] = "supported_unvalidated"
    """Where every bound of `requires` holds."""
    otherwise: Literal["unknown", "blocked"] = "blocked"
    """Where one fails. `unknown` for a list of what was tried, `blocked` for a floor."""
    source: Annotated[str, Field(min_length=1)]
    """Who says so: document, table, date; or who tried it here."""
    evidence: tuple[str, ...] = ()
    """What was run and what came of it; `validated` needs it."""
    expires: str = ""
    """The last day (2027-12-31, UTC) on which the verdict may be relied on; then it is unknown.
    What is blocked stays blocked."""

    @model_validator(mode="after")
    def _is_whole(self) -> BoundarySpec:
        if self.expires:
            dt.date.fromisoformat(self.expires)
        if self.verdict == "validated" and not self.evidence:
            raise ValueError("validated needs evidence: what was run, and what came of it")
        if not (self.requires or self.exclusions or self.verdict != "unknown"):
            raise ValueError("says nothing: give requires, exclusions or a verdict")
        return self


class NodeStack(Message):
    """The software of a node, in the words of bounds: name -> version."""

    drivers: dict[str, str] = Field(default_factory=dict)
    runtimes: dict[str, str] = Field(default_factory=dict)
    firmware: dict[str, str] = Field(default_factory=dict)
