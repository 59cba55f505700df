"""The page on placement shows the lease machine as it is."""

from __future__ import annotations

from pathlib import Path

from quintal_placer.engine.leases import TABLE

PAGE = Path(__file__).parent.parent.parent / "docs" / "placement.md"


def test_the_page_has_the_table_of_the_code() -> None:
    yes = {True: "yes", False: "no"}
    for state, row in TABLE.items():
        leaves = ", ".join(row.leaves_by) or "-"
        cells = (
            state.value,
            yes[row.holds_devices],
            yes[row.holds_quota],
            row.paid_by,
            leaves,
        )
        assert f"| {' | '.join(cells)} |" in PAGE.read_text(), state
