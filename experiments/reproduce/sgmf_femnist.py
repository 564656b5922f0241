"""Figures 3, 7 and 8 of Chen et al. 2024 in small: accuracy against bytes sent, down to three values in a thousand.

The sparsified matrix mechanism fitted to one epoch, as in the paper, and to the whole run, beside the tree of DP-FTRL and
independent noise, at fixed epsilon; on handwriting by writer, with the learning rate tuned for each.
"""

from pathlib import Path

from experiments.reproduce import Means, Reproduction, sgmf_training as training
from experiments.reproduce.accuracy_page import Comparison
from experiments.reproduce.sgmf_page import Page, make
from experiments.reproduce.sgmf_paper import dry_run
from experiments.reproduce.sgmf_training import EPOCH, HONAKER, INDEPENDENT, WHOLE_RUN

NAME = "sgmf_femnist"
HEAD = """
**What is compared.** Test accuracy after the last round at fixed epsilon, while clients send ever fewer of their values: independent
noise (which the paper calls L2-CSGM), `honaker_online`, the tree of DP-FTRL, the optimal factorization of one epoch, fitted to
the momentum of the server's optimizer (the paper's mechanism), and the optimum of the whole run, which is ours. All are sparsified and accounted
alike: in a row of a table the noise multiplier is the same.

**Beside the paper.** Figures 3, 7 and 8 of Chen, Isik, Kairouz, No, Oh, Xu (ICML 2024) show Federated EMNIST: 62 classes, 3,400
writers, cohorts of 100, 16 epochs of 32 rounds, keep probabilities 1 to .003. Here it is ten classes
of MNIST, told apart by writer, which is smaller and easier and is NOT Federated EMNIST; keep probabilities and cohorts are the
paper's; epsilons are our choice, and model, rounds and epochs are cut to what stands over the first table. Its
abstract reports at least a hundredfold compression for DP-SGD; "What compression costs" below says what we find.
"""
FOUND = {
    "small": """
As in the paper, the matrix mechanism is above independent noise everywhere, and the more so the less is sent. The optimum of the
whole run is the best in every row, and gains most where noise is largest: 2 points over that of one epoch at epsilon 2 and keep .003.
Two things are not as the paper leads one to expect. The optimum of one epoch is above the tree of DP-FTRL by no more than .1 to .5 points, which
runs of the same seed tell apart in 7 of 10 rows: over several epochs with a restart in each, what an epoch leaves behind counts, and it was not made for that. And keep .01 costs 2 to 3
points, keep .003 6 to 8, with independent noise 3 to 4 and 13 to 16: with 7,850 parameters the noise grows 1.5 and 3 times at keep .01 and 4 and
8 times at .003, as the table of the noise says, which also says that with a million parameters it would grow by a tenth at keep .01. A tenth
of the values costs next to nothing here; whether a hundredth does is a matter of the model's size.
""",
    "laptop": """
A larger model pays less for sending less. With 50,890 parameters keep .01, which is 87 times fewer bytes, costs .2 to 1.4 points and keep .003, 223
times fewer, 1.1 to 3.4, where the 7,850 parameters of `small` lose 2 to 4 and 6 to 16: the noise grows to 1.1 to 1.4 times at keep .01, to 1.4 to
2.7 times at .003, least at epsilon 2. With a million parameters, says the table of the noise, it would grow by no more than a tenth at keep .01.
The mechanisms stand in the same order in all 15 rows, and runs of the same seed tell every neighbour apart: the optimum of the whole run, that of
one epoch, the tree of DP-FTRL, independent noise. Between runs of the same seed the whole run is .6 to 1.5 points above one epoch, most at epsilon 8 and with much sent, and with a hundredth of the values it
reaches what that of one epoch reaches with all of them. One epoch is .2 to .6 points above the tree, at every keep probability, and 2.5 to 4.9 above independent noise.
""",
}
PAGE = Page(
    NAME,
    "Accuracy against bytes sent per client",
    HEAD,
    (INDEPENDENT, HONAKER, EPOCH, WHOLE_RUN),
    Comparison(WHOLE_RUN, EPOCH),
    ((EPOCH, INDEPENDENT),),
    FOUND,
)


def reproduce(directory: Path, means: Means) -> Reproduction:
    """Make the runs that are missing, and return their table; the page and its plot go to `directory`."""
    name = training.check_size(means)
    size = training.SIZES[name]
    return dry_run(PAGE, size) if name == "paper" else make(directory, means, PAGE, name, size)
