"""Who may speak: one operator, one account, a signing key per role, a credential per principal.

The permissions of a role stand in its *scoped signing key*, inside the account's token, and are
made anew from the typed subjects at each start of the server; a user's own token carries none.
So a credential issued once follows the subjects as they grow, and issuing one needs no word to
the running server. `{{name()}}` in a template is the credential's name; hence a name is exactly
one subject token: a dot in it would widen every subject by one.

    DIR/keys.json          seeds of operator, account and roles    0600
    DIR/principals.json    {principal: role}                       0600
    DIR/creds/NAME.creds   one principal's token and seed          0600
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from quintal import nkey
from quintal.clock import Clock, SystemClock
from quintal.contracts.permissions import permissions
from quintal.contracts.subjects import Role
from quintal.errors import SetupError
from quintal.nkey import Kind
from quintal.settings import Access

ACCOUNT: Final = "QUINTAL"

RESPONSE_TTL_S: Final = 15
"""How long an agent may take to answer a request: more than a bind's 10 s."""

FILE_BYTES_MAX: Final = 64 * 2**30
"""What JetStream may reserve. The server's own default is a share of the free disk, so that the
same streams could be declared on one machine and not on another."""

PAYLOAD_BYTES_MAX: Final = 8 * 2**20
"""One message at most: a catalog as files, or the answer about a large fleet."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_RESERVED: Final = re.compile(
    r"(catalog|metering|placer(-[a-z0-9]+)?)(-front)?|bootstrap|operator|finance|sys"
)
"""Names of services and their like: never a tenant's, never a node's."""

_UNLIMITED: Final = {"subs": -1, "data": -1, "payload": -1}


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the server listens and keeps its files. Port -1 lets the server choose."""

    store: Path
    port: int = -1
    monitor_port: int = -1
    host: str = "127.0.0.1"
    name: str = "quintal"
    ports_dir: Path | None = None
    """Where the server writes the ports it chose."""


@dataclass(frozen=True, slots=True)
class _Keys:
    operator: str = field(repr=False)
    system: str = field(repr=False)
    account: str = field(repr=False)
    roles: dict[str, str] = field(repr=False)


