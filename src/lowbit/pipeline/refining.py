"""The refine stage: a draft is emitted, refined, and its weights and biases settled anew."""

from __future__ import annotations

import dataclasses
import functools

from lowbit.config.refine import Reconstruct
from lowbit.emit.qdq import emit_qdq
from lowbit.pipeline.building import Built
from lowbit.pipeline.clock import Clock
from lowbit.refine.modules import Draft
from lowbit.refine.refine import refine
from lowbit.resolve.integers import Integers, nearest
from lowbit.resolve.resolve import settle_biases
from lowbit.samples import Split


def refined(built: Built, samples: Split, clock: Clock) -> tuple[Built, tuple[str, ...]]:
    """Return what was built after its configuration's refinement, and notes on it."""
    config = built.config.refine
    if config is None:
        return built, ()
    if samples.data.is_random and isinstance(config, Reconstruct):
        return built, ("not reconstructed: random data says nothing about the inputs",)
    found = refine(
        draft_of(built),
        config,
        samples.calibration,
        lambda done, total, _: clock.tell("refine", done, total),
    )
    model, plan = built.ready.adapted, built.plan
    biases = {**built.params.bias_values, **found.biases}
    params = settle_biases(model, plan, built.params, built.ready.target, biases)
    rounded = nearest(model, plan, params)
    made = {name: functools.partial(_same, codes) for name, codes in found.weights.items()}
    weights = dataclasses.replace(rounded, tensors={**rounded.tensors, **made})
    return dataclasses.replace(built, params=params, weights=weights), (found.note,)


def draft_of(built: Built) -> Draft:
    """Return what was built, emitted, for refinement to work on."""
    ready, config = built.ready, built.ready.config
    quantized = emit_qdq(
        ready.adapted,
        built.plan,
        built.params,
        built.weights,
        domain=config.domain,
        casts=config.casts,
        half_weights=config.half_weights,
    )
    return Draft(
        floats=ready.observed,
        adapted=ready.adapted,
        quantized=quantized,
        plan=built.plan,
        params=built.params,
        weights=built.weights,
        target=ready.target,
    )


def _same(codes: Integers) -> Integers:
    return codes
