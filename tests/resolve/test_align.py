from __future__ import annotations

import numpy as np
import pytest

from lowbit.calibrate.statistics import Stats, TensorStats
from lowbit.config.methods import Method, MinMax, MinMse
from lowbit.config.specs import IntegerSpec
from lowbit.numerics.affine import QParams, power_of_two_qparams
from lowbit.numerics.formats import IntegerFormat
from lowbit.planning.plan import AlignedGroup, Plan, TensorPlan
from lowbit.scales.alignment import align, components, lower_to_common
from lowbit.scales.ranges import params_of
from lowbit.targets.target import AlignRule


def _plan(
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


def _stats(tops: dict[str, float]) -> Stats:
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
    plan = _plan("lowest", [("ab", "c"), ("cd", "e"), ("f", "g")])

    assert [set(c) for c in components(plan, "lowest")] == [set("abcde"), set("fg")]
    assert components(plan, "merged") == []


def test_leaders_stand_for_their_followers() -> None:
    plan = _plan("lowest", [("ab", "c")], leaders={"c": "a"})

    assert [set(c) for c in components(plan, "lowest")] == [{"a", "b"}]


def test_the_coarsest_scale_wins_where_the_rule_is_lowest() -> None:
    params = {
        n: power_of_two_qparams(p, IntegerFormat.INT8)
        for n, p in zip("abc", (5, 3, 9), strict=True)
    }

    lower_to_common(_plan("lowest", [("ab", "c")]), params)

    assert {p.position for p in params.values()} == {3}


def test_output_rules_copy_from_the_output_through_chains() -> None:
    plan = _plan("output", [("ab", "c"), ("cd", "e")])

    aligned = align(plan, _own({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}), Stats({}))

    assert {float(p.scale) for p in aligned.values()} == {5.0}


def test_input_rules_copy_from_the_input() -> None:
    plan = _plan("input", [("a", "b"), ("b", "c")])

    aligned = align(plan, _own({"a": 1, "b": 2, "c": 3}), Stats({}))

    assert {float(p.scale) for p in aligned.values()} == {1.0}


def test_merged_minmax_holds_all_members() -> None:
    plan, stats = _plan("merged", [("ab", "c")]), _stats({"a": 1, "b": 5, "c": 5})

    aligned = align(plan, _own({"a": 1, "b": 2, "c": 3}), stats)

    top = max(abs(v) for s in stats.tensors.values() for v in (s.low, s.high))
    assert len({id(p) for p in aligned.values()}) == 1
    assert float(aligned["a"].scale) == pytest.approx(top / 127)


@pytest.mark.parametrize("power_of_two", [True, False])
def test_merged_mse_minimizes_the_sum_of_relative_errors(power_of_two: bool) -> None:
    plan = _plan("merged", [("ab", "c")], MinMse(), power_of_two=power_of_two)
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
    plan = _plan("merged", [("a", "b")], MinMse(), reduce_range=True)
    stats = _stats({"a": 1.0, "b": 1.0})

    scale = float(align(plan, _own({"a": 1, "b": 1}), stats)["a"].scale)

    assert 63 * scale == pytest.approx(1.0, rel=0.1)


def test_a_range_asked_for_holds_for_the_whole_group() -> None:
    plan = _plan("merged", [("ab", "c")], MinMse(), ranges={"b": (-2.0, 1.0)})

    aligned = align(plan, _own({"a": 1, "b": 1, "c": 1}), _stats({"a": 9, "c": 9}))

    assert float(aligned["a"].scale) == pytest.approx(2 / 127)


def test_a_group_of_zeros_is_aligned_all_the_same() -> None:
    plan = _plan("merged", [("a", "b")], MinMse())
    zeros = TensorStats.of(np.zeros(5, np.float32), histogram=True)

    aligned = align(plan, _own({"a": 1, "b": 2}), Stats({"a": zeros, "b": zeros}))

    assert aligned["a"] == aligned["b"] == params_of(zeros, plan.tensors[0].spec, "a")


def test_tensors_in_no_group_keep_their_own() -> None:
    plan = _plan("lowest", [("a", "b")])
    own = _own({"a": 1, "b": 2, "z": 7})

    assert align(plan, own, Stats({}))["z"] is own["z"]
