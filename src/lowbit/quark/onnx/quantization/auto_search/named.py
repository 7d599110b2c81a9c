"""The search spaces that Quark has names for."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from lowbit.errors import did_you_mean
from lowbit.quark.errors import QuarkConfigError

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
