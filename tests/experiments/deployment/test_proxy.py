"""The proxy before a SuperLink: the shipped nginx configuration lets nodes through and nobody else, and keeps nothing."""

import json
import re
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from flwr.app import ConfigRecord

from experiments.cli.command import run
from experiments.deployment.certificates import make_certificates
from experiments.deployment.loopback import HOST
from experiments.deployment.nginx import MIB, Proxy, largest_request
from experiments.proxy import ProxySettings, proxy
from fedmf.errors import SettingError
from fedmf.updates import wire
from nginx_proxy import Nginx, answered, before_an_upstream, head, needs_nginx

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = ROOT / "docs" / "nginx" / "fedmf-proxy.conf"
FLEET = "POST /v1/fleet/push-object HTTP/1.1"
REFUSED = """
POST /v1/control/start-run HTTP/1.1
POST /v1/runtime/push-messages HTTP/1.1
POST / HTTP/1.1
POST /docs HTTP/1.1
POST /v1/fleet HTTP/1.1
POST /v1/fleet/ HTTP/1.1
POST //v1/fleet HTTP/1.1
POST //v1/fleet/push-object HTTP/1.1
POST /v1//fleet/push-object HTTP/1.1
POST /v1/fleet/%3f/../ HTTP/1.1
POST /v1/fleet/%3f/../../control/start-run HTTP/1.1
POST /v1/fleet/%3F/../push-object HTTP/1.1
POST /v1/fleet/../control/start-run HTTP/1.1
POST /v1/fleet/./push-object HTTP/1.1
POST /v1/fleet/a/../push-object HTTP/1.1
POST /v1/fleet%2fpush-object HTTP/1.1
POST /v1%2Ffleet%2Fpush-object HTTP/1.1
POST /v1/fleet/..%2fcontrol%2fstart-run HTTP/1.1
POST /v1/fleet/push%2dobject HTTP/1.1
POST /v1/fleet/push-object%00 HTTP/1.1
POST /v1/fleet/push-object%0a HTTP/1.1
POST /v1/fleet/push-object?to=control HTTP/1.1
POST /v1/fleet/push-object#control HTTP/1.1
POST /v1/fleet/push-object/ HTTP/1.1
POST /v1/fleet/push-object;a HTTP/1.1
POST /v1/fleet\\..\\control\\start-run HTTP/1.1
POST /V1/fleet/push-object HTTP/1.1
POST /v1/FLEET/push-object HTTP/1.1
POST /v1/fleet/Push-Object HTTP/1.1
POST http://localhost/v1/fleet/push-object HTTP/1.1
POST https://localhost:8000/v1/control/start-run HTTP/1.1
POST http://localhost/v1/fleet/%3f/../ HTTP/1.1
POST /v1/fleet/push-object HTTP/1.0
POST /v1/fleet/push-object
GET /v1/fleet/push-object HTTP/1.1
PUT /v1/fleet/push-object HTTP/1.1
OPTIONS * HTTP/1.1
CONNECT 127.0.0.1:8000 HTTP/1.1
PRI * HTTP/2.0
""".strip().splitlines()


def described(**changes):
    whole = {"parameters": 650, "listen": "8443", "superlink": "127.0.0.1:8000", "name": "localhost"}
    return Proxy(**{**whole, "certificate": "/c.pem", "key": "/k", "authority": "/ca.crt", **changes})


def test_the_shipped_file_is_what_the_command_prints(capsys):
    with pytest.raises(SystemExit) as end:
        run(proxy, "proxy", ProxySettings, argv=["parameters=1000900"])
    assert end.value.code == 0
    assert capsys.readouterr().out == SHIPPED.read_text()
    with pytest.raises(SystemExit):
        run(proxy, "proxy", ProxySettings, argv=["parameters=1000900", "output=json"])
    document = json.loads(capsys.readouterr().out)
    assert document["configuration"] == SHIPPED.read_text()
    assert f"client_max_body_size {document['largest_request_bytes']};" in SHIPPED.read_text()


