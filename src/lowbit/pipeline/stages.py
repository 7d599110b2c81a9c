"""The stages in their order: each takes the state and returns it with what it found out."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Iterable

import msgspec
import numpy as np
import onnx_ir as ir

from lowbit.calibrate.collect import collect
from lowbit.calibrate.observers import observer_of
from lowbit.calibrate.statistics import Stats
from lowbit.config.config import QuantConfig
from lowbit.config.files import config_json
from lowbit.data.shards import Selection
from lowbit.data.split import Split
from lowbit.emit.emission import EmitOptions
from lowbit.emit.emit import emit as emit_model
from lowbit.emit.saturated import without_saturated
from lowbit.graph import io
from lowbit.graph.editing import is_constant, read_tensor
from lowbit.graph.session import Array, Feed
from lowbit.normalize.normalize import normalize as normalize_model
from lowbit.numerics.blas import one_blas_thread
from lowbit.ops.linear import has_constant_weight, linear_operator
from lowbit.pipeline.normalizing import normalized_model
from lowbit.pipeline.output_parts import sparse_outputs
from lowbit.planning.plan import Plan, check_fit
from lowbit.planning.planner import make_plan
from lowbit.refine.bias_correction import corrected_biases
from lowbit.refine.checkpoint import Checkpoint, fingerprint_of
from lowbit.refine.refine import algorithm_of
from lowbit.refine.refine import refine as refine_layers
from lowbit.scales.alignment import coarse_averages, read_together, scale_conflicts
from lowbit.scales.parameters import constant_values
from lowbit.scales.solve import settle_biases
from lowbit.scales.solve import solve as solve_params
from lowbit.scales.solver_cache import SolverCache
from lowbit.scales.stored import nearest
from lowbit.state import (
    Calibrated,
    Loaded,
    Normalized,
    Planned,
    Prepared,
    Quantized,
    Solved,
    Transformed,
    extended,
)
from lowbit.store import Store
from lowbit.transforms import Context, Levels, implementation_of
from lowbit.version import __version__

Feeds = Callable[[], Iterable[Feed]]
Told = Callable[[int], None]


def normalize(state: Loaded, known: ir.Model | None = None) -> Normalized:
    """Bring the model into the one form that all other stages accept, and rotate it if asked to.

    ``known`` is the model as it was normalized before, for another configuration.
    """
    config = state.config
    model = normalized_model(state) if known is None else known
    _refuse_not_finite(model, state)
    notes: tuple[str, ...] = ()
    if config.rotation is not None:
        rotated = implementation_of(config.rotation).apply(model, config.rotation, _context(state))
        model, notes = rotated.model, rotated.notes
    return extended(state, Normalized, normalized=model, rotation_notes=notes)


def _refuse_not_finite(model: ir.Model, state: Loaded) -> None:
    """Raise for weights that nothing can be done with, unless the layer stays in float."""
    wrong = [
        (node.name, value.name)
        for node in model.graph
        if linear_operator(node) is not None
        for value in node.inputs[1:]
        if value is not None and is_constant(value) and not _is_finite(value)
    ]
    in_float = _context(state).float_nodes(model) if wrong else set()
    for node, name in wrong:
        if node not in in_float:
            constant_values(model, str(name))


def _is_finite(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is None or bool(np.isfinite(read_tensor(tensor)).all())


@one_blas_thread()
def transform(state: Normalized) -> Transformed:
    """Equalize, smooth and rescale, as the configuration says."""
    model = state.normalized
    notes: tuple[str, ...] = ()
    for config in (state.config.equalization, state.config.smooth_quant):
        if config is not None:
            found = implementation_of(config).apply(model, config, _context(state))
            model, notes = found.model, (*notes, *found.notes)
    return rescale(extended(state, Transformed, float_model=model, transform_notes=notes))


def rescale(state: Transformed) -> Transformed:
    """Multiply tensors by the factors of the configuration, if it has any."""
    config = state.config.rescaling
    if config is None:
        return state
    found = implementation_of(config).apply(state.float_model, config, _context(state))
    notes = (*state.transform_notes, *found.notes)
    return extended(state, Transformed, float_model=found.model, transform_notes=notes)


def _context(state: Loaded) -> Context:
    config, samples = state.config, state.samples

    def planned(model: ir.Model) -> Plan:
        # A clone, because only that one knows for certain which of its values are inputs.
        return make_plan(model.clone(), config, state.target, state.operators)

    return Context(
        data=None if samples is None else _seen(samples, config),
        float_nodes=lambda model: {row.node for row in planned(model).float_nodes},
        own_inputs=lambda model: _own_inputs(model, planned(model)),
        levels=_levels(config),
    )


def _seen(samples: Split, config: QuantConfig) -> Selection:
    """Return the samples that shape transforms: none of those that decide whether they are kept."""
    return samples.fitting() if config.keep_only_if_better else samples.calibration()


def _own_inputs(model: ir.Model, plan: Plan) -> dict[str, bool]:
    weights = {
        node.name: str(weight.name)
        for node in model.graph
        if has_constant_weight(node) and (weight := node.inputs[1]) is not None
    }
    tensors = plan.by_name()
    return {
        row.name: all(
            name in weights and getattr(tensors.get(weights[name]), "axis", None) is not None
            for name in row.consumers
        )
        for row in plan.activations()
        if row.consumers is not None
    }


def _levels(config: QuantConfig) -> Levels:
    activation, weight = config.activation, config.weight
    return Levels(
        activation=0 if activation is None else activation.largest_integer,
        weight=0 if weight is None else weight.largest_integer,
        per_channel=bool(getattr(weight, "per_channel", False)),
    )


def plan(state: Prepared, given: Plan | None = None, *, check: bool = True) -> Planned:
    """Decide what every tensor becomes; a plan that is given is only checked.

    Without ``check`` a plan may quantize nothing: it still says why of every node.
    """
    found = given or make_plan(
        state.adapted, state.config, state.target, state.operators, state.head
    )
    if check:
        check_fit(found, state.adapted)
    return extended(state, Planned, plan=found)


def calibrate(
    state: Planned,
    feeds: Feeds,
    *,
    everything: bool,
    means: bool,
    progress: Told,
    store: Store | None = None,
) -> Calibrated:
    """Collect the statistics that the plan needs; those of finished shards are kept in ``store``."""
    found = collect(
        state.calibrated_model,
        state.plan,
        feeds(),
        float_names=state.float_names,
        everything=everything,
        means=means,
        optimize="all" if state.target.calibrate_optimized else "none",
        padding=state.target.calibrate_padding,
        store=store,
        progress=progress,
    )
    config = state.config
    made = dataclasses.replace(
        found,
        equalized=config.equalization is not None,
        smoothed=config.smooth_quant is not None,
        rescaling=config.rescaling,
    )
    return with_stats(state, made)


def with_stats(state: Planned, stats: Stats) -> Calibrated:
    """Return the state with statistics collected before."""
    return extended(state, Calibrated, stats=stats)


def lacks_statistics(plan: Plan, stats: Stats) -> bool:
    """Whether a plan needs more of its tensors than statistics hold."""
    together = read_together(plan)
    for tensor in plan.activations():
        method = tensor.spec.calibration
        if not tensor.is_calibrated or method is None:
            continue
        known = stats.tensors.get(tensor.observe)
        needs = observer_of(method).histogram or tensor.name in together
        if known is None or (known.counts is None and needs):
            return True
    return False


def destroys_head(state: Calibrated) -> bool:
    """Whether tensors in the tail of the graph must share a scale that ruins one of them."""
    if state.config.head != "auto":
        return False
    if any(name not in state.stats.tensors for name in state.plan.observed()):
        # Statistics kept from a run that came to this conclusion lack the tail's tensors.
        return True
    tail = set(state.head.nodes)
    found = (*scale_conflicts(state.plan, state.stats), *coarse_averages(state.plan, state.stats))
    return any(conflict.node in tail for conflict in found)


def solve(
    state: Calibrated, known: SolverCache | None = None, constants: SolverCache | None = None
) -> Solved:
    """Find scales and zero points, and round constants and biases to the nearest.

    ``known`` are solutions of other plans for the same model and statistics, ``constants`` those of its constants
    for any statistics.
    """
    params = solve_params(state.adapted, state.plan, state.stats, state.target, known, constants)
    weights = nearest(state.adapted, state.plan, params, known)
    return extended(state, Solved, params=params, weights=weights)


@one_blas_thread()
def correct_biases(state: Solved, known: SolverCache | None = None) -> Solved:
    """Correct biases for the shift of means that rounding the weights causes."""
    values = corrected_biases(
        state.adapted,
        state.plan,
        state.params,
        state.stats,
        state.weights,
        state.float_names,
        known,
    )
    params = settle_biases(state.adapted, state.plan, state.params, state.target, values)
    weights = nearest(state.adapted, state.plan, params, known)
    return extended(state, Solved, params=params, weights=weights)


def emit(state: Solved, *, packed: bool = True) -> Quantized:
    """Write the quantized graph; without ``packed`` every weight before a DequantizeLinear."""
    config = state.config
    options = EmitOptions(
        domain=config.domain,
        casts=config.casts,
        half_weights=config.half_weights,
        packed=state.target.packed if packed and config.domain != "ai.onnx" else (),
        operators=state.operators,
    )
    emitted = emit_model(state.adapted, state.plan, state.params, state.weights, options)
    return extended(state, Quantized, emitted=emitted)


def as_written(state: Quantized) -> Quantized:
    """Return the model without Clips that its quantizers imply; until then each can be switched off."""
    model = without_saturated(state.emitted.model)
    return extended(state, Quantized, emitted=dataclasses.replace(state.emitted, model=model))


@dataclasses.dataclass(frozen=True, slots=True)
class Refinement:
    """How refinement went; unless ``complete``, it was interrupted and can be resumed."""

    notes: tuple[str, ...] = ()
    complete: bool = True

    def finished_in(self, folder: str | os.PathLike[str] | None) -> pathlib.Path | None:
        """Return the folder of the checkpoint, if there is one and nothing is left to resume."""
        return None if folder is None or not self.complete else pathlib.Path(folder)

    def with_note(self, note: str) -> Refinement:
        """Return the same with one more note."""
        return dataclasses.replace(self, notes=(*self.notes, note))


def will_be_refined(state: Loaded) -> bool:
    """Whether refinement is asked for, and the samples say something about the inputs."""
    config, samples = state.config.refinement, state.samples
    if config is None or samples is None:
        return False
    return not (samples.data.is_random and algorithm_of(config).needs_data)


def refine(
    state: Quantized,
    folder: pathlib.Path | None,
    progress: Callable[[int, int], None],
    *,
    resume: bool,
    keep_partial: bool = False,
    store: Store | None = None,
) -> tuple[Solved, Refinement]:
    """Return the state with better weights and biases than the nearest, and how it went.

    Finished layers are kept in ``folder``, also after the last; ``resume`` goes on with those there.
    Without a folder those in ``store`` are used, and added to it. ``keep_partial`` lets an interruption
    end it early, with the layers that are done.
    """
    config, samples = state.config.refinement, state.samples
    if config is None or samples is None:
        return state, Refinement()
    if not will_be_refined(state):
        note = "not refined: random data does not represent real inputs"
        return state, Refinement(notes=(note,))
    if state.target.packed:
        # Refinement replaces what layers read, which is inside an operator where weights are packed.
        state = emit(state, packed=False)
    path = getattr(config, "ref_model_path", None)
    reference = None if path is None else normalize_model(io.load(path))
    checkpoint = None
    if folder is not None or store is not None:
        word = fingerprint_of(state, config, samples.fingerprint(), reference)
        if folder is not None:
            checkpoint = Checkpoint.open(folder, word, resume=resume)
        elif store is not None:
            checkpoint = Checkpoint.in_store(store, word)
    found = refine_layers(
        state,
        config,
        samples.calibration,
        lambda done, total, result: progress(done, total),
        checkpoint,
        samples=samples.calibration_count,
        reference=reference,
        outputs=sparse_outputs(state),
        keep_partial=keep_partial,
    )
    notes = (found.note, *(checkpoint.notes if checkpoint is not None else ()))
    complete = len(found.results) == found.layers
    biases = {**state.params.bias_values, **found.biases}
    params = settle_biases(state.adapted, state.plan, state.params, state.target, biases)
    weights = nearest(state.adapted, state.plan, params)
    made = {name: functools.partial(_same, stored) for name, stored in found.weights.items()}
    weights = dataclasses.replace(weights, tensors={**weights.tensors, **made})
    refined = extended(state, Solved, params=params, weights=weights)
    return refined, Refinement(notes=notes, complete=complete)


def _same(stored: Array) -> Array:
    return stored


def record_origin(state: Quantized) -> None:
    """Write into the model's metadata how it was made. Changes the emitted model."""
    model = state.emitted.model
    model.producer_name, model.producer_version = "lowbit", __version__
    model.metadata_props.update(
        {
            "lowbit.version": __version__,
            "lowbit.preset": state.plan.preset,
            "lowbit.target": state.plan.target,
            "lowbit.config": config_json(state.config),
        }
    )
    if state.samples is not None:
        data = state.samples.data
        model.metadata_props["lowbit.data"] = f"{data.description} (sha256 {data.fingerprint()})"


def with_config(state: Loaded, **changes: object) -> Normalized:
    """Return the normalized state with another configuration; nothing after it holds any more."""
    config = msgspec.structs.replace(state.config, **changes)
    return extended(state, Normalized, config=config)
