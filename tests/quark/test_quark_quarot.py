"""QuaRot through Quark's names: rotation by its file, and what each parameter does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.quark_helpers import ListReader, quiet
from helpers.transformer_models import PAIRS, WIDTH, tokens, transformer
from onnx import numpy_helper

from lowbit.errors import PlanError
from lowbit.quark.errors import QuarkConfigError
from lowbit.quark.onnx import Int8Spec, ModelQuantizer, QConfig, QLayerConfig, QuarotConfig


def _file(folder: Path, pairs: Any = PAIRS) -> str:
    path = folder / "rotation.json"
    path.write_text(json.dumps({"R1_pairs": pairs}))
    return str(path)


def _weights(model: onnx.ModelProto | None) -> dict[str, np.ndarray]:
    assert model is not None
    stored = {c.name: numpy_helper.to_array(c) for c in model.graph.initializer}
    return {
        name.removesuffix("_quantized"): codes.astype(np.float32)
        * stored[name.replace("_quantized", "_scale")]
        for name, codes in stored.items()
        if name.endswith(".w_quantized")
    }


def _quantized(algorithm: QuarotConfig) -> onnx.ModelProto | None:
    config = QConfig(
        global_config=QLayerConfig(input_tensors=Int8Spec(), weight=Int8Spec()),
        algo_config=[algorithm],
        extra_options={"PrintSummary": False},
    )
    return ModelQuantizer(config).quantize_model(transformer("rms"), None, ListReader(tokens()))


@pytest.mark.parametrize("random", [False, True])
def test_weights_are_turned_by_an_orthogonal_matrix(tmp_path: Path, random: bool) -> None:
    config = QuarotConfig(r_matrix_dim=WIDTH, use_random_had=random, r_config_path=_file(tmp_path))
    found = _weights(_quantized(config))

    floats = {c.name: numpy_helper.to_array(c) for c in transformer("rms").graph.initializer}
    # What reads: diag(factors) W, turned from the left, has the same products of its columns.
    want = floats["norm0.weight"][:, None] * floats["up0.w"]
    np.testing.assert_allclose(
        found["up0.w"].T @ found["up0.w"], want.T @ want, atol=0.02 * np.abs(want.T @ want).max()
    )
    # What writes: W turned from the right has the same products of its rows.
    down = floats["down0.w"]
    np.testing.assert_allclose(
        found["down0.w"] @ found["down0.w"].T,
        down @ down.T,
        atol=0.02 * np.abs(down @ down.T).max(),
    )
    assert not np.allclose(found["down0.w"], down, atol=0.1)


def test_every_parameter_has_its_effect(tmp_path: Path) -> None:
    path = _file(tmp_path)
    plain = _quantized(QuarotConfig(r_matrix_dim=WIDTH, r_config_path=path))
    drawn = _quantized(QuarotConfig(r_matrix_dim=WIDTH, r_config_path=path, use_random_had=True))
    assert not np.array_equal(_weights(plain)["up0.w"], _weights(drawn)["up0.w"])
    with pytest.raises(PlanError, match="has 24 channels there, but the rotation has 4096"):
        _quantized(QuarotConfig(r_config_path=path))
    with pytest.raises(QuarkConfigError, match="needs RConfigPath"):
        _quantized(QuarotConfig())


def test_the_older_names_mean_the_same(tmp_path: Path) -> None:
    options = {"RMatrixDim": WIDTH, "RConfigPath": _file(tmp_path)}
    config = quiet("INT8_CNN_DEFAULT", include_rotation=True, extra_options=options)
    model = ModelQuantizer(config).quantize_model(transformer("rms"), None, ListReader(tokens()))
    new = _quantized(QuarotConfig(r_matrix_dim=WIDTH, r_config_path=options["RConfigPath"]))
    mine, theirs = _weights(model), _weights(new)
    assert mine.keys() == theirs.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], theirs[name])


def test_a_file_that_says_something_else_is_named(tmp_path: Path) -> None:
    with pytest.raises(QuarkConfigError, match="No such file"):
        _quantized(QuarotConfig(r_config_path=str(tmp_path / "none.json")))
    other = tmp_path / "other.json"
    other.write_text('{"R1_pair": []}')
    with pytest.raises(QuarkConfigError, match="R1_pairs"):
        _quantized(QuarotConfig(r_config_path=str(other)))
    with pytest.raises(QuarkConfigError, match="names no layer"):
        _quantized(QuarotConfig(r_config_path=_file(tmp_path, [])))
    missing = _file(tmp_path, [{**PAIRS[0], "prev_nodes": ["embed"]}, *PAIRS[1:]])
    with pytest.raises(PlanError, match="changes what the model computes"):
        _quantized(QuarotConfig(r_matrix_dim=WIDTH, r_config_path=missing))
