"""Overrides become frozen objects; nothing outside this package sees Hydra or OmegaConf.

schema         the settings of a run, one frozen dataclass for each group
data           the groups dataset and model, one frozen dataclass for each choice
groups         the groups engine, optimizer and mechanism, and the objects that they describe
values         settings as plain values and overrides, plain values as settings, messages with the keys of the command line
compose        a command's defaults with overrides, as a frozen object, or an error of one sentence
jobs           the same for the jobs of a sweep, under Hydra's command line; a progress bar, and the best trial
reference      all settings of all commands, as --help and the site list them
recorded       config.yaml of a run directory, written and read back
experiment     a run's settings as data, model and plan, and the part of them that a client needs
"""
