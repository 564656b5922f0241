"""The private parts of Ray that a run needs, here only; tests/experiments/engines/test_ray.py names the versions.

Ray reads the environment's token once, when it is imported, and has no public question for whether a cluster answers.
"""

from typing import Any

PATIENCE = 10.0  # seconds for a cluster to answer; Ray by itself tries for minutes, and ends the process then
_CLUSTER_ID = "/ray.rpc.NodeInfoGcsService/GetClusterId"  # which every head answers, and no other server


def read_environment() -> None:
    """Let Ray read the environment's token again."""
    inside = _inside()
    inside.AuthenticationTokenLoader.instance().reset_cache()
    inside.Config.initialize("")


def address_here() -> str:
    """Return the address of a cluster on this machine, or of the one that RAY_ADDRESS names.

    Raises `ConnectionError` for none; Ray's own `auto` would not notice that it has ended since.
    """
    import ray._private.services

    inside: Any = ray._private.services
    return str(inside.canonicalize_bootstrap_address("auto"))


def ask_head(address: str) -> None:
    """Ask the head of a cluster at `address`, HOST:PORT, for its id with this process's token. Raises `grpc.RpcError`."""
    import grpc

    token = tuple(_inside().AuthenticationTokenLoader.instance().get_token_for_http_header().items())
    with grpc.insecure_channel(address) as channel:
        channel.unary_unary(_CLUSTER_ID)(b"", timeout=PATIENCE, metadata=token)


def _inside() -> Any:
    import ray._raylet

    return ray._raylet
