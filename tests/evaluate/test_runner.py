"""Models run on samples: all at once, in turn, on some of the samples, in bounded memory."""

from __future__ import annotations

import contextlib
import itertools
import tracemalloc
import weakref

import numpy as np
import onnx
import pytest

from lowbit.errors import ModelError
from lowbit.evaluate import runner
from lowbit.evaluate.runner import (
    ReferenceSample,
    Run,
    compared,
    output_names,
    reference_samples,
    run_model,
    run_models,
    run_models_in_turn,
    run_together,
)
from lowbit.graph import io, session, sharing

_BODY = (
    "g (float[1,3] x) => (float[1,3] y, float[1,3] z) <float k = {K}> { y = Mul(x, k) z = Neg(y) }"
)


def model(factor: float = 2.0):
    text = _BODY.replace("K", str(factor))
    return io.load(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}'))


def feeds(count: int) -> list[dict[str, np.ndarray]]:
    return [{"x": np.full((1, 3), index, np.float32)} for index in range(count)]


def firsts(outputs) -> list[float]:
    """Return the first number of y of each sample."""
    return [float(o["y"][0, 0]) for o in outputs]


def test_outputs_are_wanted_unless_something_else_is_named() -> None:
    assert output_names(model()) == ["y", "z"]
    assert list(Run.float_model(model()).names) == ["y", "z"]
    assert list(Run.quantized_model(model(), ["x"]).names) == ["x"]


def test_a_float_model_runs_optimized_and_a_quantized_one_exactly() -> None:
    assert (Run.float_model(model()).optimize, Run.quantized_model(model()).optimize) == (
        "all",
        "none",
    )


def test_one_model_gives_its_outputs_sample_by_sample() -> None:
    found = list(run_model(Run.float_model(model(), ["y"]), feeds(5)))

    assert firsts(found) == [0, 2, 4, 6, 8]
    assert all(set(outputs) == {"y"} for outputs in found)


def test_a_tensor_that_is_no_output_can_be_had() -> None:
    text = "g (float[1,3] x) => (float[1,3] y) { h = Exp(x) y = Neg(h) }"
    inner = io.load(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}'))

    (found,) = run_model(Run.float_model(inner, ["h"]), feeds(1))

    np.testing.assert_array_equal(found["h"], np.ones((1, 3), np.float32))


@pytest.mark.parametrize("how", [run_models, run_models_in_turn])
def test_every_model_is_run_on_every_sample(how) -> None:
    given = feeds(6)
    runs = [Run.float_model(model(k), ["y"]) for k in (1, 10, 100)]

    found = list(how(runs, given))

    assert [feed["x"].tolist() for feed, _ in found] == [feed["x"].tolist() for feed in given]
    for k, column in zip((1, 10, 100), zip(*(o for _, o in found), strict=True), strict=True):
        assert firsts(column) == [k * i for i in range(6)]


@pytest.mark.parametrize("how", [run_models, run_models_in_turn])
def test_a_model_is_run_on_the_samples_it_names_only(how) -> None:
    first = Run.float_model(model(), ["y"])
    some = Run(
        model=model(3), names=["y"], name="some", samples=frozenset({0, 3}), keep=lambda _, a: a + 1
    )

    found = [outputs for _, outputs in how([first, some], feeds(5))]

    assert [o[1] is None for o in found] == [False, True, True, False, True]
    assert firsts(o[1] for o in found if o[1] is not None) == [1, 10]
    assert firsts(run_model(some, feeds(5))) == [1, 10]


def test_what_is_kept_does_not_hold_the_memory_of_the_session() -> None:
    (found,) = run_model(Run.float_model(model(), ["y"]), feeds(1))

    assert found["y"].base is None
    assert found["y"].flags.owndata


def opened(monkeypatch) -> list[str]:
    """Return a list that tells of sessions that open and close."""
    events: list[str] = []
    real = runner.session

    @contextlib.contextmanager
    def told(*args, name, **kwargs):
        events.append(f"open {name}")
        try:
            with real(*args, name=name, **kwargs) as running:
                yield running
        finally:
            events.append(f"close {name}")

    monkeypatch.setattr(runner, "session", told)
    return events


