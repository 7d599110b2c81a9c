"""The refine stage: a draft is emitted, refined, and its weights and biases settled anew."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from typing import TypeVar

from lowbit.config.config import QuantConfig
from lowbit.config.refinement import AdaRound, Gptq, LayerReconstruction
from lowbit.config.specs import BfpSpec, FloatSpec, MxSpec
from lowbit.data.split import Split
from lowbit.errors import ConfigError
from lowbit.graph import io
from lowbit.normalize.normalize import normalize
from lowbit.pipeline.building import Built, emit
from lowbit.pipeline.clock import Clock
from lowbit.refine.checkpoint import Checkpoint, fingerprint_of
from lowbit.refine.modules import Draft
from lowbit.refine.refine import check, refine
from lowbit.scales.solve import settle_biases
from lowbit.scales.stored import nearest

T = TypeVar("T")


def checkpoint_of(output: str | os.PathLike[str]) -> pathlib.Path:
    """Return the folder beside an output in which finished layers wait."""
    path = pathlib.Path(output)
    return path.with_name(f"{path.name}.refining")


def check_refinement(config: QuantConfig) -> None:
    """Raise now, before any work, for a refinement that cannot be had."""
    if config.refinement is None:
        return
    check(config.refinement)
    if isinstance(config.refinement, (AdaRound, Gptq)) and isinstance(
        config.weight, (FloatSpec, BfpSpec, MxSpec)
    ):
        raise ConfigError(
            f"{type(config.refinement).__name__} chooses which integer a weight becomes, but weights "
            f"are to be {config.weight.describe()}; take AdaQuant"
        )


def refined(
    built: Built, samples: Split, clock: Clock, folder: pathlib.Path | None, *, resume: bool
) -> tuple[Built, tuple[str, ...]]:
    """Return what was built after its configuration's refinement, and notes on it.

    Finished layers are kept in ``folder`` until all are; ``resume`` goes on with those there.
    """
    config = built.config.refinement
    if config is None:
        return built, ()
    if samples.data.is_random and isinstance(config, (LayerReconstruction, Gptq)):
        return built, ("not reconstructed: random data says nothing about the inputs",)
    draft = draft_of(built)
    checkpoint = None
    if folder is not None:
        word = fingerprint_of(draft, config, samples.data.fingerprint())
        checkpoint = Checkpoint.open(folder, word, resume=resume)
    found = refine(
        draft,
        config,
        samples.calibration,
        lambda done, total, outcome: clock.tell("refine", done, total),
        checkpoint,
        samples=samples.calibration_count,
    )
    if checkpoint is not None and len(found.outcomes) == found.modules:
        checkpoint.remove()
    model, plan = built.ready.adapted, built.plan
    biases = {**built.params.bias_values, **found.biases}
    params = settle_biases(model, plan, built.params, built.ready.target, biases)
    rounded = nearest(model, plan, params)
    made = {name: functools.partial(_same, codes) for name, codes in found.weights.items()}
    values = {name: functools.partial(_same, array) for name, array in found.floats.items()}
    weights = dataclasses.replace(
        rounded,
        tensors={**rounded.tensors, **made},
        floats={**rounded.floats, **values},
    )
    return dataclasses.replace(built, params=params, weights=weights), (found.note,)


def draft_of(built: Built) -> Draft:
    """Return what was built, emitted, for refinement to work on."""
    ready, config = built.ready, built.config
    reference = (
        None if isinstance(config.refinement, (LayerReconstruction, Gptq)) else config.refinement
    )
    floats = ready.observed
    if reference is not None and reference.ref_model_path is not None:
        floats = normalize(io.load(reference.ref_model_path))
    return Draft(
        floats=floats,
        adapted=ready.adapted,
        quantized=emit(built),
        plan=built.plan,
        params=built.params,
        weights=built.weights,
        target=ready.target,
    )


def _same(stored: T) -> T:
    return stored
