"""Refine a quantized model: the table of kinds, and the run of any of them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from lowbit.config.config import QuantConfig
from lowbit.config.refinement import AdaQuant, AdaRound, Gptq, LayerReconstruction, Refinement
from lowbit.data.shards import Selection as Samples
from lowbit.errors import ConfigError
from lowbit.graph.editing import with_dynamic_batch
from lowbit.graph.layerwise_run import LayerwiseRun
from lowbit.graph.narrow_types import has_float8
from lowbit.graph.session import Array, Feed, Optimize, providers_of
from lowbit.graph.sharing import sharing_of, sharing_of_steps
from lowbit.graph.store import open_store
from lowbit.numerics.formats import FloatArray
from lowbit.numerics.spacing import evenly_spaced
from lowbit.ops.geometry import ConvLayer
from lowbit.ops.gradients import OutputPart
from lowbit.parallel import worker_count
from lowbit.refine.algorithm import Algorithm, Collector, Feeds, LoopSettings
from lowbit.refine.checkpoint import Checkpoint
from lowbit.refine.finetune import ADAQUANT, ADAROUND
from lowbit.refine.gptq import GPTQ
from lowbit.refine.layers import LayerResult, RefinedLayer, find_layers
from lowbit.refine.loop import LayerLoop
from lowbit.refine.read_positions import draw_positions
from lowbit.refine.reconstruct import RECONSTRUCTION
from lowbit.refine.remote import LayerSolver
from lowbit.refine.samples import batched, enough_samples, held_out_numbers
from lowbit.refine.selection import Selection
from lowbit.refine.targets import Draw, LayerTargets
from lowbit.state import Quantized, extended

# Activations of each model that wait in memory between two layers, in bytes: few samples may not
# need it all, and many are to take little more than few.
_ROOM = 6 << 20
# The same where samples of the layer that is solved are kept too, and as much again is computed of them.
_ROOM_WITH_SAMPLES = 3 << 20

ALGORITHMS: Mapping[type[Refinement], Algorithm] = MappingProxyType(
    {
        LayerReconstruction: RECONSTRUCTION,
        Gptq: GPTQ,
        AdaRound: ADAROUND,
        AdaQuant: ADAQUANT,
    }
)
"""The algorithm of each kind of refinement; kinds from outside bring their own."""

Progress = Callable[[int, int, LayerResult], None]
"""A progress callback: layers done, layers in all, and the result of the last one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Refined:
    """The result of refinement: stored weights by tensor, float biases by node, and the layers' errors.

    ``layers`` is how many there are; fewer results than that mean it was interrupted.
    """

    weights: Mapping[str, Array]
    biases: Mapping[str, FloatArray]
    results: tuple[LayerResult, ...]
    layers: int
    skipped: tuple[tuple[str, str], ...]

    @property
    def note(self) -> str:
        """A sentence for the report."""
        kept = [o for o in self.results if o.kept]
        words = f"refined {len(kept)} of {self.layers} layers"
        ratios = [o.after / o.before for o in kept if o.before > 0]
        if ratios:
            mean = float(np.exp(np.mean(np.log(np.maximum(ratios, 1e-9)))))
            words += f": their error on held-out samples fell to {mean:.0%} on average"
        if len(self.results) < self.layers:
            words += f"; interrupted after {len(self.results)}"
        if self.skipped:
            node, why = self.skipped[0]
            words += f"; {len(self.skipped)} skipped ({node}: {why})"
        return words


def algorithm_of(config: Refinement) -> Algorithm:
    """Return the algorithm of a refinement."""
    found: Algorithm | None = config.algorithm() or ALGORITHMS.get(type(config))
    if found is None:
        raise ConfigError(f"{type(config).__name__} has no algorithm: return one from algorithm()")
    return found


