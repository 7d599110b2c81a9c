"""A model with switches: any part of it in float, from kept activations, here or on workers."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.chain_models import chain, smooth
from helpers.staged import quantized
from joblib.externals.loky import get_reusable_executor

from lowbit import parallel
from lowbit.config.presets import find_preset
from lowbit.evaluate.runner import ReferenceSample, Run, reference_samples, run_model
from lowbit.search import switched_model
from lowbit.search.switched_model import open_switched
from lowbit.state import Quantized


@pytest.fixture(scope="module")
def state() -> Quantized:
    return quantized(chain(8), find_preset("A8W8"), smooth(6))


@pytest.fixture(scope="module")
def samples(state: Quantized) -> list[ReferenceSample]:
    return reference_samples(Run.float_model(state.loaded), smooth(3))


def _outputs(state: Quantized) -> list[str]:
    return [str(value.name) for value in state.emitted.model.graph.outputs]


def test_all_on_is_the_quantized_model_and_all_off_the_float_one(state, samples) -> None:
    names = _outputs(state)
    every = {row.name for row in state.plan.tensors}
    with open_switched(state, names, samples) as model:
        on, off = model.run_all([set(), every], range(3))

    want = run_model(Run.quantized_model(state.emitted.model), [s.feed for s in samples])
    for (_, got), exact in zip(on, want, strict=True):
        np.testing.assert_array_equal(got[names[0]], exact[names[0]])
    for plain, got in off:
        np.testing.assert_allclose(got[names[0]], plain[names[0]], rtol=1e-3, atol=1e-4)


def test_workers_give_the_same_bits(state, samples, monkeypatch) -> None:
    tensors = [row.name for row in state.plan.tensors]
    choices = [set(tensors[:at]) for at in range(0, len(tensors), 3)]
    sent = []
    real = switched_model.distributed_map

    def counted(task, items, **options):
        sent.extend(items)
        return real(task, items, **options)

    monkeypatch.setattr(switched_model, "distributed_map", counted)
    with open_switched(state, _outputs(state), samples) as model:
        want = list(model.run_all(choices, [0, 2]))
        assert not sent
        monkeypatch.setattr(switched_model, "cpu_count", lambda: 1)
        with parallel.engine("loky", 2):
            found = list(model.run_all(choices, [0, 2]))
    get_reusable_executor().shutdown(wait=True, kill_workers=True)

    assert len(sent) == len(choices)
    for one, other in zip(want, found, strict=True):
        for (_, a), (_, b) in zip(one, other, strict=True):
            assert {n: v.tobytes() for n, v in a.items()} == {n: v.tobytes() for n, v in b.items()}
