"""Access control: Host, Origin, token and size of a request; security headers of a reply.

Every page that is open in the user's browser can send requests to a server on loopback. A page of
another host cannot send our name in its Host or Origin header (DNS rebinding, cross-site requests),
so these are checked first.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
from functools import partial
from typing import Any, NamedTuple, final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 256 * 1024  # of the body of a request
BODY_SECONDS = 15.0  # for the body of a request to arrive
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Address(NamedTuple):
    """Where the server listens, and the token that it requires."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str = ""
    """Empty if none is required."""

    @property
    def cookie(self) -> str:
        """The name of the cookie with the token: browsers send cookies to all ports of a host."""
        return f"saccade-token-{self.port}"

    @property
    def url(self) -> str:
        """The URL to open."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        if self.is_wildcard:
            name = socket.gethostname()
        return f"http://{name}:{self.port}/" + (f"?token={self.token}" if self.token else "")

    @property
    def is_wildcard(self) -> bool:
        """Whether it listens on every address of the machine."""
        return self.host in ("0.0.0.0", "::")

    def matches(self, host: str) -> bool:
        """Whether a Host header names this server."""
        name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if not name:
            name, port = host, ""
        if port != str(self.port) and not (port == "" and self.port == 80):
            return False
        if name in LOOPBACK or name.strip("[]") == self.host:
            return True
        return self.is_wildcard and (name == socket.gethostname() or _is_ip_address(name))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@final
class SecurityMiddleware:
    """ASGI middleware: refuses unsafe or oversized requests, adds security headers to replies."""

    def __init__(self, app: ASGIApp, *, address: Address) -> None:
        self._app, self._address = app, address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # no web sockets
        refusal = self._refusal(scope)
        if refusal is None:
            body = await _read_body(scope, receive)
            if isinstance(body, Response):
                refusal = body
            else:
                receive = _replay(body, receive)
        await (refusal or self._app)(scope, receive, partial(_send_with_headers, send))

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._address.matches(host):
            return problem(
                421, f"this server is not {host[:80]!r}", "open the address that was printed"
            )
        if origin is not None and origin != f"http://{host}":
            return problem(403, "request from a page of another origin", "open the page itself")
        is_opened = headers.get("sec-fetch-mode") == "navigate" and scope["path"] == "/"
        site = headers.get("sec-fetch-site", "none")
        if site not in ("same-origin", "none") and not is_opened:
            return problem(403, "request from a page of another site", "open the page itself")
        if self._address.token and (refusal := self._check_token(scope, headers)):
            return refusal
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":
            return problem(415, f"expected JSON, got {kind[:80]!r}", "send application/json")
        return None

    def _check_token(self, scope: Scope, headers: Headers) -> Response | None:
        token = self._address.token
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and _same(given, token):
            # Move the token out of the URL, where it would be copied with a link.
            reply = RedirectResponse("/", status_code=303)
            reply.set_cookie(self._address.cookie, token, httponly=True, samesite="strict")
            return reply
        cookie = _cookie(headers.get("cookie", ""), self._address.cookie)
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        is_bearer = scheme.lower() == "bearer" and _same(bearer.strip(), token)
        if is_bearer or _same(cookie, token):
            return None
        return problem(403, "a token is required", "open the address that was printed")


def _cookie(header: str, name: str) -> str:
    """The value of a cookie; what other programs on this host set may be no valid header.

    >>> _cookie("a[]=1; saccade-token-80=x; ;", "saccade-token-80")
    'x'
    """
    pairs = (each.strip().partition("=") for each in header.split(";"))
    return next((value for key, _, value in pairs if key == name), "")


def problem(status: int, error: str, hint: str) -> JSONResponse:
    """An error as JSON, worded as on the command line."""
    headers = {"Retry-After": "1"} if status == 503 else {}
    return JSONResponse({"error": error, "hint": hint}, status_code=status, headers=headers)


async def _read_body(scope: Scope, receive: Receive) -> bytes | Response:
    """The body of a request, or an error if it is too large or arrives too slowly."""
    too_large = problem(413, f"more than {MOST_BYTES} bytes", "ask for less at a time")
    length = Headers(scope=scope).get("content-length", "0")
    if not length.isdecimal() or int(length) > MOST_BYTES:
        return too_large
    body = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return b""
                body += message.get("body", b"")
                if len(body) > MOST_BYTES:
                    return too_large
                if not message.get("more_body", False):
                    return body
    except TimeoutError:
        return problem(408, "the request did not arrive in time", "try again")


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that first returns a body that was already read."""
    was_replayed = False

    async def replay() -> Message:
        nonlocal was_replayed
        if was_replayed:
            return await receive()
        was_replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _send_with_headers(send: Send, message: Message) -> None:
    if message["type"] == "http.response.start":
        headers = MutableHeaders(scope=message)
        for name, value in HEADERS.items():
            headers[name] = value
        headers.setdefault("Cache-Control", "no-store")
    await send(message)


def _same(given: Any, token: str) -> bool:
    return secrets.compare_digest(str(given).encode(), token.encode())


def _is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
