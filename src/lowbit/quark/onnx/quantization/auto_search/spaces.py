"""Search spaces as Quark writes them, and those it has names for.

A space has options with their values, and options that depend on others.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from onnxruntime.quantization.calibrate import CalibrationMethod

from lowbit.errors import did_you_mean
from lowbit.quark.errors import QuarkConfigError, say
from lowbit.quark.onnx.quantization.config.config import QuantizationConfig

Space = Mapping[str, Any]
Choice = dict[str, Any]
_ONLY_IF = "only_if"
_OPTIONS, _FINETUNE = "extra_options", "FastFinetune"


def generate_all_configs(search_space: Space) -> list[Choice]:
    """Return every choice of a discrete space; groups with ``only_if`` are there where it holds."""
    plain = {key: value for key, value in search_space.items() if isinstance(value, list)}
    groups = {key: _checked(key, value) for key, value in search_space.items() if key not in plain}
    found: list[Choice] = []
    for values in itertools.product(*plain.values()):
        choices: list[Choice] = [dict(zip(plain, values, strict=True))]
        for name, group in groups.items():
            choices = [one for choice in choices for one in _with_group(choice, name, group)]
        found += choices
    return copy.deepcopy(found)


def _checked(name: str, group: Any) -> Space:
    if not isinstance(group, Mapping):
        raise QuarkConfigError(
            f"search space: {name!r} is a {type(group).__name__}; expected a list, or a dictionary "
            "with 'only_if'"
        )
    if _ONLY_IF not in group:
        raise QuarkConfigError(f"search space: the dictionary {name!r} lacks 'only_if'")
    for key, values in group.items():
        if key != _ONLY_IF and not isinstance(values, list):
            raise QuarkConfigError(
                f"search space: {name}.{key} is a {type(values).__name__}, and all choices of it are "
                "asked for; expected a list"
            )
    return group


def _with_group(choice: Choice, name: str, group: Space) -> Iterator[Choice]:
    keys = [key for key in group if key != _ONLY_IF]
    if not holds(choice, group[_ONLY_IF]) or not keys:
        yield choice
        return
    for values in itertools.product(*(group[key] for key in keys)):
        yield {**choice, name: dict(zip(keys, values, strict=True))}


def holds(choice: Choice, condition: Any) -> bool:
    """Whether the options chosen so far allow a group that depends on them."""
    if isinstance(condition, str):
        return choice.get(condition) is not None
    if isinstance(condition, Mapping):
        return all(choice.get(key) == value for key, value in condition.items())
    return False


def is_range(value: Any) -> bool:
    """Whether an option is any number between two, not one of a list."""
    return isinstance(value, Mapping) and value.get("type") in ("int", "float")


def choices_of(search_space: Space) -> float:
    """Return how many choices a space has; infinite if it holds a range."""
    whole = 1.0
    for value in search_space.values():
        for part in value.values() if isinstance(value, Mapping) else [value]:
            if is_range(part):
                return math.inf
            if isinstance(part, list):
                whole *= len(part)
    return whole


class SearchSpace:
    """The space of the older search: fields of a configuration, extra options, and FastFinetune's."""

    def __init__(self, conf: dict[str, Any], logger: Any = None) -> None:
        del logger
        self.raw_search_space = conf
        self.level1_space_config, self.level2_space_config, self.level3_space_config = levels(conf)
        self.all_configs: list[Choice] = []
        for name in self.level1_space_config:
            if name not in QuantizationConfig.__dataclass_fields__:
                say(f"search space: {name!r} is no option, and is left out")
        self.level1_space_config = {
            name: values
            for name, values in self.level1_space_config.items()
            if name in QuantizationConfig.__dataclass_fields__
        }

    def get_all_configs(self) -> list[Choice]:
        """Return every choice, the last option changing fastest."""
        self.all_configs = []
        parts = (self.level1_space_config, self.level2_space_config, self.level3_space_config)
        for first, second, third in itertools.product(*map(_products, parts)):
            choice = copy.deepcopy(first)
            if second or third:
                choice[_OPTIONS] = copy.deepcopy(second)
            if third:
                choice[_OPTIONS][_FINETUNE] = copy.deepcopy(third)
            self.all_configs.append(choice)
        return self.all_configs

    def remove_invalid_configs(self, input_all_coinfgs: list[Choice]) -> list[Choice]:
        """Return the choices without options that have no effect, each once."""
        found: list[Choice] = []
        for choice in input_all_coinfgs:
            kept = _with_effect(choice)
            if kept not in found:
                found.append(kept)
        return found


def levels(choice: Space) -> tuple[Choice, Choice, Choice]:
    """Return fields of a configuration, extra options and FastFinetune's options apart."""
    first = {key: value for key, value in choice.items() if key != _OPTIONS}
    options = choice.get(_OPTIONS) or {}
    second = {key: value for key, value in options.items() if key != _FINETUNE}
    return copy.deepcopy(first), copy.deepcopy(second), copy.deepcopy(options.get(_FINETUNE) or {})


def _products(space: Space) -> list[Choice]:
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]


_NEEDS: tuple[tuple[str, str, Any], ...] = (
    ("CalibMovingAverage", "calibrate_method", CalibrationMethod.MinMax),
    ("CalibMovingAverageConstant", "calibrate_method", CalibrationMethod.MinMax),
    ("Percentile", "calibrate_method", CalibrationMethod.Percentile),
    ("SmoothAlpha", "include_sq", True),
)


