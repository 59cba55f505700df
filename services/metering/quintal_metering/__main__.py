"""`python -m quintal_metering`."""

from __future__ import annotations

import sys

from quintal import process
from quintal_metering.app import main as body


def main() -> None:
    """Run the service; the exit status is the process's."""
    sys.exit(process.run(body))


if __name__ == "__main__":
    main()
