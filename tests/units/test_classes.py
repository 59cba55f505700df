"""Each class has a unit, a reference precision, and one list of names for all parts."""

from __future__ import annotations

from quintal.contracts.spec import check_class_names
from quintal.units import CLASSES, REFERENCE_PRECISIONS, UNIT_NAMES


def test_every_class_names_the_precision_that_holds_when_none_is_named() -> None:
    assert set(REFERENCE_PRECISIONS) == set(CLASSES)
    assert set(UNIT_NAMES) <= set(CLASSES)
    check_class_names()
