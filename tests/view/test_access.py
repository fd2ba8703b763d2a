"""Requests that a viewer answers: host names, origins and tokens."""

import http.client
import sys
import threading

import pytest

from pointgrad.view import access, server
from pointgrad.view.access import NO_TOKEN, OTHER_SITE, UNKNOWN_HOST, Access
from tests.view.clients import connected

LOCAL = {"127.0.0.1": True, "127.9.9.9": True, "::1": True, "localhost": True, "0.0.0.0": False, "192.168.1.2": False}


@pytest.mark.parametrize(("host", "local"), LOCAL.items())
def test_is_local(host, local):
    assert access.is_local(host) == local


# Host header: accepted by a viewer on a loopback address, by one on all addresses
HOSTS = {
    "localhost:8080": (True, True),
    "LOCALHOST": (True, True),
    "localhost.:8080": (True, True),
    "127.0.0.1:9000": (True, True),
    "[::1]:8080": (True, True),
    "named.example:8080": (True, True),
    "192.168.1.2:8080": (False, True),
    "[2001:db8::1]": (False, True),
    "machine:8080": (False, True),
    "rebound.example:8080": (False, False),
    "127.0.0.1.rebound.example": (False, False),
    "localhost.rebound.example": (False, False),
    "localhost@rebound.example": (False, False),
    "rebound.example@localhost": (False, False),
    "localhost/": (False, False),
    "localhost#": (False, False),
    "localhost:80:80": (False, False),
    "localhost:port": (False, False),
    "0x7f000001": (False, False),
    "[::1": (False, False),
    "": (False, False),
}


@pytest.mark.parametrize(("host", "accepted"), HOSTS.items())
def test_host_names(host, accepted, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "Machine")
    for bound, expected in zip(("127.0.0.1", "0.0.0.0"), accepted, strict=True):
        rules = access.rules(bound, ["Named.Example"], token=False)
        for origin in (None, f"http://{host}"):
            assert rules.refusal("/", [host], origin) == (None if expected else UNKNOWN_HOST)


def test_one_host_and_the_same_origin():
    rules = Access()
    assert rules.refusal("/", [], None) == UNKNOWN_HOST
    assert rules.refusal("/", ["localhost", "localhost"], None) == UNKNOWN_HOST
    for origin in ("null", "", "http://localhost:81", "http://elsewhere.example", "http://localhost.elsewhere.example"):
        assert rules.refusal("/", ["localhost"], origin) == OTHER_SITE


PATHS = {
    "/abc": "/",
    "/abc/": "/",
    "/abc?x=1": "/?x=1",
    "/abc/a/b?x": "/a/b?x",
    "/": None,
    "": None,
    "/abcd": None,
    "/abd/": None,
    "/ABC/": None,
    "/x/abc/": None,
    "/?abc": None,
    "//abc/": None,
    "/äbc": None,
}


@pytest.mark.parametrize(("path", "inner"), PATHS.items())
def test_paths(path, inner):
    rules = Access(token="abc")
    assert rules.inner_path(path) == inner
    assert rules.refusal(path, ["localhost"], None) == (NO_TOKEN if inner is None else None)
    assert Access().inner_path(path) == path


def test_rules():
    assert access.rules("127.0.0.1") == Access()
    assert access.rules("::1", token=True).token
    remote = access.rules("0.0.0.0")
    assert len(remote.token) >= 20
    assert remote.token != access.rules("0.0.0.0").token
    assert access.rules("0.0.0.0", token=False).token == ""
    for name in ("a:80", "http://a", "", "a b/", "a@b"):
        with pytest.raises(ValueError, match="an allowed host must be a name without a port, got "):
            access.rules("127.0.0.1", [name])


# -- a running server ---------------------------------------------------------------------------------------------


def refused(web, **request):
    from websockets.exceptions import InvalidStatus

    with pytest.raises(InvalidStatus, match="403"), connected(web, **request):
        pass
    return True


def accepted(web, **request):
    with connected(web, **request) as connection:
        return bool(connection.recv(timeout=30))


def page(web, path, host="localhost"):
    connection = http.client.HTTPConnection("127.0.0.1", web.get_port(), timeout=30)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", host)
    connection.endheaders()
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


def test_pages_of_other_sites_are_rejected():
    pytest.importorskip("viser")
    web = server.start("127.0.0.1", None, "x", allow_hosts=["proxy.example"])
    port = web.get_port()
    try:
        assert accepted(web)
        assert accepted(web, origin=f"http://localhost:{port}")
        assert accepted(web, host="proxy.example", origin="http://proxy.example")
        for origin in ("http://localhost", "https://elsewhere.example", "null"):
            assert refused(web, origin=origin)
        rebound = f"rebound.example:{port}"  # a name that its owner points to 127.0.0.1
        assert refused(web, host=rebound, origin=f"http://{rebound}")
        assert refused(web, host=rebound)
        assert page(web, "/", rebound) == (403, f"{UNKNOWN_HOST}\n".encode())
        assert page(web, "/")[0] == 200
    finally:
        web.stop()


def test_token():
    pytest.importorskip("viser")
    web = server.start("127.0.0.1", None, "x", token=True)
    token = web.access.token
    try:
        assert server.address(web) == f"http://localhost:{web.get_port()}/{token}/"
        assert accepted(web, path=f"/{token}")
        for path in ("/", f"/{token[:-1]}", f"/{token}x"):
            assert refused(web, path=path)
            assert page(web, path) == (403, f"{NO_TOKEN}\n".encode())
        assert page(web, f"/{token}/")[0] == 200
        assert page(web, f"/{token}/missing.js")[0] == 404
    finally:
        web.stop()


def test_servers_that_start_at_the_same_time_are_all_guarded():
    pytest.importorskip("viser")
    from websockets.asyncio import server as websockets_server

    serve, stdout, started = websockets_server.serve, sys.stdout, []
    barrier = threading.Barrier(4)

    def start():
        barrier.wait()
        started.append(server.start("127.0.0.1", None, "x", token=True))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert len({web.access.token for web in started}) == 4
        for web in started:
            assert refused(web, path="/")
            assert refused(web, host="rebound.example", origin="http://rebound.example")
            assert accepted(web)
        assert sys.stdout is stdout
        assert websockets_server.serve is serve
    finally:
        for web in started:
            web.stop()


def test_server_of_another_library_is_not_guarded():
    """One that starts while a viewer starts."""
    pytest.importorskip("viser")
    from websockets.asyncio import server as websockets_server

    from pointgrad.view.guard import GuardedServer

    calls, serve = [], websockets_server.serve
    web = server.start("127.0.0.1", None, "x")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(websockets_server, "serve", lambda *arguments, **options: calls.append(options))
            with GuardedServer._checked_requests(web):
                websockets_server.serve(None, "127.0.0.1", 0, process_request=None)
        assert calls == [{"process_request": None}]
        assert websockets_server.serve is serve
    finally:
        web.stop()
