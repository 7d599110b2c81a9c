from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lowbit.config.config import QuantConfig
from lowbit.config.specs import IntegerSpec, ProductBias
from lowbit.numerics.affine import dequantize
from lowbit.numerics.formats import IntegerFormat
from lowbit.scales.stored import nearest

_GEMM = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,2] x) => (float[1,3] y)
<float[2,3] w = {1.0, 2.0, -3.0, 0.25, -0.5, 0.125}, float[3] b = {4.0, -2.0, 1.0}>
{ y = Gemm <beta = 0.5> (x, w, b) }
"""
_CONFIG = QuantConfig(
    activation=IntegerSpec(format=IntegerFormat.INT8),
    weight=IntegerSpec(format=IntegerFormat.INT8, per_channel=True),
    bias=ProductBias(),
    head="int8",
)


def test_every_constant_is_rounded_to_its_nearest_code(run_stages: Callable) -> None:
    stages = run_stages(_GEMM, _CONFIG)

    weights = nearest(stages.model, stages.plan, stages.params)

    params = stages.params.tensors["w"]
    original = stages.model.graph.initializers["w"].const_value.numpy()
    error = np.abs(dequantize(weights.tensors["w"](), params) - original)
    assert (error <= params.scale / 2 * (1 + 1e-6)).all()


def test_the_integers_of_a_bias_stand_for_the_bias_times_beta(run_stages: Callable) -> None:
    stages = run_stages(_GEMM, _CONFIG)

    weights = nearest(stages.model, stages.plan, stages.params)

    row = stages.plan.biases[0]
    params = stages.params.biases[row.node]
    np.testing.assert_allclose(
        dequantize(weights.biases[row.node], params), [2.0, -1.0, 0.5], atol=params.scale.max()
    )


def test_replaced_bias_values_are_what_is_stored(run_stages: Callable) -> None:
    import dataclasses

    stages = run_stages(_GEMM, _CONFIG)
    row = stages.plan.biases[0]
    values = np.array([1.0, 1.0, 1.0], np.float32)

    params = dataclasses.replace(stages.params, bias_values={row.node: values})
    weights = nearest(stages.model, stages.plan, params)

    np.testing.assert_allclose(
        dequantize(weights.biases[row.node], params.biases[row.node]),
        values,
        atol=params.biases[row.node].scale.max(),
    )
