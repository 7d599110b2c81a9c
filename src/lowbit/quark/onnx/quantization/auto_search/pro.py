"""``AutoSearchPro``: a search over the newer configuration, by a grid or by Optuna's samplers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lowbit.errors import LowbitError, did_you_mean
from lowbit.quark.errors import QuarkConfigError, say
from lowbit.quark.onnx.quantization.api import ModelQuantizer
from lowbit.quark.onnx.quantization.auto_search.scoring import (
    PRO_DISTANCES,
    SIMILARITIES,
    Array,
    distance,
    outputs_of,
    read_feeds,
)
from lowbit.quark.onnx.quantization.auto_search.spaces import (
    Choice,
    choices_of,
    default_settings,
    generate_all_configs,
)
from lowbit.quark.onnx.quantization.auto_search.studies import (
    open_study,
    optimize,
    suggest,
    write_plots,
)
from lowbit.quark.onnx.quantization.config import spec
from lowbit.quark.onnx.quantization.config.algorithm import (
    AdaQuantConfig,
    AdaRoundConfig,
    AlgoConfig,
    CLEConfig,
)
from lowbit.quark.onnx.quantization.config.config import QConfig
from lowbit.search.history import Rating, SearchHistory

_SPECS = "XInt8Spec Int8Spec UInt8Spec Int16Spec UInt16Spec BFloat16Spec BFP16Spec".split()
_WORDS: Mapping[str, Any] = MappingProxyType(
    {
        "calibration_method": spec.CalibMethod,
        "scale_type": spec.ScaleType,
        "quant_granularity": spec.QuantGranularity,
    }
)
_ALGORITHMS: Mapping[str, Callable[..., AlgoConfig]] = MappingProxyType(
    {"adaround": AdaRoundConfig, "adaquant": AdaQuantConfig, "cle": CLEConfig}
)


def to_qconfig(choice: Choice) -> QConfig:
    """Return the configuration of a choice."""
    left = dict(choice)
    layer = spec.QLayerConfig(
        activation=_spec(left.pop("activation", None), left.pop("activation_params", {})),
        weight=_spec(left.pop("weight", None), left.pop("weight_params", {})),
    )
    algorithms = []
    for key, names in (("algorithms", ("adaround", "adaquant")), ("cle_algo", ("cle",))):
        name = left.pop(key, None)
        params = {other: left.pop(f"{other}_params", {}) for other in names}
        if name is not None:
            algorithms.append(_algorithm(name, params.get(name, {})))
    exclude = left.pop("exclude", None)
    return QConfig(
        layer,
        specific_layer_config=left.pop("specific_layer_config", None),
        layer_type_config=left.pop("layer_type_config", None),
        exclude=exclude,
        algo_config=algorithms,
        use_external_data_format=left.pop("use_external_data_format", False),
        extra_options=left,
    )


def _spec(name: str | None, params: Mapping[str, Any]) -> Any:
    if name not in _SPECS:
        raise QuarkConfigError(
            f"search space: {name!r} is no format{did_you_mean(str(name), _SPECS)} "
            f"(known: {', '.join(_SPECS)})"
        )
    values = {}
    for key, value in params.items():
        kind = _WORDS.get(key)
        if kind is not None and value not in kind.__members__:
            known = ", ".join(kind.__members__)
            raise QuarkConfigError(f"search space: {key} {value!r} is unknown (known: {known})")
        values[key] = value if kind is None else kind[value]
    return getattr(spec, name)(**values)


def _algorithm(name: str, params: Mapping[str, Any]) -> AlgoConfig:
    if name not in _ALGORITHMS:
        raise QuarkConfigError(
            f"search space: algorithm {name!r} is unknown (known: {', '.join(_ALGORITHMS)})"
        )
    values = dict(params)
    if "NumIterLR" in values:
        values["num_iterations"], values["learning_rate"] = values.pop("NumIterLR")
    return _ALGORITHMS[name](**values)


@dataclasses.dataclass(frozen=True)
class _Trial:
    """The task of one trial, in this process or another one."""

    model: Any
    feeds: Sequence[Any]
    folder: str
    want: tuple[Array, ...] | float
    eval_feeds: Sequence[Any]
    measure: str
    evaluator: Any

    def __call__(self, numbered: tuple[int, Choice]) -> float | None:
        number, choice = numbered
        path = Path(self.folder) / f"quantized_model_{number}.onnx"
        try:
            quantizer = ModelQuantizer(to_qconfig(choice))
            quantizer.quantize_model(self.model, path, list(self.feeds))
        except LowbitError as error:
            say(f"search: trial {number} cannot be quantized: {error}")
            return None
        if isinstance(self.want, float):
            return self.want - float(self.evaluator(str(path)))
        got = outputs_of(str(path), self.eval_feeds, quantized=True)
        return distance(PRO_DISTANCES[self.measure], self.want, got)


class AutoSearchPro:
    """Finds the choice of a search space whose model is nearest to float."""

    def __init__(self, config: dict[str, Any]) -> None:
        defaults = default_settings()
        for key in config:
            if key not in defaults:
                say(f"AutoSearchPro: no option is called {key!r}{did_you_mean(key, defaults)}")
        self.config = {**defaults, **config}
        for key in ("model_input", "calib_data_reader"):
            if self.config[key] is None:
                raise QuarkConfigError(f"AutoSearchPro needs {key!r} in its configuration")
        # Quark takes what a script does not say as these, not as its own defaults.
        self.config |= {
            key: config.get(key, value)
            for key, value in (
                ("two_stage_search", False),
                ("load_study_if_exists", False),
                ("study_storage_db", None),
            )
        }
        self.search_space: dict[str, Any] = dict(self.config["search_space"])
        self.metric = self.config["search_metric"] or "L2"
        if self.metric not in PRO_DISTANCES:
            raise QuarkConfigError(
                f"search_metric {self.metric!r} is unknown (known: {', '.join(PRO_DISTANCES)})"
            )
        self.direction = self.config["direction"]
        self.evaluator = self.config["search_evaluator"]
        if self.evaluator is None and (self.metric in SIMILARITIES) != (
            self.direction == "maximize"
        ):
            say(f"direction {self.direction!r} looks for the model that is worst by {self.metric}")
        self.n_trials = int(min(self.config["n_trials"], choices_of(self.search_space)))
        self.history = SearchHistory()
        self.output_dir = Path(self.config["output_dir"])
        self.output_dir.mkdir(parents=True, exist_ok=True)

    def run(self) -> dict[str, Any]:
        """Return the best choice: nested after a grid, flat (as in Optuna's study) after a sampler."""
        trial = self._trial()
        space = self.search_space
        if self.config["two_stage_search"]:
            best, tuning = self._first_stage(trial)
            if tuning is None:
                return best
            space = tuning
        if self.config["search_algo"] == "Grid":
            return self._grid(trial, generate_all_configs(space)[: self.n_trials])
        return self._sampled(trial, space)

    def _trial(self) -> _Trial:
        feeds = read_feeds(self.config["calib_data_reader"])
        other = self.config["eval_data_reader"]
        shown = feeds if other is None else read_feeds(other)
        model = self.config["model_input"]
        want: Any
        if self.evaluator is None:
            want = tuple(outputs_of(model, shown, quantized=False))
        else:
            want = float(self.evaluator(model))
        return _Trial(model, feeds, str(self.output_dir), want, shown, self.metric, self.evaluator)

    def _grid(self, trial: _Trial, choices: Sequence[Choice]) -> Choice:
        sign = -1 if self.direction == "maximize" else 1
        scores = self.history.run(
            "Grid",
            trial,
            list(enumerate(choices)),
            lambda score: Rating(score, sign * (score or 0.0)),
            threads=self._jobs,
        )
        known = [(sign * s, n) for n, s in enumerate(scores) if s is not None]
        if not known:
            raise QuarkConfigError("no choice of the search space can be quantized")
        best = choices[min(known)[1]]
        self._write_best(best)
        return best

    @property
    def _jobs(self) -> int:
        return max(int(self.config["n_jobs"]), 1)

    def _first_stage(self, trial: _Trial) -> tuple[Choice, dict[str, Any] | None]:
        """Return the best choice without fine-tuning, and the space of fine-tuning with it."""
        tuning = ("algorithms", "adaround_params", "adaquant_params")
        others = {key: value for key, value in self.search_space.items() if key not in tuning}
        best = self._grid(trial, generate_all_configs(others))
        if "algorithms" not in self.search_space:
            return best, None
        space: dict[str, Any] = {}
        for key, value in best.items():
            if isinstance(value, dict):
                condition = self.search_space[key]["only_if"]
                space[key] = {**{k: [v] for k, v in value.items()}, "only_if": condition}
            else:
                space[key] = [value]
        return best, space | {
            key: self.search_space[key] for key in tuning if key in self.search_space
        }

    def _sampled(self, trial: _Trial, space: dict[str, Any]) -> dict[str, Any]:
        database = self.config["study_storage_db"]
        with open_study(
            self.config["study_name"],
            self.config["search_algo"],
            self.direction,
            None if database is None else (self.output_dir / database).absolute(),
            load=bool(self.config["load_study_if_exists"]),
        ) as study:
            found = list(
                optimize(
                    study,
                    lambda asked: suggest(asked, space),
                    trial,
                    trials=self.n_trials,
                    jobs=self._jobs,
                    history=self.history,
                )
            )
            if all(score is None for *_, score in found):
                raise QuarkConfigError("no choice of the search space can be quantized")
            params: dict[str, Any] = study.best_params
            self._write_best(params)
            if self.config["plot_results"]:
                write_plots(study, self.output_dir)
            return params

    def _write_best(self, best: Mapping[str, Any]) -> None:
        text = json.dumps(best, indent=2, default=str)
        (self.output_dir / "best_params.json").write_text(f"{text}\n", encoding="utf-8")
