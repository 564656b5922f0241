"""Why a node cannot take part: certificates over real handshakes, what a proxy answers, and that it is said once."""

import logging
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from experiments.deployment import reaching
from experiments.deployment.certificates import make_certificates, make_node_key
from experiments.deployment.reaching import Fault, Way, fault_on, wait_until_reached


class Proxy(BaseHTTPRequestHandler):
    """Answers as a proxy does whose SuperLink is down."""

    status = 502

    def do_POST(self):
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def serving(tmp_path):
    """Start a server with a certificate of `days` for 127.0.0.1, and return the way to it."""
    running = []

    def start(*, tls=True, days=2, status=502, host="127.0.0.1"):
        files = make_certificates(tmp_path, "127.0.0.1", days=days)
        make_node_key(tmp_path, "node")
        server = HTTPServer((host, 0), type("Answers", (Proxy,), {"status": status}))
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(files.certificate, files.key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        running.append(server)
        return Way(f"{host}:{server.server_port}", str(files.authority), str(tmp_path / "node"))

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def test_a_certificate_that_has_expired_is_told_apart_from_another_authority(serving, tmp_path):
    expired = fault_on(serving(days=0))  # valid from an hour ago until now
    assert "has expired for this machine's clock, which shows 20" in expired.text
    (tmp_path / "other").mkdir()
    way = serving()
    other = make_certificates(tmp_path / "other", "127.0.0.1").authority
    assert fault_on(Way(way.superlink, str(other), way.private_key)).kind == "wrong authority"


@pytest.mark.parametrize(("host", "called"), [("127.0.0.1", "127.1"), ("127.0.0.2", "127.0.0.2")])
def test_a_certificate_for_another_name_or_address_is_told_apart(serving, host, called):
    way = serving(host=host)
    port = way.superlink.rpartition(":")[2]
    fault = fault_on(Way(f"{called}:{port}", way.root_certificates, way.private_key))
    assert fault.kind == "other name"
    assert f"for another name than {called}" in fault.text


def test_a_port_without_tls_is_told_apart(serving):
    assert fault_on(serving(tls=False)).kind == "no TLS"


@pytest.mark.parametrize(("status", "kind"), [(502, "behind the proxy"), (404, "answer 404 None")])
def test_what_stands_before_a_superlink_is_told_apart(serving, status, kind):
    fault = fault_on(serving(status=status))
    assert (fault.kind, f"HTTP {status}" in fault.text) == (kind, True)


def test_a_fault_is_said_once_however_often_it_is_met_and_another_one_again(monkeypatch, caplog):
    clock = [Fault("clock", f"the clock is {seconds} seconds off") for seconds in (7, 8, 9)]
    faults = iter([*clock, Fault("refused", "nobody listens"), None])
    monkeypatch.setattr(reaching, "fault_on", lambda way: next(faults))
    waited = []
    with caplog.at_level(logging.INFO, logger=reaching.__name__):
        wait_until_reached(Way("a:1", "ca.crt", "key"), waited.append)
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        "the clock is 7 seconds off",
        "nobody listens",
        "the SuperLink at a:1 now answers this node",
    ]
    assert waited == [1, 2, 4, 8]


def test_a_supernode_whose_session_is_refused_ends_with_a_code_of_its_own(tmp_path):
    """By the words with which Flower ends, in a process of its own; with other words it ends as Flower does."""
    program = (
        "import sys, importlib\n"
        "parts = importlib.import_module('experiments.deployment.flower_parts')\n"
        "cli = importlib.import_module('flwr.supernode.cli.flower_supernode')\n"
        "http = importlib.import_module('flwr.supernode.fleet_http_connection')\n"
        "said = sys.argv[1]\n"
        "cli.flower_supernode = lambda: http.flwr_exit(305, said)\n"
        "parts.run_supernode([], b'x' * 32, .2, 76)\n"
    )
    codes = [
        subprocess.run([sys.executable, "-c", program, said], capture_output=True, check=False).returncode
        for said in ("no.\n[code: 2004] Failed to activate SuperNode.", "no.\n[code: 2003] no")
    ]
    assert codes == [reaching.SESSION, 1]
