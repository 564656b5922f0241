"""The keys of the command, and what is refused before anything is computed."""

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from experiments.audit.digits import number_of_images
from experiments.audit.sabotage import SABOTAGES, Sabotage
from experiments.settings.commands import AuditSettings
from fedmf.audit.bounds import LARGEST_EPSILON
from fedmf.checks import check_at_least, check_choice, check_keep_probability, check_open_unit, check_positive
from fedmf.errors import RunDirectoryError, SettingError
from fedmf.mechanisms import FAMILIES

NONE, ALL = "none", "all"
FEWEST_RUNS = 20
MOST_CONFIDENT = 1 - 1e-9  # beyond this an attack's share of what is left of 1 is lost in float64
NIGHT_PAIRS = 160  # twice every kind of vector from every client, of which a scene has 16 at most


def check(settings: AuditSettings) -> None:
    """Raise `SettingError` for settings with which nothing could be concluded."""
    for name in ("mechanisms", "keep_probabilities"):
        if not getattr(settings, name):
            raise SettingError(f"{name} is empty; give at least one.")
    for mechanism in settings.mechanisms:
        check_choice("each of mechanisms", mechanism, FAMILIES)
    chosen_sabotages(settings.sabotage)
    for keep_probability in settings.keep_probabilities:
        check_keep_probability(keep_probability)
    check_at_least("runs", settings.runs, 0)
    if 0 < settings.runs < FEWEST_RUNS:
        raise SettingError(
            f"runs is {settings.runs}; it must be at least {FEWEST_RUNS}, or 0 to leave the many runs out."
        )
    check_at_least("cohort_size", settings.cohort_size, 2)
    clients, images = settings.cohort_size * settings.rounds_per_epoch, number_of_images()
    if clients > images:
        raise SettingError(
            f"cohort_size is {settings.cohort_size} and rounds_per_epoch {settings.rounds_per_epoch}; that is {clients} "
            f"clients for {images} training images, and each needs one."
        )
    for name in ("canaries", "residual_runs", "calibration"):
        check_at_least(name, getattr(settings, name), 0)
    if settings.pairs is not None:
        check_at_least("pairs", settings.pairs, 0)
    check_at_least("workers", settings.workers, 1)
    check_open_unit("confidence", settings.confidence)
    if settings.confidence > MOST_CONFIDENT:
        raise SettingError(
            f"confidence is {settings.confidence!r}; it must be at most 1 - 1e-9, of which each attack has its share."
        )
    for name in ("epsilon", "one_run_epsilon"):
        check_positive(name, getattr(settings, name))
        if getattr(settings, name) > LARGEST_EPSILON:
            raise SettingError(
                f"{name} is {getattr(settings, name):g}; it must be at most {LARGEST_EPSILON:g}, because no number of runs "
                "or guesses refutes a larger one."
            )
    is_audit = settings.run_directory is None and not settings.calibration
    if is_audit and not any((settings.runs, settings.canaries, settings.pairs != 0, settings.residual_runs)):
        raise SettingError(
            "runs, canaries, pairs and residual_runs are 0, so that nothing is tested; give a number to one of them at least."
        )


def chosen_sabotages(asked: object) -> list[Sabotage]:
    """Return the sabotages that `sabotage=` names: none, all, or some, their words joined by spaces or underscores."""
    if asked in (None, NONE):
        return []
    if asked == ALL:
        return list(SABOTAGES.values())
    names = [asked] if isinstance(asked, str) else asked
    if not isinstance(names, Sequence) or not names:
        raise SettingError(f"sabotage is {asked!r}; it must be none, all, or a list of names.")
    return [_named(str(name)) for name in names]


def _named(name: str) -> Sabotage:
    plain = name.replace("_", " ")
    if plain in SABOTAGES:
        return SABOTAGES[plain]
    near = get_close_matches(plain, SABOTAGES, n=1)
    meant = f"did you mean {near[0]}?" if near else f"these are known: {', '.join(SABOTAGES)}."
    raise SettingError(f"sabotage names {name!r}, which is not in the list; {meant}")


def refuse_existing(path: Path) -> None:
    """Raise `RunDirectoryError` if something is at `path`."""
    if path.exists() or path.is_symlink():
        raise RunDirectoryError(
            f"directory is {path}, which exists already; name one that does not, "
            "so that no audit overwrites another."
        )


def new_directory(path: Path) -> Path:
    """Return `path`, made now. Raises `RunDirectoryError` if something is there."""
    refuse_existing(path)
    path.mkdir(parents=True)
    return path


def for_a_night(settings: AuditSettings, mechanisms: Sequence[str]) -> AuditSettings:
    """Return the settings of `thorough=true`: all mechanisms, more of everything; the setting says how much more."""
    return replace(
        settings,
        mechanisms=tuple(dict.fromkeys((*settings.mechanisms, *mechanisms))),
        runs=10 * settings.runs,
        pairs=NIGHT_PAIRS if settings.pairs is None else 6 * settings.pairs,
        residual_runs=20 * settings.residual_runs,
        one_run_delta=settings.one_run_delta / 10,  # so that "one run" can decide at a tenth of its level
    )
