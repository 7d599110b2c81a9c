"""Shared scales: who shares with whom, which one all get, and whom it ruins."""

from __future__ import annotations

import numpy as np
import pytest

from lowbit.calibrate.statistics import Stats, TensorStats
from lowbit.config.methods import Method, MinMax, MinMse
from lowbit.config.specs import IntegerSpec
from lowbit.numerics.affine import QParams, power_of_two_qparams
from lowbit.numerics.formats import IntegerFormat
from lowbit.planning.plan import AlignedGroup, Plan, TensorPlan
from lowbit.scales.alignment import (
    align,
    coarse_averages,
    components,
    lower_to_common,
    scale_conflicts,
)
from lowbit.scales.ranges import params_of
from lowbit.targets.target import AlignRule


def _grouped(
    rule: AlignRule,
    groups: list[tuple[str, str]],
    method: Method | None = None,
    leaders: dict[str, str] | None = None,
    ranges: dict[str, tuple[float, float]] | None = None,
    *,
    power_of_two: bool = False,
    reduce_range: bool = False,
) -> Plan:
    """Make a plan from groups written ``"inputs", "outputs"``, one letter a tensor."""
    spec = IntegerSpec(
        format=IntegerFormat.INT8,
        method=method or MinMax(),
        power_of_two=power_of_two,
        reduce_range=reduce_range,
    )
    names = sorted({name for inputs, outputs in groups for name in inputs + outputs})
    return Plan(
        preset="p",
        target="t",
        tensors=tuple(
            TensorPlan(
                name=name,
                role="activation",
                spec=spec,
                leader=(leaders or {}).get(name, name),
                observe=name,
                range=(ranges or {}).get(name),
                why="",
            )
            for name in names
        ),
        groups=tuple(
            AlignedGroup(node="n", op_type="Concat", rule=rule, inputs=tuple(i), outputs=tuple(o))
            for i, o in groups
        ),
    )


def _own(scales: dict[str, float]) -> dict[str, QParams]:
    return {
        name: QParams(np.asarray(s, np.float32), np.asarray(0, np.int8), IntegerFormat.INT8)
        for name, s in scales.items()
    }


def _uniform(tops: dict[str, float]) -> Stats:
    rng = np.random.default_rng(0)
    return Stats(
        {
            name: TensorStats.of(
                (rng.uniform(-1, 1, size=4000) * top).astype(np.float32), histogram=True
            )
            for name, top in tops.items()
        }
    )


def test_groups_that_share_a_tensor_are_one_component() -> None:
    plan = _grouped("lowest", [("ab", "c"), ("cd", "e"), ("f", "g")])

    assert [set(c) for c in components(plan, "lowest")] == [set("abcde"), set("fg")]
    assert components(plan, "merged") == []


def test_leaders_stand_for_their_followers() -> None:
    plan = _grouped("lowest", [("ab", "c")], leaders={"c": "a"})

    assert [set(c) for c in components(plan, "lowest")] == [{"a", "b"}]


def test_the_coarsest_scale_wins_where_the_rule_is_lowest() -> None:
    params = {
        name: power_of_two_qparams(bits, IntegerFormat.INT8)
        for name, bits in zip("abc", (5, 3, 9), strict=True)
    }

    lower_to_common(_grouped("lowest", [("ab", "c")]), params)

    assert {p.fraction_bits for p in params.values()} == {3}


def test_output_rules_copy_from_the_output_through_chains() -> None:
    plan = _grouped("output", [("ab", "c"), ("cd", "e")])

    aligned = align(plan, _own({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}), Stats({}))

    assert {float(p.scale) for p in aligned.values()} == {5.0}


def test_input_rules_copy_from_the_input() -> None:
    plan = _grouped("input", [("a", "b"), ("b", "c")])

    aligned = align(plan, _own({"a": 1, "b": 2, "c": 3}), Stats({}))

    assert {float(p.scale) for p in aligned.values()} == {1.0}


def test_merged_minmax_holds_all_members() -> None:
    plan, stats = _grouped("merged", [("ab", "c")]), _uniform({"a": 1, "b": 5, "c": 5})

    aligned = align(plan, _own({"a": 1, "b": 2, "c": 3}), stats)

    top = max(abs(v) for s in stats.tensors.values() for v in (s.low, s.high))
    assert len({id(p) for p in aligned.values()}) == 1
    assert float(aligned["a"].scale) == pytest.approx(top / 127)


@pytest.mark.parametrize("power_of_two", [True, False])
def test_merged_mse_minimizes_the_sum_of_relative_errors(power_of_two: bool) -> None:
    plan = _grouped("merged", [("ab", "c")], MinMse(), power_of_two=power_of_two)
    rng = np.random.default_rng(1)
    data = {
        name: (rng.laplace(size=4000) * size).astype(np.float32)
        for name, size in (("a", 0.3), ("b", 1.0), ("c", 1.0))
    }
    stats = Stats({n: TensorStats.of(x, histogram=True) for n, x in data.items()})

    got = float(align(plan, _own({"a": 1, "b": 1, "c": 1}), stats)["a"].scale)

    def cost(scale: float) -> float:
        return sum(
            float(np.mean((x - np.clip(np.rint(x / scale), -127, 127) * scale) ** 2))
            / float(np.mean(x**2))
            for x in data.values()
        )

    top = max(float(np.abs(x).max()) for x in data.values())
    tried = (
        [2.0**-p for p in range(-3, 12)]
        if power_of_two
        else [top * r / 127 for r in np.linspace(0.05, 1, 200)]
    )
    assert cost(got) <= 1.03 * min(cost(s) for s in tried)


