"""Given factors are applied to the tensors they name, and wrong ones refused."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from helpers.small_models import small_cnn, small_feeds

from lowbit.config.transforms import Rescaling
from lowbit.errors import ConfigError
from lowbit.graph import io
from lowbit.normalize.normalize import normalize
from lowbit.transforms import implementation_of
from lowbit.transforms.implementation import Context


def _applied(model: ir.Model, config: Rescaling):
    return implementation_of(config).apply(model, config, Context())


def test_the_model_computes_the_same_and_the_note_says_what_was_done() -> None:
    model = normalize(io.load(small_cnn()))

    found = _applied(model, Rescaling(factors={"r1": 1.5}))

    assert found.notes == ("rescaled 1 of 1 groups of tensors to fit power-of-two scales",)
    outputs = [
        ort.InferenceSession(ir.to_proto(m).SerializeToString()).run(None, small_feeds(1)[0])[0]
        for m in (model, found.model)
    ]
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
    weights = [m.graph.initializers["w3"].const_value.numpy() for m in (model, found.model)]
    np.testing.assert_allclose(weights[1] * 1.5, weights[0], rtol=1e-6)


def test_it_applies_where_a_named_tensor_can_have_a_factor() -> None:
    model = normalize(io.load(small_cnn()))

    for factors, applies in (({"r1": 2.0}, True), ({"r1": 1.0}, False), ({"logits": 2.0}, False)):
        config = Rescaling(factors=factors)
        assert implementation_of(config).applies(model, config) is applies


def test_a_factor_has_to_be_positive() -> None:
    with pytest.raises(ConfigError, match=r"rescaling.factors\['a'\] is 0; it must be above 0"):
        Rescaling(factors={"a": 0.0})
