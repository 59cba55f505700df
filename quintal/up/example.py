"""Prints an example of the server's configuration, with names where keys and tokens stand.

    python -m quintal.up.example > deploy/nats/nats-server.conf

A real one holds this installation's tokens: `quintal up` writes it to DIR/nats, and
`quintal auth config` prints it for a server that is run by other means.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Final

from quintal.auth import Authority, Listen

HEAD: Final = """\
# nats-server for Quintal: an example, made by `make docs` from the code that writes the real one.
# `quintal auth config` prints it with an installation's own keys; see deploy/README.md.
"""


def text() -> str:
    """The example; the same every time."""
    with tempfile.TemporaryDirectory() as folder:
        listen = Listen(Path("/var/lib/nats"), port=4222, monitor_port=8222, host="0.0.0.0")  # noqa: S104
        config = Authority(Path(folder) / "auth").server_config(listen)
    accounts = iter(("SYS_ACCOUNT_KEY", "SYS_ACCOUNT_KEY", "QUINTAL_ACCOUNT_KEY"))
    config = re.sub(r"\bA[A-Z2-7]{55}\b", lambda _: f"<{next(accounts)}>", config)
    tokens = iter(("OPERATOR_TOKEN", "SYS_ACCOUNT_TOKEN", "QUINTAL_ACCOUNT_TOKEN"))
    return HEAD + re.sub(r"\bey[\w-]+\.[\w-]+\.[\w-]+", lambda _: f"<{next(tokens)}>", config)


if __name__ == "__main__":
    sys.stdout.write(text())
