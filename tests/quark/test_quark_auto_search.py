"""AutoSearch and AutoSearchPro as scripts use them, measured by an onnxruntime of its own.

How many choices the named spaces have is what AMD Quark 0.13's own generator gives.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import optuna
import pytest
from helpers.quark_helpers import BareReader, ListReader
from helpers.small_models import small_cnn, small_feeds
from onnxruntime.quantization.calibrate import CalibrationMethod

from lowbit.quark.errors import CompatibilityWarning, NotSupportedError, QuarkConfigError
from lowbit.quark.onnx import Config, QuantizationConfig
from lowbit.quark.onnx.quantization.auto_search import (
    AutoSearch,
    AutoSearchConfig,
    AutoSearchPro,
    SearchSpace,
    generate_all_configs,
    get_auto_search_config,
)
from lowbit.quark.onnx.quantization.quant_utils import PowerOfTwoMethod

_FEEDS = small_feeds(6, 8)
pytestmark = pytest.mark.filterwarnings("ignore::lowbit.quark.errors.CompatibilityWarning")


@pytest.fixture
def model(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    onnx.save(small_cnn(8), tmp_path / "model.onnx")
    return str(tmp_path / "model.onnx")


def _outputs(path: str) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options)
    return [session.run(None, feed)[0].astype(np.float64) for feed in _FEEDS]


def _mean_square(model: str, path: str) -> float:
    pairs = zip(_outputs(model), _outputs(path), strict=True)
    return float(np.mean([np.mean((a - b) ** 2) for a, b in pairs]))


class _Settings(AutoSearchConfig):
    search_space = {  # noqa: RUF012 - as scripts write it
        "calibrate_method": [CalibrationMethod.MinMax, CalibrationMethod.Percentile],
        "include_cle": [True, False],
        "extra_options": {"ActivationSymmetric": [True]},
    }
    search_output_dir = "out"


def _search(model: str, settings: Any, **changes: Any) -> AutoSearch:
    for name, value in changes.items():
        setattr(settings, name, value)
    config = Config(global_quant_config=QuantizationConfig(print_summary=False))
    return AutoSearch(
        model, config, settings, calibration_data_reader=BareReader([dict(f) for f in _FEEDS])
    )


def test_all_choices_are_tried_and_the_nearest_comes_first(model) -> None:
    search = _search(model, _Settings())
    found = search.search_model()

    assert [set(row) for row in found] == [{"config_index", "difference", "model_path"}] * 4
    assert sorted(row["config_index"] for row in found) == [0, 1, 2, 3]
    assert [row["difference"] for row in found] == sorted(row["difference"] for row in found)
    for row in found:
        want = _mean_square(model, row["model_path"])
        assert row["difference"] == pytest.approx(want, rel=1e-3)
    assert not search.config.global_quant_config.extra_options


def test_models_beyond_the_tolerance_are_removed(model) -> None:
    every = _search(model, _Settings()).search_model()
    limit = every[1]["difference"]
    found = _search(model, _Settings(), search_metric_tolerance=limit).search_model()

    kept = {pathlib.Path(row["model_path"]).name for row in found}
    assert [row["difference"] for row in found] == [row["difference"] for row in every[:2]]
    assert {path.name for path in pathlib.Path("out").glob("*.onnx")} == kept


@pytest.mark.parametrize(
    "stop", [{"find_n_candidates": 2}, {"iteration_limit": 2, "time_limit": 60}]
)
def test_the_search_ends_when_enough_is_found(model, stop) -> None:
    search = _search(model, _Settings(), search_stop_condition=stop)
    found = search.search_model()

    assert sorted(row["config_index"] for row in found) == [0, 1]
    assert [row.value for row in search.history.rows] == [search.searched_space[i] for i in (0, 1)]
    assert search.history.end == ("met" if "find_n_candidates" in stop else "")


def test_an_evaluator_of_ones_own_says_how_good_a_model_is(model) -> None:
    seen = []

    def evaluator(path: str) -> float:
        seen.append(path)
        return 1.0 if path == model else 0.75

    found = _search(
        model,
        _Settings(),
        search_evaluator=evaluator,
        search_stop_condition={"iteration_limit": 1},
    ).search_model()

    assert found[0]["difference"] == pytest.approx(0.25)
    assert seen == [model, found[0]["model_path"]]


def test_two_stages_give_the_best_choice(model) -> None:
    space = {
        "calibrate_method": [PowerOfTwoMethod.MinMSE, PowerOfTwoMethod.NonOverflow],
        "extra_options": {"FastFinetune": {"NumIterations": [2], "LearningRate": [0.1, 0.01]}},
    }
    search = _search(model, _Settings(), search_space=space, two_stage_search=True)
    (best,) = search.search_model()

    assert best["include_fast_ft"]
    assert best["calibrate_method"] in space["calibrate_method"]
    assert best["extra_options"]["FastFinetune"]["LearningRate"] in (0.1, 0.01)


def test_fine_tuning_is_searched_between_two_ends(model) -> None:
    space = {
        "extra_options": {"FastFinetune": {"NumIterations": [1, 3], "LearningRate": [0.01, 0.1]}}
    }
    search = _search(
        model,
        _Settings(),
        search_space=space,
        advanced_fastft_search=True,
        advanced_fastft_params={"n_trials": 2, "sampler_algo": "Random"},
        n_jobs=1,
    )
    best = search.search_model()

    assert 1 <= best["NumIterations"] <= 3
    assert 0.01 <= best["LearningRate"] <= 0.1
    assert len(search.searched_space) == 2


def _pro(model: str, **changes: Any) -> dict[str, Any]:
    space = {
        "activation": ["Int8Spec", "UInt8Spec"],
        "activation_params": {
            "symmetric": [True, False],
            "calibration_method": ["MinMax"],
            "only_if": "activation",
        },
        "weight": ["Int8Spec"],
        "weight_params": {"symmetric": [True], "only_if": "weight"},
        "cle_algo": ["cle", None],
        "cle_params": {"cle_steps": [1], "only_if": {"cle_algo": "cle"}},
    }
    return {
        "search_space": space,
        "model_input": model,
        "calib_data_reader": ListReader(_FEEDS),
        "n_trials": 3,
        "n_jobs": 1,
        **changes,
    }


def test_a_grid_needs_no_optuna_and_gives_a_nested_choice(model, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    best = AutoSearchPro(_pro(model, search_algo="Grid", n_trials=4)).run()

    paths = sorted(pathlib.Path("output").glob("quantized_model_*.onnx"))
    want = [
        np.mean(
            [np.linalg.norm(a - b) for a, b in zip(_outputs(model), _outputs(str(p)), strict=True)]
        )
        for p in paths
    ]
    choices = generate_all_configs(_pro(model)["search_space"])[:4]
    assert best == choices[int(np.argmin(want))]
    assert json.loads(pathlib.Path("output", "best_params.json").read_text("utf-8")) == best


def test_without_optuna_the_extra_is_named(model, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    search = AutoSearchPro(_pro(model, search_algo="TPE"))

    with pytest.raises(NotSupportedError, match=r"pip install 'lowbit\[optuna\]'"):
        search.run()


def test_a_study_is_in_optunas_own_format(model, request, monkeypatch) -> None:
    opened = []

    class Storage(optuna.storages.RDBStorage):
        def __init__(self, url: str) -> None:
            super().__init__(url)
            opened.append(self)

    monkeypatch.setattr(optuna.storages, "RDBStorage", Storage)
    best = AutoSearchPro(_pro(model, study_storage_db="s.db", study_name="mine")).run()

    # No connection to the file is left open.
    assert [storage.engine.pool.checkedin() for storage in opened] == [0]
    storage = Storage("sqlite:///output/s.db")
    request.addfinalizer(storage.engine.dispose)
    study = optuna.load_study(study_name="mine", storage=storage)
    assert study.best_params == best
    assert len(study.trials) == 3
    number = study.best_trial.number
    path = f"output/quantized_model_{number}.onnx"
    pairs = zip(_outputs(model), _outputs(path), strict=True)
    assert study.best_value == pytest.approx(
        np.mean([np.linalg.norm(a - b) for a, b in pairs]), rel=1e-3
    )


@pytest.mark.parametrize(
    ("name", "count"),
    [("ADVANCED_SEARCH", 36), ("XINT8_SEARCH", 3), ("A8W8_SEARCH", 36), ("A16W8_SEARCH", 12)],
)
def test_named_searches_have_as_many_choices_as_in_quark(name, count) -> None:
    config = get_auto_search_config(name)
    space = config["search_space"]
    tuning = ("algorithms", "adaround_params", "adaquant_params")

    found = generate_all_configs({k: v for k, v in space.items() if k not in tuning})

    assert len(found) == count
    assert config["n_trials"] == 20
    config["search_space"].clear()
    assert get_auto_search_config(name)["search_space"]


def test_the_last_option_changes_fastest() -> None:
    space = {"include_cle": [True, False], "extra_options": {"Percentile": [1, 2]}}

    found = SearchSpace(space).get_all_configs()

    assert found == [
        {"include_cle": cle, "extra_options": {"Percentile": p}}
        for cle in (True, False)
        for p in (1, 2)
    ]
    assert SearchSpace(space).remove_invalid_configs(found) == [
        {"include_cle": True},
        {"include_cle": False},
    ]


def test_what_makes_no_sense_is_refused(model) -> None:
    with pytest.raises(QuarkConfigError, match=r"'A8W8'; did you mean 'A8W8_SEARCH'"):
        get_auto_search_config("A8W8")
    with pytest.raises(QuarkConfigError, match="needs 'model_input'"):
        AutoSearchPro({"calib_data_reader": ListReader(_FEEDS)})
    with pytest.raises(QuarkConfigError, match="lacks 'only_if'"):
        generate_all_configs({"a": {"b": [1]}})
    with pytest.raises(QuarkConfigError, match=r"search_algo 'TPF' is unknown; did you mean 'TPE'"):
        AutoSearchPro(_pro(model, search_algo="TPF")).run()
    with pytest.warns(CompatibilityWarning, match="worst by cos"):
        AutoSearchPro(_pro(model, search_metric="cos"))
