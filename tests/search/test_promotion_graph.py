"""Which tensors a region reaches, by formats that are asked for."""

from __future__ import annotations

from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit.evaluate.cost import node_costs
from lowbit.search.promotion_graph import PromotionGraph, wide_spec
from lowbit.search.regions import Choice


def _graph(preset: str = "A8W8"):
    state = lowbit.quantize(small_cnn(), data=small_feeds(8), preset=preset, promote=False).state
    return state, PromotionGraph.of(state, node_costs(state.adapted, small_feeds(1)[0]))


def test_all_in_float_leaves_nothing_quantized() -> None:
    state, graph = _graph()
    whole = frozenset(range(len(graph.nodes)))

    assert graph.in_float(whole) == {tensor.name for tensor in state.plan.tensors}
    assert graph.in_float(frozenset()) == graph.widened(frozenset()) == set()
    assert graph.widened(whole) == {tensor.name for tensor in state.plan.activations()}


def test_what_a_neighbour_reads_stays_quantized_beside_float_and_widens_with_16_bits() -> None:
    state, graph = _graph()
    one = frozenset({len(graph.nodes) // 2})

    inside, wide = graph.in_float(one), graph.widened(one)

    activations = {tensor.name for tensor in state.plan.activations()}
    assert inside & activations < wide
    for name in wide:
        assert graph.around[name] & one


def test_a_weight_that_two_layers_share_is_float_only_with_both() -> None:
    shared = PromotionGraph(("a", "b"), (0.5, 0.5), {}, {"w": frozenset({0, 1})})

    assert shared.in_float(frozenset({0})) == set()
    assert shared.in_float(frozenset({0, 1})) == {"w"}


def test_rules_ask_for_exactly_these_nodes() -> None:
    state, graph = _graph()
    region = frozenset({0, 1})

    (in_float,) = graph.rules(Choice(in_float=region), None, "so")
    (wide,) = graph.rules(Choice(wide=region), wide_spec(state), "so")

    assert in_float.nodes == wide.nodes == graph.nodes[:2]
    assert in_float.exclude
    assert wide.activation.format_name == "int16"


def test_targets_without_16_bits_have_none_to_offer() -> None:
    state, _ = _graph("XINT8")

    assert wide_spec(state) is None
