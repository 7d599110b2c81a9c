"""Whatever the network and its magnitudes, an emitted XINT8 model obeys the datapath.

Bounds are checked on the scales of the emitted file, not by the code that established them.
"""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import Emitted, random_network

from lowbit.api import Prepared, prepare
from lowbit.calibrate.collect import collect
from lowbit.config.presets import find_preset
from lowbit.emit.emit import emit_qdq
from lowbit.graph import io
from lowbit.graph.editing import constant
from lowbit.planning import make_plan
from lowbit.refine.bias_correction import corrected_biases
from lowbit.scales.solve import resolve, settle_biases
from lowbit.scales.stored import nearest

# Bias correction moves biases on purpose; a head kept in float would hide what is to be tested.
CONFIG = msgspec.structs.replace(find_preset("XINT8"), bias_correction=False, head="int8")
_ALIGNED = ("Concat", "MaxPool", "AveragePool", "GlobalAveragePool")


def _emit(seed: int, *, bias_correction: bool = False) -> tuple[Prepared, onnx.ModelProto]:
    model, feeds = random_network(seed)
    ready = prepare(io.load(model), CONFIG)
    plan = make_plan(ready.adapted, CONFIG, ready.target)
    stats = collect(ready.observed, plan, feeds)
    params = resolve(ready.adapted, plan, stats, ready.target)
    weights = nearest(ready.adapted, plan, params)
    if bias_correction:
        values = corrected_biases(ready.adapted, plan, params, stats, weights)
        params = settle_biases(ready.adapted, plan, params, ready.target, values)
        weights = nearest(ready.adapted, plan, params)
    return ready, io.to_proto(emit_qdq(ready.adapted, plan, params, weights))


def _broken(emitted: Emitted, node: onnx.NodeProto) -> list[str]:
    """Return the bounds of the datapath that a node of the emitted graph breaks."""
    inputs = [emitted.read_position(name) for name in node.input]
    output = emitted.written_position(node.output[0])
    if output is None or any(p is None for p in inputs):
        return []
    bounds: list[tuple[str, int, int, int]] = []
    match node.op_type:
        case "Add" | "Sub":
            bounds.append(("read", max(inputs) - min(inputs), 0, 7))
            if node.op_type == "Add":
                bounds.append(("write", min(inputs) - output, -7, 25))
        case "Mul":
            swish = emitted.is_swish(node)
            bounds.append(("write", sum(inputs) - output, 0, 15 if swish else 32))
        case "HardSigmoid":
            bounds.append(("input", inputs[0], 0, 15))
            bounds.append(("output", output, 7, 1000))
            bounds.append(("shift", 14 + inputs[0] - output, 0, 31))
        case "Conv" | "Gemm":
            cut = inputs[0] + inputs[1] - output
            bounds.append(("cut", cut, 0, 16))
            if len(inputs) > 2:
                follower = emitted.readers[node.output[0]][0].op_type
                low = 0 if follower == "LeakyRelu" else min(0, -(24 - (8 + cut)))
                bounds.append(("bias", inputs[0] + inputs[1] - inputs[2], low, 15))
    return [
        f"{node.name}: {what} {v} not in {a}..{b}" for what, v, a, b in bounds if not a <= v <= b
    ]


def _assert_nearest(codes: np.ndarray, scale: float, values: np.ndarray) -> None:
    """Every value is within half a step of its code, or beyond the last code and saturated."""
    error = np.abs(codes.astype(np.float64) * scale - values)
    saturated = (np.abs(codes) == 127) & (np.abs(values) >= 127 * scale)
    assert (saturated | (error <= scale / 2 * (1 + 1e-6))).all()
    assert (np.sign(values[saturated]) == np.sign(codes[saturated])).all()


@settings(max_examples=80, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_emitted_networks_obey_every_limit(seed: int) -> None:
    _, model = _emit(seed)

    emitted = Emitted(model)
    assert all(np.frexp(scale)[0] == 0.5 for scale in emitted.scales())
    assert [b for node in emitted.computing() for b in _broken(emitted, node)] == []
    for node in emitted.computing():
        if node.op_type in _ALIGNED:
            around = {emitted.read_position(name) for name in node.input}
            assert around == {emitted.written_position(node.output[0])}
    limited = [n for n in emitted.computing() if n.op_type in ("Conv", "Add", "Sub", "Mul")]
    assert any(emitted.read_position(n.input[0]) is not None for n in limited)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_stored_integers_stand_for_the_float_weights_and_biases(seed: int) -> None:
    ready, model = _emit(seed)

    emitted = Emitted(model)
    originals = {node.name: node for node in ready.adapted.graph}
    compared = 0
    for node in emitted.computing():
        for index, name in enumerate(node.input):
            stored = emitted.constant(name)
            if stored is not None:
                values = constant(originals[node.name].inputs[index])
                _assert_nearest(*stored, np.asarray(values, np.float64))
                compared += 1
    assert compared > 0


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_bias_correction_keeps_the_limits(seed: int) -> None:
    _, model = _emit(seed, bias_correction=True)

    emitted = Emitted(model)
    assert [b for node in emitted.computing() for b in _broken(emitted, node)] == []