def check_refinement(config: QuantConfig) -> None:
    """Raise now, before any work, for a refinement that cannot be had."""
    refinement = config.refinement
    if refinement is None:
        return
    algorithm = algorithm_of(refinement)
    providers_of(refinement.infer_device)
    algorithm.check(refinement)
    weight = config.weight
    if algorithm.integers_only and weight is not None and not weight.is_integer:
        raise ConfigError(
            f"{type(refinement).__name__} chooses which integer a weight becomes, but weights "
            f"are to be {weight.describe()}; take AdaQuant"
        )


def refine(
    state: Quantized,
    config: Refinement,
    feeds: Feeds,
    progress: Progress = lambda done, total, result: None,
    checkpoint: Checkpoint | None = None,
    *,
    samples: int = 1,
    reference: ir.Model | None = None,
    outputs: Sequence[OutputPart] = (),
    keep_partial: bool = False,
) -> Refined:
    """Return better stored weights for a quantized model, and biases that fit them.

    ``samples``: about how many feeds there are, if known, so that of many each is looked at less.
    ``reference``: the float model to follow, if it is not the one that was quantized.
    ``outputs``: those that are read at few positions, by which layers are refined then.
    ``keep_partial``: an interruption (Ctrl-C) ends it early, with what is done so far.
    """
    algorithm = algorithm_of(config)
    settings = algorithm.settings(config)
    if reference is not None:
        state = extended(state, Quantized, calibrated_model=reference)
    layers, skipped = find_layers(state, settings.op_types, integers=algorithm.integers_only)
    results = checkpoint.results(layers) if checkpoint is not None else []
    if len(results) < len(layers):
        used = min(samples, config.data_size or samples)
        limited: Feeds = functools.partial(_first, feeds, config.data_size)
        if settings.few_samples and config.data_size is None:
            large = sharing_of(next(iter(feeds()), None), state.adapted).one_by_one
            used = enough_samples(_unknowns(state, layers), samples, large=large)
            limited = functools.partial(_spread, feeds, used, samples)
        if settings.batch_size > 1:
            state = _with_dynamic_batch(state)
            limited = functools.partial(batched, limited, settings.batch_size)
        done, device, output = tuple(results), config.infer_device, settings.selected_output
        chosen = functools.partial(Selection.of, state, layers)
        selection = None if output is None else chosen(output, limited, done, device)
        stop, listener = threading.Event(), _Listener(selection, checkpoint, progress, len(layers))
        draw = _draw(state, layers, outputs, limited)
        with _loop(state, layers, settings, limited, done, device, used, draw) as loop:
            if algorithm.collector is not None:
                large = loop.sharing.one_by_one
                held_out = held_out_numbers(used, settings.held_out, large=large)
                loop.collect = functools.partial(_collector, algorithm.collector, state, held_out)
            loop.remote = LayerSolver(algorithm, config)
            solve = algorithm.solver(state, config, stop)
            try:
                results.extend(loop.run(solve, listener))
            except BaseException as error:
                stop.set()
                if not (keep_partial and isinstance(error, KeyboardInterrupt)):
                    raise
    return Refined(
        {m.weight.name: o.stored for m, o in zip(layers, results, strict=False)},
        {o.node: o.bias for o in results if o.bias is not None},
        tuple(results),
        len(layers),
        tuple(skipped),
    )


def _draw(
    state: Quantized, layers: Sequence[RefinedLayer], outputs: Sequence[OutputPart], feeds: Feeds
) -> Draw | None:
    """Return a function that draws positions by the sensitivity of ``outputs``, if there are any."""
    if not outputs:
        return None
    return lambda wanted: draw_positions(state.adapted, layers, outputs, feeds(), wanted)


def _with_dynamic_batch(state: Quantized) -> Quantized:
    emitted = dataclasses.replace(state.emitted, model=with_dynamic_batch(state.emitted.model))
    floats = with_dynamic_batch(state.calibrated_model)
    return extended(state, Quantized, calibrated_model=floats, emitted=emitted)


