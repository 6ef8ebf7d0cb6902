"""Who gets in: hosts, tokens, cookies, and what the answers' headers allow."""

import socket
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given
from starlette.testclient import TestClient

from archer.errors import ArcherError
from archer.viewer.app import app_maker
from archer.viewer.runs import Library
from archer.viewer.security import Access, is_loopback

TOKEN = "a-token-of-some-length"
ROUTES = ["/", "/static/main.js", "/api/runs", "/api/runs/0/timeline", "/api/runs/0/steps/1", "/nothing"]


@pytest.fixture
def client(run_folder: Path) -> Callable[..., TestClient]:
    def make(access: Access, base: str) -> TestClient:
        return TestClient(app_maker(Library.open([run_folder]))(access), base_url=base)

    return make


def test_the_loopback_address_needs_no_token(client: Callable[..., TestClient]) -> None:
    access = Access.of("127.0.0.1", 7862)
    assert access.token is None
    for name in ("127.0.0.1", "localhost"):
        assert client(access, f"http://{name}:7862").get("/api/runs").status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:7862", "127.0.0.1.evil.example:7862", "localhost.evil.example", ""],
)
def test_another_host_name_on_loopback_is_turned_away(client: Callable[..., TestClient], host: str) -> None:
    connection = client(Access.of("127.0.0.1", 7862), "http://127.0.0.1:7862")
    for route in ROUTES:
        answer = connection.get(route, headers={"Host": host})
        assert answer.status_code == 421
        assert "own address" in answer.text
        assert "ssh -L 9000:localhost:7862" in answer.text


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1:9999", "[::1]:9000", "LOCALHOST", "127.0.0.1"])
def test_a_tunnel_from_any_local_port_is_let_in(client: Callable[..., TestClient], host: str) -> None:
    connection = client(Access.of("127.0.0.1", 7862), "http://127.0.0.1:7862")
    assert connection.get("/api/runs", headers={"Host": host}).status_code == 200


def test_a_viewer_on_every_address_names_one_that_can_be_opened() -> None:
    access = Access.of("0.0.0.0", 7862, TOKEN)
    for url in (access.url(), *access.other_urls()):
        assert "0.0.0.0" not in url and url.endswith(f":7862/?token={TOKEN}")
    assert Access.of("127.0.0.1", 7862).other_urls() == []


@pytest.mark.parametrize("route", ROUTES)
def test_any_other_address_needs_the_token_on_every_route(
    client: Callable[..., TestClient], route: str
) -> None:
    access = Access.of("0.0.0.0", 7862, TOKEN)
    connection = client(access, "http://machine.example:7862")
    assert connection.get(route).status_code == 401
    assert connection.get(f"{route}?token=wrong-token-of-length").status_code == 401
    assert connection.get(route, headers={"Cookie": f"{access.cookie}=wrong"}).status_code == 401
    assert connection.get(route, headers={"Cookie": f"{access.cookie}={TOKEN}"}).status_code != 401


