"""Programs that connect to a viewer without a browser."""

import socket
from contextlib import contextmanager

import pytest


@contextmanager
def connected(web, host=None, origin=None, path=None):
    """A websocket connection whose request names this host; by default localhost."""
    viser = pytest.importorskip("viser")
    client = pytest.importorskip("websockets.sync.client")
    port = web.get_port()
    host = f"localhost:{port}" if host is None else host
    path = web.access.path if path is None else path
    with (
        socket.create_connection(("127.0.0.1", port)) as raw,
        client.connect(
            f"ws://{host}{path}",
            sock=raw,
            origin=origin,
            subprotocols=[f"viser-v{viser.__version__}"],
            max_size=None,
            max_queue=None,
            compression=None,
        ) as connection,
    ):
        yield connection


def send(connection, kind, **fields):
    """Send a message of viser's protocol."""
    msgspec = pytest.importorskip("msgspec")
    connection.send(msgspec.msgpack.encode({"type": kind, **fields}))


CAMERA = {
    "wxyz": (1.0, 0.0, 0.0, 0.0),
    "position": (0.0, -9.0, 3.0),
    "fov": 1.0,
    "near": 0.1,
    "far": 100.0,
    "image_height": 200,
    "image_width": 300,
    "look_at": (0.0, 0.0, 0.0),
    "up_direction": (0.0, 0.0, 1.0),
}


def move_camera(connection, **fields):
    send(connection, "ViewerCameraMessage", **{**CAMERA, **fields})
