"""Workload documents: one piece of work, as built for each ecosystem or to be built for it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from quintal.contracts.boundaries import Accepted, Component, Mode, VersionBound
from quintal.contracts.message import Exact, Name
from quintal.contracts.spec import Spec


class Part(Spec):
    """Something that a variant's image brings."""

    component: Component
    name: str
    version: str = ""


class Variant(Spec):
    """The workload as built for one ecosystem."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    runtime: str
    """cuda, rocm, cann, ..., cpu: the ecosystem; a model's own must be the same."""
    runtime_version: str = ""
    """What the image was built with: `12.4`; empty: nobody knows, and then nobody can judge."""
    image: str = ""
    args: tuple[str, ...] = ()
    format: str = ""
    """Of the weights: safetensors, gguf, onnx, om, ..."""
    precision: str = ""
    modes: tuple[Mode, ...] = ()
    """How it runs; boundaries may tell modes apart."""
    parts: tuple[Part, ...] = ()
    """Frameworks, libraries, serving engine, compiler that the image brings."""
    requires: tuple[VersionBound, ...] = ()
    """What the image itself asks of its node, beyond what boundaries know."""
    features: tuple[str, ...] = ()
    """Of the card, beside the precision; all of them."""
    memory: str = ""
    """Per card, such as `80GB..`."""
    cards: Annotated[int, Field(ge=1, le=100_000)] = 1
    nodes: Annotated[int, Field(ge=1, le=10_000)] = 1


class Conversion(Spec):
    """A way from one variant to another ecosystem: what it takes, who approved it."""

    source: str
    """The variant it starts from."""
    target: Variant
    """What comes out of it; it exists once somebody did the work."""
    toolchain: str
    """hipify, optimum-habana, atc, torch-mlir, ..."""
    cost: Exact | None = None
    """One-off, in the installation's currency; none: not known."""
    effort: str = ""
    approved: bool = False
    approved_by: str = ""
    notes: str = ""


class WorkloadSpec(Spec):
    """One piece of work and its variants, the best liked first."""

    title: str = ""
    profile: Name
    """What it is asked under: class, counts, node."""
    variants: tuple[Variant, ...]
    """At least one."""
    conversions: tuple[Conversion, ...] = ()
    model_type: str = ""
    """What kind of model it runs (llama, resnet, ...), where pools approve these."""
    expected_unit_hours: Exact | None = None
    """For one run, in the profile's class; with prices it gives the expected cost."""
    accept: Accepted | None = None
    """Narrower than the profile's."""
    tenants: tuple[Name, ...] = ()
    """Who may see and ask for it; empty: everybody."""

    @model_validator(mode="after")
    def _names_agree(self) -> WorkloadSpec:
        if not self.variants:
            raise ValueError("a workload needs a variant at least")
        names = [variant.name for variant in self.variants]
        names += [conversion.target.name for conversion in self.conversions]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"variant {twice[0]} stands twice")
        built = {variant.name for variant in self.variants}
        for conversion in self.conversions:
            if conversion.source not in built:
                raise ValueError(f"conversion from {conversion.source}: no such variant")
        return self

    def variant(self, name: str) -> Variant | None:
        """A variant that exists, by its name."""
        return next((variant for variant in self.variants if variant.name == name), None)