def _with_effect(choice: Choice) -> Choice:
    first, second, third = levels(choice)
    for option, field, value in _NEEDS:
        if first.get(field) != value:
            second.pop(option, None)
    if not second.get("CalibMovingAverage"):
        second.pop("CalibMovingAverageConstant", None)
    if first.get("include_fast_ft") and third:
        second[_FINETUNE] = third
    return {**first, _OPTIONS: second} if second else first


_SETTINGS: Mapping[str, Any] = {
    "n_trials": 20,
    "n_jobs": 1,
    "output_dir": "./output",
    "temp_dir": "./temp_dir",
    "search_algo": "TPE",
    "search_evaluator": None,
    "search_metric": None,
    "direction": "minimize",
    "base_framework": "onnx",
    "study_storage_db": "auto_search.db",
    "load_study_if_exists": True,
    "study_name": "AutoSearch",
    "model_input": None,
    "calib_data_reader": None,
    "eval_data_reader": None,
    "two_stage_search": True,
    "plot_results": False,
}


def _tuning(iterations: int, rates: tuple[float, float], size: int | None, name: str) -> Any:
    """Return the ranges of one algorithm; those with a number of samples run on a GPU."""
    on_gpu = {
        "optim_device": ["cuda:0"],
        "infer_device": ["cuda:0"],
        "data_size": [size],
        "batch_size": [2],
        "early_stop": [True],
    }
    return {
        "num_iterations": {"type": "int", "low": 3000, "high": iterations, "step": 3000},
        "learning_rate": {"type": "float", "low": rates[0], "high": rates[1], "log": True},
        **({} if size is None else on_gpu),
        "only_if": {"algorithms": name},
    }


_CLE = {
    "cle_algo": ["cle", None],
    "cle_params": {"cle_steps": [-1, 1], "only_if": {"cle_algo": "cle"}},
}
_ALGORITHMS = {
    "algorithms": ["adaround", "adaquant"],
    "adaquant_params": _tuning(20000, (1e-6, 1e-4), 1000, "adaquant"),
    "adaround_params": _tuning(20000, (1e-2, 1e-1), None, "adaround"),
}
_LONG_ALGORITHMS = {
    "algorithms": ["adaround", "adaquant"],
    "adaquant_params": _tuning(30000, (1e-6, 1e-3), 3000, "adaquant"),
    "adaround_params": _tuning(30000, (1e-2, 1e-1), 3000, "adaround"),
}
_PLAIN: Mapping[str, Any] = {
    "specific_layer_config": [None],
    "layer_type_config": [None],
    "exclude": [None],
    "use_external_data_format": [False],
    "OptimizeModel": [True],
}
_ALIGNED = {"AlignSlice": [False], "FoldRelu": [True], "AlignConcat": [True]}


def _formats(activation: str, weight: str, of_activation: Any, of_weight: Any) -> dict[str, Any]:
    return {
        "activation": [activation],
        "activation_params": {**of_activation, "only_if": "activation"},
        "weight": [weight],
        "weight_params": {"symmetric": [True], **of_weight, "only_if": "weight"},
    }


_PER_TENSOR = {"quant_granularity": ["Tensor"]}
_THREE = ["MinMax", "Percentile", "LayerwisePercentile"]
_SPACES: Mapping[str, Mapping[str, Any]] = {
    "ADVANCED_SEARCH": {
        **_formats(
            "Int8Spec",
            "Int8Spec",
            {
                "symmetric": [True, False],
                "calibration_method": _THREE,
                "scale_type": ["Float32"],
                **_PER_TENSOR,
            },
            {"calibration_method": ["MinMax", "MinMSE"]},
        ),
        **_CLE,
        **_LONG_ALGORITHMS,
        **_PLAIN,
    },
    "XINT8_SEARCH": {
        **_formats(
            "XInt8Spec",
            "XInt8Spec",
            {"symmetric": [True], "calibration_method": ["MinMSE"]},
            _PER_TENSOR,
        ),
        **_CLE,
        **_ALGORITHMS,
        **_PLAIN,
    },
    "A8W8_SEARCH": {
        **_formats(
            "Int8Spec",
            "Int8Spec",
            {"symmetric": [True, False], "calibration_method": _THREE},
            _PER_TENSOR,
        ),
        **_ALGORITHMS,
        **_CLE,
        **_PLAIN,
        **_ALIGNED,
        "PercentileCandidates": [[99.99, 99.999, 99.9999], [99.0, 99.9, 99.99, 99.999, 99.9999]],
    },
    "A16W8_SEARCH": {
        **_formats(
            "Int16Spec",
            "Int8Spec",
            {"symmetric": [True, False], "calibration_method": ["MinMax", "Percentile"]},
            _PER_TENSOR,
        ),
        **_CLE,
        **_ALGORITHMS,
        **_PLAIN,
        **_ALIGNED,
        "AlignEltwiseQuantType": [True],
    },
}


def get_auto_search_config(config_name: str) -> dict[str, Any]:
    """Return one of Quark's named searches, as a dictionary of one's own."""
    if config_name not in _SPACES:
        raise QuarkConfigError(
            f"no search is called {config_name!r}{did_you_mean(config_name, _SPACES)} "
            f"(known: {', '.join(_SPACES)})"
        )
    return copy.deepcopy({"search_space": dict(_SPACES[config_name]), **_SETTINGS})


def default_settings() -> dict[str, Any]:
    """Return what a search has that is not given otherwise."""
    return get_auto_search_config("ADVANCED_SEARCH")
