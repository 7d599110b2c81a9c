"""Stepping through a model must give what running it whole gives."""

import numpy as np
import onnx_ir as ir
import pytest
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit.graph import io
from lowbit.graph.layerwise_run import LayerwiseRun
from lowbit.graph.onnx_passes import infer_types
from lowbit.graph.session import session
from lowbit.graph.store import Store, open_store

STEPS = [["c1"], ["c2"], ["logits"]]


def _whole(model, names, feeds):
    with session(model, names) as running:
        return [dict(zip(names, running.run(names, feed), strict=True)) for feed in feeds]


def _stepped(run, steps, feeds, constants=None):
    found = [{} for _ in feeds]
    for index in range(len(steps)):
        run.begin(index, constants or {})
        for sample, feed in enumerate(feeds):
            found[sample] |= run.run(sample, feed if index == 0 else None)
    return found


@pytest.mark.parametrize("steps", [STEPS, [["c1", "r1"], ["r1"], ["g1"], ["logits", "a1"]]])
def test_steps_add_up_to_the_whole(steps, tmp_path):
    model, feeds = io.load(small_cnn()), small_feeds(3)
    store = Store(tmp_path)
    found = _stepped(LayerwiseRun(model, steps, store, name="x"), steps, feeds)
    names = list(dict.fromkeys(name for step in steps for name in step))
    for got, want in zip(found, _whole(model, names, feeds), strict=True):
        for name in names:
            np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-5)
    assert not store._arrays


def test_files_serve_as_well_as_memory(tmp_path):
    model, feeds = io.load(small_cnn()), small_feeds(2)
    with open_store() as store:
        memory = _stepped(LayerwiseRun(model, STEPS, store, name="x"), STEPS, feeds)
    with open_store(tmp_path, room=0) as store:
        disk = _stepped(LayerwiseRun(model, STEPS, store, name="x"), STEPS, feeds)
        assert not len(store)
    assert not list(tmp_path.iterdir())
    for a, b in zip(memory, disk, strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_a_quantized_model_waits_as_integers(tmp_path):
    result = lowbit.quantize(small_cnn(), data=small_feeds(4), preset="A8W8")
    names = [f"{name}_DequantizeLinear_Output" for name in ("r1", "f1")]
    feeds = small_feeds(2)
    seen = []

    class Spy(Store):
        def put(self, sample, name, array):
            seen.append(array.dtype)
            super().put(sample, name, array)

    steps = [[name] for name in names]
    run = LayerwiseRun(result.quantized, steps, Spy(tmp_path), name="x")
    found = _stepped(run, steps, feeds)
    for got, want in zip(found, _whole(result.quantized, names, feeds), strict=True):
        assert all(np.array_equal(got[name], want[name]) for name in names)
    assert set(seen) == {np.dtype(np.int8)}


def test_what_changed_is_seen_by_later_steps(tmp_path):
    model, feeds = io.load(small_cnn()), small_feeds(1)
    w3 = np.zeros((5, 8), np.float32)
    run = LayerwiseRun(model, STEPS, Store(tmp_path), name="x")
    found = _stepped(run, STEPS, feeds, {"w3": w3})
    bias = model.graph.initializers["b3"].const_value.numpy()
    np.testing.assert_allclose(found[0]["logits"][0], bias, rtol=1e-6)


def test_every_value_is_computed_once(tmp_path):
    """What a step computes of a long chain begins where the last step ended."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] d) { a = Neg(x) b = Exp(a) c = Tanh(b) d = Add(c, x) }"""
    steps = [["a"], ["b"], ["c"], ["d"]]
    run = LayerwiseRun(ir.from_onnx_text(text), steps, Store(tmp_path), name="x")
    # The input is kept as long as the last step reads it; each value as long as the next does.
    assert [(s.reads, s.computes, s.keeps, s.drops) for s in run._steps] == [
        (("x",), ("a",), ("a", "x"), ()),
        (("a",), ("b",), ("b",), ("a",)),
        (("b",), ("c",), ("c",), ("b",)),
        (("c", "x"), ("d",), (), ("c", "x")),
    ]


def test_an_input_may_be_what_a_step_asks_for(tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] b) { a = Neg(x) b = Neg(a) }"""
    steps, feed = [["x"], ["a"], ["x", "b"]], {"x": np.float32([1, 2])}
    store = Store(tmp_path)
    found = []
    run = LayerwiseRun(ir.from_onnx_text(text), steps, store, name="x")
    for index in range(len(steps)):
        run.begin(index, {})
        found.append({k: v.tolist() for k, v in run.run(0, feed if index == 0 else None).items()})
    assert found == [{"x": [1, 2]}, {"a": [-1, -2]}, {"x": [1, 2], "b": [1, 2]}]
    assert not store._arrays


def test_what_a_subgraph_reads_is_kept_for_it(tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x, bool c) => (float[2] y) {
        a = Neg(x)
        b = Exp(x)
        y = If (c) <
            then_branch = first () => (float[2] p) { p = Add(a, b) },
            else_branch = second () => (float[2] q) { q = Sub(a, b) }
        >
    }"""
    model, steps = ir.from_onnx_text(text), [["a"], ["b"], ["y"]]
    feed = {"x": np.float32([0, 1]), "c": np.array(False)}
    run = LayerwiseRun(model, steps, Store(tmp_path), name="x")
    (found,) = _stepped(run, steps, [feed])
    np.testing.assert_allclose(found["y"], -feed["x"] - np.exp(feed["x"]), rtol=1e-6)


def test_sequences_are_made_again_since_only_tensors_wait(tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x) => (float[4] y) <int64[2] sizes = {1, 3}, int64 second = {1}> {
        a = Neg(x)
        parts = SplitToSequence <axis = 0> (a, sizes)
        b = SequenceAt (parts, second)
        c = ConcatFromSequence <axis = 0> (parts)
        y = Exp (c)
    }"""
    model, steps = ir.from_onnx_text(text), [["a"], ["b"], ["y"]]
    infer_types(model)
    feed = {"x": np.float32([0, 1, 2, 3])}

    (found,) = _stepped(LayerwiseRun(model, steps, Store(tmp_path), name="x"), steps, [feed])

    np.testing.assert_array_equal(found["b"], [-1, -2, -3])
    np.testing.assert_allclose(found["y"], np.exp(-feed["x"]), rtol=1e-6)


def test_a_step_must_begin_before_it_is_taken(tmp_path):
    run = LayerwiseRun(io.load(small_cnn()), STEPS, Store(tmp_path), name="x")
    with pytest.raises(RuntimeError, match="no step has begun"):
        run.run(0, small_feeds(1)[0])
