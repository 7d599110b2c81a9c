"""Every rule, against differences of what onnxruntime computes."""

from __future__ import annotations

import pytest
from helpers.gradient_checks import check_gradient, graph_of

from lowbit.ops.backward_movement import MOVEMENT_RULES

# What computes y of x: each operator with a rule, and ways of it that differ.
GRAPHS = {
    "Identity": "y = Identity(x)",
    "Dropout": "y = Dropout(x)",
    "Flatten": "f = Flatten(x) y = Exp(f)",
    "Reshape": "f = Reshape(x, flat) y = Exp(f)",
    "Squeeze": "s = Squeeze(x, zeroth) y = Exp(s)",
    "Unsqueeze": "s = Unsqueeze(x, zeroth) y = Exp(s)",
    "Transpose": "y = Transpose<perm = [0, 2, 3, 1]>(x)",
    "Concat": "e = Exp(x) y = Concat<axis = 1>(x, e, x)",
    "Split": "a, b = Split<axis = 1, num_outputs = 2>(x) y = Exp(b)",
    "Slice": "y = Slice(x, one, minus_one, axes)",
    "Gather": "g = Gather<axis = 2>(x, index) y = Exp(g)",
    "Gather from the end": "g = Gather<axis = 3>(x, last) y = Exp(g)",
    "Pad": "y = Pad(x, pads)",
    "Expand": "m = GlobalAveragePool(x) y = Expand(m, shape)",
    "GlobalAveragePool": "y = GlobalAveragePool(x)",
    "AveragePool": "y = AveragePool<kernel_shape = [3, 3], strides = [2, 2]>(x)",
    "MaxPool": "y = MaxPool<kernel_shape = [3, 3], strides = [1, 1], pads = [1, 1, 1, 1]>(x)",
    "ReduceMean": "y = ReduceMean<keepdims = 0>(x, axes)",
    "ReduceSum": "y = ReduceSum(x, axes)",
    "Resize": 'y = Resize<mode = "linear">(x, , , sizes)',
    "Resize to corners": 'y = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, , , sizes)',
    "Resize by the nearest": (
        'y = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(x, , , sizes)'
    ),
    "Resize by the nearest half": 'y = Resize<mode = "nearest">(x, , , sizes)',
    "DepthToSpace": "y = DepthToSpace<blocksize = 2>(x)",
    "SpaceToDepth": "y = SpaceToDepth<blocksize = 2>(x)",
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_gradient_tells_what_a_small_change_does(name: str) -> None:
    check_gradient(GRAPHS[name])


def test_every_rule_is_tried() -> None:
    tried = {node.op_type for body in GRAPHS.values() for node in graph_of(body).graph.node}

    assert tried >= set(MOVEMENT_RULES)