def test_merged_mse_respects_a_reduced_range() -> None:
    plan = _grouped("merged", [("a", "b")], MinMse(), reduce_range=True)
    stats = _uniform({"a": 1.0, "b": 1.0})

    scale = float(align(plan, _own({"a": 1, "b": 1}), stats)["a"].scale)

    assert 63 * scale == pytest.approx(1.0, rel=0.1)


def test_a_range_asked_for_holds_for_the_whole_group() -> None:
    plan = _grouped("merged", [("ab", "c")], MinMse(), ranges={"b": (-2.0, 1.0)})

    aligned = align(plan, _own({"a": 1, "b": 1, "c": 1}), _uniform({"a": 9, "c": 9}))

    assert float(aligned["a"].scale) == pytest.approx(2 / 127)


def test_a_group_of_zeros_is_aligned_all_the_same() -> None:
    plan = _grouped("merged", [("a", "b")], MinMse())
    zeros = TensorStats.of(np.zeros(5, np.float32), histogram=True)

    aligned = align(plan, _own({"a": 1, "b": 2}), Stats({"a": zeros, "b": zeros}))

    assert aligned["a"] == aligned["b"] == params_of(zeros, plan.tensors[0].spec, "a")


def test_tensors_in_no_group_keep_their_own() -> None:
    plan = _grouped("lowest", [("a", "b")])
    own = _own({"a": 1, "b": 2, "z": 7})

    assert align(plan, own, Stats({}))["z"] is own["z"]


_SPEC = IntegerSpec(format=IntegerFormat.INT8, method=MinMse())


def _plan(op_type: str = "Concat", fixed: tuple[float, float] | None = None) -> Plan:
    return Plan(
        preset="p",
        target="t",
        tensors=tuple(
            TensorPlan(
                name=n,
                role="activation",
                spec=_SPEC,
                leader=n,
                observe=n,
                range=fixed if n == "scores" else None,
                why="",
            )
            for n in ("boxes", "scores", "y")
        ),
        groups=(
            AlignedGroup(
                node="concat",
                op_type=op_type,
                rule="merged",
                inputs=("boxes", "scores"),
                outputs=("y",),
            ),
        ),
    )


def _stats(boxes: float, scores: float, *, histogram: bool = True) -> Stats:
    rng = np.random.default_rng(0)
    return Stats(
        {
            name: TensorStats.of((rng.random(5000) * size).astype(np.float32), histogram=histogram)
            for name, size in (("boxes", boxes), ("scores", scores), ("y", boxes))
        }
    )


def test_probabilities_beside_pixels_are_ruined_by_one_scale() -> None:
    conflicts = scale_conflicts(_plan(), _stats(640.0, 1.0))

    assert [(c.node, c.tensor) for c in conflicts] == [("concat", "scores")]
    assert conflicts[0].own_scale_db > 30
    assert conflicts[0].shared_scale_db < 10


def test_inputs_of_like_size_are_not() -> None:
    assert scale_conflicts(_plan(), _stats(2.0, 1.0)) == []


@pytest.mark.parametrize(
    ("plan", "stats"),
    [
        (_plan("MaxPool"), _stats(640.0, 1.0)),
        (_plan(fixed=(0.0, 1.0)), _stats(640.0, 1.0)),
        (_plan(), _stats(640.0, 1.0, histogram=False)),
        (_plan(), _stats(640.0, 0.0)),
    ],
)
def test_what_is_not_observed_is_no_conflict(plan: Plan, stats: Stats) -> None:
    assert scale_conflicts(plan, stats) == []


def _pooled(peak: float, mean: float) -> tuple[Plan, Stats]:
    """Return a pool of sparse maxima up to ``peak`` whose averages reach ``mean``."""
    spec = IntegerSpec(format=IntegerFormat.INT8, method=MinMse(), power_of_two=True)
    tensors = tuple(
        TensorPlan(name=n, role="activation", spec=spec, leader=n, observe=n, why="")
        for n in ("maxima", "means")
    )
    group = AlignedGroup(
        node="pool",
        op_type="GlobalAveragePool",
        rule="merged",
        inputs=("maxima",),
        outputs=("means",),
    )
    rng = np.random.default_rng(0)
    maxima = (rng.random(20000) * (rng.random(20000) < 0.5) * peak).astype(np.float32)
    means = (rng.random(1000) * mean).astype(np.float32)
    stats = Stats(
        {n: TensorStats.of(x, histogram=True) for n, x in (("maxima", maxima), ("means", means))}
    )
    return Plan(preset="p", target="t", tensors=tensors, groups=(group,)), stats


def test_averages_far_below_the_maxima_are_coarse() -> None:
    (found,) = coarse_averages(*_pooled(350.0, 30.0))

    assert (found.node, found.tensor) == ("pool", "means")
    # A power of two is 6 dB; the maxima want a scale two to four of them coarser.
    assert 10 < found.own_scale_db - found.shared_scale_db < 26


def test_averages_near_the_maxima_are_not() -> None:
    assert coarse_averages(*_pooled(50.0, 45.0)) == []
