"""How a client trains and is given its data, without torch: what a process may need to know long before it trains."""

from dataclasses import dataclass
from functools import partial

from fedmf.checks import check_at_least, check_below_one, check_choice, check_non_negative, check_positive
from fedmf.errors import SettingError
from fedmf.setting import check_fields, setting

DEVICES = ("auto", "cpu", "cuda")
LOSSES = ("cross_entropy", "mse", "bce_with_logits")
# What texts are split into.
LEVELS = ("words", "characters")
# What a model can be scored on with Stack Overflow.
TEST_SPLITS = ("test", "validation", "heldout")
# What the test set of data without a split is a share of: each user's rows, or the users.
TEST_UNITS = ("rows", "users")
# What the clients do that are held out.
HELD_OUT_USES = ("score", "train", "none")
# How examples without users are dealt to clients: our names of classes of flwr-datasets.
PARTITIONERS = {
    "iid": "IidPartitioner",
    "dirichlet": "DirichletPartitioner",
    "shards": "ShardPartitioner",
    "pathological": "PathologicalPartitioner",
    "inner_dirichlet": "InnerDirichletPartitioner",
    "distribution": "DistributionPartitioner",
    "linear": "LinearPartitioner",
    "square": "SquarePartitioner",
    "exponential": "ExponentialPartitioner",
    "sizes": "SizePartitioner",
    "grouped": "GroupedNaturalIdPartitioner",
}


_at_least_one = partial(check_at_least, least=1)


def check_loss(argument: str, name: str) -> None:
    """Raise `SettingError` for a loss that is neither one of `LOSSES` nor an import path package.module:function."""
    if ":" not in name:
        check_choice(argument, name, (*LOSSES, "MODULE:FUNCTION"))


@dataclass(frozen=True)
class TrainingSettings:
    """How a client trains: `epochs` passes in shuffled batches of `batch_size`, at most `max_steps` steps in all.

    `optimizer` is sgd, with `momentum` and a weight decay that is added to the gradient (L2), or adam, whose weight
    decay is decoupled (AdamW); its state is new for every client and every turn. `proximal` is the mu of FedProx
    (Li et al. 2020): mu/2 times the squared distance to the model that was sent is added to the loss. `loss` is one of
    `LOSSES` or an import path, None that of the task, see `client.scoring`; a `learning_rate` of None is that of
    `client.training.usual_rate`. `autocast` runs the model in that type under torch's autocast.

    `trainer` is the import path of a custom loop, see `client.training`: it is given these settings, and those
    that only our loop obeys are an error with it.
    """

    learning_rate: float | None = setting(
        None,
        "learning rate of the client; null: 1, with model=cnn 0.3, for regression 0.03",
        check=check_positive,
    )
    batch_size: int = setting(10, "examples in a batch", check=_at_least_one)
    epochs: int = setting(1, "passes over a client's examples", check=_at_least_one)
    device: str = setting("auto", "device that clients train on; auto: a GPU if there is one", DEVICES)
    optimizer: str = setting(
        "sgd",
        "optimizer of the client; its state is new for every client",
        ("sgd", "adam"),
    )
    momentum: float = setting(0.0, "momentum of sgd, in [0, 1)", check=check_below_one)
    weight_decay: float = setting(
        0.0,
        "weight decay, part of the gradient with sgd, decoupled with adam",
        check=check_non_negative,
    )
    proximal: float = setting(
        0.0,
        "mu of FedProx, the weight of the distance to the model that was sent; 0: none",
        check=check_non_negative,
    )
    max_steps: int | None = setting(
        None, "maximum number of local steps; null: no limit", check=_at_least_one
    )
    loss: str | None = setting(
        None,
        "loss, or package.module:function for a custom one; null: mse for regression, bce_with_logits for multilabel, "
        "otherwise cross_entropy",
        LOSSES,
        check_loss,
    )
    autocast: str | None = setting(
        None, "lower precision of the forward pass (bfloat16); null: none", ("bfloat16",)
    )
    trainer: str | None = setting(
        None, "custom training loop, package.module:function; null: the built-in one"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.momentum and self.optimizer != "sgd":
            raise SettingError(
                f"momentum is {self.momentum}, which optimizer={self.optimizer} does not use; set momentum to 0."
            )
        if self.trainer is None:
            return
        if ":" not in self.trainer:
            raise SettingError(
                f"trainer is {self.trainer!r}; it must be the import path package.module:function of a loop."
            )
        for name in _OF_OUR_LOOP:
            if getattr(self, name) != getattr(TrainingSettings, name):
                raise SettingError(
                    f"{name} is {getattr(self, name)!r}, which a custom loop need not obey, and trainer is "
                    f"{self.trainer!r}; leave {name} out."
                )


_OF_OUR_LOOP = ("optimizer", "momentum", "weight_decay", "proximal", "max_steps", "autocast")
