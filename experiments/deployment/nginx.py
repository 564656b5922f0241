"""The nginx configuration through which nodes reach a SuperLink, and the largest request that it must let through.

docs/deployment.md says why there must be a proxy; docs/nginx/fedmf-proxy.conf is this file as `fedmf proxy`
prints it for an example.
"""

import re
from dataclasses import dataclass

from jinja2 import Environment, StrictUndefined

from fedmf.checks import check_at_least
from fedmf.errors import SettingError
from fedmf.updates.rotation import padded_dimension

MIB = 1 << 20
LEAST_REPLY = (
    4 * MIB
)  # bytes of values that clients of one node may share in a message, however small the model
_FILE = re.compile(r"/[\w./@+-]+")  # what needs no quotes in nginx's language
_ADDRESS = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):(?P<port>\d{1,5})")
_NAME = re.compile(r"[\w.-]+")

TEMPLATE = """\
# /etc/nginx/conf.d/fedmf-proxy.conf on the server host, printed by `fedmf proxy`; see docs/deployment.md.
# It passes the requests of nodes, POST /v1/fleet/NAME, and nothing else: /v1/control/ and /v1/runtime/ are everything.
# It sees un-noised updates, because TLS ends here: nothing that travels is written to a disk or to a log.
# Unfinished requests stay in nginx, at most 256 x client_max_body_size; the `events` block of nginx.conf needs
# worker_connections 4096 or more, because nginx counts a connection below only once it has read a request's head.
limit_conn_zone $binary_remote_addr zone=fedmf_address:1m;
limit_conn_zone $server_port zone=fedmf_all:1m;

upstream fedmf_superlink {
    server {{ superlink }};
    keepalive 32;
    keepalive_timeout 3s;  # the SuperLink closes what is idle for 5 s: no request meets a connection that is closing
}

server {
    listen {{ listen }} ssl;  # without http2: what is checked below is the line that the SuperLink is sent
    ssl_certificate {{ certificate }};
    ssl_certificate_key {{ key }};
    ssl_protocols TLSv1.2 TLSv1.3;
    ssl_session_tickets off;
    server_tokens off;
    access_log off;

    # A node has at most three requests under way: two parts of a reply and a heartbeat. All nodes of a hospital come from
    # one address: 64 is 20 nodes that upload at one instant. What is more gets 503, and a node tries that again.
    limit_conn fedmf_address 64;
    limit_conn fedmf_all 256;
    keepalive_timeout 60s;  # a node asks every few seconds
    keepalive_requests 1000;
    client_header_timeout 10s;  # for the TLS handshake and for a request's head
    client_body_timeout 30s;  # between two parts of a request, not for all of it: the server has a deadline for that
    send_timeout 30s;  # likewise of an answer
    reset_timedout_connection on;

    # The largest honest request: a reply for a model of {{ parameters }} parameters.
    client_max_body_size {{ largest }};

    # The line as it was sent, before nginx decodes or normalizes anything: nginx and the SuperLink disagree about
    # paths such as /v1/fleet/%3f/../control. Nodes send no query and no other method.
    if ($request_uri !~ "^/v1/fleet/[a-z-]+$") {
        return 403;
    }
    if ($request !~ "^POST /v1/fleet/[a-z-]+ HTTP/1[.]1$") {
        return 403;
    }

    location / {
        proxy_pass https://fedmf_superlink;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_set_header Host {{ name }};
        # The SuperLink gets whole requests: one that never ends costs it nothing. The buffer is as large as a request, so
        # that nothing of one goes to a file.
        proxy_request_buffering on;
        client_body_buffer_size {{ largest }};
        proxy_buffering off;  # answers in memory only, a part at a time
        proxy_max_temp_file_size 0;
        proxy_buffer_size 64k;
        proxy_buffers 4 64k;
        proxy_next_upstream off;  # a request is sent once
        proxy_ssl_verify on;
        proxy_ssl_verify_depth 2;
        proxy_ssl_trusted_certificate {{ authority }};
        proxy_ssl_name {{ name }};
        proxy_ssl_server_name on;
        proxy_ssl_protocols TLSv1.2 TLSv1.3;
    }
}
"""


@dataclass(frozen=True)
class Proxy:
    """What stands in the configuration of a proxy; `parameters` of the largest model that runs behind it.

    Addresses are HOST:PORT, `listen` may be a port alone; the others are files, and the `name` that the SuperLink's
    certificate must be for. Raises `SettingError` for what nginx would read as something else.
    """

    parameters: int
    listen: str
    superlink: str
    name: str
    certificate: str
    key: str
    authority: str

    def __post_init__(self) -> None:
        check_at_least("parameters", self.parameters, 1)
        _check_address("listen", self.listen, if_port_alone="localhost:")
        _check_address("superlink", self.superlink)
        if not _NAME.fullmatch(self.name):
            raise SettingError(f"name is {self.name!r}; it must be a host name or an address.")
        for key in ("certificate", "key", "authority"):
            if not _FILE.fullmatch(getattr(self, key)):
                raise SettingError(
                    f"{key} is {getattr(self, key)!r}; it must be an absolute path of letters, digits and . _ @ + -"
                )

    def configuration(self) -> str:
        """Return the text of the file."""
        template = Environment(undefined=StrictUndefined, keep_trailing_newline=True).from_string(TEMPLATE)
        values = {**vars(self), "largest": largest_request(self.parameters)}
        return template.render(values)


def largest_request(parameters: int) -> int:
    """Return the bytes of the largest request that an honest node sends in runs of a model of `parameters` parameters.

    That is a reply. Clients of one node share one while their expected values are no more than the larger of 4 MiB and
    the padded model in float32 (`server.exchange.tasks_per_message`); one client's values are never more than that
    model. A sixteenth is for how many coordinates were kept at random, 2 MiB for what stands beside the values of 10,000
    clients and for requests that hold no values.
    """
    values = max(LEAST_REPLY, 4 * padded_dimension(parameters, "hadamard"))
    return values + values // 16 + 2 * MIB


def _check_address(name: str, address: str, *, if_port_alone: str = "") -> None:
    """Raise `SettingError` unless `address` is HOST:PORT, or, where there is one to put before it, a port alone."""
    found = _ADDRESS.fullmatch(address if ":" in address else if_port_alone + address)
    if found is None or not 1 <= int(found["port"]) <= 65535:
        right = "a port or HOST:PORT" if if_port_alone else "HOST:PORT"
        raise SettingError(f"{name} is {address!r}; it must be {right}, with a port from 1 to 65535.")
