"""The web server: ports, addresses and rejected pages."""

import socket

import pytest

from pointgrad.view import server


def test_busy_and_default_ports(taken, monkeypatch):
    pytest.importorskip("viser")
    with pytest.raises(ValueError, match=f"cannot listen on port {taken} of 127.0.0.1: Address already in use"):
        server.start("127.0.0.1", taken, "x")
    monkeypatch.setattr(server, "PORT", taken)
    web = server.start("127.0.0.1", None, "x")
    try:
        assert taken < web.get_port() < taken + 20
        assert server.address(web) == f"http://localhost:{web.get_port()}"
    finally:
        server.stop(web)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 0), ("127.0.0.1", 70000), ("nowhere.invalid", 8080)])
def test_invalid_addresses(host, port):
    pytest.importorskip("viser")
    with pytest.raises(ValueError, match="port"):
        server.start(host, port, "x")


ORIGINS = {
    None: True,
    "http://localhost:{}": True,
    "http://localhost": False,
    "https://elsewhere.example": False,
    "null": False,
}


@pytest.mark.parametrize(("origin", "allowed"), ORIGINS.items())
def test_pages_of_other_sites_are_rejected(origin, allowed):
    viser = pytest.importorskip("viser")
    client = pytest.importorskip("websockets.sync.client")
    from websockets.exceptions import InvalidStatus

    web = server.start("127.0.0.1", None, "x")
    port = web.get_port()
    options = {
        "origin": origin and origin.format(port),
        "subprotocols": [f"viser-v{viser.__version__}"],
        "max_size": None,
    }
    try:
        if allowed:
            with client.connect(f"ws://localhost:{port}", **options) as connection:
                assert connection.recv(timeout=30)
        else:
            with pytest.raises(InvalidStatus, match="403"):
                client.connect(f"ws://localhost:{port}", **options)
    finally:
        server.stop(web)


def test_unknown_host_is_resolved_once(monkeypatch):
    pytest.importorskip("viser")
    calls, resolve = [], socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: calls.append(args) or resolve(*args, **options))
    for host in ("nowhere.invalid", "192.0.2.1"):
        with pytest.raises(ValueError, match=f"host must be an address of this machine, got {host}: "):
            server.start(host, None, "x")
    assert len(calls) == 2


LOCAL = {"127.0.0.1": True, "::1": True, "localhost": True, "0.0.0.0": False, "192.168.1.2": False}


@pytest.mark.parametrize(("host", "local"), LOCAL.items())
def test_is_local(host, local):
    assert server.is_local(host) == local
