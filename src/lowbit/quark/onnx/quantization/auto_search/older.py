"""``AutoSearch``: a grid over fields of the older configuration, until enough is good enough."""

from __future__ import annotations

import copy
import dataclasses
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from onnxruntime.quantization.calibrate import CalibrationMethod
from onnxruntime.quantization.quant_utils import QuantType

from lowbit.errors import LowbitError
from lowbit.quark.errors import NotSupportedError, QuarkConfigError, say
from lowbit.quark.onnx.quantization.api import ModelQuantizer
from lowbit.quark.onnx.quantization.auto_search.scoring import (
    DISTANCES,
    SIMILARITIES,
    Array,
    distance,
    outputs_of,
    read_feeds,
)
from lowbit.quark.onnx.quantization.auto_search.spaces import Choice, SearchSpace, levels
from lowbit.quark.onnx.quantization.auto_search.studies import open_study, optimize
from lowbit.quark.onnx.quantization.config.config import Config
from lowbit.quark.onnx.quantization.quant_utils import LayerWiseMethod, PowerOfTwoMethod
from lowbit.search.history import Budget, Rating, SearchHistory


class AutoSearchConfig:
    """The configuration of an ``AutoSearch``; scripts inherit from it and override fields."""

    search_space: ClassVar[dict[str, Any]] = {
        "calibrate_method": [
            PowerOfTwoMethod.MinMSE,
            PowerOfTwoMethod.NonOverflow,
            CalibrationMethod.MinMax,
            CalibrationMethod.Entropy,
            CalibrationMethod.Percentile,
            LayerWiseMethod.LayerWisePercentile,
        ],
        "activation_type": [QuantType.QInt8, QuantType.QInt16],
        "weight_type": [QuantType.QInt8, QuantType.QInt16],
        "include_cle": [True, False],
        "include_auto_mp": [False, True],
        "include_fast_ft": [False, True],
        "include_sq": [False, True],
        "extra_options": {
            "ActivationSymmetric": [True, False],
            "WeightSymmetric": [True, False],
            "CalibMovingAverage": [True, False],
            "CalibMovingAverageConstant": [0.01, 0.001],
            "Percentile": [99.99, 99.999],
            "SmoothAlpha": [0.5, 0.6],
            "FastFinetune": {
                "DataSize": [500, 1000],
                "NumIterations": [100, 1000],
                "OptimAlgorithm": ["adaround", "adaquant"],
                "LearningRate": [0.01, 0.001, 0.0001],
                "FixedSeed": [42],
            },
        },
    }
    search_metric: str = "L2"
    search_algo: str = "grid_search"
    search_evaluator: Any = None
    search_metric_tolerance: float = 2.0e4
    search_cache_dir: str = "./"
    search_output_dir: str = "./"
    search_log_path: str = "./auto_search.log"
    two_stage_search: bool = False
    advanced_fastft_search: bool = False
    advanced_fastft_params: ClassVar[dict[str, Any]] = {
        "sampler_algo": "TPE",
        "direction": "minimize",
        "n_trials": 10,
    }
    n_jobs: int = 2
    search_devices: str = "cuda:0,1"
    search_stop_condition: ClassVar[dict[str, Any]] = {
        "find_n_candidates": 1e3,
        "find_best_candidate": -1,
        "iteration_limit": 1e5,
        "time_limit": 30 * 24 * 3600,
    }


@dataclasses.dataclass(frozen=True)
class _Outcome:
    """A choice that was tried: how far its model is from float, and where the model is."""

    number: int
    choice: Choice
    difference: float | None
    path: str
    why: str = ""


@dataclasses.dataclass(frozen=True)
class _Trial:
    """The task of one trial, in this process or another one."""

    model: Any
    config: Config
    feeds: Sequence[Any] | None
    data_path: str | None
    folder: str
    want: tuple[Array, ...] | float
    eval_feeds: Sequence[Any]
    measure: str
    evaluator: Any

    def __call__(self, numbered: tuple[int, Choice]) -> _Outcome:
        number, choice = numbered
        path = str(Path(self.folder) / f"iter_{number}.onnx")
        try:
            ModelQuantizer(with_choice(self.config, choice)).quantize_model(
                self.model,
                path,
                None if self.feeds is None else list(self.feeds),
                self.data_path,
            )
            return _Outcome(number, choice, self._difference(path), path)
        except LowbitError as error:
            return _Outcome(number, choice, None, path, str(error))

    def score(self, numbered: tuple[int, Choice]) -> float | None:
        """Return the difference alone."""
        return self(numbered).difference

    def _difference(self, path: str) -> float:
        if isinstance(self.want, float):
            return self.want - float(self.evaluator(path))
        got = outputs_of(path, self.eval_feeds, quantized=True)
        return distance(DISTANCES[self.measure], self.want, got)


