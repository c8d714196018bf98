"""Run the server until Ctrl-C: a free port, the address told, the browser opened."""

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
from saccade.viewer.session import Desk
from saccade.viewer.worker import ViewConfig

BACKLOG = 256
AT_ONCE = 512  # connections; more are turned away
FIRST_PORT, PORTS = 8765, 20  # the first free one, so that a link of yesterday mostly works today


def listen(host: str, port: int | None) -> socket.socket:
    """A socket at this port; without one, at the first that is free.

    Raises:
        UsageError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried = [port] if port is not None else [*range(FIRST_PORT, FIRST_PORT + PORTS), 0]
    problem: OSError | None = None
    for each in tried:
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, each))
            found.listen(BACKLOG)  # from now on others find the port taken, and callers wait
        except (OSError, OverflowError, TypeError, UnicodeError) as error:
            found.close()
            problem = error if isinstance(error, OSError) else OSError(str(error))
            continue
        return found
    raise UsageError(
        f"cannot listen at {host}:{port or FIRST_PORT}: {problem}",
        hint="choose another --port or --host",
    )


def new_address(host: str, port: int) -> Address:
    """Where the server is; other machines need a token, which is made here."""
    token = "" if is_loopback(host) else secrets.token_urlsafe(24)
    return Address(host=host, port=port, token=token)


def serve(
    config: ViewConfig,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    tell: Callable[[str], None],
    is_opening_browser: bool = True,
) -> None:
    """Serve until interrupted.

    Args:
        port: the first free one without it.
        tell: is given the address as soon as there is one.
        is_opening_browser: whether to open it, where there is a browser.
    """
    with listen(host, port) as at:
        address = new_address(host, at.getsockname()[1])
        app = make_app(Desk(config), address)
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
        tell(address.url)
        if is_opening_browser:
            threading.Thread(target=_open_browser, args=(address.url,), daemon=True).start()
        with suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
            server.run(sockets=[at])


def _open_browser(url: str) -> None:
    try:
        # Not one that would take over the terminal.
        found = webbrowser.get()
    except webbrowser.Error:
        return
    if not isinstance(found, webbrowser.GenericBrowser) or isinstance(
        found, webbrowser.BackgroundBrowser
    ):
        found.open(url)
