from __future__ import annotations

import msgspec
import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import lowbit
from lowbit.config.presets import find_preset
from lowbit.normalize.normalize import normalize

SIZES = {"b": 2, "t": 3, "d": 4, "h": 2, "k": 5, "i": 3, "j": 6}


def _model(equation: str, *, first: bool = False, unknown: tuple[str, ...] = ()) -> ir.Model:
    """Return an Einsum of an input and a constant; ``first``: the constant comes first."""
    terms, _ = equation.replace(" ", "").split("->")
    at = 0 if first else 1
    shapes = [
        [SIZES[label] for label in term.replace("...", "bt").strip()] for term in terms.split(",")
    ]
    labels = terms.split(",")[1 - at].replace("...", "bt")
    named = [label if label in unknown else SIZES[label] for label in labels]
    random = np.random.default_rng(0)
    weight = random.normal(size=shapes[at]).astype(np.float32)
    inputs = ["w", "x"] if first else ["x", "w"]
    graph = helper.make_graph(
        [helper.make_node("Einsum", inputs, ["y"], "product", equation=equation)],
        "g",
        [helper.make_tensor_value_info("x", 1, named)],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=8))


def _feed(model: ir.Model) -> dict[str, np.ndarray]:
    shape = [d if isinstance(d, int) else SIZES[d.value] for d in model.graph.inputs[0].shape]
    return {"x": np.random.default_rng(1).normal(size=shape).astype(np.float32)}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    ("equation", "operators"),
    [
        ("ij,jk->ik", ["MatMul"]),
        ("btd,dhk->bthk", ["MatMul", "Reshape"]),
        ("bthk,hkd->btd", ["Reshape", "MatMul"]),
        ("bthk,dkh->btd", ["Reshape", "MatMul"]),
        ("btd,kd->btk", ["MatMul"]),
        ("...d,dk->...k", ["MatMul"]),
        ("btd,dhk->bhtk", ["MatMul", "Reshape", "Transpose"]),
        ("dbt, dk -> btk", ["Transpose", "MatMul"]),
        ("d,dk->k", ["MatMul"]),
        ("btd,dk->kbt", ["MatMul", "Transpose"]),
    ],
)
def test_a_product_with_a_constant_becomes_a_matmul(run, equation, operators, first) -> None:
    if first:
        (x, w), result = equation.split("->")[0].split(","), equation.split("->")[1]
        equation = f"{w},{x}->{result}"
    model = _model(equation, first=first)

    after = normalize(model)

    assert [node.op_type for node in after.graph] == operators
    feed = _feed(model)
    expected = run(ir.to_proto(model), feed)[0]
    np.testing.assert_allclose(run(ir.to_proto(after), feed)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "equation",
    ["bij,bjk->bik", "ij,jk->k", "ij,jk->ijk", "ii,ij->j", "ij,j->i", "...hk,hkd->...d", "ij,jk"],
)
def test_other_products_stay(equation) -> None:
    model = _model(equation if "->" in equation else f"{equation}->ik")
    model.graph[0].attributes["equation"] = ir.AttrString("equation", equation)

    assert [node.op_type for node in normalize(model).graph] == ["Einsum"]


def test_sizes_may_be_unknown(run) -> None:
    model = _model("bthk,hkd->btd", unknown=("b", "t"))

    after = normalize(model)

    feed = _feed(model)
    expected = run(ir.to_proto(model), feed)[0]
    np.testing.assert_allclose(run(ir.to_proto(after), feed)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("preset", ["A8W8", "W8"])
def test_it_is_quantized_and_answers_to_its_name(preset) -> None:
    model, config = ir.to_proto(_model("btd,dhk->bthk")), find_preset(preset)

    assert len(list(lowbit.plan(model, config=config).weights())) == 1
    excluded = msgspec.structs.replace(config, exclude=("product",))
    assert not list(lowbit.plan(model, config=excluded).weights())
