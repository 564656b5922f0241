"""Print the nginx configuration that lets nodes reach a SuperLink, and nobody else: `fedmf proxy parameters=650`.

    fedmf proxy parameters=1000900 > /etc/nginx/conf.d/fedmf-proxy.conf

The largest request that it lets through follows from the model: `parameters` is what `node_check` prints and what stands in
summary.json, of the largest model that will run behind it. docs/deployment.md says what the file is for.
"""

from dataclasses import dataclass

from experiments.cli import command, output
from experiments.deployment.nginx import Proxy, largest_request
from experiments.settings.output import Output
from fedmf.setting import REQUIRED, setting


@dataclass(frozen=True)
class ProxySettings:
    """Keys of the command."""

    parameters: int = setting(
        REQUIRED,
        "of the largest model that runs behind the proxy: no larger request is let through than its "
        "updates need",
    )
    listen: str = setting("8443", "port, or HOST:PORT, where nodes come in")
    superlink: str = setting("127.0.0.1:8000", "HOST:PORT of the SuperLink, on the loopback interface")
    name: str = setting("localhost", "what the SuperLink's certificate must be made out to")
    certificate: str = setting("/etc/fedmf/server.pem", "file that nodes are shown")
    key: str = setting("/etc/fedmf/server.key", "file with its private key")
    authority: str = setting(
        "/etc/fedmf/ca.crt", "file with the authority that signed the SuperLink's certificate"
    )
    output: Output = setting(Output.text, "what is printed, the configuration or one JSON document with it")


def proxy(settings: ProxySettings) -> None:
    """Print the configuration that `settings` describe."""
    described = Proxy(**{key: value for key, value in vars(settings).items() if key != "output"})
    text = described.configuration()
    if settings.output is Output.json:
        largest = largest_request(settings.parameters)
        output.print_json({"configuration": text, "largest_request_bytes": largest})
    else:
        print(text, end="")


if __name__ == "__main__":
    command.run(proxy, "proxy", ProxySettings, __doc__)
