"""Web server of a viewer: by default on localhost and on a free port."""

import errno
import logging
import socket
from collections.abc import Collection
from typing import TYPE_CHECKING

from pointgrad.view import display
from pointgrad.view.access import is_local, rules

if TYPE_CHECKING:
    import viser

    from pointgrad.view.guard import GuardedServer

PORT = 8080  # first port that is tried if none is given
TRIED = 100  # number of ports that are tried


def start(
    host: str,
    port: int | None,
    label: str,
    *,
    allow_hosts: Collection[str] = (),
    token: bool | None = None,
    verbose: bool = True,
) -> "GuardedServer":
    """Start a server.

    Args:
        host: Address to listen on.
        port: Port to listen on; None for the first free port from 8080 on.
        label: Title of the page.
        allow_hosts: Host names that are accepted in requests, besides loopback names and, if the server listens on
            other addresses, IP addresses and the name of this machine.
        token: Whether the path of the page contains a secret token, without which no request is answered. By default,
            unless `host` is a loopback address.
        verbose: Whether to print when the last browser disconnects.

    Returns:
        The running server.

    Raises:
        ValueError: If viser is not installed, the server cannot listen on this address and port, or `allow_hosts`
            contains something other than host names.
    """
    try:
        from pointgrad.view.guard import GuardedServer
    except ModuleNotFoundError as error:
        raise ValueError(f"the viewer needs {error.name}: pip install 'pointgrad[view]'") from None
    access = rules(host, allow_hosts, token)
    logging.getLogger("websockets").setLevel(logging.CRITICAL)  # a disconnecting browser is not an error
    if port is not None:
        _check(host, port)
    server = GuardedServer(host, port if port is not None else _free(host), label, access)
    if port is not None and server.get_port() != port:  # taken since the check: viser silently uses the next port
        server.stop()
        raise ValueError(f"port {port} on {host} must be free, but another program has just taken it")
    server.scene.set_up_direction("+z")
    server.run_script(display.script())

    def disconnected(client: "viser.ClientHandle") -> None:
        if verbose and not server.get_clients():
            print(f"last browser disconnected; still serving {address(server)} until Ctrl-C", flush=True)

    server.on_client_disconnect(disconnected)
    return server


def address(server: "GuardedServer") -> str:
    """URL to open in a browser, including the token."""
    host, path = server.get_host(), server.access.path
    shown = "localhost" if is_local(host) else socket.gethostname() if host in ("0.0.0.0", "::") else host
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{server.get_port()}{path if path != '/' else ''}"


def _free(host: str) -> int:
    for port in range(PORT, PORT + TRIED):
        if not _taken(host, port):
            return port
    raise ValueError(f"at least one port from {PORT} to {PORT + TRIED - 1} on {host} must be free, none is")


def _taken(host: str, port: int) -> bool:
    try:
        _bind(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return True
        raise ValueError(f"host must be an address of this machine, got {host}: {error.strerror}") from None
    return False


def _check(host: str, port: int) -> None:
    if not 0 < port < 65536:
        raise ValueError(f"port must be between 1 and 65535, got {port}")
    try:
        _bind(host, port)
    except OSError as error:
        raise ValueError(f"cannot listen on port {port} of {host}: {error.strerror or error}") from None


def _bind(host: str, port: int) -> None:
    family, kind, protocol, _, bind_address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just closed is free
        probe.bind(bind_address)
