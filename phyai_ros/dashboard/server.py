"""The web server of the dashboard: one page, its data and its pictures. GET only, nothing from anywhere else.

Everything is done on request; a page that is closed or hidden asks for nothing, and then the feed is closed too.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from phyai_ros.dashboard.feed import Feed
from phyai_ros.dashboard.page import load_page
from phyai_ros.dashboard.pictures import to_thumbnail
from phyai_ros.dashboard.snapshot import make_snapshot

IDLE_AFTER_S = 5.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SECURITY = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
)


class DashboardServer(ThreadingHTTPServer):
    """`serve_forever` serves until `shutdown`. `port` 0 takes a free one; `url` says which.

    On a loopback address only requests that name this host are answered, so that no web page of somebody else's can
    read it through a name of its own.
    """

    daemon_threads = True

    def __init__(self, feed: Feed, host: str = "127.0.0.1", port: int = 0, now_s: Callable[[], float] = time.monotonic):
        """Raises ValueError where the address cannot be had."""
        self._feed, self._now_s, self._asked_s = feed, now_s, -IDLE_AFTER_S
        self._lock = threading.Lock()
        self.page, self.policy_header = load_page()
        self.hosts = LOOPBACK if host in LOOPBACK else ()
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ValueError(f"{host}:{port} cannot be served ({error.strerror}); give another --port.") from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]}:{self.server_address[1]}/"

    def service_actions(self) -> None:
        """Called twice a second between requests: stop listening once nobody looks."""
        with self._lock:
            if self._feed.is_open and self._now_s() - self._asked_s > IDLE_AFTER_S:
                self._feed.close()

    def read_state(self, commands_after: int, points_after: int) -> dict[str, Any]:
        with self._lock:
            return make_snapshot(self._poll(), self._feed.policy, commands_after, points_after)

    def read_picture(self, key: str) -> bytes | None:
        """PNG; None where the camera has shown nothing. Raises ValueError for a picture that cannot be shown."""
        with self._lock:
            self._poll()
            message = self._feed.poll_image(key)
        return None if message is None else to_thumbnail(message)

    def close(self) -> None:
        """Give the port and the subscriptions back; after `shutdown`."""
        self.server_close()
        with self._lock:
            self._feed.close()

    def _poll(self) -> Any:
        self._asked_s = self._now_s()
        if not self._feed.is_open:
            self._feed.open()
        return self._feed.poll()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # one connection for all requests of a page
    timeout = 30.0  # s; then an idle one is closed
    server: DashboardServer

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0].strip("[]")
        if self.server.hosts and host not in self.server.hosts:
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", b"this host does not go by that name\n")
        parts = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if parts.path == "/":
            return self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)
        if parts.path == "/state":
            state = self.server.read_state(_count(query, "commands"), _count(query, "points"))
            return self._send(HTTPStatus.OK, "application/json", json.dumps(state, allow_nan=False).encode())
        if parts.path == "/camera":
            return self._send_picture(query.get("key", ""))
        return self._send(HTTPStatus.NOT_FOUND, "text/plain", b"not here\n")

    def _send_picture(self, key: str) -> None:
        try:
            picture = self.server.read_picture(key)
        except ValueError as error:
            return self._send(HTTPStatus.UNPROCESSABLE_ENTITY, "text/plain", f"{error}\n".encode())
        if picture is None:
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", b"no picture yet\n")
        return self._send(HTTPStatus.OK, "image/png", picture)

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *SECURITY):
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", self.server.policy_header)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are not worth a line each."""


def _count(query: dict[str, str], name: str) -> int:
    text = query.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 16 else 0
