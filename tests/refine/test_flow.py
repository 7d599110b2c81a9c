"""Stepping through a model must give what running it whole gives."""

import numpy as np
import pytest
from small_models import small_cnn, small_feeds

import lowbit
from lowbit.graph import io
from lowbit.graph.session import session
from lowbit.refine.flow import Flow
from lowbit.refine.store import MemoryStore, disk_store

STEPS = [["c1"], ["c2"], ["logits"]]


def _whole(model, names, feeds):
    with session(model, names) as running:
        return [dict(zip(names, running.run(names, feed), strict=True)) for feed in feeds]


def _stepped(flow, steps, feeds, constants=None):
    found = [{} for _ in feeds]
    for index in range(len(steps)):
        flow.begin(index, constants or {})
        for sample, feed in enumerate(feeds):
            found[sample] |= flow.run(sample, feed if index == 0 else None)
    return found


@pytest.mark.parametrize("steps", [STEPS, [["c1", "r1"], ["r1"], ["g1"], ["logits", "a1"]]])
def test_steps_add_up_to_the_whole(steps):
    model, feeds = io.load(small_cnn()), small_feeds(3)
    store = MemoryStore()
    found = _stepped(Flow(model, steps, store, name="x"), steps, feeds)
    names = list(dict.fromkeys(name for step in steps for name in step))
    for got, want in zip(found, _whole(model, names, feeds), strict=True):
        for name in names:
            np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-5)
    assert not store._arrays


def test_files_serve_as_well_as_memory(tmp_path):
    model, feeds = io.load(small_cnn()), small_feeds(2)
    memory = _stepped(Flow(model, STEPS, MemoryStore(), name="x"), STEPS, feeds)
    with disk_store(tmp_path) as store:
        disk = _stepped(Flow(model, STEPS, store, name="x"), STEPS, feeds)
        assert not list(tmp_path.glob("*/*.npy"))
    assert not list(tmp_path.iterdir())
    for a, b in zip(memory, disk, strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_a_quantized_model_waits_as_integers():
    result = lowbit.quantize(small_cnn(), data=small_feeds(4), preset="A8W8")
    names = [f"{name}_DequantizeLinear_Output" for name in ("r1", "f1")]
    feeds = small_feeds(2)
    seen = []

    class Spy(MemoryStore):
        def put(self, sample, name, array):
            seen.append(array.dtype)
            super().put(sample, name, array)

    steps = [[name] for name in names]
    found = _stepped(Flow(result.quantized, steps, Spy(), name="x"), steps, feeds)
    for got, want in zip(found, _whole(result.quantized, names, feeds), strict=True):
        assert all(np.array_equal(got[name], want[name]) for name in names)
    assert set(seen) == {np.dtype(np.int8)}


def test_what_changed_is_seen_by_later_steps():
    model, feeds = io.load(small_cnn()), small_feeds(1)
    w3 = np.zeros((5, 8), np.float32)
    found = _stepped(Flow(model, STEPS, MemoryStore(), name="x"), STEPS, feeds, {"w3": w3})
    bias = model.graph.initializers["b3"].const_value.numpy()
    np.testing.assert_allclose(found[0]["logits"][0], bias, rtol=1e-6)
