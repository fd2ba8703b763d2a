"""The web server: ports and addresses."""

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
        web.stop()


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 0), ("127.0.0.1", 70000), ("nowhere.invalid", 8080)])
def test_invalid_addresses(host, port):
    pytest.importorskip("viser")
    with pytest.raises(ValueError, match="port"):
        server.start(host, port, "x")


def test_unknown_host_is_resolved_once(monkeypatch):
    pytest.importorskip("viser")
    calls, resolve = [], socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: calls.append(args) or resolve(*args, **options))
    for host in ("nowhere.invalid", "192.0.2.1"):
        with pytest.raises(ValueError, match=f"host must be an address of this machine, got {host}: "):
            server.start(host, None, "x")
    assert len(calls) == 2
