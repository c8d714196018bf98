"""Run the server until Ctrl-C: find a free port, report the address, open the browser."""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from saccade.errors import UsageError
from saccade.viewer.app import make_app
from saccade.viewer.security import Address, is_loopback
from saccade.viewer.session import Session
from saccade.viewer.worker import ViewConfig

BACKLOG = 256
AT_ONCE = 512  # connections; further ones are refused
FIRST_PORT, PORTS = 8765, 20  # the first free one, so that old links mostly still work


def listen(host: str, port: int | None) -> socket.socket:
    """A socket at this port; by default, at the first free one.

    Raises:
        UsageError: cannot listen at this address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried = [port] if port is not None else [*range(FIRST_PORT, FIRST_PORT + PORTS), 0]
    problem: OSError | None = None
    for each in tried:
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, each))
            found.listen(BACKLOG)  # the port is now taken, and clients that connect wait
        except (OSError, OverflowError, TypeError, UnicodeError) as error:
            found.close()
            problem = error if isinstance(error, OSError) else OSError(str(error))
            continue
        return found
    raise UsageError(
        f"cannot listen at {host}:{port or FIRST_PORT}: {problem}",
        hint="choose another --port or --host",
    )


def new_address(host: str, port: int, *, has_token: bool = True) -> Address:
    """Address of the server, with a new token: other users of a machine reach its loopback too.

    Raises:
        UsageError: without a token on an address that other machines reach.
    """
    if not has_token and not is_loopback(host):
        raise UsageError(
            f"{host} can be reached by other machines: --no-token is for 127.0.0.1 alone",
            hint="leave out --no-token, and open the address that is printed",
        )
    return Address(host=host, port=port, token=secrets.token_urlsafe(24) if has_token else "")


def serve(
    config: ViewConfig,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    has_token: bool = True,
    on_address: Callable[[str], None],
    is_opening_browser: bool = True,
) -> None:
    """Serve until interrupted.

    Args:
        port: default: the first free one.
        has_token: whether requests need the token of the printed address.
        on_address: called with the URL as soon as the server listens.
        is_opening_browser: whether to open the page, if there is a browser.
    """
    with listen(host, port) as at:
        address = new_address(host, at.getsockname()[1], has_token=has_token)
        app = make_app(Session(config), address)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                limit_concurrency=AT_ONCE,
                timeout_graceful_shutdown=1,
            )
        )
        on_address(address.url)
        if is_opening_browser:
            threading.Thread(target=_open_browser, args=(address.url,), daemon=True).start()
        with suppress(KeyboardInterrupt):  # Ctrl-C is the normal end
            server.run(sockets=[at])


def _open_browser(url: str) -> None:
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return
    # A text browser would take over the terminal.
    if not isinstance(found, webbrowser.GenericBrowser) or isinstance(
        found, webbrowser.BackgroundBrowser
    ):
        found.open(url)
