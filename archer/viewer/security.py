"""Who may talk to the viewer, and what a page of it may do.

On a loopback address the `Host` header must name this machine's own address, on any port: a foreign web page
that points its own name at 127.0.0.1 (DNS rebinding) is turned away, a tunnel is not. On any other address
every request must carry the token, once as `?token=` and from then on in a cookie; a browser without it gets
a page with one field and no script.
"""

import base64
import hashlib
import hmac
import html
import ipaddress
import re
import secrets
import socket
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from archer.errors import ArcherError, visible

MIN_TOKEN_LENGTH = 16
NEEDS_TOKEN = "Open the address that `archer view` printed, which ends in ?token=..., or give the token here."
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_LOCAL_PAGES = "http://localhost:* http://127.0.0.1:*"  # the policy language has no IPv6 addresses


@dataclass(frozen=True)
class Access:
    """The address a viewer is bound to and what it asks of a request."""

    host: str
    port: int
    token: str | None
    embeddable: bool = False
    """Whether pages of this machine (a notebook) may hold the viewer in a frame."""

    @classmethod
    def of(cls, host: str, port: int, token: str | None = None, embeddable: bool = False) -> "Access":
        """Check the user's wishes; makes a token where the address needs one and none was given."""
        if token is not None and len(token) < MIN_TOKEN_LENGTH:
            raise ArcherError(
                f"--token has {len(token)} characters, expected at least {MIN_TOKEN_LENGTH}; "
                "leave it out to have one made."
            )
        if token is not None and not re.fullmatch(r"[\w.~-]+", token, re.ASCII):
            raise ArcherError("--token may hold letters, digits and . _ ~ - only; without it one is made.")
        if not 0 <= port < 65536:
            raise ArcherError(f"--port is {port}, expected 0 to 65535.")
        if token is None and not is_loopback(host):
            token = secrets.token_urlsafe(24)
        return cls(host, port, token, embeddable)

    @property
    def cookie(self) -> str:
        """Cookies do not know ports, so the name does; two viewers of one machine need two names."""
        return f"archer_token_{self.port}"

    def url(self) -> str:
        """Where to point a browser."""
        reachable = socket.gethostname() if self.host in EVERY_ADDRESS else self.host
        host = f"[{reachable}]" if ":" in reachable else reachable
        query = "" if self.token is None else f"?{urlencode({'token': self.token})}"
        return f"http://{host}:{self.port}/{query}"

    def other_urls(self) -> list[str]:
        """More addresses of a viewer that listens on every one: names do not always resolve, numbers do."""
        if self.host not in EVERY_ADDRESS:
            return []
        addresses = [address for address in (_outward_address(), "127.0.0.1") if address]
        return [replace(self, host=address).url() for address in dict.fromkeys(addresses)]

    def headers(self) -> dict[str, str]:
        """Headers of every answer of the viewer."""
        ancestors = f"'self' {_LOCAL_PAGES}" if self.embeddable else "'none'"
        # browsers obey it on this machine and over TLS; elsewhere they only complain
        opener = {"Cross-Origin-Opener-Policy": "same-origin"} if is_loopback(self.host) else {}
        return {
            "Content-Security-Policy": (
                "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; "
                "connect-src 'self'; "
                f"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors {ancestors}"
            ),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
        } | opener


def is_loopback(host: str) -> bool:
    """Whether an address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _outward_address() -> str | None:
    """This machine's address on its network; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address: the kernel only chooses a route
            return str(probe.getsockname()[0])
        except OSError:
            return None


EVERY_ADDRESS = ("0.0.0.0", "::")  # to listen on; no browser can open them


class Guard:
    """ASGI wrapper that lets a request through to the application, or says why not."""

    def __init__(self, app: Any, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Judge one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        if not self._host_allowed(headers.get("host", "")):
            await _answer(send, scope, 421, _wrong_host(headers.get("host", ""), self._access))
            return
        if self._access.token is None:
            await self._app(scope, receive, send)
            return
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in query if name == "token"), None)
        if given is not None and self._matches(given):
            await self._admit(scope, send, query)
        elif self._matches(_cookie(headers.get("cookie", ""), self._access.cookie)):
            await self._app(scope, receive, send)
        else:
            await _refuse(send, scope, headers.get("accept", ""), wrong=given is not None)

    def _host_allowed(self, host: str) -> bool:
        if not is_loopback(self._access.host):
            return True  # there the token decides, and its cookie is bound to the name in the address bar
        # Only the name counts: a tunnel ends on any local port, and a foreign page cannot take these names.
        return _host_name(host) in (*LOOPBACK_NAMES, self._access.host.lower())

    def _matches(self, given: str) -> bool:
        token = self._access.token or ""
        return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())

    async def _admit(self, scope: Any, send: Any, query: list[tuple[str, str]]) -> None:
        """Move the token from the address, which is shared and logged, into a cookie."""
        if scope["type"] != "http":
            await _answer(send, scope, 401, "Open the viewer's page first.")
            return
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        # A name without a slash is relative to the page, so that the viewer may live below any path. A path
        # that starts with two slashes would be another host.
        target = "/" + scope["path"].lstrip("/")
        location = f"{target}?{rest}" if rest else target
        cookie = f"{self._access.cookie}={self._access.token}; Path=/; HttpOnly; SameSite=Strict"
        fields = [
            (b"location", location.encode("ascii", "ignore")),
            (b"set-cookie", cookie.encode("latin-1")),
        ]
        await _send(send, 303, b"", fields)


