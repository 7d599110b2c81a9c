"""Large models in parts: the same values, bit by bit, from sub-models of bounded size."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import lowbit
from lowbit.config.presets import find_preset
from lowbit.errors import ModelError
from lowbit.graph import io, parts, submodels
from lowbit.graph.parts import check_parts, is_large, run_in_parts
from lowbit.graph.session import session
from lowbit.graph.tensors import tensors_size
from tests.helpers.small_models import small_cnn, small_feeds
from tests.helpers.transformer_models import tokens, transformer


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch):
    monkeypatch.setattr(parts, "LARGE_NODES", 5)
    monkeypatch.setattr(parts, "_PART_NODES", 2)
    monkeypatch.setattr(parts, "_PART_BYTES", 4096)


def _whole(model: ir.Model, names: list[str], feeds: list) -> list[dict[str, np.ndarray]]:
    with session(model, names, threads=1) as running:
        return [
            {name: np.array(a) for name, a in zip(names, running.run(names, feed), strict=True)}
            for feed in feeds
        ]


def _assert_same(model: ir.Model, names: list[str], feeds: list) -> None:
    found = run_in_parts(model, names, feeds, lambda _, __, array: np.array(array), name="m")
    for got, want in zip(found, _whole(model, names, feeds), strict=True):
        assert got.keys() == want.keys()
        assert all(np.array_equal(got[name], want[name]) for name in names)


@pytest.mark.parametrize("preset", [None, "A8W8", "XINT8", "BF16"])
@pytest.mark.parametrize(
    ("model", "feeds"), [(small_cnn(), small_feeds(3)), (transformer(), tokens(3))]
)
def test_parts_give_what_the_whole_model_gives(model, feeds, preset) -> None:
    graph = io.load(model)
    if preset is not None:
        graph = lowbit.quantize(model, data=feeds, preset=preset).quantized
    assert is_large(graph)
    # A bfloat16 cannot be had from onnxruntime, which NumPy does not know.
    nodes = [
        n for n in graph.graph if preset != "BF16" or not n.op_type.endswith("dQuantizeLinear")
    ]
    every = [str(v.name) for node in nodes for v in node.outputs if v.name]
    _assert_same(graph, [str(v.name) for v in graph.graph.outputs], feeds)
    _assert_same(graph, every, feeds)


def test_no_part_is_larger_than_the_limits(monkeypatch) -> None:
    opened = []
    make = submodels.Session

    def recorded(source, **options):
        opened.append(io.load(source))
        return make(source, **options)

    monkeypatch.setattr(submodels, "Session", recorded)
    model = io.load(small_cnn())
    run_in_parts(model, ["logits"], small_feeds(2), lambda _, __, array: array, name="m")
    sizes = [tensors_size(part) for part in opened]
    largest = max(v.const_value.nbytes for v in model.graph.initializers.values())
    assert len(opened) == 4, "once each, however many samples"
    assert max(sizes) <= max(4096, largest)
    assert max(len(part.graph) for part in opened) <= 2


def test_what_is_computed_from_constants_belongs_to_the_part_that_reads_it() -> None:
    """Dequantized weights stand first in a graph; none of them may wait in memory for its layer."""
    quantized = lowbit.quantize(small_cnn(), data=small_feeds(3), preset="A8W8").quantized
    steps = parts._steps(quantized.graph, ["logits"])
    assert not any("w1" in name or "w3" in name for step in steps for name in step)


def test_values_wait_as_integers() -> None:
    quantized = lowbit.quantize(small_cnn(), data=small_feeds(3), preset="A8W8").quantized
    steps = parts._steps(quantized.graph, ["logits"])
    crossing = {name for step in steps[:-1] for name in step}
    assert crossing
    assert not any(name.endswith("DequantizeLinear_Output") for name in crossing)


def test_inputs_and_constant_outputs_can_be_asked_for() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y, float[2] k) <float[2] w = {1, 2}> {
        k = Neg(w) a = Add(x, k) b = Neg(a) c = Exp(b) d = Neg(c) y = Add(d, x)
    }"""
    _assert_same(ir.from_onnx_text(text), ["x", "k", "y", "b"], [{"x": np.float32([1, 2])}])


def test_models_whose_constants_can_be_fed_stay_whole() -> None:
    model = io.load(small_cnn())
    model.graph.inputs.append(model.graph.initializers["w1"])
    assert not is_large(model)


def test_large_by_bytes(monkeypatch) -> None:
    monkeypatch.setattr(parts, "LARGE_NODES", 1000)
    model = io.load(small_cnn())
    assert not is_large(model)
    monkeypatch.setattr(parts, "LARGE_BYTES", parts._bytes(model.graph.initializers.values()) - 1)
    assert is_large(model)


def test_every_part_is_checked() -> None:
    model = io.load(small_cnn())
    (feed,) = small_feeds(1)
    check_parts(model, feed)
    model.graph[5].op_type = "NoSuchOperator"
    with pytest.raises(ModelError, match="NoSuchOperator"):
        check_parts(model, feed)


@pytest.mark.parametrize("preset", ["A8W8", "XINT8", "A16W8"])
def test_a_model_quantized_in_parts_is_the_same(monkeypatch, preset) -> None:
    # Gradients are taken of models that are run as a whole.
    config = msgspec.structs.replace(find_preset(preset), sensitivity=None)

    def quantized() -> bytes:
        result = lowbit.quantize(small_cnn(), data=small_feeds(6), config=config)
        return result.model.SerializeToString(deterministic=True)

    in_parts = quantized()
    monkeypatch.setattr(parts, "LARGE_NODES", 1000)
    assert in_parts == quantized()


def test_nodes_of_one_name_are_run_and_keep_it() -> None:
    model = io.load(small_cnn())
    for node in model.graph:
        node.name = "same"
    _assert_same(model, ["logits"], small_feeds(2))
    assert {node.name for node in model.graph} == {"same"}


def test_a_tensor_that_does_not_exist_is_named() -> None:
    with pytest.raises(ModelError, match=r"no tensor 'logit'.*logits"):
        run_in_parts(
            io.load(small_cnn()), ["logit"], small_feeds(1), lambda _, __, array: array, name="m"
        )


def test_parts_are_written_without_what_onnxruntime_finds_out(monkeypatch) -> None:
    """A graph of 30 000 nodes is cut up a dozen times: its inner types were most of what was written."""
    opened = []
    make = submodels.Session

    def recorded(source, **options):
        opened.append(onnx.load_from_string(source).graph)
        return make(source, **options)

    monkeypatch.setattr(submodels, "Session", recorded)
    quantized = lowbit.quantize(small_cnn(), data=small_feeds(3), preset="A8W8").quantized
    opened.clear()
    _assert_same(quantized, ["logits"], small_feeds(2))
    assert opened
    assert not any(part.value_info for part in opened)
