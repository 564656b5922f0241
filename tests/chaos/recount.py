"""Every round of a run computed again from its keys, client by client, and compared with what was released, bit for bit.

The clients that were heard train again in this process, under the run's keys; their values are added and the round's own
noise row goes on the sum. A node whose reply did not count (an error, a lie) has zeros in place of its values: which nodes
those were is found by trying, because the record does not tell. A release that no such sum explains holds something else:
another noise row, one twice or none, a client twice, values of somebody else.

The code of clients, mechanism and noise is the project's own, so that this finds what faults do to a run, and not what is
wrong with the mechanism: that is for the audit.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from chaos.witness import check_given, digest
from client.app import make_client_app
from client.training import Trainer
from experiments.deployment.node import Node, node_settings
from experiments.deployment.server import build_deployed
from experiments.engines.grid import call_app, local_context, set_identity
from experiments.settings.experiment import Experiment, build_client_plan, build_model
from fedmf.updates import wire
from fedmf.updates.wire import TAG_BYTES
from runs import model
from server.cohort import node_of
from server.exchange import model_record, payloads
from server.state import FixedPoint, Secrets, apply_release, begin_epoch, first_state, make_release


@dataclass
class Recounted:
    """What was computed again, and with it the last model, digests of all models by round, and rounds that nothing explains.

    `zeros` has by round the nodes, if any, whose replies count as zeros.
    """

    experiment: Experiment
    releases: list
    apps: dict
    model: np.ndarray
    digests: dict
    unexplained: list = field(default_factory=list)
    zeros: dict = field(default_factory=dict)


def recount(experiment, releases, keys, apps):
    """Compute `releases`, those of rounds 1, 2, ..., again; `keys` has each epoch's, `apps` each node's (a simulation's: "")."""
    set_identity()
    plan = experiment.plan
    state = first_state(plan, experiment.initial, keys[0])
    found = Recounted(experiment, releases, apps, state.model, {0: digest(state.model)})
    for release in releases:
        epoch, _ = state.position(plan)
        state = replace(begin_epoch(plan, state), secrets=Secrets(epoch, keys[epoch], None))
        zeros = _zeros(plan, state, release, _sums(plan, state, release, apps))
        if zeros is None:
            found.unexplained.append(release.round)
        elif zeros:
            found.zeros[release.round] = zeros
        state = apply_release(plan, experiment.optimizer, replace(state, secrets=None), release, None)
        found.model, found.digests[release.round] = state.model, digest(state.model)
    return found


def examine(witness, settings, holds, notes):
    """Compare a finished deployment with every promise, and return its recount.

    `holds` has by its key with which overrides each node was started, `notes` what one of them noted of its tasks.
    """
    experiment = build_deployed(settings)
    witness.check(experiment.plan)
    apps = {key: _app(settings, overrides, experiment.plan.dimension) for key, overrides in holds.items()}
    keys = {epoch: key for epoch, (key,) in witness.keys.items()}
    found = recount(experiment, witness.releases(), keys, apps)
    check_given(notes, found.digests)
    np.testing.assert_array_equal(found.model, model(witness.directory))
    return found


def _app(settings, overrides, dimension):
    """Return the honest ClientApp of a node that holds `overrides`."""
    node = Node(node_settings(overrides))
    return make_client_app(
        node.examples_of,
        lambda: Trainer(build_model(settings.model, node.dataset, settings.seed), settings.client),
        build_client_plan(settings, dimension),
    )


def _sums(plan, state, release, apps):
    """Return by node what the clients that were heard sent together, (D,) int64 on the grid of the server's sum."""
    (epoch, step), clients_of, sums = state.position(plan), defaultdict(list), {}
    arrays = model_record(state.model, state.scale)
    for client in release.answered:
        clients_of[node_of(client)].append(client)
    for node, clients in clients_of.items():
        keys = [state.secrets.key.mask_key(client, step) for client in clients]
        task = {
            wire.EPOCH: epoch,
            wire.STEP: step,
            wire.CLIENT: clients,
            wire.MASK_KEY: [key.reveal() for key in keys],
        }
        content = RecordDict({wire.MODEL: arrays, wire.TASK: ConfigRecord(task)})
        message = Message(content, 1, MessageType.TRAIN, group_id=str(release.round))
        message.metadata.__dict__["_message_id"] = "recounted"
        sent = payloads(call_app(apps[node], message, local_context()), len(clients))
        sums[node] = _sum(plan, keys, sent)
    return sums


def _sum(plan, keys, sent):
    """Return the sum of clients' values by their mask keys."""
    grid = FixedPoint.fit(plan.bounds.linf_norm, plan.participation.cohort_size)
    total = grid.zeros(plan.rotation.padded)
    for key, data in zip(keys, sent, strict=True):
        where = wire.coordinates(key, plan.rotation.padded, plan.compression.keep_probability)
        grid.add(total, where, wire.decode(data and data[:-TAG_BYTES], plan.bounds, kept=len(where)))
    return total


def _zeros(plan, state, release, sums):
    """Return the nodes, heard in a round, whose values must be zeros for its sum, the fewest first; None where no such sum is released."""
    grid = FixedPoint.fit(plan.bounds.linf_norm, plan.participation.cohort_size)
    for size in range(len(sums) + 1):
        for zeros in combinations(sorted(sums), size):
            total = sum([sums[node] for node in sums if node not in zeros], grid.zeros(plan.rotation.padded))
            made, _ = make_release(plan, state, grid.value(total), list(release.answered))
            if made.noisy_sum.tobytes() == release.noisy_sum.tobytes():
                return zeros
    return None
