"""Break each law once, on purpose, and see the test that names it fail.

    python tests/mutants/run.py [PART OF A NAME ...]

Each `*.patch` here begins with a line that names the test that must fail. The tree is copied, the
patch applied to the copy, and the test run there: once as it is, where it must pass, and once
broken, where it must fail.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MUST_FAIL = re.compile(r"Must fail: (\S+)")
SERVICES = ("agent", "catalog", "placer", "metering")
DEADLINE_S = 600


def main(wanted: list[str]) -> int:
    """Run all, or those whose name holds one of `wanted`; gives the number that survived."""
    patches = [
        patch
        for patch in sorted(HERE.glob("*.patch"))
        if not wanted or any(part in patch.name for part in wanted)
    ]
    sound: dict[str, bool] = {}
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        for patch in patches:
            test = _test_of(patch)
            if test not in sound:
                sound[test] = _passes(_tree(Path(folder) / "sound"), test)
            verdict = _verdict(patch, test, Path(folder) / "broken", sound=sound[test])
            print(f"{verdict:>9}  {patch.name}", flush=True)
            if verdict != "killed":
                survivors.append(patch.name)
    print(f"{len(patches) - len(survivors)} of {len(patches)} killed")
    return len(survivors)


def _verdict(patch: Path, test: str, tree: Path, *, sound: bool) -> str:
    if not sound:
        return "unsound"  # its test fails without it
    _tree(tree)
    applied = subprocess.run(
        ["git", "apply", "--recount", "--whitespace=nowarn", str(patch)],
        cwd=tree,
        check=False,
        capture_output=True,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)},
    )
    if applied.returncode != 0:
        return "stale"  # the code moved on: make the patch anew
    return "survived" if _passes(tree, test) else "killed"


def _test_of(patch: Path) -> str:
    first = patch.read_text(encoding="utf-8").splitlines()[0]
    found = MUST_FAIL.search(first)
    if found is None:
        sys.exit(f"{patch.name}: its first line names no test")
    return found[1]


def _tree(into: Path) -> Path:
    """A copy of what the tests need, as it lies in the working tree."""
    shutil.rmtree(into, ignore_errors=True)
    for name in ("quintal", "services", "tests", "deploy"):
        shutil.copytree(ROOT / name, into / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", into)
    return into


def _passes(tree: Path, test: str) -> bool:
    paths = [tree, *(tree / "services" / name for name in SERVICES)]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test],
        cwd=tree,
        env=env,
        check=False,
        capture_output=True,
        timeout=DEADLINE_S,
    )
    if ran.returncode not in {0, 1}:
        sys.exit(ran.stdout.decode()[-4000:] + ran.stderr.decode()[-2000:])
    return ran.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
