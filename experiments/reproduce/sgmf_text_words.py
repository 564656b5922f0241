"""The words of the page sgmf_text: what is compared, on what, how it was tuned, and what was found."""

from experiments.reproduce.sgmf_text_task import CLIENT_RATE, SUGGESTED, VOCABULARY, WORDS
from experiments.reproduce.sgmf_training import DELTA, Size
from experiments.reproduce.tuning import FACTOR

HEAD = f"""
**What is compared.** The share of words that are among five suggestions after the last round at fixed epsilon, while clients send fewer of
their values: independent noise (which the paper calls L2-CSGM), `honaker_online`, the tree of DP-FTRL, the optimal factorization of one
epoch, fitted to the momentum of the server's optimizer (the paper's mechanism), and the optimum of the whole run, which is ours. All are
sparsified and accounted alike: in a row of a table the noise multiplier is the same.

**Beside the paper.** Figures 2 and 6 of Chen, Isik, Kairouz, No, Oh, Xu (ICML 2024) show next-word prediction on Stack Overflow. Here
it is Stack Exchange by user: 18,060 posts and comments of 2,549 users, 2.3 million tokens, several sites and also French. It is NOT
Stack Overflow, which has 342,477 users. With so few users cohorts are small and noise in the mean is large, so that epsilons are large; they,
the network, cohorts, rounds and epochs are our choice, and no number of the paper's figures stands here.

**The vocabulary is public.** {VOCABULARY:,} words counted in the documentation that comes with Python 3.11 by `python -m experiments.vocabulary`,
never in the users' texts ({WORDS}). It does not know about a fifth of the tokens: {VOCABULARY:,} words counted in the texts themselves would
leave out about a twelfth, and be a release that no epsilon covers.

**What accuracy is here.** Of the targets that are words of the vocabulary, the share that is among the {SUGGESTED} words of the largest outputs. The tokens for
unknown words and the end of a text are no suggestions: with so many unknown words the largest output of all is mostly that token, which the usual
accuracy, of one suggestion, counts as wrong. So these numbers are not to be held against accuracies elsewhere. The loss counts all tokens.
A fifth of each user's texts is the test set, which is treated as public: all of its users also train, with their other texts.
"""
FOUND = {
    "small": """
The model learns more than word frequencies, if little: without noise 27.0 % against 20.6 % for the five most frequent words, and
a loss of 4.66 against 4.93. Both optimal factorizations are above `honaker_online` at each keep probability and epsilon, by .6 to 1.8 points; with everything sent
it is 1.3 points above independent noise. The whole run's optimum is told apart from one epoch's in accuracy at keep 1 and epsilon 64 alone, by
.3 points; its loss is lower by .01 to .03 in all four rows: there are two epochs. A hundredth of the bytes costs the optima 2.2 points at epsilon 16 and 3.4 to
3.8 at epsilon 64, because a vector of 128,435 coordinates spreads too thin to be kept at .01 without more noise ("The noise"). There, independent noise
is no better than the five most frequent words. The loss is above that of the frequencies alone at keep .01 throughout, and with everything
sent for independent noise and, at epsilon 16, for the tree; there one epoch's optimum is level with it and the whole run's .02 below.
""".strip(),
    "laptop": """
Independent noise, `honaker_online` and the optimal factorizations stand in this order in all six rows, each told apart from the next: the optima are
1.0 to 1.9 points above the tree, and the tree .5 to 1.7 above independent noise. Without noise the model reaches 28.1 %, against 20.4 %
for the five most frequent words. The whole run's optimum is not told apart from one epoch's in the accuracy of any row: there are two epochs. Its loss is
lower in all six, by .005 to .033 between runs of the same seed. A tenth of the bytes costs the optima .3 to .7 points, a hundredth 1.7 to 1.9 at epsilon 8 and
2.9 to 3.1 at epsilon 32. At keep .01 and epsilon 8 independent noise is no better than the five most frequent words. The loss is above that of the
frequencies alone at keep .01 throughout, for independent noise everywhere, at epsilon 8 for the tree, and for one epoch's optimum at keep .1 there. With everything sent that is
level with it and the whole run's .03 below; at keep .1 the whole run's is level.
""".strip(),
}


def tuning(size: Size) -> str:
    """Return how learning rates are tuned, seeds chosen and runs made."""
    return f"""
**How the learning rate was tuned.** In the same way for every column and for the runs without noise: for each keep probability and epsilon on
its own, on a grid of factors of {FACTOR:g}. A rate is scored with {size.task.tuning} seed that no table shows: {size.held_out:.0%} of the users, drawn by that public
seed, are held out, of the others cohorts as large train, and the loss on the held-out users' training texts after the last round decides (in sgmf_text.jsonl exp(-loss) is the accuracy of such a line). The
search begins at the best rate of a neighbouring keep probability or epsilon (first {size.task.start:g}) and goes to the better neighbour until neither is
better. No rate is chosen by the test split. That the choice was made with noise is not in the standard errors. The clients' learning rate {CLIENT_RATE:g},
the clip norm 1, the size of batches, cohorts and epochs are the same for all; they were fixed beforehand after some single runs, scored on held-out users, without noise and with
independent noise and the optimum of the whole run.

**Seeds.** {size.seeds} runs of each, and {size.more} more of two mechanisms that lie closer than two standard errors after these. Runs of the same seed
share cohorts, initial model, order of the data and the noise before it is correlated.

**What a run is.** The product's own pipeline, as `simulate` runs it. Secrets derive from the seed, so that the
same code computes every number again: these runs protect nobody, and choosing a learning rate by accuracy is not covered by epsilon. Zero-out adjacency,
delta {DELTA}; one participation an epoch. The server has momentum 0.9 and a constant learning rate.
""".strip()
