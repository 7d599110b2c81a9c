"""Layers solved in other processes are those solved in this one."""

from __future__ import annotations

import pickle
import threading

import cloudpickle
import msgspec
import numpy as np
import pytest
from helpers.small_models import small_cnn, small_feeds
from helpers.staged import quantized

import lowbit
from lowbit import parallel
from lowbit.config.presets import find_preset
from lowbit.config.refinement import AdaQuant, AdaRound, Gptq
from lowbit.refine.finetune import ADAROUND
from lowbit.refine.layers import find_layers
from lowbit.refine.remote import LayerSolver, LayerWork
from lowbit.refine.samples import SampleInMemory

_FEEDS = small_feeds(6, 8)


_TUNING = {"num_iterations": 20, "learning_rate": 0.01, "update_bias": True}


@pytest.mark.parametrize(
    "tuning",
    [
        AdaRound(parallel=True, **_TUNING),
        AdaQuant(parallel=True, **_TUNING),
        Gptq(parallel=True),
    ],
)
@pytest.mark.xdist_group("workers")
@pytest.mark.usefixtures("worker_processes")
def test_a_model_refined_on_workers_has_the_same_bytes(tuning, monkeypatch) -> None:
    sent = []
    real = LayerSolver.results
    monkeypatch.setattr(LayerSolver, "results", lambda self, w: sent.extend(w) or real(self, w))
    config = msgspec.structs.replace(find_preset("XINT8"), refinement=tuning)

    def model() -> bytes:
        result = lowbit.quantize(small_cnn(8), data=_FEEDS, config=config)
        return result.model.SerializeToString(deterministic=True)

    want = model()
    assert not sent
    with parallel.engine("loky", 2):
        assert model() == want
    assert {work.layer.node for work in sent} >= {"conv1", "conv2"}


def test_a_layer_travels_with_its_own_constants_alone() -> None:
    state = quantized(small_cnn(8), find_preset("A8W8"), _FEEDS)
    layers, _ = find_layers(state, ())
    layer = layers[0]
    geometry = layer.geometry
    stored = state.weights.tensors[layer.weight.name]()
    depth = geometry.matrix(stored).shape[2]
    rng = np.random.default_rng(0)
    samples = [
        SampleInMemory(
            patches=rng.normal(size=(geometry.groups, depth, 16)).astype(np.float32),
            targets=rng.normal(size=(geometry.groups, geometry.outputs, 16)).astype(np.float32),
            patch_sum=np.zeros((geometry.groups, depth), np.float32),
            target_sum=np.zeros((geometry.groups, geometry.outputs), np.float32),
            count=16,
        )
        for _ in range(3)
    ]
    config = AdaRound(num_iterations=10)
    work = LayerWork.of(state, layer, samples)

    sent = pickle.loads(cloudpickle.dumps(work))  # noqa: S301 - our own
    there = LayerSolver(ADAROUND, config)(sent)
    here = ADAROUND.solver(state, config, threading.Event())(layer, samples)

    assert sorted(sent.constants) == sorted({layer.weight.name, layer.bias.tensor})
    assert sent.state.emitted is None
    np.testing.assert_array_equal(there.stored, here.stored)
    assert (there.before, there.after, there.kept) == (here.before, here.after, here.kept)