def test_in_turn_one_model_is_open_at_a_time_and_values_are_bounded(monkeypatch) -> None:
    events = opened(monkeypatch)
    monkeypatch.setattr("lowbit.parallel.cpu_count", lambda: 1)
    # Room for three samples, and the values of both models.
    monkeypatch.setattr(runner, "_ROOM_FOR_SAMPLES", 3 * 3 * 12)
    runs = [Run(model=model(), names=["y"], name=name) for name in "ab"]

    found = list(run_models_in_turn(runs, feeds(6)))

    assert firsts(o[1] for _, o in found) == [0, 2, 4, 6, 8, 10]
    assert events == ["open a", "close a", "open b", "close b"] * 2


def test_in_turn_no_model_runs_beyond_where_the_caller_may_stop(monkeypatch) -> None:
    events = opened(monkeypatch)
    monkeypatch.setattr(sharing, "_LARGE", 1)
    runs = [Run(model=model(), names=["y"], name=name) for name in "ab"]
    read = []

    results = run_models(runs, (read.append(f["x"][0, 0]) or f for f in feeds(9)), looks=(4, 6))
    found = [firsts(outputs) for _, outputs in itertools.islice(results, 4)]

    assert found == [[2 * i, 2 * i] for i in range(4)]
    assert read == [0, 1, 2, 3]
    assert len(list(results)) == 5
    assert events == ["open a", "close a", "open b", "close b"] * 3


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_values_that_wait_in_a_file_are_the_same(monkeypatch, memory: int) -> None:
    monkeypatch.setattr(runner, "_MEMORY_FOR_SAMPLES", memory)
    runs = [Run(model=model(k), names=["y"], name="a") for k in (2.0, 3.0, 5.0)]

    found = [(feed["x"][0, 0], *firsts(o)) for feed, o in run_models_in_turn(runs, feeds(6))]

    assert found == [(i, 2 * i, 3 * i, 5 * i) for i in range(6)]


def test_all_at_once_every_model_is_open(monkeypatch) -> None:
    events = opened(monkeypatch)
    runs = [Run(model=model(), names=["y"], name=name) for name in "ab"]

    list(run_models(runs, feeds(3)))

    # In any order: each is opened by a thread of its own.
    assert set(events[:2]) == {"open a", "open b"}
    assert set(events[2:]) == {"close a", "close b"}


def test_who_stops_early_closes_the_sessions(monkeypatch) -> None:
    events = opened(monkeypatch)
    results = run_models([Run.float_model(model())], feeds(50))

    next(results)
    results.close()

    assert events == ["open the float model", "close the float model"]


