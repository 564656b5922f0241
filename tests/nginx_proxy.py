"""A real nginx with the shipped configuration, before a TLS server that remembers what reached it."""

import contextlib
import http.server
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time

import pytest

from experiments.deployment.certificates import make_certificates
from experiments.deployment.loopback import HOST, free_port
from experiments.deployment.nginx import Proxy

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
SPOOLS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
MAIN = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
events {{ worker_connections 1024; }}
http {{
    access_log {folder}/access.log;
{spools}
    include {folder}/fedmf-proxy.conf;
}}
"""


class Upstream(http.server.ThreadingHTTPServer):
    """Remembers request lines, bodies and how many connections there were; answers with `answer`."""

    daemon_threads = True

    def __init__(self, certificates):
        super().__init__((HOST, 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.certificate, certificates.key)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.lines, self.bodies, self.connections, self.bytes = [], [], 0, 0
        self.answer = b"answer"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        """Say nothing of a caller that hangs up or trusts another authority."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.server.connections += 1

    def parts(self):
        """The body, as it comes. Raises `ConnectionError` for one that is cut off."""
        if length := int(self.headers.get("Content-Length", 0)):
            while length > 0:
                if not (part := self.rfile.read1(min(length, 1 << 16))):
                    raise ConnectionError
                length -= len(part)
                yield part
        elif "chunked" in self.headers.get("Transfer-Encoding", ""):
            while line := self.rfile.readline():
                if not (size := int(line, 16)):
                    break
                part = self.rfile.read(size)
                yield part
                if len(part) < size or not self.rfile.readline():
                    raise ConnectionError
            else:
                raise ConnectionError
            self.rfile.readline()

    def do_POST(self):
        self.server.lines.append(self.requestline)
        body = []
        for part in self.parts():
            self.server.bytes += len(part)
            body.append(part)
        self.server.bodies.append(b"".join(body))
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.answer)))
        self.end_headers()
        self.wfile.write(self.server.answer)

    do_GET = do_PUT = do_OPTIONS = do_DELETE = do_HEAD = do_POST

    def log_message(self, *_):
        """Print nothing."""


class Nginx:
    """One nginx: a context. `text` changes the shipped configuration, for what must be noticed."""

    def __init__(
        self, folder, superlink_port, certificates, *, parameters=1000, text=lambda shipped: shipped
    ):
        self.folder, self.port, self.certificates = folder, free_port(), certificates
        proxy = Proxy(
            parameters=parameters,
            listen=f"{HOST}:{self.port}",
            superlink=f"{HOST}:{superlink_port}",
            name="localhost",
            certificate=str(certificates.certificate),
            key=str(certificates.key),
            authority=str(certificates.authority),
        )
        (folder / "fedmf-proxy.conf").write_text(text(proxy.configuration()))
        spools = "\n".join(f"    {name}_temp_path {folder}/{name};" for name in SPOOLS)
        (folder / "nginx.conf").write_text(MAIN.format(folder=folder, spools=spools))

    def __enter__(self):
        command = [
            NGINX,
            "-e",
            self.folder / "error.log",
            "-p",
            self.folder,
            "-c",
            self.folder / "nginx.conf",
        ]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while True:
            if self.process.poll() is not None:
                pytest.fail(f"nginx ended: {self.errors()}")
            with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=5):
                break
            assert time.monotonic() < deadline, self.errors()
            time.sleep(0.02)
        for name in SPOOLS:  # even root cannot write into a folder that is gone
            (self.folder / name).rmdir()
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(10)

    def errors(self):
        file = self.folder / "error.log"
        return file.read_text() if file.exists() else ""

    @contextlib.contextmanager
    def connected(self, source=HOST):
        context = ssl.create_default_context(cafile=str(self.certificates.authority))
        with (
            socket.create_connection((HOST, self.port), timeout=20, source_address=(source, 0)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as channel,
        ):
            yield channel

    def ask(self, line, body=b"", headers=(), *, source=HOST):
        """Send one request as these bytes and return the status and all that was answered."""
        with self.connected(source) as channel:
            channel.sendall(head(line, body, headers))
            with contextlib.suppress(OSError):  # an early refusal
                channel.sendall(body)
            return answered(channel)


def head(line, body=b"", headers=()):
    length = () if any(name.startswith("Transfer") for name in headers) else (f"Content-Length: {len(body)}",)
    lines = (line, "Host: localhost", "Connection: close", *length, *headers)
    return "\r\n".join((*lines, "", "")).encode()


def answered(channel):
    """Return the status of what a channel holds, 0 for none, and the bytes behind the headers."""
    parts = []
    with contextlib.suppress(OSError):
        while part := channel.recv(1 << 16):
            parts.append(part)
    received = b"".join(parts)
    first, _, rest = received.partition(b"\r\n")
    status = int(first.split()[1]) if first.startswith(b"HTTP/") else 0
    return status, rest.partition(b"\r\n\r\n")[2]


@contextlib.contextmanager
def before_an_upstream(folder, **settings):
    """Yield an nginx and the server behind it."""
    certificates = make_certificates(folder, HOST)
    upstream = Upstream(certificates)
    try:
        with Nginx(folder, upstream.server_port, certificates, **settings) as nginx:
            yield nginx, upstream
    finally:
        upstream.shutdown()
        upstream.server_close()
