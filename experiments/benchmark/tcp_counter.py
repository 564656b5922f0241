"""A TCP forwarder that counts what travels through it: every byte of TLS, headers and polling included."""

import socket
import threading
from contextlib import suppress
from typing import Self


class TcpCounter:
    """Listens on a free loopback port and forwards to port `target`.

    `sent` and `received` are bytes as the caller sees them.
    """

    def __init__(self, target: int) -> None:
        """Begin to listen."""
        self.sent = self.received = 0
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._open = [self._server]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        """Return the counter."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close every connection."""
        for opened in self._open:
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._server.accept()
                callee = socket.create_connection(("127.0.0.1", self._target))
                self._open += [caller, callee]
                threading.Thread(target=self._pump, args=(caller, callee, "sent"), daemon=True).start()
                threading.Thread(target=self._pump, args=(callee, caller, "received"), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
                setattr(self, name, getattr(self, name) + len(data))
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
