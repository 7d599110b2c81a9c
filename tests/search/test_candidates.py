"""Candidates: the outputs of the whole model at the cost of a part, in any process."""

from __future__ import annotations

import pickle
import re

import msgspec
import numpy as np
import onnx
import pytest
from helpers.random_networks import random_network
from helpers.staged import calibrated
from helpers.three_layers import config_with, three_layers, three_layers_feeds
from onnx import TensorProto, helper, numpy_helper

import lowbit
from lowbit import parallel
from lowbit.config.presets import find_preset
from lowbit.config.specs import IntegerSpec, Rule
from lowbit.evaluate.runner import Run, output_names, run_model
from lowbit.graph.worker_sessions import packed, unpacked_model
from lowbit.numerics.formats import IntegerFormat
from lowbit.ops.linear import LAYERS
from lowbit.pipeline import stages
from lowbit.pipeline.pipeline import Clock, Pipeline, ignore_progress
from lowbit.search.candidates import Candidates, Setting, run_candidates
from lowbit.state import Prepared, extended

_WIDE = IntegerSpec(format=IntegerFormat.INT16)


def _setting(model, feeds, preset: str) -> Setting:
    base = calibrated(model, find_preset(preset), feeds)
    return Setting(base, output_names(base.adapted)[0], feeds)


def _configs(setting: Setting):
    """Yield the configuration with one layer's weight at 16 bits, for each layer."""
    config = setting.base.config
    weights = {tensor.name for tensor in setting.base.plan.weights()}
    for node in setting.base.adapted.graph:
        if node.op_type in LAYERS and any(v is not None and v.name in weights for v in node.inputs):
            rule = Rule(name=f"re:^{re.escape(str(node.name))}$", weight=_WIDE)
            yield str(node.name), msgspec.structs.replace(config, rules=(*config.rules, rule))


@pytest.mark.parametrize("seed", range(6))
def test_outputs_are_bit_for_bit_those_of_the_whole_model(seed: int) -> None:
    model, feeds = random_network(seed)
    setting = _setting(model, feeds[:3], "A16W8")
    candidates = Candidates(setting)
    pipeline = Pipeline(Clock(ignore_progress))
    named = list(_configs(setting))
    assert named

    for _, config in named:
        got = candidates.outputs(config)
        planned = stages.plan(extended(setting.base, Prepared, config=config))
        whole = pipeline.finish(stages.with_stats(planned, setting.base.stats))
        run = Run.quantized_model(whole.emitted.model, [setting.output])
        for mine, want in zip(got, run_model(run, feeds[:3]), strict=True):
            np.testing.assert_array_equal(mine, want[setting.output])


@pytest.mark.xdist_group("workers")
@pytest.mark.usefixtures("worker_processes")
def test_processes_and_threads_give_the_same() -> None:
    setting = _setting(three_layers(), three_layers_feeds(3), "A16W8")
    named = list(_configs(setting))
    want = list(run_candidates(setting, named))

    threads = list(run_candidates(setting, named, threads=2))
    with parallel.engine("loky", 2):
        processes = list(run_candidates(setting, named))

    assert len(want) == len(named) == 3
    for found in (threads, processes):
        for rows, others in zip(want, found, strict=True):
            for one, other in zip(rows, others, strict=True):
                np.testing.assert_array_equal(one, other)


def _deep(depth: int) -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["v0"], name="first")]
    nodes += [
        helper.make_node("Neg", [f"v{index}"], [f"v{index + 1}"], name=f"n{index}")
        for index in range(depth)
    ]
    nodes.append(helper.make_node("MatMul", [f"v{depth}", "w"], ["y"], name="last"))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [12, 12]) for n in "xy")
    weight = numpy_helper.from_array(np.eye(12, dtype=np.float32) * 0.7, "w")
    graph = helper.make_graph(nodes, "deep", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _assert_travels(setting: Setting) -> None:
    back = pickle.loads(pickle.dumps(setting.without_models()))  # noqa: S301 - our own
    named = list(_configs(setting))[:2]
    assert named
    with packed(setting.base.adapted) as files:
        sent = {name: np.array(data) for name, data in files.items()}
        for other in (back.with_model(unpacked_model(some)) for some in (files, sent)):
            for _, config in named:
                pair = (Candidates(each).outputs(config) for each in (setting, other))
                for one, two in zip(*pair, strict=True):
                    np.testing.assert_array_equal(one, two)


def test_settings_of_deep_models_travel() -> None:
    """Pickle follows a graph from node to node, and gives up after some hundred."""
    _assert_travels(_setting(_deep(700), three_layers_feeds(2), "A16W8"))


@pytest.mark.parametrize("seed", [1, 3])
@pytest.mark.parametrize("preset", ["XINT8", "A8W8"])
def test_settings_travel_with_what_stages_noted_on_nodes(seed: int, preset: str) -> None:
    model, feeds = random_network(seed)
    _assert_travels(_setting(model, feeds[:2], preset))


def test_a_digest_depends_on_what_outputs_depend_on() -> None:
    feeds = three_layers_feeds(3)
    plain, again = (_setting(three_layers(), feeds, "A16W8").digest() for _ in range(2))
    fewer = _setting(three_layers(), feeds[:2], "A16W8").digest()

    assert plain == again
    assert plain != fewer


def _mixed(state_dir):
    config = config_with(threshold=None)
    data = three_layers_feeds()
    return lowbit.quantize(
        three_layers(), data=data, config=config, state_dir=state_dir
    ).mixed_precision


def test_measured_layers_are_found_again(tmp_path, monkeypatch) -> None:
    want = _mixed(tmp_path)

    def refuse(*_: object) -> None:
        raise AssertionError("a measured layer was run again")

    monkeypatch.setattr(Candidates, "outputs", refuse)
    assert _mixed(tmp_path) == want
    with pytest.raises(AssertionError, match="run again"):
        _mixed(tmp_path / "other")
