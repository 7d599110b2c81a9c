"""The refine stage: a draft is emitted, refined, and its weights and biases settled anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from lowbit.config.refine import Reconstruct
from lowbit.emit.qdq import emit_qdq
from lowbit.pipeline.preparing import Prepared
from lowbit.plan import Plan
from lowbit.refine.modules import Draft
from lowbit.refine.refine import refine
from lowbit.resolve.integers import Weights, nearest
from lowbit.resolve.params import Params
from lowbit.resolve.resolve import settle_biases
from lowbit.samples import Split


def refined(
    ready: Prepared,
    plan: Plan,
    params: Params,
    weights: Weights,
    samples: Split,
    progress: Callable[[str, int, int | None], None],
) -> tuple[Params, Weights, tuple[str, ...]]:
    """Return parameters and integers after the configuration's refinement, and notes on it."""
    config = ready.config.refine
    if config is None:
        return params, weights, ()
    if samples.data.is_random and isinstance(config, Reconstruct):
        return params, weights, ("not reconstructed: random data says nothing about the inputs",)
    draft = Draft(
        floats=ready.observed,
        adapted=ready.adapted,
        quantized=emit_qdq(ready.adapted, plan, params, weights, domain=ready.config.domain),
        plan=plan,
        params=params,
        weights=weights,
        target=ready.target,
    )
    found = refine(
        draft,
        config,
        samples.calibration,
        lambda done, total, _: progress("refine", done, total),
    )
    biases = {**params.bias_values, **found.biases}
    params = settle_biases(ready.adapted, plan, params, ready.target, biases)
    rounded = nearest(ready.adapted, plan, params)
    made = {name: (lambda codes=codes: codes) for name, codes in found.weights.items()}
    return params, dataclasses.replace(rounded, tensors={**rounded.tensors, **made}), (found.note,)