def _host_name(host: str) -> str:
    """The name in a `Host` header, without its port."""
    name, separator, port = host.rpartition(":")
    return (name if separator and port.isdigit() else host).lower()


def _wrong_host(host: str, access: Access) -> str:
    """What to do instead, for whoever comes by another name."""
    return (
        f"This viewer answers to its own address only, localhost or 127.0.0.1, not {visible(host)[:99]!r}. "
        f"On this machine open http://localhost:{access.port}/. From another one make a tunnel, "
        f"`ssh -L 9000:localhost:{access.port} THIS_MACHINE`, and open http://localhost:9000/. To be reached "
        "by another name start it with `archer view --host 0.0.0.0`, which asks for a token."
    )


def _cookie(header: str, name: str) -> str:
    """One cookie's value; whatever other programs of this host have put beside it is of no concern."""
    for part in header.split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return ""


async def _refuse(send: Any, scope: Any, accept: str, *, wrong: bool) -> None:
    """A page with a field for a person, a sentence for everything else."""
    if scope["type"] != "http" or "text/html" not in accept:
        await _answer(send, scope, 401, f"This viewer needs its token. {NEEDS_TOKEN}")
        return
    fields = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", PAGE_POLICY.encode()),
        (b"referrer-policy", b"no-referrer"),
    ]
    await _send(send, 401, token_page(NEEDS_TOKEN, wrong), fields)


async def _answer(send: Any, scope: Any, status: int, sentence: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    await _send(send, status, sentence.encode(), [(b"content-type", b"text/plain; charset=utf-8")])


async def _send(send: Any, status: int, body: bytes, fields: list[tuple[bytes, bytes]]) -> None:
    common = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
    await send({"type": "http.response.start", "status": status, "headers": [*fields, *common]})
    await send({"type": "http.response.body", "body": body})


PAGE_STYLE = """
:root { color-scheme: light dark; --paper: #fbfaf6; --ink: #1c1d22; --muted: #66645d; --line: #d3cfc2;
  --accent: #2f5d9e; --on: #fff; --bad: #b23c2e }
@media (prefers-color-scheme: dark) { :root { --paper: #16181d; --ink: #e8e6e1; --muted: #a09d94;
  --line: #42464f; --accent: #8fb4ea; --on: #16181d; --bad: #f0897a } }
html { background: var(--paper); color: var(--ink);
  font: 16px/1.6 ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif }
main { max-width: 30rem; margin: 22vh auto 0; padding: 0 1.2rem }
h1 { font-size: 1.5rem; font-weight: 650; margin: 0 0 .4rem }
p { color: var(--muted); margin: 0 0 1.2rem }
p.wrong { color: var(--bad) }
form { display: flex; gap: .5rem }
label { position: absolute; clip-path: inset(50%) }
input, button { font: inherit; color: inherit; padding: .4rem .7rem; border-radius: 7px;
  border: 1px solid var(--line); background: none }
input { flex: 1; min-width: 0 }
button { background: var(--accent); border-color: var(--accent); color: var(--on); cursor: pointer }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(PAGE_STYLE.encode()).digest()).decode()
PAGE_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)


def token_page(advice: str, wrong: bool) -> bytes:
    """The page; `wrong` when a token came that is not the viewer's."""
    said = '<p class="wrong" role="alert">That is not the token of this viewer.</p>' if wrong else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Archer · token</title><style>{PAGE_STYLE}</style></head>
<body><main><h1>This viewer needs its token</h1>
<p>{html.escape(advice)}</p>{said}
<form method="get"><label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="off" placeholder="Token" required autofocus>
<button>Open</button></form></main></body></html>
""".encode()
