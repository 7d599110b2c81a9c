"""Normalizations, GELUs and Softmax in several nodes are found in one piece."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from helpers.attention_models import Network

from lowbit.normalize.normalize import normalize
from lowbit.ops.composites import find_composites


def _found(net: Network, output: str) -> tuple[ir.Graph, list[tuple[str, int]]]:
    graph = normalize(ir.from_proto(net.model(output))).graph
    return graph, [(c.name, len(c.nodes)) for c in find_composites(graph)]


@pytest.mark.parametrize("kind", ["erf", "erf, half first", "tanh", "sigmoid"])
def test_a_gelu_is_one_operator(kind: str) -> None:
    net = Network()
    x = net.linear(net.input("x", ["batch", 16]))
    before = len(net.nodes)
    y = net.gelu(x, kind)
    inside = len(net.nodes) - before

    _, found = _found(net, net.linear(y))

    assert found == [("GELU", inside)]


@pytest.mark.parametrize("kind", ["layer written out", "rms", "rms by reciprocal", "rms by power"])
def test_a_normalization_is_one_operator_over_the_last_axis(kind: str) -> None:
    net = Network()
    x = net.linear(net.input("x", ["batch", 16]))
    before = len(net.nodes)
    y = net.norm(x, kind)
    # The factors after it are a product like any other.
    inside = len(net.nodes) - before - 1

    graph, found = _found(net, net.linear(y))

    assert found == [("normalization", inside)]
    assert find_composites(graph)[0].last_axis


def test_the_normalization_of_an_embedding_is_one_operator() -> None:
    net = Network()
    x = net.linear(net.input("x", ["batch", 16]))
    norm = net.add("ReduceL2", x, net.constant([-1], np.int64), keepdims=1)
    y = net.add("Div", x, net.add("Clip", norm, net.constant(1e-12)))

    _, found = _found(net, y)

    assert found == [("normalization", 3)]


def test_a_softmax_is_one_operator() -> None:
    net = Network()
    x, last = net.linear(net.input("x", ["batch", 16])), net.constant([-1], np.int64)
    e = net.add("Exp", net.add("Sub", x, net.add("ReduceMax", x, last)))

    _, found = _found(net, net.add("Div", e, net.add("ReduceSum", e, last)))

    assert found == [("Softmax", 5)]


def test_silu_and_a_gate_of_another_layer_stay_operators_of_their_own() -> None:
    net = Network()
    x = net.linear(net.input("x", ["batch", 16]))
    y = net.add("Mul", x, net.add("Sigmoid", x))
    gate = net.add("Sigmoid", net.add("Mul", net.linear(y), net.constant(2.0)))

    _, found = _found(net, net.add("Mul", y, gate))

    assert found == []
