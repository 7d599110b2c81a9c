"""At which parts of tensors outputs are measured, and which of these are read at few positions."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import onnx.parser
import pytest

import lowbit
from lowbit.config.presets import find_preset
from lowbit.evaluate.validation import Validation
from lowbit.ops.gradients import OutputPart
from lowbit.pipeline import output_parts
from lowbit.pipeline.output_parts import measured_outputs, sparse_outputs
from lowbit.state import Quantized


def _state(body: str, outputs: str) -> Quantized:
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
    g (float[1,3,12,12] x) => ({outputs}) {{ {body} }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    constants = {
        "v": rng.normal(0, 1, (4, 3, 3, 3)).astype(np.float32),
        "w": np.full((1, 4, 1, 1), 0.5, np.float32),
        "u": np.full(1, -9, np.float32),
        "b": rng.normal(0, 3, (4, 4, 1, 1)).astype(np.float32),
        "m": rng.normal(0, 1, (4, 10)).astype(np.float32),
    }
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    config = msgspec.structs.replace(find_preset("A8W8"), refinement=None, sensitivity=None)
    data = [{"x": _image(number)} for number in range(6)]
    return lowbit.quantize(model, data=data, config=config, promote=False, allow_ruined=True).state


def _image(number: int) -> np.ndarray:
    """Return nearly nothing, with a spot somewhere."""
    rng = np.random.default_rng(number)
    image = rng.normal(0, 0.1, (1, 3, 12, 12))
    y, x = rng.integers(0, 10, 2)
    image[:, :, y : y + 3, x : x + 3] += rng.normal(0, 8, (1, 3, 3, 3))
    return image.astype(np.float32)


_MAP = "float[1,1,12,12]"
_SCORES = "a = Conv<pads = [1, 1, 1, 1]>(x, v) r = Relu(a) c = Conv(r, w, u) scores = Sigmoid(c)"


@pytest.fixture(scope="module")
def detector() -> Quantized:
    return _state(f"{_SCORES} boxes = Conv(r, b)", f"{_MAP} scores, float[1,4,12,12] boxes")


def test_boxes_are_read_where_scores_are(detector: Quantized) -> None:
    parts = sparse_outputs(detector)

    scores, boxes = (next(p for p in parts if p.tensor == n) for n in ("scores", "boxes"))
    assert scores.is_one
    assert scores.read_at is None
    assert boxes.read_at is not None
    assert boxes.read_at.tensor == "scores"


def test_each_counts_relative_to_the_error_that_it_has(detector: Quantized) -> None:
    assert detector.samples is not None
    seen = Validation(detector.loaded, detector.samples.calibration())
    names = {"scores": "scores", "boxes": "boxes"}
    (ratios,) = seen.ratios([detector.emitted.model], names)
    known = {row.tensor: n for row, n in ratios.of_outputs.items()}

    counts = {part.tensor: part.counts for part in sparse_outputs(detector)}

    assert min(counts.values()) == 1.0
    ratio = 20 * np.log10(counts["boxes"] / counts["scores"])
    assert ratio == pytest.approx(known["boxes"] - known["scores"], abs=3)


def test_a_map_of_scores_alone_is_sparse_too() -> None:
    (part,) = sparse_outputs(_state(_SCORES, f"{_MAP} scores"))

    assert part.tensor == "scores"


def test_a_classifier_reads_all_positions(monkeypatch) -> None:
    body = "a = Conv(x, v) r = Relu(a) p = GlobalAveragePool(r) f = Flatten(p) y = MatMul(f, m)"
    state = _state(body, "float[1,10] y")

    with monkeypatch.context() as patched:
        patched.setattr(output_parts, "Validation", None)  # no sample is run for that
        assert sparse_outputs(state) == []
    assert state.samples is not None
    seen = Validation(state.loaded, state.samples.calibration())
    (found,) = seen.ratios([state.emitted.model], {"y": "y"})
    assert measured_outputs(state, found.of_outputs) == [OutputPart("y")]
