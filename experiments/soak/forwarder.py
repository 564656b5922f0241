"""A TCP forwarder whose way can be cut, slowed or reset: what lies between two machines, on one of them.

It needs Python's library alone and knows nothing of what travels, so that it stands between any two programs of which one
can be told another port.
"""

import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

HOST = "127.0.0.1"
_PART = 1 << 14  # bytes that travel at once
_RESETS = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST instead of FIN


@dataclass(frozen=True)
class Way:
    """How bytes travel: each part `delay` seconds late and at most `rate` bytes a second (None: no limit)."""

    delay: float = 0.0
    rate: float | None = None


class Forwarder:
    """Listens on a free loopback port and forwards to port `target`: a context, at whose end all connections are closed."""

    def __init__(self, target: int) -> None:
        """Begin to listen."""
        self._target, self._way = target, Way()
        self.opened = 0  # connections so far
        self.held = 0  # connections and parts that had to wait since the way was last cut or slowed
        self._open_way = threading.Event()  # cleared while the way is cut
        self._open_way.set()
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._is_over = False
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        """Return the forwarder."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close every connection."""
        self._is_over = True
        with suppress(OSError):  # wakes the thread that accepts
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.reset()
        self._open_way.set()

    def cut(self) -> None:
        """Let nothing through, in either direction: what is sent waits, as on a wire that loses every packet."""
        self.held = 0
        self._open_way.clear()

    def slow(self, delay: float, rate: float | None = None) -> None:
        """Let every part be `delay` seconds late, and no more than `rate` bytes a second through a connection."""
        self.held = 0
        self._way = Way(delay, rate)

    def reset(self) -> int:
        """Break all connections with RST, and return how many ends that were; new ones are forwarded."""
        with self._lock:
            broken, self._connections = self._connections, set()
        for end in broken:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS)
                end.shutdown(socket.SHUT_RD)  # who waits for its data goes on; no FIN goes out
            end.close()
        return len(broken)

    def lead_to(self, target: int) -> None:
        """Forward new connections to another port, and break those that there are."""
        self._target = target
        self.reset()

    def heal(self) -> None:
        """Let everything through again, at once; what waited travels on."""
        self._way = Way()
        self._open_way.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._server.accept()
                threading.Thread(target=self._connect, args=(caller,), daemon=True).start()

    def _connect(self, caller: socket.socket) -> None:
        self.opened += 1
        self._pass_when_open()
        try:
            callee = socket.create_connection((HOST, self._target), timeout=5)
        except OSError:  # nobody listens: as if there were no forwarder
            caller.close()
            return
        callee.settimeout(None)
        with self._lock:
            if not self._is_over:
                self._connections |= {caller, callee}
        if not self._is_over:
            back = threading.Thread(target=self._pump, args=(callee, caller), daemon=True)
            back.start()
            self._pump(caller, callee)
            back.join()
        with self._lock:
            self._connections -= {caller, callee}
        caller.close()
        callee.close()

    def _pass_when_open(self) -> None:
        if not self._open_way.is_set():
            self.held += 1
            self._open_way.wait()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_PART):
                way = self._way
                if late := way.delay + (len(data) / way.rate if way.rate else 0.0):
                    self.held += 1
                    time.sleep(late)
                self._pass_when_open()
                sink.sendall(data)
        with self._lock:
            is_whole = source in self._connections
        for end in (source, sink) if is_whole else ():  # what was reset must send no FIN
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
