"""Graphs inside graphs, against onnx-ir's own iterators."""

from __future__ import annotations

import pytest
from helpers.odd_models import odd_model

from lowbit.graph import io
from lowbit.graph.nesting import every_graph, every_node


@pytest.mark.parametrize("name", ["a branch", "a loop", "strings"])
def test_the_order_is_that_of_onnx_ir(name: str) -> None:
    graph = io.load(odd_model(name)[0]).graph

    assert list(every_node(graph)) == list(graph.all_nodes())
    assert every_graph(graph) == [graph, *graph.subgraphs()]
