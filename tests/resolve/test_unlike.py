from __future__ import annotations

import numpy as np
import pytest

from lowbit.calibrate.statistics import Stats, TensorStats
from lowbit.config.methods import MinMse
from lowbit.config.specs import IntegerSpec
from lowbit.numerics.formats import IntegerFormat
from lowbit.planning.plan import AlignedGroup, Plan, TensorPlan
from lowbit.scales.conflicts import coarse_averages, scale_conflicts

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
                node="join",
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


def test_probabilities_joined_to_pixels_are_ruined() -> None:
    joins = scale_conflicts(_plan(), _stats(640.0, 1.0))

    assert [(j.node, j.tensor) for j in joins] == [("join", "scores")]
    assert joins[0].own_scale_db > 30
    assert joins[0].shared_scale_db < 10


def test_parts_of_like_size_are_not() -> None:
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
def test_what_cannot_be_measured_is_not_judged(plan: Plan, stats: Stats) -> None:
    assert scale_conflicts(plan, stats) == []


def _pooled(peak: float, mean: float) -> tuple[Plan, Stats]:
    """Return a pool of sparse peaks up to ``peak`` whose averages reach ``mean``."""
    spec = IntegerSpec(format=IntegerFormat.INT8, method=MinMse(), power_of_two=True)
    tensors = tuple(
        TensorPlan(name=n, role="activation", spec=spec, leader=n, observe=n, why="")
        for n in ("peaks", "means")
    )
    group = AlignedGroup(
        node="pool",
        op_type="GlobalAveragePool",
        rule="merged",
        inputs=("peaks",),
        outputs=("means",),
    )
    rng = np.random.default_rng(0)
    peaks = (rng.random(20000) * (rng.random(20000) < 0.5) * peak).astype(np.float32)
    means = (rng.random(1000) * mean).astype(np.float32)
    stats = Stats(
        {n: TensorStats.of(x, histogram=True) for n, x in (("peaks", peaks), ("means", means))}
    )
    return Plan(preset="p", target="t", tensors=tensors, groups=(group,)), stats


def test_averages_far_below_the_peaks_are_coarse() -> None:
    (found,) = coarse_averages(*_pooled(350.0, 30.0))

    assert (found.node, found.tensor) == ("pool", "means")
    # A power of two is 6 dB; the peaks want a scale two to four of them coarser.
    assert 10 < found.own_scale_db - found.shared_scale_db < 26


def test_averages_near_the_peaks_are_not() -> None:
    assert coarse_averages(*_pooled(50.0, 45.0)) == []
