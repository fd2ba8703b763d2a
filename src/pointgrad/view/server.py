"""The web server of a viewer: on this machine only, unless told otherwise, and on a port that is free."""

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

PORT = 8080  # where a free one is looked for if none is asked for
TRIED = 100


def start(host: str, port: int | None, label: str) -> "viser.ViserServer":
    """Serves at a port, or without one at the first free port from 8080 on. Raises ValueError if that cannot be."""
    try:
        import viser
    except ModuleNotFoundError as error:
        raise ValueError(f"the viewer needs {error.name}: pip install 'pointgrad[view]'") from None
    logging.getLogger("websockets").setLevel(logging.CRITICAL)  # a browser that leaves is no error
    if port is not None:
        _check(host, port)
    chosen = port if port is not None else _free(host)
    with contextlib.redirect_stdout(io.StringIO()), _own_pages_only():  # without its banner
        server = viser.ViserServer(host=host, port=chosen, label=label, verbose=False)
    if port is not None and server.get_port() != port:  # taken since: viser takes the next one without a word
        stop(server)
        raise ValueError(f"port {port} of {host} must be free, another program took it just now")
    server.scene.set_up_direction("+z")

    def left(client: "viser.ClientHandle") -> None:
        if not server.get_clients():
            print(f"the last browser is closed; {address(server)} is served until Ctrl-C", flush=True)

    server.on_client_disconnect(left)
    return server


@contextlib.contextmanager
def _own_pages_only() -> Iterator[None]:
    """Servers that are started meanwhile refuse pages of other sites. Any page in a browser on this machine can reach
    a local port, and viser, which has no option for that, would let it see the cloud and steer the viewer."""
    from websockets.asyncio import server

    serve = server.serve

    def guarded(*arguments: Any, process_request: Any, **options: Any) -> Any:
        def process(connection: Any, request: Any) -> Any:
            origin = request.headers.get("Origin")  # programs send none
            if origin is not None and urlsplit(origin).netloc != request.headers.get("Host"):
                return connection.respond(http.HTTPStatus.FORBIDDEN, "This is for pages of this server only.\n")
            return process_request(connection, request)

        return serve(*arguments, process_request=process, **options)

    server.serve = guarded  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        server.serve = serve  # type: ignore[misc]


def stop(server: "viser.ViserServer") -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        server.stop()


def address(server: "viser.ViserServer") -> str:
    """What to open in a browser."""
    host = server.get_host()
    shown = "localhost" if is_local(host) else socket.gethostname() if host in ("0.0.0.0", "::") else host
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{server.get_port()}"


def is_local(host: str) -> bool:
    """Whether only programs of this machine can connect."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _free(host: str) -> int:
    for port in range(PORT, PORT + TRIED):
        if not _taken(host, port):
            return port
    raise ValueError(f"a port from {PORT} to {PORT + TRIED - 1} of {host} must be free, none is")


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
        raise ValueError(f"port must be from 1 to 65535, got {port}")
    try:
        _bind(host, port)
    except OSError as error:
        raise ValueError(f"port {port} of {host} must be free to listen on: {error.strerror or error}") from None


def _bind(host: str, port: int) -> None:
    family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was closed just now is free
        probe.bind(where)
