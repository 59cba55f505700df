"""The boards are what Grafana's own published types say a dashboard is, where npm is at hand."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

BOARDS = sorted((Path(__file__).parents[2] / "deploy/grafana/dashboards").glob("*.json"))
PACKAGES = ("@grafana/schema@12.4.11", "typescript@5.9.3")
NPM_S = 90

# In JSON an enumeration's member is its text, so each is read as the texts that it stands for.
HEAD = """\
import type { Dashboard, Panel } from '@grafana/schema';
type Plain<T> = T extends string ? `${T}` : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
"""
OPTIONS = (
    "--noEmit", "--strict", "--skipLibCheck", "--target", "esnext", "--module", "esnext",
    "--moduleResolution", "bundler",
)  # fmt: skip


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the types and the compiler in it; skips where they are not to be had."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not on this machine")
    folder = tmp_path_factory.mktemp("types")
    quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--silent", "--prefix", str(folder))
    try:
        subprocess.run(
            [npm, "install", *quiet, *PACKAGES], check=True, timeout=NPM_S, capture_output=True
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip(f"npm does not give {' and '.join(PACKAGES)}")
    return folder


def compiled(folder: Path, text: str) -> str:
    (folder / "boards.ts").write_text(HEAD + text)
    done = subprocess.run(
        [folder / "node_modules/.bin/tsc", *OPTIONS, "boards.ts"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return done.stdout


@pytest.mark.timeout(180)
def test_every_board_and_panel_is_of_the_published_type(compiler: Path) -> None:
    lines = []
    for path in BOARDS:
        board = json.loads(path.read_text())
        lines.append(f"export const {path.stem}: Plain<Dashboard> = {json.dumps(board)};")
        for panel in board["panels"]:
            name = f"{path.stem}_{panel['id']}"
            lines.append(f"export const {name}: Plain<Panel> = {json.dumps(panel)};")
    assert compiled(compiler, "\n".join(lines)) == ""
    wrong = 'const wrong: Plain<Panel> = {"type": 7, "fieldConfg": {}};'
    assert "error TS" in compiled(compiler, wrong), "the compiler finds fault with nothing"
