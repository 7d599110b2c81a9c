"""A stack of two blocks with a residual stream, a few channels of which are far larger than others."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, HIDDEN, TOKENS = 24, 40, 6


def transformer(norm: str = "LayerNormalization", *, gemm: bool = False) -> onnx.ModelProto:
    """Return embedding, two gated blocks with a normalization each, a last one, and a head.

    ``norm`` is an operator, or ``rms`` for a root-mean-square normalization written out. With
    ``gemm`` the second layer of a block has a bias inside, otherwise an Add behind it.
    """
    random = np.random.default_rng(11)
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def constant(name: str, data: np.ndarray) -> str:
        constants.append(numpy_helper.from_array(np.asarray(data, np.float32), name))
        return name

    def weight(name: str, *shape: int) -> str:
        return constant(name, random.normal(0, 1 / np.sqrt(shape[0]), shape))

    def normed(x: str, name: str) -> str:
        gamma = constant(f"{name}.weight", random.uniform(0.5, 2, WIDTH))
        if norm == "rms":
            nodes.extend(
                [
                    helper.make_node("Mul", [x, x], [f"{name}_sq"], f"{name}_sq"),
                    helper.make_node(
                        "ReduceMean", [f"{name}_sq", "last"], [f"{name}_ms"], f"{name}_mean"
                    ),
                    helper.make_node("Sqrt", [f"{name}_ms"], [f"{name}_rms"], f"{name}_root"),
                    helper.make_node("Div", [x, f"{name}_rms"], [f"{name}_unit"], f"{name}_div"),
                    helper.make_node("Mul", [f"{name}_unit", gamma], [f"{name}_out"], name),
                ]
            )
        else:
            beta = constant(f"{name}.bias", random.normal(0, 0.5, WIDTH))
            nodes.append(helper.make_node(norm, [x, gamma, beta], [f"{name}_out"], name))
        return f"{name}_out"

    constants.append(numpy_helper.from_array(np.array([-1]), "last"))
    table = random.normal(0, 1, (50, WIDTH))
    table[:, [3, 17]] *= 30
    nodes.append(
        helper.make_node("Gather", [constant("table", table), "ids"], ["embedded"], "embed")
    )
    position = constant("position", random.normal(0, 0.2, (TOKENS, WIDTH)))
    nodes.append(helper.make_node("Add", ["embedded", position], ["s0"], "place"))
    for i in range(2):
        n = normed(f"s{i}", f"norm{i}")
        nodes.append(
            helper.make_node("MatMul", [n, weight(f"up{i}.w", WIDTH, HIDDEN)], [f"u{i}"], f"up{i}")
        )
        nodes.append(
            helper.make_node(
                "MatMul", [n, weight(f"gate{i}.w", WIDTH, HIDDEN)], [f"g{i}"], f"gate{i}"
            )
        )
        nodes.append(helper.make_node("Relu", [f"g{i}"], [f"r{i}"], f"relu{i}"))
        nodes.append(helper.make_node("Mul", [f"u{i}", f"r{i}"], [f"h{i}"], f"mul{i}"))
        w, b = (
            weight(f"down{i}.w", HIDDEN, WIDTH),
            constant(f"down{i}.b", random.normal(size=WIDTH)),
        )
        if gemm:
            nodes.append(helper.make_node("Gemm", [f"h{i}", w, b], [f"d{i}"], f"down{i}"))
        else:
            nodes.append(helper.make_node("MatMul", [f"h{i}", w], [f"m{i}"], f"down{i}"))
            nodes.append(helper.make_node("Add", [f"m{i}", b], [f"d{i}"], f"bias{i}"))
        nodes.append(helper.make_node("Add", [f"s{i}", f"d{i}"], [f"s{i + 1}"], f"add{i}"))
    last = normed("s2", "norm2")
    nodes.append(helper.make_node("MatMul", [last, weight("head.w", WIDTH, 7)], ["y"], "head"))
    graph = helper.make_graph(
        nodes,
        "transformer",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [TOKENS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [TOKENS, 7])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def tokens(count: int = 8) -> list[dict[str, np.ndarray]]:
    """Return inputs for it."""
    random = np.random.default_rng(3)
    return [{"ids": random.integers(0, 50, TOKENS)} for _ in range(count)]


PAIRS = [
    {"prev_nodes": ["embed", "place"], "norm_node": "norm0", "next_nodes": ["up0", "gate0"]},
    {"prev_nodes": ["down0"], "norm_node": "norm1", "next_nodes": ["up1", "gate1"]},
    {"prev_nodes": ["down1"], "norm_node": "norm2", "next_nodes": ["head"]},
]
"""Who writes and who reads the stream, in the words of AMD Quark's file."""
