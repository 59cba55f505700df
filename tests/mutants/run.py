"""Applies each patch of this folder to a copy of the checkout and sees the named test fail.

    python -m tests.mutants.run [WORD ...]      only patches whose name has one of the words

A patch begins with `# Breaks ... Must fail: TEST`. A test that still passes with its patch applied
proves nothing, and a patch that no longer applies is to be made anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDER = Path(__file__).parent
PACKAGES = (".", "services/agent", "services/catalog", "services/placer", "services/metering")


def main(words: list[str]) -> int:
    """0 if every patch made its test fail."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", "quintal-data", ".*_cache")
        shutil.copytree(ROOT, copy, ignore=ignored)
        for patch in sorted(FOLDER.glob("*.patch")):
            if not words or any(word in patch.name for word in words):
                said = _tried(copy, patch)
                wrong += said != "caught"
                print(f"{said:<16} {patch.name}", flush=True)
    return 1 if wrong else 0


def _tried(copy: Path, patch: Path) -> str:
    test = patch.read_text().split("Must fail:", 1)[1].splitlines()[0].strip()
    if _git_apply(copy, patch, "--check"):
        return "does not apply"
    _git_apply(copy, patch)
    try:
        paths = os.pathsep.join(str(copy / package) for package in PACKAGES)
        env = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, check=False)
        return {0: "NOT CAUGHT", 1: "caught"}.get(done.returncode, f"broken ({done.returncode})")
    finally:
        _git_apply(copy, patch, "--reverse")


def _git_apply(copy: Path, patch: Path, *more: str) -> int:
    command = ["git", "apply", *more, str(patch)]
    return subprocess.run(command, cwd=copy, capture_output=True, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
