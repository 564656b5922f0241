"""Which nodes of a deployment are there: said in the log when an epoch begins or goes on, and counted.

A node's name, its key and whether it is connected are public, and hang on nobody's data. Flower's commands know a node by its
id alone, so that the log says which id is whose.
"""

import logging
from collections.abc import Collection, Mapping

from server.cohort import Presence, Roster
from server.known_nodes import KnownNodes

log = logging.getLogger(__name__)


def tell_epoch(roster: Roster, nodes: KnownNodes, there: Mapping[str, int], *, begins: bool) -> None:
    """Log who is in the epoch of `roster`: names, keys and Flower's ids; `there` are the connected nodes (key -> id).

    Whether it `begins` or goes on after a restart. Who is not in it was said before, by `tell_left_out`.
    """
    log.info(
        "epoch %d %s with %d clients behind %d nodes",
        roster.epoch + 1,
        "begins" if begins else "goes on",
        roster.clients,
        len(roster.nodes),
    )
    for name, key, count in sorted((nodes.called(key), key, count) for key, count in roster.nodes.items()):
        found = f"its node id {there[key]}" if key in there else "and it is not connected now"
        log.info("node %s takes part with %d clients; its key is %s, %s", name, count, key, found)


def tell_left_out(
    nodes: KnownNodes,
    there: Mapping[str, int],
    present: Collection[str],
    *,
    unready: Collection[str],
    other_code: Collection[str],
    empty: Collection[str],
) -> None:
    """Log each node without which an epoch begins, and why: those of the list, without a list those that are connected.

    `there` are the nodes that were connected when they were asked (key -> id), `present` the keys of those that take part,
    the others the keys of those that say that they are not ready, have other code, or hold no client. Who is connected
    and in none of them has not answered, or not properly.
    """
    left_out = {nodes.called(key): key for key in there if nodes.admit(key) and key not in present}
    for name, key in sorted(left_out.items()):
        if key in unready:
            log.warning("node %s is not ready: the epoch begins without it", name)
        elif key in other_code:
            log.warning("node %s has other code than the run: the epoch begins without it", name)
        elif key in empty:
            log.warning("node %s holds no client: the epoch begins without it", name)
        else:
            log.warning(
                "node %s is connected and did not say how many clients it holds: the epoch begins without it",
                name,
            )
    for name, key in away(nodes, there).items():
        log.warning(
            "node %s is in the list of nodes and not connected: the epoch begins without it; its key is %s",
            name,
            key,
        )


def away(nodes: KnownNodes, there: Mapping[str, int]) -> dict[str, str]:
    """Return {name: key} of the listed nodes that are not connected, by name."""
    return {
        node.name: node.key for node in sorted(nodes, key=lambda node: node.name) if node.key not in there
    }


def presence(nodes: KnownNodes, roster: Roster, there: Mapping[str, int]) -> Presence:
    """Return which nodes the list names, without a list the epoch, which are connected, and which are in the epoch."""
    in_epoch = frozenset(roster.nodes)
    expected = frozenset(node.key for node in nodes) if nodes.listed is not None else in_epoch
    return Presence(expected, frozenset(there), in_epoch)


def tell_changes(roster: Roster, nodes: KnownNodes) -> None:
    """Log what the list of nodes now says otherwise than the roster of the epoch under way, by which the epoch ends."""
    for key, count in sorted(roster.nodes.items()):
        if not nodes.admit(key):
            log.warning(
                "node %s is no longer in the list of nodes: its %d clients are silent until epoch %d ends, and out of "
                "the next one",
                key,
                count,
                roster.epoch + 1,
            )
        elif (agreed := nodes.agreed(key)) is not None and agreed < count:
            log.warning(
                "node %s counts for %d clients until epoch %d ends, as when it began; after that for %d, as the list of "
                "nodes says now",
                nodes.called(key),
                count,
                roster.epoch + 1,
                agreed,
            )
