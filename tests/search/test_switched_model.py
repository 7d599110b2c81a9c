"""A model with switches: any part of it in float, from kept activations, here or on workers."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import pytest
from helpers.chain_models import chain, smooth
from helpers.odd_models import sequence_across_layers
from helpers.staged import quantized
from onnx import helper, numpy_helper

from lowbit import parallel
from lowbit.config.presets import find_preset
from lowbit.config.specs import TensorOverride
from lowbit.evaluate.runner import ReferenceSample, Run, reference_samples, run_model
from lowbit.graph.tensors import tensors_size
from lowbit.scales.ranges import scaled_range
from lowbit.search import switched_model
from lowbit.search.switched_model import can_be_switched, open_switched
from lowbit.search.switched_parts import Switching
from lowbit.state import Quantized


@pytest.fixture(scope="module")
def state() -> Quantized:
    return quantized(chain(8), find_preset("A8W8"), smooth(6))


@pytest.fixture(scope="module")
def samples(state: Quantized) -> list[ReferenceSample]:
    return list(reference_samples(Run.float_model(state.loaded), smooth(3)))


def _outputs(state: Quantized) -> list[str]:
    return [str(value.name) for value in state.emitted.model.graph.outputs]


def test_all_on_is_the_quantized_model_and_all_off_the_float_one(state, samples) -> None:
    names = _outputs(state)
    every = frozenset(row.name for row in state.plan.tensors)
    with open_switched(state, names, samples) as model:
        on, off = model.run_all([Switching(), Switching(every)], range(3))

    want = run_model(Run.quantized_model(state.emitted.model), [s.feed for s in samples])
    for (_, got), exact in zip(on, want, strict=True):
        np.testing.assert_array_equal(got[names[0]], exact[names[0]])
    for plain, got in off:
        np.testing.assert_allclose(got[names[0]], plain[names[0]], rtol=1e-3, atol=1e-4)


@pytest.mark.xdist_group("workers")
@pytest.mark.usefixtures("worker_processes")
def test_workers_give_the_same_bits(state, samples, monkeypatch) -> None:
    tensors = [row.name for row in state.plan.tensors]
    choices = [Switching(frozenset(tensors[:at])) for at in range(0, len(tensors), 3)]
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

    assert len(sent) == len(choices)
    for one, other in zip(want, found, strict=True):
        for (_, a), (_, b) in zip(one, other, strict=True):
            assert {n: v.tobytes() for n, v in a.items()} == {n: v.tobytes() for n, v in b.items()}


_LAYERS = 24


def _chain() -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    weights, nodes, last = [], [], "x"
    for i in range(_LAYERS):
        value = rng.normal(0, 0.5, size=(8, 8)).astype(np.float32)
        weights.append(numpy_helper.from_array(value, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"], f"layer{i}"))
        nodes.append(helper.make_node("Relu", [f"m{i}"], [f"r{i}"], f"relu{i}"))
        last = f"r{i}"
    shape = [1, 8]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(last, onnx.TensorProto.FLOAT, shape)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def long_state() -> Quantized:
    config = msgspec.structs.replace(
        find_preset("A8W8"), equalization=None, smooth_quant=None, bias_correction=False
    )
    return quantized(_chain(), config, _feeds())


def _feeds() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(2)
    return [{"x": rng.normal(size=(1, 8)).astype(np.float32)} for _ in range(3)]


@pytest.fixture(scope="module")
def long_samples(long_state: Quantized) -> list[ReferenceSample]:
    return list(reference_samples(Run.float_model(long_state.loaded), _feeds()))


def _results(state: Quantized, samples: list[ReferenceSample], off: set[str]) -> list[np.ndarray]:
    name = f"r{_LAYERS - 1}"
    with open_switched(state, [name], samples) as switched:
        found = [dict(got) for _, got in switched.run(Switching(frozenset(off)), [0, 2])]
    return [got[name] for got in found]


@pytest.mark.parametrize("first", [0, 7, 13, 20, _LAYERS])
def test_a_tail_computes_what_the_whole_model_does(
    monkeypatch, long_state: Quantized, long_samples: list[ReferenceSample], first: int
) -> None:
    state, samples = long_state, long_samples
    tensors = [row.name for row in state.plan.tensors]
    numbers = {name: int("".join(c for c in name if c.isdigit()) or -1) for name in tensors}
    off = {name for name in tensors if numbers[name] < first}
    with monkeypatch.context() as patch:
        patch.setattr(switched_model, "_CUTS", 1)
        want = _results(state, samples, off)
    for room in (switched_model._MEMORY_FOR_CUTS, 0):  # tails are kept, or there is no room
        monkeypatch.setattr(switched_model, "_MEMORY_FOR_CUTS", room)

        got = _results(state, samples, off)

        assert all(np.array_equal(a, b) for a, b in zip(want, got, strict=True)), room
    if first == _LAYERS:  # nothing is quantized
        floats = [next(iter(samples[i].outputs.values())) for i in (0, 2)]
        assert all(np.allclose(a, b, rtol=1e-5) for a, b in zip(floats, got, strict=True))


@pytest.mark.parametrize(("preset", "factor"), [("A8W8", 0.7), ("XINT8", 2.0)])
def test_another_scale_is_what_a_model_with_its_range_computes(preset: str, factor: float) -> None:
    config = msgspec.structs.replace(
        find_preset(preset), equalization=None, smooth_quant=None, refinement=None
    )
    plain = quantized(_chain(), config, _feeds())
    tensor = "r9"
    limits = scaled_range(
        plain.params.tensors[tensor], plain.plan.by_name()[tensor].integer, factor
    )
    override = TensorOverride(tensor=tensor, range=limits)
    built = quantized(_chain(), msgspec.structs.replace(config, tensors=(override,)), _feeds())
    samples = list(reference_samples(Run.float_model(plain.loaded), _feeds()))
    name = f"r{_LAYERS - 1}"

    found = []
    off = frozenset(row.name for row in plain.plan.tensors) - {tensor}
    for state, factors in ((plain, ((tensor, factor),)), (built, ())):
        with open_switched(state, [name], samples) as switched:
            found.append([got[name] for _, got in switched.run(Switching(off, factors), [0, 2])])

    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    scales = [state.params.tensors[tensor].scale for state in (plain, built)]
    assert scales[1] == pytest.approx(factor * scales[0], rel=1e-5)


def test_a_model_with_gigabytes_of_constants_does_not_bear_switches(state, monkeypatch) -> None:
    size = tensors_size(state.loaded)

    assert can_be_switched(state)
    monkeypatch.setattr(switched_model, "_MOST_BYTES", size)
    assert can_be_switched(state)
    monkeypatch.setattr(switched_model, "_MOST_BYTES", size - 1)
    assert not can_be_switched(state)


def test_a_sequence_that_waits_for_a_tail_stays_a_sequence() -> None:
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(1, 8, 16)).astype(np.float32)} for _ in range(3)]
    state = quantized(sequence_across_layers(30), find_preset("A8W8"), feeds)
    samples = list(reference_samples(Run.float_model(state.loaded), feeds))
    every = frozenset(row.name for row in state.plan.tensors)
    late = every - {"w29"}  # the tail from there on reads the sequence

    with open_switched(state, ["y"], samples) as model:
        assert any("s" in tail.inputs for tail in model._tails)
        one, none = (list(model.run(Switching(off), range(3))) for off in (late, every))

    for (want, got), (_, same) in zip(one, none, strict=True):
        np.testing.assert_allclose(same["y"], want["y"], rtol=1e-3, atol=1e-5)
        assert 0 < np.abs(got["y"] - want["y"]).max() < 0.1 * np.abs(want["y"]).max()
