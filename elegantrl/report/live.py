"""Serves a page that updates itself, to browsers of this machine unless told otherwise."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ..errors import ConfigError, ElegantRLError
from .page import Page, render, to_json

LOCAL = ("127.0.0.1", "localhost", "[::1]")


class PageServer(ThreadingHTTPServer):
    """Answers ``/`` with the page and ``/data.json`` with its data, read anew for each request; nothing else."""

    daemon_threads = True

    def __init__(self, read: Callable[[], Page], host: str, port: int):
        self.read = read
        self.host = host
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"--host {host} --port {port} cannot be opened ({error}); choose another port, or 0 for any free one"
            ) from None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = 10
    """Seconds after which a connection without a request is closed."""

    def do_GET(self) -> None:
        try:
            if not self._is_for_us():
                self._answer(403, "text/plain", "this name is not served")
            elif self.path == "/":
                self._answer(200, "text/html", render(self.server.read(), updates=True))
            elif self.path == "/data.json":
                self._answer(200, "application/json", to_json(self.server.read()))
            else:
                self._answer(404, "text/plain", "there is only / and /data.json")
        except ElegantRLError as error:  # for example a folder that was removed
            self._answer(500, "text/plain", str(error))

    def _is_for_us(self) -> bool:
        """Whether the request names this machine: a foreign page could otherwise read this one by a name of its own."""
        name = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        return self.server.host not in LOCAL or name in LOCAL

    def _answer(self, code: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: a page makes one every two seconds."""