class Authority:
    """The identities of one installation, kept in a directory that only its owner can read."""

    def __init__(self, directory: Path, clock: Clock | None = None) -> None:
        """Load `directory`, or make it and its keys. Raises SetupError where that fails."""
        self.directory = directory
        self.credentials = directory / "creds"
        self.registry = directory / "principals.json"
        self._clock = clock or SystemClock()
        try:
            for folder in (directory, self.credentials):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.chmod(0o700)
            with self._locked():
                self._keys = self._load_keys()
        except (OSError, ValueError, KeyError) as exc:
            raise SetupError(f"the identities in {directory} cannot be read or made") from exc

    def principals(self) -> dict[str, Role]:
        """Everybody who was issued a credential, with their role."""
        if not self.registry.exists():
            return {}
        found: dict[str, str] = json.loads(self.registry.read_text())
        return {name: Role(role) for name, role in found.items()}

    def issue(self, principal: str, role: Role) -> Path:
        """The credentials file of `principal`: made at the first call, the same at every other.

        Raises SetupError for a name that is no subject token, is a service's, or has another role.
        """
        check_name(principal, role)
        path = self.credentials / f"{principal}.creds"
        with self._locked():
            known = self.principals()
            if known.get(principal, role) is not role:
                raise SetupError(
                    f"{principal} is already a {known[principal]}: choose another name"
                )
            if principal not in known or not path.is_file():
                _write_secret(path, self._credentials(principal, role))
                known[principal] = role
                _write_secret(self.registry, json.dumps(known, indent=1, sort_keys=True) + "\n")
        return path

    def access(self, url: str, principal: str, role: Role) -> Access:
        """How `principal` reaches the server at `url`; issues its credentials where needed."""
        return Access(url, self.issue(principal, role), principal)

    def server_config(self, listen: Listen) -> str:
        """The text of the server's configuration: durable, with these identities and no others."""
        keys = self._keys
        system, account = nkey.public(keys.system), nkey.public(keys.account)
        lines = [
            f"server_name: {json.dumps(listen.name)}",
            f'listen: "{listen.host}:{listen.port}"',
            f'http: "127.0.0.1:{listen.monitor_port}"',
            f"max_payload: {PAYLOAD_BYTES_MAX}",
            'write_deadline: "10s"',
            "max_connections: 65536",
            "jetstream {",
            f"  store_dir: {json.dumps(str(listen.store))}",
            "  # The ledger is acknowledged only after fsync; services check this at /varz.",
            "  sync_interval: always",
            f"  max_file_store: {FILE_BYTES_MAX}",
            "}",
            f"operator: {self._operator_token()}",
            f"system_account: {system}",
            "resolver: MEMORY",
            "resolver_preload {",
            f"  {system}: {self._account_token('SYS', keys.system, {})}",
            f"  {account}: {self._account_token(ACCOUNT, keys.account, self._account_claims())}",
            "}",
        ]
        if listen.ports_dir is not None:
            lines.insert(3, f"ports_file_dir: {json.dumps(str(listen.ports_dir))}")
        return "\n".join(lines) + "\n"

    # --- tokens -------------------------------------------------------------------------------

    def _credentials(self, principal: str, role: Role) -> str:
        seed = nkey.new_seed(Kind.USER)
        claims = {
            "name": principal,
            "nats": {
                "type": "user",
                "version": 2,
                "issuer_account": nkey.public(self._keys.account),
            },
        }
        signer = self._keys.roles[role]
        return nkey.credentials(self._sign(claims, nkey.public(seed), signer), seed)

    def _operator_token(self) -> str:
        claims = {"name": "quintal", "nats": {"type": "operator", "version": 2}}
        return self._sign(claims, nkey.public(self._keys.operator), self._keys.operator)

    def _account_token(self, name: str, seed: str, more: dict[str, Any]) -> str:
        claims = {"name": name, "nats": {"type": "account", "version": 2, **_limits(more), **more}}
        return self._sign(claims, nkey.public(seed), self._keys.operator)

    def _account_claims(self) -> dict[str, Any]:
        scopes = [self._scope(role, self._keys.roles[role]) for role in Role]
        return {"signing_keys": scopes}

    def _scope(self, role: Role, seed: str) -> dict[str, Any]:
        allowed = permissions(role)
        # To the server an empty list means "everything".
        assert allowed.publish, f"{role} may publish nothing"
        assert allowed.hear, f"{role} may hear nothing"
        template: dict[str, Any] = {
            "pub": {"allow": list(allowed.publish)},
            "sub": {"allow": list(allowed.hear)},
            **_UNLIMITED,
        }
        if allowed.responses:
            template["resp"] = {"max": 1, "ttl": RESPONSE_TTL_S * 1_000_000_000}
        return {
            "kind": "user_scope",
            "key": nkey.public(seed),
            "role": str(role),
            "template": template,
        }

    def _sign(self, claims: dict[str, Any], subject: str, seed: str) -> str:
        issued_s = self._clock.now_ms() // 1000
        return nkey.token(claims, subject=subject, issued_s=issued_s, seed=seed)

    # --- files --------------------------------------------------------------------------------

    def _load_keys(self) -> _Keys:
        path = self.directory / "keys.json"
        kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        roles = kept.get("roles", {})
        keys = _Keys(
            operator=kept.get("operator") or nkey.new_seed(Kind.OPERATOR),
            system=kept.get("system") or nkey.new_seed(Kind.ACCOUNT),
            account=kept.get("account") or nkey.new_seed(Kind.ACCOUNT),
            roles={str(role): roles.get(role) or nkey.new_seed(Kind.ACCOUNT) for role in Role},
        )
        if asdict(keys) != kept:
            _write_secret(path, json.dumps(asdict(keys), indent=1) + "\n")
        return keys

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time: `up` and `auth add` may meet."""
        handle = os.open(self.directory / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def is_reserved(name: str) -> bool:
    """Whether a service or one of the people who run it is called so."""
    return _RESERVED.fullmatch(name.lower()) is not None


def check_name(principal: str, role: Role) -> None:
    """Raises SetupError for a name that cannot be this role's."""
    if not _TOKEN.fullmatch(principal):
        raise SetupError(
            f"{principal!r} cannot be a principal: use 1 to 64 letters, digits, _ or -"
        )
    if role in {Role.TENANT, Role.AGENT} and is_reserved(principal):
        raise SetupError(f"{principal} is reserved for a service: choose another name")


def _limits(more: dict[str, Any]) -> dict[str, Any]:
    stored = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    everywhere = {"imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
    # The system account has no JetStream: the server refuses to start otherwise.
    return {"limits": {**_UNLIMITED, **everywhere, **(stored if more else {})}}


def _write_secret(path: Path, text: str) -> None:
    """Whole or not at all, and nobody else's to read from the first byte on."""
    draft = path.with_name(f".{path.name}.new")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
