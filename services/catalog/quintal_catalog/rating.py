"""What a model is worth, as an answer: which rating applies, before which others, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Final

from quintal.contracts.catalog import RateAsk, Rated, RatingRow
from quintal.contracts.documents import Catalog, Rating
from quintal.contracts.spec import WorkloadClass
from quintal.errors import Code, Refused
from quintal.names import meant
from quintal.roofline import estimate
from quintal.units import CLASSES, unit_name
from quintal_catalog.model_rules import REFERENCE

_STEP: Final = Decimal("0.000001")


def rated(catalog: Catalog, ask: RateAsk) -> Rated:
    """The answer. Raises Refused where no model has the name, or several do."""
    model = _model(catalog, ask.model)
    spec = catalog.models[model]
    wanted = _classes(ask)
    rows = [row for name in wanted for row in _rows(catalog, model, name, ask.precision)]
    unrated = tuple(name for name in wanted if all(row.workload_class != name for row in rows))
    return Rated(
        revision=catalog.revision,
        model=model,
        title=spec.title,
        reference=REFERENCE,
        rows=tuple(rows),
        unrated=unrated,
        proposals=tuple(
            row for name in unrated if (row := _proposal(catalog, model, name)) is not None
        ),
    )


def _classes(ask: RateAsk) -> tuple[WorkloadClass, ...]:
    known: tuple[WorkloadClass, ...] = CLASSES
    return known if ask.workload_class is None else (ask.workload_class,)


def _model(catalog: Catalog, text: str) -> str:
    """By the document's name, else by a name of its match rules, whole and without case."""
    if text in catalog.models:
        return text
    folded = _fold(text)
    named = {
        name
        for name, spec in catalog.models.items()
        if folded in {_fold(name), *(_fold(word) for rule in spec.match for word in rule.names)}
    }
    if len(named) == 1:
        return named.pop()
    if named:
        message = f"{text!r} may be {' or '.join(sorted(named))}: give one of these"
    else:
        message = f"there is no AcceleratorModel {text!r}{meant(text, catalog.models)}"
    raise Refused(Code.NOT_FOUND, message)


def _fold(text: str) -> str:
    return " ".join(text.split()).casefold()


def _rows(
    catalog: Catalog, model: str, workload_class: WorkloadClass, precision: str
) -> Iterator[RatingRow]:
    applies = catalog.rating(model, workload_class, precision)
    ratings = [
        rating
        for rating in catalog.models[model].ratings
        if rating.workload_class == workload_class
    ]
    order = ("operator", "measured", "benchmark", "derived", "roofline")
    ratings.sort(key=lambda r: (r is not applies, r.precision, order.index(r.provenance)))
    for rating in ratings:
        yield _row(catalog, model, rating, applies=rating is applies)


def _row(catalog: Catalog, model: str, rating: Rating, *, applies: bool) -> RatingRow:
    watts = catalog.watts(model, rating.workload_class)
    per_watt = None
    if watts is not None and rating.per == "device":
        per_watt = format((rating.value / watts[0]).quantize(_STEP, ROUND_HALF_EVEN), "f")
    return RatingRow(
        workload_class=rating.workload_class,
        unit=unit_name(rating.workload_class),
        precision=rating.precision,
        value=rating.value,
        low80=rating.low80,
        high80=rating.high80,
        per=rating.per,
        provenance=rating.provenance,
        estimated=rating.estimated,
        override=rating.provenance == "operator",
        evidence=rating.evidence,
        date=rating.date,
        version=rating.version,
        document=_source(catalog, model, rating),
        applies=applies,
        units_per_watt=per_watt,
        watts=watts[0] if watts else None,
        watts_from=watts[1] if watts else "",
    )


def _source(catalog: Catalog, model: str, rating: Rating) -> str:
    for (kind, name), document in sorted(catalog.documents.items()):
        if kind == "Rating" and document.spec.model == model and rating in document.spec.ratings:
            return f"{kind}/{name}"
    return f"AcceleratorModel/{model}"


def _proposal(catalog: Catalog, model: str, workload_class: WorkloadClass) -> RatingRow | None:
    """What the formula says where no document does; for whole accelerators only."""
    spec = catalog.models[model]
    if spec.kind != "accelerator" or spec.form_factor in {"MIG", "partition"}:
        return None
    found = estimate(spec.figures(), workload_class)
    if found is None:
        return None
    rating = Rating(
        workload_class=workload_class,
        value=found.value,
        low80=found.low80,
        high80=found.high80,
        provenance="roofline",
        evidence=found.evidence,
    )
    return _row(catalog, model, rating, applies=False)
