from __future__ import annotations

import numpy as np
from helpers.gradient_checks import gradient_of, graph_of

from lowbit.ops.gradients import SEEDS


def test_axes_are_written_as_older_operator_sets_want_them() -> None:
    body = "m = ReduceMean<axes = [2, 3]>(x) y = Mul(m, x)"
    x = np.random.default_rng(2).normal(0, 1, (1, 4, 6, 6)).astype(np.float32)
    signs = np.random.default_rng(3).choice(np.float32([-1, 1]), SEEDS)
    newer = "m = ReduceMean(x, axes) y = Mul(m, x)"

    old, new = gradient_of(graph_of(body, 12), x, signs), gradient_of(graph_of(newer), x, signs)

    np.testing.assert_allclose(old, new, rtol=1e-5, atol=1e-7)
