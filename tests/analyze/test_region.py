"""The region with most of the error: found where it was hidden, told in words that a new run obeys."""

from __future__ import annotations

import dataclasses
import json

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers.chain_models import chain, smooth
from onnx import helper, numpy_helper

import lowbit
from lowbit.analyze.region import OrderedNodes, RegionFinder, find_region
from lowbit.analyze.sensitivity import Switch, Variant
from lowbit.api.compare import compare
from lowbit.config.config import QuantConfig
from lowbit.config.extensible import convert
from lowbit.config.presets import find_preset

BARE = msgspec.structs.replace(
    find_preset("A8W8"),
    refinement=None,
    keep_only_if_better=False,
    equalization=None,
    smooth_quant=None,
    bias_correction=False,
)


@dataclasses.dataclass
class _Added:
    """Stands in for a runner: each tensor that is on adds its noise."""

    noises: dict[str, float]
    asked: int = 0

    def noise(self, variants: list[Variant], _: int) -> list[float]:
        self.asked += len(variants)
        return [sum(self.noises[name] for name in variant.changes) for variant in variants]

    def noise_of(self, *_: object) -> float:
        return 0.0


def finder(noises: list[float], products: list[float] | None = None) -> RegionFinder:
    """Return that of a chain with one tensor after each node."""
    count = len(noises)
    values = [ir.Value(name="x")]
    nodes = []
    for i in range(count):
        nodes.append(ir.node("Relu", [values[-1]], name=f"n{i}"))
        values.append(nodes[-1].outputs[0])
    shares = products or [1 / count] * count
    used = {f"t{i}": (i, min(i + 1, count - 1)) for i in range(count)}
    order = OrderedNodes(tuple(nodes), tuple(shares), used)
    switches = {f"t{i}": Switch(f"t{i}", None, None, "", i) for i in range(count)}
    runner = _Added({f"t{i}": noise for i, noise in enumerate(noises)})
    return RegionFinder(order, runner, switches)


@pytest.mark.parametrize(("first", "last"), [(0, 30), (70, 110), (170, 199)])
def test_a_hidden_region_is_found(first, last) -> None:
    noises = [0.02 if first <= i <= last else 1e-5 for i in range(200)]

    region = find_region(finder(noises), 2)

    # A tensor at the border stays quantized.
    assert set(region.tensors) >= {f"t{i}" for i in range(first + 1, last - 1)}
    assert len(region.tensors) < last - first + 12
    assert region.gain_db > 10
    left = 1 - sum(noises[int(name[1:])] for name in region.tensors) / sum(noises)
    assert region.noise_recovered == pytest.approx(1 - left)


def test_it_takes_few_measurements() -> None:
    found = finder([0.02 if 700 < i < 800 else 1e-6 for i in range(2000)])

    assert find_region(found, 2) is not None
    assert found.runner.asked < 40


def test_noise_that_is_everywhere_has_no_region() -> None:
    assert find_region(finder([0.01] * 100), 2) is None


def test_noise_where_the_multiply_adds_are_has_no_region() -> None:
    noises = [0.02 if i < 50 else 0.0 for i in range(100)]
    products = [0.02 if i < 50 else 0.0 for i in range(100)]

    assert find_region(finder(noises, products), 2) is None


@pytest.mark.parametrize("noise", [0.0, np.inf])
def test_a_model_that_loses_or_gives_nothing_has_no_region(noise) -> None:
    assert find_region(finder([noise] * 10 + [0.0] * 50), 2) is None


def test_a_model_that_is_good_has_no_region() -> None:
    model, feeds = chain(layers=8), smooth(8)
    quantized = lowbit.quantize(model, data=feeds, preset="A16W8")

    budget = compare(model, quantized.quantized, feeds).budget

    assert budget.sqnr_db > 20
    assert budget.region is None


def hard_front() -> onnx.ModelProto:
    """Return a chain whose input goes through channels of very different ranges, several times."""
    model = chain(layers=8)
    front, last = [], "x"
    for i in range(6):
        spread = np.float32([1e-3, 1, 300]).reshape(1, 3, 1, 1)
        factors = spread if i % 2 == 0 else 1 / spread
        model.graph.initializer.append(numpy_helper.from_array(factors, f"k{i}"))
        front.append(helper.make_node("Mul", [last, f"k{i}"], [f"f{i}"], f"front{i}"))
        last = f"f{i}"
    model.graph.node[0].input[0] = last
    rest = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*front, *rest])
    return model


def test_the_front_end_is_named_and_a_new_run_obeys() -> None:
    model, feeds = hard_front(), smooth(8)
    quantized = lowbit.quantize(model, data=feeds, config=BARE, promote=False, allow_ruined=True)
    budget = compare(model, quantized.quantized, feeds).budget
    region = budget.region

    assert "front" in region.words
    assert region.gain_db > 3
    assert budget.tried_together[0] == region
    fields = {**msgspec.to_builtins(BARE), **json.loads(region.config)}
    again = lowbit.quantize(model, data=feeds, config=convert(fields, QuantConfig), promote=False)
    kept = {row.node for row in again.state.plan.float_nodes}
    assert {f"front{i}" for i in range(1, 6)} <= kept
    after = compare(model, again.quantized, feeds).budget.sqnr_db
    assert after > budget.sqnr_db + region.gain_db / 2


def test_a_new_run_for_the_suggestion_is_told_with_it() -> None:
    model, feeds = hard_front(), smooth(8)
    quantized = lowbit.quantize(model, data=feeds, config=BARE, promote=False, allow_ruined=True)

    region = compare(model, quantized.quantized, feeds, calibration=feeds).budget.region

    assert region.requantized_sqnr_db > region.sqnr_db - 3
