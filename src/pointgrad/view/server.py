"""Web server of a viewer: by default on localhost and on a free port."""

import contextlib
import errno
import http
import io
import ipaddress
import logging
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import viser

PORT = 8080  # first port that is tried if none is given
TRIED = 100  # number of ports that are tried


def start(host: str, port: int | None, label: str) -> "viser.ViserServer":
    """Start a server.

    Args:
        host: Address to listen on.
        port: Port to listen on; None for the first free port from 8080 on.
        label: Title of the page.

    Returns:
        The running server.

    Raises:
        ValueError: If viser is not installed or the server cannot listen on this address and port.
    """
    try:
        import viser
    except ModuleNotFoundError as error:
        raise ValueError(f"the viewer needs {error.name}: pip install 'pointgrad[view]'") from None
    logging.getLogger("websockets").setLevel(logging.CRITICAL)  # a disconnecting browser is not an error
    if port is not None:
        _check(host, port)
    chosen = port if port is not None else _free(host)
    with contextlib.redirect_stdout(io.StringIO()), _own_pages_only():  # suppresses viser's banner
        server = viser.ViserServer(host=host, port=chosen, label=label, verbose=False)
    if port is not None and server.get_port() != port:  # taken since the check: viser silently uses the next port
        stop(server)
        raise ValueError(f"port {port} on {host} must be free, but another program has just taken it")
    server.scene.set_up_direction("+z")

    def disconnected(client: "viser.ClientHandle") -> None:
        if not server.get_clients():
            print(f"last browser disconnected; still serving {address(server)} until Ctrl-C", flush=True)

    server.on_client_disconnect(disconnected)
    return server


@contextlib.contextmanager
def _own_pages_only() -> Iterator[None]:
    """Make servers that are started in this context reject connections from pages of other sites.

    Any web page open in a local browser can reach a local port. viser has no option to reject such pages, which could
    read the cloud and control the viewer.
    """
    from websockets.asyncio import server

    serve = server.serve

    def guarded(*arguments: Any, process_request: Any, **options: Any) -> Any:
        def process(connection: Any, request: Any) -> Any:
            origin = request.headers.get("Origin")  # browsers send it, other programs do not
            if origin is not None and urlsplit(origin).netloc != request.headers.get("Host"):
                return connection.respond(http.HTTPStatus.FORBIDDEN, "Only pages of this server may connect.\n")
            return process_request(connection, request)

        return serve(*arguments, process_request=process, **options)

    server.serve = guarded  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        server.serve = serve  # type: ignore[misc]


def stop(server: "viser.ViserServer") -> None:
    """Stop a server without viser's messages."""
    with contextlib.redirect_stdout(io.StringIO()):
        server.stop()


def address(server: "viser.ViserServer") -> str:
    """URL to open in a browser."""
    host = server.get_host()
    shown = "localhost" if is_local(host) else socket.gethostname() if host in ("0.0.0.0", "::") else host
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{server.get_port()}"


def is_local(host: str) -> bool:
    """Whether only programs on this machine can connect."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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
