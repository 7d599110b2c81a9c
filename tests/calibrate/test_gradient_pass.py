from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir

from lowbit.calibrate import gradient_pass
from lowbit.calibrate.gradient_pass import GradientPass
from lowbit.graph import io
from lowbit.graph.onnx_passes import infer_types
from lowbit.graph.session import session
from lowbit.ops.gradients import OutputPart

_FEED = {"x": np.ones((1, 2, 5, 4), np.float32)}


def _model() -> ir.Model:
    text = '<ir_version: 9, opset_import: ["" : 17]> g (float[N,2,H,W] x) => (float[N,2,H,W] y) { t = Relu(x) y = Neg(t) }'
    model = io.load(onnx.parser.parse_model(text))
    infer_types(model)
    return model


def _made() -> GradientPass | None:
    return GradientPass.of(_model(), [OutputPart("y")], ["t"], _FEED)


def test_images_of_any_size_get_that_of_the_sample() -> None:
    made = _made()

    assert made is not None
    assert made.shapes == {"x": (1, 2, 5, 4)}
    assert made.fits(_FEED)
    assert not made.fits({"x": np.ones((1, 2, 4, 5), np.float32)})


def test_more_activations_than_there_is_memory_for_have_no_gradients(monkeypatch) -> None:
    monkeypatch.setattr(gradient_pass, "_LARGE", 80)
    assert _made() is not None

    monkeypatch.setattr(gradient_pass, "_LARGE", 79)

    assert _made() is None


def test_signs_are_others_for_every_sample_and_always_the_same() -> None:
    made = _made()
    assert made is not None
    (name,) = made.seeded(_FEED, 0).keys() - _FEED.keys()

    first, again, other = (made.seeded(_FEED, number)[name] for number in (0, 0, 1))

    assert set(np.unique(first)) == {-1.0, 1.0}
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_what_is_read_is_computed() -> None:
    made = _made()
    assert made is not None

    names = made.read([made.found.gradients["t"]])

    with session(made.found.model) as running:
        (gradient,) = running.run(names, made.seeded(_FEED, 0))
    # Each channel relative to its size, the root of the squares of twenty ones, and of two channels.
    np.testing.assert_allclose(np.abs(gradient), 1 / np.sqrt(20 * 2), rtol=1e-5)
