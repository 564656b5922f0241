"""A TLS proxy that refuses requests above a size with 413, as one whose limit is too small for a run's replies does."""

import http.client
import ssl
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from experiments.soak.forwarder import HOST

_TIMEOUT = 30.0  # seconds for an answer from behind


class SmallProxy:
    """Answers HTTPS on a free loopback port: requests of at most `limit` bytes go to port `target`, others get 413.

    `certificate` and `key` are its own, `authority` is whose certificate `target` must have; all are PEM files.
    """

    def __init__(self, target: int, limit: int, *, certificate: Path, key: Path, authority: Path) -> None:
        """Begin to listen."""
        behind = ssl.create_default_context(cafile=str(authority))
        proxy = self
        self.refused = 0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length)
                if length > limit:
                    proxy.refused += 1
                    self._say(413, {}, b"")
                    return
                headers = {
                    name: value for name, value in self.headers.items() if name.lower() != "connection"
                }
                connection = http.client.HTTPSConnection(HOST, target, context=behind, timeout=_TIMEOUT)
                try:
                    connection.request("POST", self.path, body, headers)
                    answer = connection.getresponse()
                    self._say(answer.status, dict(answer.getheaders()), answer.read())
                except OSError:
                    self._say(502, {}, b"")
                finally:
                    connection.close()

            def _say(self, status: int, headers: dict[str, str], body: bytes) -> None:
                with suppress(OSError):  # the caller is gone
                    self.send_response(status)
                    for name, value in headers.items():
                        if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                            self.send_header(name, value)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Print nothing."""

        self._server = _Quiet((HOST, 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port: int = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> Self:
        """Return the proxy."""
        return self

    def __exit__(self, *error: object) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about a caller that hangs up or does not finish a handshake."""
