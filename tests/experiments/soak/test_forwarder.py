"""The forwarder between a node and the SuperLink: what passes, and when."""

import contextlib
import socket
import threading
import time

import pytest

from experiments.soak.forwarder import HOST, Forwarder


class Echo:
    """A server that sends back what it gets."""

    def __init__(self, prefix=b""):
        self.prefix, self.server = prefix, socket.create_server((HOST, 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                caller, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(caller,), daemon=True).start()

    def answer(self, caller):
        try:
            while data := caller.recv(1 << 16):
                caller.sendall(self.prefix + data)
        except OSError:
            pass
        caller.close()


@pytest.fixture
def echo():
    server = Echo()
    yield server
    server.server.close()


def asked(channel, data, timeout=5.0):
    channel.settimeout(timeout)
    channel.sendall(data)
    answer = b""
    while len(answer) < len(data):
        part = channel.recv(1 << 16)
        if not part:
            return answer
        answer += part
    return answer


def test_everything_passes_both_ways(echo):
    with Forwarder(echo.port) as way, socket.create_connection((HOST, way.port)) as channel:
        assert asked(channel, bytes(range(256)) * 1000) == bytes(range(256)) * 1000


def test_nothing_passes_a_cut_way_and_what_waited_travels_on(echo):
    """Neither on a connection that there was, nor on a new one; no connection is broken by it."""
    with Forwarder(echo.port) as way, socket.create_connection((HOST, way.port)) as channel:
        assert asked(channel, b"before") == b"before"
        way.cut()
        with pytest.raises(TimeoutError):
            asked(channel, b"during", timeout=0.3)
        with (
            socket.create_connection((HOST, way.port)) as other,
            pytest.raises(TimeoutError),
        ):
            asked(other, b"new", timeout=0.3)
        way.heal()
        channel.settimeout(5)
        assert channel.recv(100) == b"during"
        assert asked(channel, b"after") == b"after"


def test_a_slow_way_is_late_and_narrow_until_it_is_healed(echo):
    with Forwarder(echo.port) as way, socket.create_connection((HOST, way.port)) as channel:
        way.slow(0.2)
        begun = time.monotonic()
        assert asked(channel, b"x") == b"x"
        assert time.monotonic() - begun >= 0.4  # there and back
        way.slow(0.0, rate=10_000)
        begun = time.monotonic()
        asked(channel, bytes(3000))
        assert time.monotonic() - begun >= 0.6
        way.heal()
        begun = time.monotonic()
        asked(channel, bytes(3000))
        assert time.monotonic() - begun < 0.3


def test_connections_are_broken_by_a_reset_and_new_ones_pass(echo):
    with Forwarder(echo.port) as way:
        with socket.create_connection((HOST, way.port)) as channel:
            assert asked(channel, b"x") == b"x"
            way.reset()
            with pytest.raises(ConnectionResetError):
                asked(channel, b"y", timeout=2)
        with socket.create_connection((HOST, way.port)) as channel:
            assert asked(channel, b"z") == b"z"


def test_a_way_that_leads_elsewhere_does_so_for_all(echo):
    other = Echo(b"other ")
    with Forwarder(echo.port) as way:
        with socket.create_connection((HOST, way.port)) as channel:
            assert asked(channel, b"x") == b"x"
            way.lead_to(other.port)
            with pytest.raises(ConnectionError):
                asked(channel, b"y", timeout=2)
        with socket.create_connection((HOST, way.port)) as channel:
            channel.sendall(b"z")
            channel.settimeout(5)
            assert channel.recv(100) == b"other z"
    other.server.close()


def test_where_nobody_listens_the_caller_is_told_at_once():
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    with Forwarder(port) as way, socket.create_connection((HOST, way.port)) as channel:
        channel.settimeout(5)
        assert channel.recv(10) == b""


def test_at_the_end_every_connection_is_closed(echo):
    with Forwarder(echo.port) as way:
        channel = socket.create_connection((HOST, way.port))
        assert asked(channel, b"x") == b"x"
    channel.settimeout(5)
    with channel, contextlib.suppress(ConnectionError):
        assert channel.recv(10) == b""
    with pytest.raises(OSError):
        socket.create_connection((HOST, way.port), timeout=1)