@contextlib.contextmanager
def _loop(
    state: Quantized,
    layers: Sequence[RefinedLayer],
    settings: LoopSettings,
    feeds: Feeds,
    done: Sequence[LayerResult],
    device: str,
    samples: int,
    draw: Draw | None,
) -> Iterator[LayerLoop]:
    """Yield the loop over the layers that are left."""
    rest = layers[len(done) :]
    others = iter(feeds())  # read once: the first layers' run keeps what the next ones need
    first = list(itertools.islice(others, 1))
    sharing = sharing_of(first[0] if first else None, state.adapted)
    steps = sharing_of_steps(sharing, state.adapted)
    with contextlib.ExitStack() as stack:
        room = _ROOM if settings.moments else _ROOM_WITH_SAMPLES
        room = 0 if settings.on_disk else room
        floats, quantized, files = (
            stack.enter_context(open_store(settings.cache_dir, each)) for each in (room, room, 0)
        )
        # Workers are given samples that are in memory.
        in_memory = settings.at_once or (settings.independent and worker_count() is not None)
        disk = files if settings.on_disk or not in_memory else None
        targets = LayerTargets(
            state.calibrated_model,
            rest,
            floats,
            settings,
            samples=samples,
            device=device,
            sharing=sharing,
            draw=draw,
        )
        run = LayerwiseRun(
            state.emitted.model,
            [[layer.input.name] for layer in rest],
            quantized,
            optimize=_optimize(state.emitted.model, rest, settings),
            device=device,
            threads=steps.threads,
            name="the quantized model",
        )
        yield LayerLoop(
            state,
            layers,
            lambda: itertools.chain(first, others),
            targets,
            run,
            done,
            disk,
            room=room,
            independent=settings.independent,
            sharing=sharing,
            steps=steps,
        )


def _optimize(model: ir.Model, layers: Sequence[RefinedLayer], settings: LoopSettings) -> Optimize:
    """Return how the quantized model is run: convolutions are faster in a layout of their own.

    Floats are then added up in another order, of which moments of many columns show nothing.
    """
    convolves = any(isinstance(layer.geometry, ConvLayer) for layer in layers)
    return "exact" if settings.moments and convolves and not has_float8(model) else "none"


@dataclasses.dataclass(frozen=True, slots=True)
class _Listener:
    """Lets the selection decide, keeps the result, and reports progress."""

    selection: Selection | None
    checkpoint: Checkpoint | None
    progress: Progress
    total: int

    def solved(self, index: int, layer: RefinedLayer, result: LayerResult) -> LayerResult:
        """Return the result to go on with."""
        if self.selection is not None:
            result = self.selection.choose(layer, result)
        if self.checkpoint is not None:
            self.checkpoint.save(result)
        self.progress(index + 1, self.total, result)
        return result


def _collector(
    made: Callable[[Quantized, RefinedLayer, Collection[int]], Collector],
    state: Quantized,
    held_out: Collection[int],
    layer: RefinedLayer,
) -> Collector:
    return made(state, layer, held_out)


def _unknowns(state: Quantized, layers: Sequence[RefinedLayer]) -> list[float]:
    """Return how many weights each layer's outputs have to a position of a sample."""
    values = ir.convenience.create_value_mapping(
        state.calibrated_model.graph, include_subgraphs=False
    )
    found = []
    for layer in layers:
        shape = values[layer.output].shape or ()
        sizes = [size if isinstance(size, int) else 1 for size in shape]
        found.append(layer.geometry.depth / max(layer.geometry.count(sizes), 1))
    return found


def _spread(feeds: Feeds, count: int, total: int) -> Iterable[Feed]:
    """Return ``count`` of ``total`` samples, evenly spaced."""
    found = feeds()
    if isinstance(found, Samples):
        return found.spread(count)
    wanted = frozenset(evenly_spaced(total, count))
    return (feed for number, feed in enumerate(found) if number in wanted)


def _first(feeds: Callable[[], Iterable[Feed]], count: int | None) -> Iterable[Feed]:
    return itertools.islice(feeds(), count)
