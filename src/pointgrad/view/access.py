"""HTTP and websocket requests that a viewer accepts."""

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

UNKNOWN_HOST = "The host name of this address is not allowed: add it with --allow-host."
OTHER_SITE = "Only pages of this viewer may connect."
NO_TOKEN = "Open the complete address that the viewer printed: it contains a token."


@dataclass(frozen=True)
class Access:
    """Rules for requests.

    A page of any website can send requests to this machine, either openly (then `Origin` differs from `Host`), or
    under a name of its own that it lets point to this machine (DNS rebinding: then `Host` is that name).

    Attributes:
        names: Accepted host names besides loopback names, in lower case.
        addresses: Whether any IP address is accepted as host name; only names can be rebound.
        token: First component of the path of every request; empty if none is needed.
    """

    names: frozenset[str] = frozenset()
    addresses: bool = False
    token: str = ""

    @property
    def path(self) -> str:
        """Path of the page."""
        return f"/{self.token}/" if self.token else "/"

    def refusal(self, path: str, hosts: Sequence[str], origin: str | None) -> str | None:
        """The reason to reject a request; None if it is accepted.

        Args:
            path: Requested path.
            hosts: Values of all `Host` headers.
            origin: Value of the `Origin` header, which browsers send; None if it is missing.
        """
        if len(hosts) != 1 or not self._is_accepted(_host_name(hosts[0])):
            return UNKNOWN_HOST
        if origin is not None and origin.partition("://")[2] != hosts[0]:
            return OTHER_SITE
        if self.token and self.inner_path(path) is None:
            return NO_TOKEN
        return None

    def inner_path(self, path: str) -> str | None:
        """The path without the token; None if the token is wrong."""
        if not self.token:
            return path
        start = len(self.token) + 1
        known = hmac.compare_digest(path[:start].encode(), f"/{self.token}".encode())
        if not known or path[start : start + 1] not in ("", "/", "?"):
            return None
        return "/" + path[start:].removeprefix("/")

    def _is_accepted(self, name: str) -> bool:
        return is_local(name) or name in self.names or (self.addresses and _is_address(name))


def rules(host: str, allow_hosts: Collection[str] = (), token: bool | None = None) -> Access:
    """Rules of a server.

    Args:
        host: Address that the server listens on.
        allow_hosts: Additional host names that are accepted.
        token: Whether a token is needed; by default, unless `host` is a loopback address.

    Returns:
        The rules, with a new token if one is needed.

    Raises:
        ValueError: If an allowed host name is not a name without a port.
    """
    for name in allow_hosts:
        if not name or _host_name(name) != name.lower().rstrip("."):
            raise ValueError(f"an allowed host must be a name without a port, got {name!r}")
    local = is_local(host)
    names = {_host_name(name) for name in allow_hosts}
    names |= set() if local else {host.lower(), socket.gethostname().lower()}
    needed = not local if token is None else token
    return Access(frozenset(names), not local, secrets.token_urlsafe(16) if needed else "")


def is_local(host: str) -> bool:
    """Whether an address or a name stands for this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _host_name(host: str) -> str:
    """Name in a `Host` header, in lower case and without the port; empty if it is malformed."""
    try:
        split = urlsplit(f"//{host}")
        well_formed = split.netloc == host and "@" not in host and split.port != 0  # an invalid port raises here
    except ValueError:
        return ""
    return (split.hostname or "").rstrip(".") if well_formed else ""
