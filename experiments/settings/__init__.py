"""Overrides become frozen objects; nothing outside this package sees Hydra or OmegaConf.

schema      the settings of a run, one frozen dataclass for each group
data        the groups dataset and model, one frozen dataclass for each choice
compose     a command's defaults with overrides, as a frozen object
jobs        the same for the jobs of a sweep, under Hydra's own command line
values      settings as plain values, and plain values as settings
recorded    config.yaml of a run directory, written and read back
keys        the library's messages with the keys of the command line
mistakes    what Hydra says of a mistake, as one sentence
client      the part of a run's settings that a client needs, as the library's values
experiment  a run's settings as data, model and plan
"""