def with_choice(config: Config, choice: Choice) -> Config:
    """Return a configuration with what a choice says; the one that is given stays as it is."""
    changed = copy.deepcopy(config.global_quant_config)
    fields, options, finetune = levels(choice)
    joint = finetune.pop("NumIterLR", None)
    if joint is not None:
        finetune["NumIterations"], finetune["LearningRate"] = joint
    for name, value in fields.items():
        setattr(changed, name, value)
    changed.extra_options.update(options)
    if finetune:
        known = changed.extra_options.get("FastFinetune") or {}
        changed.extra_options["FastFinetune"] = {**known, **finetune}
    return Config(global_quant_config=changed)


class AutoSearch:
    """Tries the choices of a search space, and keeps the models that are near enough to float."""

    def __init__(
        self,
        model_input: str,
        config: Config,
        auto_search_config: Any = None,
        eval_dataloader: Any = None,
        calibration_data_reader: Any = None,
        calibration_data_path: str | None = None,
    ) -> None:
        if config.global_quant_config.crypto_mode:
            raise NotSupportedError("crypto mode writes no files, and a search writes many")
        self.model_input, self.config = model_input, config
        self.auto_search_config = auto_search_config or AutoSearchConfig()
        self.candidates: list[dict[str, Any]] = []
        self.history = SearchHistory()
        self.searched_space: dict[int, float] = {}
        self.output_dir = str(self._setting("search_output_dir"))
        Path(self.output_dir).mkdir(parents=True, exist_ok=True)
        measure = self._setting("search_metric")
        if measure not in DISTANCES:
            say(
                f"search_metric {measure!r} is unknown (known: {', '.join(DISTANCES)}); L2 is taken"
            )
            measure = "L2"
        self.all_configs = self.build_all_configs(self._setting("search_space"))
        self._trial = self._make_trial(
            measure, calibration_data_reader, calibration_data_path, eval_dataloader
        )

    def build_all_configs(self, search_space_config: dict[str, Any]) -> list[Choice]:
        """Return every choice of a space; ``all_configs`` may be set to those of several."""
        return SearchSpace(search_space_config).get_all_configs()

    def _make_trial(
        self, measure: str, reader: Any, data_path: str | None, eval_reader: Any
    ) -> _Trial:
        feeds = None if reader is None else read_feeds(reader)
        evaluator = self._setting("search_evaluator")
        shown = read_feeds(eval_reader) if eval_reader is not None else feeds
        if evaluator is None and not shown:
            raise QuarkConfigError(
                "AutoSearch compares outputs on data: give eval_dataloader, "
                "calibration_data_reader or a search_evaluator"
            )
        return _Trial(
            self.model_input,
            self.config,
            feeds,
            data_path,
            self.output_dir,
            () if evaluator is None else 0.0,
            shown or [],
            measure,
            evaluator,
        )

    def _setting(self, name: str) -> Any:
        value = getattr(self.auto_search_config, name, None)
        return getattr(AutoSearchConfig, name) if value is None else value

    def search_model(self) -> Any:
        """Return the models that are within the tolerance, the nearest first.

        With ``two_stage_search`` the best choice instead, and with ``advanced_fastft_search`` the best
        iterations and learning rate.
        """
        evaluator = self._setting("search_evaluator")
        want: Any
        if evaluator is None:
            want = tuple(outputs_of(self.model_input, self._trial.eval_feeds, quantized=False))
        else:
            want = float(evaluator(self.model_input))
        trial = dataclasses.replace(self._trial, want=want)
        if self._setting("two_stage_search"):
            return [self._two_stages(trial)]
        if self._setting("advanced_fastft_search"):
            return self._tuned(trial)
        choices = list(self.all_configs)
        if self._setting("search_algo") == "random":
            random.shuffle(choices)
        self._try(trial, choices)
        return self.candidates

    def _try(self, trial: _Trial, choices: Sequence[Choice]) -> list[_Outcome]:
        """Run choices until enough are good enough, and keep their models alone."""
        stop, tolerance = (
            self._setting("search_stop_condition"),
            float(self._setting("search_metric_tolerance")),
        )
        wanted, most, seconds = (
            float(stop.get(name, -1))
            for name in ("find_n_candidates", "iteration_limit", "time_limit")
        )

        def is_enough(found: Sequence[_Outcome]) -> bool:
            good = sum(one.difference is not None and one.difference <= tolerance for one in found)
            return 0 <= wanted <= good

        limit = len(choices) if most < 0 else min(len(choices), int(most))
        self.history.budget = Budget(None if seconds < 0 else seconds)
        algorithm = str(self._setting("search_algo"))
        numbered = list(enumerate(choices[:limit]))
        found = self.history.run(algorithm, trial, numbered, self._rate, is_enough=is_enough)
        self._remember(found, tolerance)
        return found

    def _rate(self, one: _Outcome) -> Rating:
        return Rating(one.difference, self._order(one), one.why)

    def _remember(self, found: Sequence[_Outcome], tolerance: float) -> None:
        known = [one for one in found if one.difference is not None]
        for one in found:
            if one.difference is None:
                say(f"search: {one.choice} cannot be quantized: {one.why}")
        if not known:
            raise QuarkConfigError(
                f"no choice of the search space works; the last: {found[-1].why}"
            )
        known.sort(key=self._order)
        self.searched_space = {one.number: float(one.difference or 0.0) for one in known}
        self.candidates = []
        for one in known:
            if one.difference is not None and one.difference <= tolerance:
                self.candidates.append(
                    {
                        "config_index": one.number,
                        "difference": one.difference,
                        "model_path": one.path,
                    }
                )
            else:
                Path(one.path).unlink(missing_ok=True)

    def _order(self, one: _Outcome) -> float:
        """Return what the best have least of: of a similarity the highest is the best."""
        is_similarity = self._trial.evaluator is None and self._trial.measure in SIMILARITIES
        return (-1 if is_similarity else 1) * float(one.difference or 0.0)

    def _best(self, found: Sequence[_Outcome]) -> Choice:
        return min((one for one in found if one.difference is not None), key=self._order).choice

    def _two_stages(self, trial: _Trial) -> Choice:
        """Return the best choice: calibration first, then fine-tuning with the best of it."""
        apart = [levels(choice) for choice in self.all_configs]
        finetunes = [
            third
            for index, (*_, third) in enumerate(apart)
            if third not in [a[2] for a in apart[:index]]
        ]
        if finetunes == [{}] or all(not (a or b) for a, b, _ in apart):
            raise NotSupportedError("two_stage_search needs FastFinetune's options and others")
        first: list[Choice] = []
        for fields, options, _ in apart:
            choice = {**fields, "include_fast_ft": False, "extra_options": options}
            if choice not in first:
                first.append(choice)
        best = self._best(self._try(trial, first))
        second = []
        for finetune in finetunes:
            options = {**best["extra_options"], "FastFinetune": finetune}
            second.append({**best, "include_fast_ft": True, "extra_options": options})
        return self._best(self._try(trial, second))

    def _tuned(self, trial: _Trial) -> dict[str, Any]:
        """Return the best iterations and learning rate of fine-tuning between the given ends."""
        *_, given = levels(self._setting("search_space"))
        unknown = set(given) - {"NumIterations", "LearningRate"}
        if unknown or not given:
            raise NotSupportedError(
                f"advanced_fastft_search is over NumIterations and LearningRate, not {sorted(unknown)}"
            )
        settings = self._setting("advanced_fastft_params")

        def suggested(asked: Any) -> Choice:
            chosen: Choice = {}
            if "NumIterations" in given:
                ends = min(given["NumIterations"]), max(given["NumIterations"])
                step = 1000 if ends[1] - ends[0] >= 1000 else 1
                chosen["NumIterations"] = asked.suggest_int("NumIterations", *ends, step=step)
            if "LearningRate" in given:
                ends = min(given["LearningRate"]), max(given["LearningRate"])
                chosen["LearningRate"] = asked.suggest_float("LearningRate", *ends, log=True)
            return {"include_fast_ft": True, "extra_options": {"FastFinetune": chosen}}

        count = int(settings.get("n_trials", 10))
        jobs = min(int(self._setting("n_jobs")), count)
        with open_study(
            f"AutoSearch {time.time():.0f}",
            settings.get("sampler_algo", "TPE"),
            settings.get("direction", "minimize"),
            None,
            load=False,
        ) as study:
            found = optimize(
                study, suggested, trial.score, trials=count, jobs=jobs, history=self.history
            )
            for number, _, score in found:
                if score is not None:
                    self.searched_space[number] = score
            params: dict[str, Any] = study.best_trial.params
            return params