def test_in_turn_what_waits_for_the_other_model_is_not_copied_into_memory(monkeypatch) -> None:
    nodes = "\n".join(f"t{i + 1} = Neg(t{i})" for i in range(8))
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[1,40000] t0) => (float[1,40000] t8) {{ {nodes} }}"""
    many = io.load(onnx.parser.parse_model(text))
    runs = [Run.quantized_model(many, [f"t{i}" for i in range(1, 9)])] * 2
    monkeypatch.setattr(runner, "_MEMORY_FOR_SAMPLES", 0)
    samples = [{"t0": np.full((1, 40000), i, np.float32)} for i in range(3)]

    # Of NumPy's own arrays, not of onnxruntime's.
    tracemalloc.start()
    found = run_models_in_turn(runs, samples)
    _, (got, _) = next(found)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    np.testing.assert_array_equal(got["t3"], -samples[0]["t0"])
    assert peak < 4 * samples[0]["t0"].nbytes  # a sample has eight such tensors


def test_without_samples_nothing_is_opened_in_turn(monkeypatch) -> None:
    events = opened(monkeypatch)

    assert list(run_models_in_turn([Run.float_model(model())], [])) == []
    assert events == []


def test_samples_are_let_go_of_before_the_next_ones_are_run(monkeypatch) -> None:
    at_once = 10
    monkeypatch.setattr(runner, "_ROOM_FOR_SAMPLES", at_once * 3 * 12)
    monkeypatch.setattr(sharing, "_LARGE", 1)
    alive: list[weakref.ref] = []
    most = 0

    def given():
        nonlocal most
        for index in range(4 * at_once):
            feed = {"x": np.full((1, 3), index, np.float32)}
            most = max(most, sum(each() is not None for each in alive))
            alive.append(weakref.ref(feed["x"]))
            yield feed

    runs = [Run.float_model(model(), ["y"]), Run.quantized_model(model(3.0), ["y"])]
    assert sum(1 for _ in run_models_in_turn(runs, given())) == 4 * at_once
    assert most < 1.5 * at_once  # some are read ahead


def test_reference_samples_are_kept_as_far_as_they_fit() -> None:
    run, given = Run.float_model(model(), ["y"]), feeds(8)

    assert len(list(reference_samples(run, given))) == 8
    assert len(list(reference_samples(run, given, room=3 * 12))) == 3
    assert len(list(reference_samples(run, given, room=0))) == 1
    (only,) = reference_samples(run, given[3:4])
    assert only.feed is given[3]
    assert firsts([only.outputs]) == [6]


def test_samples_a_run_skips_are_no_reference() -> None:
    run = Run(model=model(), names=["y"], name="some", samples=frozenset({2}))

    (sample,) = reference_samples(run, feeds(5))

    assert sample.feed["x"][0, 0] == 2


def test_another_model_is_compared_sample_by_sample() -> None:
    samples = [ReferenceSample(feed, {"y": feed["x"]}) for feed in feeds(4)]

    pairs = list(compared(Run.quantized_model(model(5), ["y"]), samples))

    assert [(firsts([want])[0], firsts([got])[0]) for want, got in pairs] == [
        (i, 5 * i) for i in range(4)
    ]


def test_an_error_says_which_model_it_is_of() -> None:
    with pytest.raises(ModelError, match="cannot run the quantized model: it has no input 'X'"):
        list(run_model(Run.quantized_model(model()), [{"X": np.zeros((1, 3), np.float32)}]))


def test_a_large_model_takes_more_samples_at_once_where_they_are_known_to_be_small() -> None:
    small = Run.float_model(model())
    wide = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,N] x) => (float[1,N] y) { y = Neg(x) }'
    )

    assert runner._samples_at_once(small) > runner._samples_at_once(Run.float_model(io.load(wide)))


def test_large_samples_run_one_by_one_and_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [Run.float_model(model(), ["y"]), Run.quantized_model(model(3.0), ["y"]).quick()]
    plain = [[firsts([o])[0] for o in found if o] for _, found in run_models(runs, feeds(5))]

    monkeypatch.setattr(sharing, "_LARGE", 1)
    running = [0, 0]

    class Counted(runner.Session):
        def __init__(self, *args, **options) -> None:
            running[0] += 1
            running[1] = max(running)
            super().__init__(*args, **options)

        def close(self) -> None:
            running[0] -= 1
            super().close()

    monkeypatch.setattr(session, "Session", Counted)
    found = [[firsts([o])[0] for o in found if o] for _, found in run_models(runs, feeds(5))]

    assert found == plain == [[2.0 * i, 3.0 * i] for i in range(5)]
    assert running == [0, 1]


def test_a_large_model_of_several_groups_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    large, other = model(), model(3.0)
    monkeypatch.setattr(runner, "is_large", lambda found: found is large)
    passes: list[list[str]] = []
    run = runner.run_in_parts

    def counted(found, names, *rest, **options):
        passes.append(list(names))
        return run(found, names, *rest, **options)

    monkeypatch.setattr(runner, "run_in_parts", counted)
    whole = Run.quantized_model(large)
    inner = Run(
        model=large,
        names=["x"],
        name="m",
        samples=frozenset([0]),
        keep=lambda _, array: 10 * array,
    )

    found = list(run_together([[inner], [Run.quantized_model(other), whole]], feeds(3)))

    assert passes == [["x", *whole.names]]
    for number, (feed, ((few,), (third, every))) in enumerate(found):
        assert (few is None) == (number > 0)
        if few is not None:
            assert np.array_equal(few["x"], 10 * feed["x"])
        assert np.array_equal(every["y"], next(run_model(whole, [feed]))["y"])
        assert np.array_equal(third["y"], next(run_model(Run.quantized_model(other), [feed]))["y"])