@pytest.mark.parametrize(
    "change",
    [
        {"listen": "8443;"},
        {"listen": "8443 default_server"},
        {"listen": "unix:/tmp/x"},
        {"listen": "0"},
        {"superlink": "8000"},
        {"superlink": "127.0.0.1:70000"},
        {"superlink": "127.0.0.1:8000/v1/control"},
        {"name": "a b"},
        {"name": "a;"},
        {"certificate": "server.pem"},
        {"key": "/etc/a b"},
        {"authority": "/etc/ca.crt; proxy_ssl_verify off"},
        {"authority": "/etc/$x"},
        {"parameters": 0},
    ],
    ids=str,
)
def test_what_nginx_would_read_as_something_else_is_refused(change):
    ((key, value),) = change.items()
    with pytest.raises(SettingError, match=re.escape(f"{key} is {value!r}")):
        described(**change)


@pytest.mark.parametrize(("parameters", "keep"), [(650, 0.5), (1_000_900, 1.0), (1_000_900, 0.001)])
def test_the_largest_honest_reply_is_let_through(parameters, keep):
    """As many clients as share a message, at most 10,000, each with eight standard deviations above its values."""
    padded = 1 << (parameters - 1).bit_length()
    kept = keep * padded
    clients = int(min(10_000, max(1, max(4 * MIB, 4 * parameters) // (4 * kept))))
    above = int(8 * (kept * (1 - keep) / clients) ** 0.5)
    tag = 16  # of a reply that is bound to its task
    values = bytes(4 * (int(kept) + above) + tag)
    record = ConfigRecord({wire.VALUES: [values] * clients})
    assert len(record.deflate()) < largest_request(parameters)


@pytest.fixture(scope="module")
def proxied(tmp_path_factory):
    with before_an_upstream(tmp_path_factory.mktemp("nginx")) as both:
        yield both


@needs_nginx
def test_requests_of_nodes_pass(proxied):
    nginx, upstream = proxied
    for name in ("register-node", "pull-messages", "push-object", "send-node-heartbeat"):
        body = name.encode() * 1000
        assert nginx.ask(f"POST /v1/fleet/{name} HTTP/1.1", body) == (200, b"answer")
        assert upstream.lines[-1] == f"POST /v1/fleet/{name} HTTP/1.1"
        assert upstream.bodies[-1] == body


@needs_nginx
@pytest.mark.parametrize("line", REFUSED)
def test_every_other_line_is_refused(proxied, line):
    nginx, upstream = proxied
    before = upstream.lines.copy()
    status, _ = nginx.ask(line)
    assert status in ({0, 400, 403, 405} if not line.endswith("1.1") else {400, 403, 405})
    assert upstream.lines == before


@needs_nginx
def test_two_lengths_of_one_request_are_refused(proxied):
    nginx, upstream = proxied
    before = upstream.lines.copy()
    smuggled = b"0\r\n\r\nPOST /v1/control/start-run HTTP/1.1\r\nHost: a\r\n\r\n"
    headers = ("Transfer-Encoding: chunked", f"Content-Length: {len(smuggled)}")
    assert nginx.ask(FLEET, smuggled, headers)[0] == 400
    assert upstream.lines == before


@needs_nginx
def test_the_largest_request_passes_and_a_larger_one_is_refused(tmp_path):
    largest = largest_request(1000)
    with before_an_upstream(tmp_path) as (nginx, upstream):
        assert nginx.ask(FLEET, bytes(largest))[0] == 200
        assert len(upstream.bodies[-1]) == largest
        before = upstream.bytes
        assert nginx.ask(FLEET, bytes(largest + 1))[0] in (0, 413)  # 0: it hung up before all was sent
        assert upstream.bytes == before
        chunk = b"%x\r\n" % MIB + bytes(MIB) + b"\r\n"
        chunks = chunk * (largest // MIB + 2) + b"0\r\n\r\n"
        assert nginx.ask(FLEET, chunks, ("Transfer-Encoding: chunked",))[0] in (0, 413)
        assert len(upstream.bodies) == 1  # a part arrived, the request did not


@needs_nginx
def test_a_request_is_passed_on_once_it_is_whole_and_never_written_to_disk(tmp_path):
    """The folders that nginx would spool to are gone: a configuration that spools answers 500."""
    body = bytes(largest_request(1000))
    with before_an_upstream(tmp_path) as (nginx, upstream):
        with nginx.connected() as channel:
            channel.sendall(head(FLEET, body) + body[:-1])
            time.sleep(0.5)
            assert upstream.connections == 0
            channel.sendall(body[-1:])
            assert answered(channel)[0] == 200
        assert [len(body) for body in upstream.bodies] == [len(body)]
        assert "No such file" not in nginx.errors()


@needs_nginx
def test_unfinished_requests_of_one_address_neither_reach_the_superlink_nor_lock_others_out(tmp_path):
    limit, body = 64, bytes(MIB)
    assert f"limit_conn fedmf_address {limit};" in SHIPPED.read_text()
    with before_an_upstream(tmp_path) as (nginx, upstream), ExitStack() as unfinished:
        for _ in range(limit):
            channel = unfinished.enter_context(nginx.connected())
            channel.sendall(head(FLEET, body) + body[:1000])
        deadline = time.monotonic() + 20
        while nginx.ask(FLEET)[0] != 503:
            assert time.monotonic() < deadline, "more than the limit were let in"
            time.sleep(0.05)
        before = upstream.connections  # of questions before all unfinished requests were counted
        assert nginx.ask(FLEET)[0] == 503
        assert upstream.connections == before
        assert nginx.ask(FLEET, body, source="127.0.0.2")[0] == 200
        assert {*map(len, upstream.bodies)} <= {0, len(body)}


@needs_nginx
def test_an_answer_to_a_slow_node_is_never_written_to_disk(proxied, monkeypatch):
    nginx, upstream = proxied
    monkeypatch.setattr(upstream, "answer", bytes(24 * MIB))
    with nginx.connected() as channel:
        channel.sendall(head("POST /v1/fleet/pull-object HTTP/1.1"))
        time.sleep(0.5)  # what the node does not take piles up at the proxy
        status, body = answered(channel)
    assert (status, len(body)) == (200, 24 * MIB)
    assert "No such file" not in nginx.errors()


@needs_nginx
def test_requests_share_a_connection_to_the_superlink(proxied):
    nginx, upstream = proxied
    nginx.ask(FLEET)
    before = upstream.connections
    for _ in range(5):
        assert nginx.ask(FLEET)[0] == 200
    assert upstream.connections == before


@needs_nginx
def test_no_request_is_logged(proxied):
    nginx, _ = proxied
    assert nginx.ask(FLEET)[0] == 200
    assert (nginx.folder / "access.log").read_text() == ""


@needs_nginx
def test_a_superlink_of_another_authority_gets_nothing(tmp_path):
    (tmp_path / "other").mkdir()
    other = make_certificates(tmp_path / "other", HOST)
    text = (str(tmp_path / "ca.crt"), str(other.authority))
    with before_an_upstream(tmp_path, text=lambda shipped: shipped.replace(*text)) as (nginx, upstream):
        assert nginx.ask(FLEET, b"update")[0] == 502
        assert upstream.lines == []
    elsewhere = ("proxy_ssl_name localhost", "proxy_ssl_name elsewhere")
    (tmp_path / "name").mkdir()
    with before_an_upstream(tmp_path / "name", text=lambda shipped: shipped.replace(*elsewhere)) as (
        nginx,
        upstream,
    ):
        assert nginx.ask(FLEET, b"update")[0] == 502
        assert upstream.lines == []


@needs_nginx
@pytest.mark.deployment
def test_real_nodes_train_through_it_and_operators_are_refused(tmp_path):
    import subprocess

    from experiments.deployment.loopback import BIN, Loopback
    from experiments.run_files.reader import is_finished
    from runs import metrics

    data = "dataset=synthetic dataset.clients=4 dataset.features=5 dataset.classes=3"
    directory = tmp_path / "run"
    with Loopback() as loopback:
        loopback.start_superlink()
        (tmp_path / "nginx").mkdir()
        with Nginx(tmp_path / "nginx", loopback.port, loopback.certificates, parameters=18) as nginx:
            loopback.register("a")
            loopback.start_supernode("a", f"clients=4 {data}", port=nginx.port)
            process = loopback.submit(
                f"run.directory={directory} {data} population.min_available=4 population.cohort_size=2 "
                "population.epochs=1"
            )
            process.wait(300)
            assert is_finished(directory), loopback.tail("run")
            assert [row["replies"] for row in metrics(directory)] == [2, 2]
            loopback.call("flwr", "ls", "loopback")  # to the SuperLink itself it works
            config = loopback.home("operator") / "config.toml"
            config.write_text(config.read_text().replace(str(loopback.port), str(nginx.port)))
            listed = subprocess.run(
                [BIN / "flwr", "ls", "loopback"],
                env=loopback.environment("operator"),
                capture_output=True,
                check=False,
            )
            assert listed.returncode != 0
            assert "No such file" not in nginx.errors()
            assert (nginx.folder / "access.log").read_text() == ""