def test_the_token_moves_from_the_address_into_a_cookie(client: Callable[..., TestClient]) -> None:
    access = Access.of("0.0.0.0", 7862, TOKEN)
    connection = client(access, "http://machine.example:7862")
    answer = connection.get(f"/?token={TOKEN}&x=1", follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/?x=1"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert connection.get("/api/runs").status_code == 200


def test_the_redirect_stays_on_this_host(client: Callable[..., TestClient]) -> None:
    connection = client(Access.of("0.0.0.0", 7862, TOKEN), "http://machine.example:7862")
    answer = connection.get(
        f"http://machine.example:7862//evil.example/?token={TOKEN}", follow_redirects=False
    )
    assert answer.headers["location"] == "/evil.example/"


@given(st.text(max_size=60))
def test_no_text_but_the_token_matches_it(given_text: str) -> None:
    from archer.viewer.security import Guard

    guard = Guard(None, Access.of("0.0.0.0", 7862, TOKEN))
    assert guard._matches(given_text) == (given_text == TOKEN)


def test_the_token_is_compared_in_constant_time(
    client: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever comes, by address or cookie, goes through `hmac.compare_digest`, and nothing else decides."""
    compared: list[bytes] = []
    monkeypatch.setattr("hmac.compare_digest", lambda given, token: bool(compared.append(given)))
    access = Access.of("0.0.0.0", 7862, TOKEN)
    connection = client(access, "http://machine.example:7862")
    assert connection.get(f"/?token={TOKEN}").status_code == 401
    assert connection.get("/", headers={"Cookie": f"{access.cookie}={TOKEN}"}).status_code == 401
    assert compared.count(TOKEN.encode()) == 2


def test_cookies_of_other_programs_do_not_stand_in_the_way(client: Callable[..., TestClient]) -> None:
    access = Access.of("0.0.0.0", 7862, TOKEN)
    connection = client(access, "http://machine.example:7862")
    cookies = f'_xsrf=2|a|b|1; prefs={{"a": [1, 2]}}; x@y="; {access.cookie}={TOKEN}; =; ;;'
    assert connection.get("/api/runs", headers={"Cookie": cookies}).status_code == 200


def test_a_browser_gets_a_page_and_a_program_a_sentence(client: Callable[..., TestClient]) -> None:
    connection = client(Access.of("0.0.0.0", 7862, TOKEN), "http://machine.example:7862")
    page = connection.get("/", headers={"Accept": "text/html,*/*"})
    assert page.status_code == 401
    assert "<form" in page.text and "<script" not in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
    assert page.headers["cache-control"] == "no-store"
    sentence = connection.get("/api/runs", headers={"Accept": "application/json"})
    assert sentence.text.startswith("This viewer needs its token.")


def test_a_socket_without_the_token_is_closed(client: Callable[..., TestClient]) -> None:
    from starlette.websockets import WebSocketDisconnect

    connection = client(Access.of("0.0.0.0", 7862, TOKEN), "http://machine.example:7862")
    for path in ("/anything", f"/anything?token={TOKEN}"):
        with pytest.raises(WebSocketDisconnect), connection.websocket_connect(path):
            pass


def test_a_token_is_made_where_one_is_needed_and_none_is_given() -> None:
    first, second = Access.of("0.0.0.0", 7862), Access.of("0.0.0.0", 7862)
    assert first.token and second.token and first.token != second.token
    assert len(first.token) >= 32
    assert first.url() == f"http://{socket.gethostname()}:7862/?token={first.token}"
    assert Access.of("10.0.0.7", 7862).url().startswith("http://10.0.0.7:7862/?token=")


def test_short_tokens_and_absurd_ports_are_refused() -> None:
    with pytest.raises(ArcherError, match="at least 16"):
        Access.of("0.0.0.0", 7862, "short")
    for token in ("with a blank in it ", "semicolon;semicolon;", "zeilen\r\numbruch-x", "größergrößergrößer"):
        with pytest.raises(ArcherError, match="letters, digits"):
            Access.of("0.0.0.0", 7862, token)
    with pytest.raises(ArcherError, match="0 to 65535"):
        Access.of("127.0.0.1", 70000)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
    ],
)
def test_loopback_addresses_are_known(host: str, local: bool) -> None:
    assert is_loopback(host) is local


def test_every_answer_carries_the_strict_policy(client: Callable[..., TestClient]) -> None:
    connection = client(Access.of("127.0.0.1", 7862), "http://127.0.0.1:7862")
    for route in ROUTES:
        headers = connection.get(route).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_only_a_notebook_may_frame_the_viewer() -> None:
    policy = Access.of("127.0.0.1", 0, embeddable=True).headers()["Content-Security-Policy"]
    assert "frame-ancestors 'self' http://localhost:* http://127.0.0.1:*" in policy


def test_no_client_module_makes_markup_from_strings() -> None:
    from archer.viewer.client import client_assets

    for name, asset in client_assets().items():
        if name.startswith("vendor/"):
            continue  # run in a worker, which has no document
        if name.endswith(".js"):
            for word in (
                b"innerHTML",
                b"outerHTML",
                b"insertAdjacentHTML",
                b"document.write",
                b"eval(",
                b"Function(",
            ):
                assert word not in asset.content, f"{name} uses {word.decode()}"
        if name.endswith((".js", ".html", ".css")):
            assert b"http://" not in asset.content and b"https://" not in asset.content, name


def test_the_page_asks_for_all_modules_at_once() -> None:
    from archer.viewer.client import client_assets

    page = client_assets()["index.html"].content.decode()
    for name in client_assets():
        workers = ("searchworker.js", "renderworker.js")  # no modules: scripts of threads
        if name.endswith((".js", ".css")) and name not in workers and not name.startswith("vendor/"):
            assert f'"static/{name}"' in page, name


def test_client_modules_stay_small() -> None:
    from archer.viewer.client import client_assets

    for name, asset in client_assets().items():
        if name.endswith(".js"):
            assert asset.content.count(b"\n") < 270, name
