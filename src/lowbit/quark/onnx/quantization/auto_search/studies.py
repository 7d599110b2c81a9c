"""Optuna, where a search asks for its samplers: an extra, and storage that its dashboard reads."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lowbit.errors import did_you_mean
from lowbit.quark.errors import NotSupportedError, QuarkConfigError, say
from lowbit.quark.onnx.quantization.auto_search.spaces import Choice, Space, holds, is_range
from lowbit.search.history import Rating, SearchHistory

_SAMPLERS: Mapping[str, str] = {
    "TPE": "TPESampler",
    "Random": "RandomSampler",
    "CmaEs": "CmaEsSampler",
    "GPS": "GPSampler",
    "NSGAII": "NSGAIISampler",
    "QMC": "QMCSampler",
}
_SEED = 42


def import_optuna() -> Any:
    """Return the package, or raise with the name of the extra."""
    try:
        import optuna
    except ImportError as error:
        raise NotSupportedError(
            "samplers are Optuna's, which is not installed: pip install 'lowbit[optuna]', or take "
            'search_algo "Grid", which needs nothing'
        ) from error
    return optuna


def make_sampler(name: str) -> Any:
    """Return a sampler by Quark's name for it; the same trials come each time."""
    if name not in _SAMPLERS:
        raise QuarkConfigError(
            f"search_algo {name!r} is unknown{did_you_mean(name, _SAMPLERS)} "
            f"(known: Grid, {', '.join(_SAMPLERS)})"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some samplers are experimental, as they say
        return getattr(import_optuna().samplers, _SAMPLERS[name])(seed=_SEED)


@contextlib.contextmanager
def open_study(
    name: str, sampler: str, direction: str, database: Path | None, *, load: bool
) -> Iterator[Any]:
    """Yield a study, kept in Optuna's own format if there is a file for it, which is closed at the end."""
    optuna = import_optuna()
    storage = None
    if database is not None:
        storage = optuna.storages.RDBStorage(f"sqlite:///{database}")
    try:
        yield optuna.create_study(
            study_name=name,
            direction=direction,
            sampler=make_sampler(sampler),
            storage=storage,
            load_if_exists=load,
        )
    finally:
        if storage is not None:
            storage.remove_session()
            storage.engine.dispose()


def suggest(trial: Any, space: Space) -> Choice:
    """Return a choice of a space that a sampler makes; options of a group have its name before them."""
    found: Choice = {}
    for key, value in space.items():
        if isinstance(value, list):
            found[key] = trial.suggest_categorical(key, value)
        elif is_range(value):
            found[key] = _in_range(trial, key, value)
        elif isinstance(value, Mapping) and holds(found, value.get("only_if")):
            found[key] = {
                name: _in_range(trial, f"{key}_{name}", part)
                if is_range(part)
                else trial.suggest_categorical(f"{key}_{name}", part)
                for name, part in value.items()
                if name != "only_if"
            }
    return copy.deepcopy({key: value for key, value in found.items() if value != {}})


def _in_range(trial: Any, name: str, given: Mapping[str, Any]) -> Any:
    if given["type"] == "int":
        return trial.suggest_int(name, given["low"], given["high"], step=given.get("step", 1))
    return trial.suggest_float(name, given["low"], given["high"], log=given.get("log", False))


def optimize(
    study: Any,
    suggested: Callable[[Any], Choice],
    task: Callable[[tuple[int, Choice]], float | None],
    *,
    trials: int,
    jobs: int,
    history: SearchHistory,
) -> Iterator[tuple[int, Choice, float | None]]:
    """Yield trials that a study asks for, ``jobs`` at a time, run by the chosen engine."""
    optuna = import_optuna()
    sign = -1.0 if study.direction == optuna.study.StudyDirection.MAXIMIZE else 1.0

    def rate(score: float | None) -> Rating:
        return Rating(score, sign * (score or 0.0))

    for start in range(0, trials, max(jobs, 1)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # lists as values are unusual, as Optuna says
            asked = [study.ask() for _ in range(start, min(trials, start + max(jobs, 1)))]
            choices = [(trial.number, suggested(trial)) for trial in asked]
        sampler = type(study.sampler).__name__
        scores = history.run(sampler, task, choices, rate, threads=jobs)
        for trial, (number, choice), score in zip(asked, choices, scores, strict=True):
            failed = optuna.trial.TrialState.FAIL if score is None else None
            study.tell(trial, score, state=failed)
            yield number, choice, score


def write_plots(study: Any, folder: Path) -> None:
    """Write how the search went, and which options matter, as pages of Optuna's."""
    try:
        plots = import_optuna().visualization
        plots.plot_optimization_history(study).write_html(folder / "opt_history.html")
        plots.plot_param_importances(study).write_html(folder / "param_importance.html")
    except (ImportError, ValueError, RuntimeError) as error:
        say(f"no plots of the search: {error}")
