import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lowbit
from lowbit.config.presets import find_preset
from lowbit.config.specs import Rule, TensorOverride

_RANDOM = np.random.default_rng(0)


def _model(tail: list[onnx.NodeProto], *, outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    """Return a convolution, a pool and a Gemm that writes ``g``, and a tail after it."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c"], name="conv", kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["g"], name="gemm"),
        *tail,
    ]
    constants = [
        numpy_helper.from_array(_RANDOM.normal(size=s).astype(np.float32), n)
        for n, s in (("w1", (8, 3, 3, 3)), ("w2", (8, 8)), ("b2", (8,)), ("w3", (8, 8)))
    ] + [numpy_helper.from_array(np.array([1, 2, 4]), "shape")]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


_SOFTMAX = helper.make_node("Softmax", ["g"], ["y"], name="softmax")
_MOVED = [
    helper.make_node("Reshape", ["g", "shape"], ["m"], name="reshape"),
    helper.make_node("Sigmoid", ["m"], ["y"], name="sigmoid"),
]
_READ = [helper.make_node("MatMul", ["g", "w3"], ["y"], name="product")]


def _activations(model: onnx.ModelProto, preset: str = "U8S8") -> set[str]:
    return {t.name for t in lowbit.plan(model, preset=preset).activations()}


@pytest.mark.parametrize(
    ("tail", "outputs", "kept"),
    [
        ([], ("g",), {"x", "r", "p", "f"}),
        ([_SOFTMAX], ("y",), {"x", "r", "p", "f"}),
        (_MOVED, ("y",), {"x", "r", "p", "f"}),
        (_READ, ("y",), {"x", "r", "p", "f", "g"}),
        ([_SOFTMAX], ("y", "g"), {"x", "r", "p", "f", "g", "y"}),
    ],
    ids=["logits", "softmax", "sigmoid", "read by a layer", "read twice"],
)
def test_final_outputs_stay_in_float(
    tail: list[onnx.NodeProto], outputs: tuple[str, ...], kept: set[str]
) -> None:
    assert _activations(_model(tail, outputs=outputs)) == kept


def test_a_convolution_keeps_the_quantizer_without_which_it_would_run_in_float() -> None:
    model = _model([helper.make_node("Relu", ["c2"], ["y"], name="last")], outputs=("y", "g"))
    second = helper.make_node("Conv", ["r", "w4"], ["c2"], name="head", kernel_shape=[1, 1])
    model.graph.node.insert(2, second)
    weight = _RANDOM.normal(size=(4, 8, 1, 1)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w4"))

    assert "y" in _activations(model)


def test_a_target_that_needs_integers_gets_them() -> None:
    assert "g" in _activations(_model([], outputs=("g",)), "A8W8")


def test_an_output_that_is_named_is_quantized() -> None:
    config = find_preset("U8S8")
    named = TensorOverride(tensor="g", spec=config.activation)

    plan = lowbit.plan(
        _model([], outputs=("g",)), config=msgspec.structs.replace(config, tensors=(named,))
    )

    assert "g" in plan.by_name()


def test_the_plan_says_why() -> None:
    plan = lowbit.plan(_model([_SOFTMAX]), preset="U8S8")

    assert {row.node: row.why for row in plan.float_nodes}["softmax"].startswith(
        "it only leads to outputs"
    )


@pytest.mark.parametrize(("preset", "kept"), [("A8W8", {"x", "r"}), ("U8S8", {"x", "r"})])
def test_a_final_average_stays_in_float(preset: str, kept: set[str]) -> None:
    """Its scale would have steps as large as the differences between classes."""
    model = _model([], outputs=("f",))
    del model.graph.node[-1]

    assert _activations(model, preset) == kept


def test_what_a_layer_makes_on_the_npu_is_in_integers() -> None:
    assert _activations(_model([], outputs=("g",)), "A8W8") == {"x", "r", "p", "f", "g"}


def test_w4_stores_the_layer_that_makes_an_output_in_8_bits() -> None:
    model = _model([helper.make_node("Add", ["g", "b2"], ["y"], name="bias")])
    specs = {t.name: t.spec.format_name for t in lowbit.plan(model, preset="W4").weights()}

    assert specs == {"w1": "uint4", "w2": "int8"}


def test_a_rule_decides_about_the_last_layer_as_about_any() -> None:
    four = find_preset("W4")
    config = msgspec.structs.replace(four, rules=(Rule(name="gemm", weight=four.weight),))
    plan = lowbit.plan(_model([], outputs=("g",)), config=config)
    specs = {t.name: t.spec.format_name for t in plan.weights()}

    assert specs == {"w1": "uint4", "w2": "uint4"}


def test_what_another_layer_reads_is_no_last_layer() -> None:
    specs = {t.name: t.spec.format_name for t in lowbit.plan(_model(_READ), preset="W4").weights()}

    assert specs == {"w1": "uint4", "w2": "uint4", "w3": "int8"}


@pytest.mark.parametrize(
    ("tail", "outputs", "held"),
    [
        ([], ("g",), {"g"}),
        ([_SOFTMAX], ("y",), {"g"}),
        (_MOVED, ("y",), {"g"}),
        (_READ, ("y",), {"y"}),
        ([_SOFTMAX], ("y", "g"), set()),
    ],
    ids=["logits", "softmax", "sigmoid", "made by a product", "read twice"],
)
def test_final_scores_are_held(
    tail: list[onnx.NodeProto], outputs: tuple[str, ...], held: set[str]
) -> None:
    plan = lowbit.plan(_model(tail, outputs=outputs), preset="A8W8")

    assert {t.name for t in plan.activations() if t.headroom is not None} == held


def test_feature_maps_are_no_scores() -> None:
    model = _model([], outputs=("c",))
    del model.graph.node[1:]

    assert all(t.headroom is None for t in lowbit.plan(model, preset="A8W8").activations())


@pytest.mark.parametrize("preset", ["A8W8", "XINT8"])
def test_the_largest_score_of_all_samples_is_not_clipped(preset: str) -> None:
    """Least squared error would clip it: it is one of thousands, and just beyond a power of two."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1000, 1, 8)).astype(np.float32)
    rows[500] *= 17 / np.abs(rows[500]).max()
    weight = numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    config = msgspec.structs.replace(
        find_preset(preset), refinement=None, keep_only_if_better=False
    )
    wide = TensorOverride(tensor="x", range=(-64.0, 64.0))

    result = lowbit.quantize(
        model,
        data=[{"x": row} for row in rows],
        config=msgspec.structs.replace(config, tensors=(wide,)),
    )

    params = result.state.params.tensors["y"]
    assert float(params.scale) * 127 >= np.abs(rows).max()
    free = msgspec.structs.replace(config, tensors=(wide,), final_headroom=None)
    other = lowbit.quantize(model, data=[{"x": row} for row in rows], config=free)
    assert float(other.state.params.tensors["y"].scale) * 127 < np.abs(rows).max()
