"""Two models run side by side, and the verdict on what they give."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
import scipy

from lowbit.errors import VerificationError
from lowbit.evaluate.output_evaluation import evaluate_outputs
from lowbit.graph import io

# One process imports SciPy's and scikit-image's modules: two seconds.
pytestmark = pytest.mark.xdist_group("scipy")


_HEADER = '<ir_version: 8, opset_import: ["": 17]>\n'


def _rows(count: int, *shape: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) for _ in range(count)]


def test_two_models_are_run_and_compared_before_their_softmax() -> None:
    graph = """g (float[2,9] x) => (float[2,9] p) <float e = {%g}> {
        l = Mul(x, e)
        p = Softmax<axis=-1>(l) }"""
    header = '<ir_version: 8, opset_import: ["": 17]>\n'
    models = [io.load(onnx.parser.parse_model(header + graph % e)) for e in (1.0, 1.5)]
    feeds = [{"x": x} for x in _rows(5, 2, 9)]

    evaluated = evaluate_outputs(*models, feeds, {"p": "p", "l": "l"}, held_out=True)
    verdict = evaluated.verdict

    x = np.concatenate([feed["x"] for feed in feeds])
    p, q = scipy.special.softmax(x, -1), scipy.special.softmax(1.5 * x, -1)
    assert verdict.worst.output == "p (before its activation)"
    assert verdict.worst.value == pytest.approx(scipy.stats.entropy(p, q, axis=-1).mean(), rel=1e-5)
    assert verdict.samples == 5
    # The figures of outputs are over all samples too, and of nothing but outputs.
    ratio = 10 * np.log10(np.sum(p**2) / np.sum((p - q) ** 2))
    assert {n: e.sqnr_db for n, e in evaluated.outputs.items()} == {"p": pytest.approx(ratio, 1e-4)}


@pytest.mark.parametrize(("noise", "seen"), [(0.01, 8), (0.258, 20)])
def test_samples_that_could_not_change_the_level_are_not_run(noise: float, seen: int) -> None:
    text = _HEADER + "g (float[2,3,9,9] x) => (float[2,3,9,9] y) { y = Mul(x, x) }"
    rough = (
        _HEADER
        + "g (float[2,3,9,9] x) => (float[2,3,9,9] y) <float e = {%g}> { d = Add(x, e)\n y = Mul(d, x) }"
    )
    models = [io.load(onnx.parser.parse_model(t)) for t in (text, rough % noise)]
    read = []

    def feeds():
        for index, x in enumerate(_rows(20, 2, 3, 9, 9)):
            read.append(index)
            yield {"x": x * np.float32(1 + index % 3)}

    evaluated = evaluate_outputs(
        *models, feeds(), {"y": "y"}, held_out=True, total=20, looks=(8, 16)
    )

    # 53 dB for certain; 25.0, with a standard error that the limit of 25 is well within.
    assert (evaluated.samples, evaluated.verdict.samples) == (seen, seen)
    assert len(read) <= seen + 4  # some are read ahead
    assert not evaluated.verdict.doubt or seen == 20


def test_without_samples_there_is_no_verdict() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    model = io.load(onnx.parser.parse_model(text))

    evaluated = evaluate_outputs(model, model, [], {"y": "y"}, held_out=True)

    assert (evaluated.verdict, evaluated.outputs) == (None, {})


def test_the_largest_magnitude_of_an_output_is_that_of_all_samples() -> None:
    model = io.load(
        onnx.parser.parse_model(_HEADER + "g (float[9] x) => (float[9] y) { y = Abs(x) }")
    )
    feeds = [{"x": x} for x in _rows(6, 9)]
    feeds[5]["x"][3] = -40.0

    evaluated = evaluate_outputs(model, model, feeds, {"y": "y"}, held_out=True)

    assert evaluated.outputs["y"].largest == 40.0


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ("(float[9] y) { z = Neg(x)\n y = Log(z) }", "9 of 9 values are NaN or Inf"),
        ("(float[1, 9] y) <int64[1] a = {0}> { y = Unsqueeze(x, a) }", "has shape"),
        ("(double[9] y) { y = Cast<to=11>(x) }", "is of type float32"),
    ],
)
def test_an_output_of_another_kind_is_another_function(other: str, problem: str) -> None:
    graphs = ("(float[9] y) { y = Abs(x) }", other)
    models = [
        io.load(onnx.parser.parse_model(f"{_HEADER}g (float[9] x) => {graph}")) for graph in graphs
    ]
    feeds = [{"x": 1 + np.abs(x)} for x in _rows(2, 9)]

    with pytest.raises(VerificationError, match=problem):
        evaluate_outputs(*models, feeds, {"y": "y"}, held_out=True)
