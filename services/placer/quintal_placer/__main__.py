"""`python -m quintal_placer`: one placer."""

import sys

from quintal import process
from quintal_placer import app


def main() -> None:
    """Run until SIGTERM."""
    sys.exit(process.run(app.run))


if __name__ == "__main__":
    main()
