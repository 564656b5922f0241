"""List the runs below folders: `python -m experiments.runs [FOLDER ...] where="model=cnn,epsilon<4" sort=accuracy`.

Prints the name of each run, when it began, its data, model, epsilon, accuracy (for regression r2, for multilabel label_accuracy)
and state: finished, running, or interrupted at a round. Accuracy and epsilon of an unfinished run are those of its last rounds.
The default folder is runs/.
"""

import sys
from dataclasses import dataclass

from client.metrics import HEADLINES
from experiments.cli import command, output
from experiments.pages.wording import text_of
from experiments.run_files.listing import COLUMNS, SORT, WHERE, as_lists, find, in_order
from experiments.settings.values import PRINTED, Output
from fedmf.setting import setting


@dataclass(frozen=True)
class RunsSettings:
    directory: str | tuple[str, ...] = setting("runs", "folder, or a list of folders, whose runs are listed")
    where: tuple[str, ...] = setting((), WHERE)
    sort: str = setting("when", SORT)
    output: Output = setting("text", PRINTED)


def runs(settings: RunsSettings) -> None:
    rows = in_order(find(settings.directory, settings.where).values(), settings.sort)
    shown = [name for name in HEADLINES if any(row.get(name) is not None for row in rows)] or HEADLINES[:1]
    # In the place of accuracy the scores of the tasks that there are.
    keys = [name for key in COLUMNS for name in (shown if key == HEADLINES[0] else [key])]
    document = [{key: row.get(key) for key in keys} for row in rows]
    columns = {key: output.NUMBER if key in ("epsilon", *HEADLINES) else {"overflow": "fold"} for key in keys}
    cells = [[text_of(key, value) for key, value in row.items()] for row in document]
    output.show(settings.output, document, lambda: output.print_table("Runs", columns, cells))


if __name__ == "__main__":
    command.run(runs, "runs", RunsSettings, __doc__, as_lists(sys.argv[1:]))
