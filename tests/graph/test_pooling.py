"""Nodes that look at feature maps: which maps, and when they run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from helpers.map_models import map_model

from lowbit.graph.pooling import (
    add_maxima,
    add_mean_squares,
    add_pools,
    bytes_of_maps,
    highest_of,
    large_maps,
    mean_square_of,
    schedule_early,
    whole_blocks,
)
from lowbit.graph.session import session


def test_maps_are_large_by_what_one_sample_of_them_takes() -> None:
    assert large_maps(map_model("8").graph) == set()
    assert large_maps(map_model("32768").graph) == {"c", "r", "y"}
    assert large_maps(map_model("H").graph) == set()


def test_maps_take_four_bytes_a_number_or_nobody_knows() -> None:
    assert bytes_of_maps(map_model("8").graph, ["r", "y", "x"]) == 2 * 4 * 2 * 8 * 8
    assert bytes_of_maps(map_model("8").graph, []) == 0
    assert bytes_of_maps(map_model("H").graph, ["r"]) == np.inf


def test_blocks_are_whole_if_channels_are_a_multiple_of_sixteen() -> None:
    assert whole_blocks(map_model().graph) == set()
    assert whole_blocks(_chain(1).graph) == {"conv0", "relu0"}


def test_maxima_and_mean_squares_are_outputs_of_the_graph() -> None:
    model = map_model()
    feed = {"x": np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)}

    add_maxima(model.graph, ["r"])
    add_mean_squares(model.graph, ["r"])

    outputs = [highest_of("r"), mean_square_of("r")]
    assert [value.name for value in model.graph.outputs] == ["y", *outputs]
    with session(model, ["r"]) as running:
        whole, highest, power = running.run(["r", *outputs], feed)
    np.testing.assert_array_equal(highest[:, :, 0, 0], whole.max(axis=(2, 3)))
    np.testing.assert_allclose(power[:, :, 0, 0], np.square(whole).mean(axis=(2, 3)), rtol=1e-5)


def _chain(layers: int) -> ir.Model:
    """Return convolutions with a Relu each, one after the other."""
    last = ir.val("x", dtype=ir.DataType.FLOAT, shape=ir.Shape([1, 16, 32, 32]))
    graph = ir.Graph([last], [], nodes=[], opset_imports={"": 17}, name="chain")
    weight = np.random.default_rng(0).normal(0, 0.1, (16, 16, 1, 1)).astype(np.float32)
    for number in range(layers):
        name = f"w{number}"
        constant = ir.Value(name=name, const_value=ir.tensor(weight, name=name))
        graph.initializers[name] = constant
        for op_type, constants in (("Conv", [constant]), ("Relu", [])):
            node = ir.node(op_type, [last, *constants], name=f"{op_type.lower()}{number}")
            (value,) = node.outputs
            value.name, value.type, value.shape = node.name, last.type, last.shape
            graph.append(node)
            last = value
    graph.outputs.append(last)
    return ir.Model(graph, ir_version=8)


def _order(model: ir.Model, feed: dict[str, np.ndarray], folder: Path) -> list[str]:
    """Return the names of nodes in the order in which a session runs them."""
    made = []

    class Profiled(ort.InferenceSession):
        def __init__(self, path, options, **settings) -> None:
            options.enable_profiling = True
            options.profile_file_prefix = str(folder / "run")
            super().__init__(path, options, **settings)
            made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ort, "InferenceSession", Profiled)
        with session(model, optimize="all", threads=1) as running:
            running.run(running.outputs, feed)
            events = json.loads(Path(made[0].end_profiling()).read_text("utf-8"))
    made.clear()
    ran = [event for event in events if str(event["name"]).endswith("_kernel_time")]
    return [str(event["name"]) for event in sorted(ran, key=lambda event: event["ts"])]


def test_what_looks_at_a_map_runs_before_the_next_one_but_one(tmp_path: Path) -> None:
    model, layers = _chain(6), [f"relu{number}" for number in range(5)]
    feed = {"x": np.random.default_rng(1).normal(size=(1, 16, 32, 32)).astype(np.float32)}
    add_pools(model.graph, layers)
    add_mean_squares(model.graph, layers)

    schedule_early(model.graph, given=1)
    order = _order(model, feed, tmp_path)

    if not any("nchwc" in name for name in order):
        pytest.skip("onnxruntime has no blocks of channels on this processor")
    computed = [name for name in order if name.startswith("relu") and "lowbit" not in name]
    assert len(computed) == 6
    for number, name in enumerate(layers):
        looking = [index for index, n in enumerate(order) if n.startswith(f"{name}/lowbit/")]
        assert len(looking) == 4
        assert max(looking) < order.index(computed[number + 1])
