"""Weights that rounding made of the float ones are told from weights that were rescaled first."""

from __future__ import annotations

import msgspec
import onnx_ir as ir
import pytest
from small_models import small_cnn, small_feeds

import lowbit
from lowbit.analyze.constants import read_constants
from lowbit.analyze.quantizers import find_quantizers
from lowbit.config.presets import find_preset
from lowbit.graph import io
from lowbit.normalize.normalize import normalize


def _known(factor: float) -> list[bool]:
    """Return of each weight whether its float values are found, some channels scaled in between."""
    plain = msgspec.structs.replace(
        find_preset("A8W8"), refinement=None, keep_only_if_better=False, equalization=None
    )
    model = small_cnn()
    quantized = lowbit.quantize(model, data=small_feeds(8), config=plain).quantized
    floats = normalize(io.load(model))
    for value in floats.graph.initializers.values():
        data = value.const_value.numpy()
        if data.ndim == 4:
            scaled = data.copy()
            scaled[: len(data) // 2] *= factor
            value.const_value = ir.tensor(scaled, name=value.name)
    quantizers = find_quantizers(quantized)
    constants = read_constants(quantized, floats, quantizers)
    return [
        constants[q.results[0]].plain is not None
        for q in quantizers
        if q.kind == "weight" and constants[q.results[0]].codes.ndim == 4
    ]


@pytest.mark.parametrize(("factor", "known"), [(1.0, True), (1.15, False), (0.8, False)])
def test_rescaled_weights_are_not_taken_for_the_float_ones(factor: float, known: bool) -> None:
    found = _known(factor)

    assert found
    assert all(k == known for k in found)
