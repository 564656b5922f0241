"""A run of two nodes in this process, with what was seen of it, for whoever checks it."""

from flwr.app import Context, Error, Message, RecordDict

from experiments.deployment import apps
from experiments.deployment.node_app import run_settings
from experiments.deployment.server import deploy
from experiments.engines.grid import CLIENT_APP_RAISED, call_app
from experiments.soak import witness
from experiments.soak.evidence import Evidence
from experiments.soak.witness import noting
from nodes import Nodes, key_of

DATA = "dataset=synthetic dataset.clients=12 dataset.features=5 dataset.classes=3"
HOLDS = {"a": f"clients=5 {DATA}", "b": f"clients=7 first=5 {DATA}"}
RUN = (
    f"{DATA} population.min_available=12 population.cohort_size=4 population.epochs=2 engine.node_timeout=0.05 "
    "privacy.epsilon=null privacy.noise_multiplier=1 compression.keep_probability=0.5 run.evaluations=1"
)


class Played:
    """A finished run: its evidence, its settings, and what node a noted; `spoil(node, message, reply)` changes what nodes answer."""

    def __init__(self, directory, spoil=lambda node, message, reply: reply):
        self.overrides = f"{RUN} run.directory={directory}"
        self.settings = run_settings(self.overrides)
        self.evidence = Evidence(directory)
        self.holdings = {key_of(name): text for name, text in HOLDS.items()}
        self.file = directory.with_suffix(".jsonl")
        answers = {name: self.answering(name, spoil) for name in HOLDS}
        deploy(self.settings, Nodes(answers, answers))
        self.evidence.look()
        self.notes = witness.read(self.file, directory)

    def answering(self, name, spoil):
        app = noting(apps.client_app, self.file) if name == "a" else apps.client_app
        context = Context(1, 1, {"overrides": HOLDS[name]}, RecordDict(), {"overrides": self.overrides})

        def answer(message):
            self.evidence.look()  # as the soak does all the time
            return spoil(name, message, call_app(app, message, context))

        return answer


def failed(message):
    """Return an error in place of a reply."""
    return Message(Error(CLIENT_APP_RAISED, "no"), reply_to=message)
