"""Tune one layer by AdaRound or AdaQuant, and keep the result only if it holds elsewhere."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Sequence

import msgspec
import numpy as np
from threadpoolctl import threadpool_limits

from lowbit.config.extensible import tag_of
from lowbit.config.refinement import AdaRound, GradientTuning
from lowbit.errors import ConfigError
from lowbit.numerics.formats import FloatArray
from lowbit.ops.activations import Activation
from lowbit.ops.linear import LAYERS
from lowbit.parallel import ordered_map
from lowbit.refine.adaround import RoundedRows
from lowbit.refine.algorithm import Algorithm, LoopSettings, Solve
from lowbit.refine.devices import Device
from lowbit.refine.finish import Candidate, Finish
from lowbit.refine.gradient import Array, Batch, Rows, Trace, TunedRows, Tuner, to_codes
from lowbit.refine.layers import (
    LayerResult,
    RefinedLayer,
    float_bias,
    float_weights,
    settled_bias,
)
from lowbit.refine.reconstruct import Grid, stored_integers
from lowbit.refine.samples import LayerSample, SampleInMemory, held_out_split, means_of, sums_of
from lowbit.state import Quantized

log = logging.getLogger(__name__)

# Weights tuned together: their state then fits a processor's second cache.
_TOGETHER = 1 << 17


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a layer: a range of groups, and of outputs in each."""

    groups: slice
    outputs: slice

    @property
    def rows(self) -> tuple[slice, slice]:
        """The index of these rows in groups x outputs x anything."""
        return self.groups, self.outputs


class PartBatches:
    """All samples' columns for one part, on the device; those in files are read anew each time."""

    def __init__(
        self,
        samples: Sequence[LayerSample],
        part: Part,
        activation: Activation,
        device: Device,
    ) -> None:
        self._samples, self._part, self._device = samples, part, device
        self._activation = activation
        self._batches: dict[int, Batch] = {}

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self._samples)

    def __getitem__(self, index: int) -> Batch:
        """Return one sample's columns."""
        if index in self._batches:
            return self._batches[index]
        sample, part = self._samples[index], self._part
        other = sample.float_patches
        batch = Batch(
            self._device.put(sample.patches[part.groups]),
            self._activation.apply(self._device.put(sample.targets[part.rows])),
            None if other is None else self._device.put(other[part.groups]),
        )
        if isinstance(sample, SampleInMemory):
            self._batches[index] = batch
        return batch


@dataclasses.dataclass(frozen=True, slots=True)
class FineTuner:
    """Tunes layers of one state."""

    state: Quantized
    config: GradientTuning
    device: Device
    stop: threading.Event

    def solve(self, layer: RefinedLayer, samples: Sequence[LayerSample]) -> LayerResult:
        """Return the tuned layer, or the state's where that is no better."""
        if layer.params is None:
            return self._solve_floats(layer, samples)
        # Threads of the matrix product would only wait for each other.
        with threadpool_limits(1, user_api="blas"):
            return self._solve_integers(layer, samples)

    def _solve_integers(self, layer: RefinedLayer, samples: Sequence[LayerSample]) -> LayerResult:
        train, held = held_out_split(samples, self.config.held_out)
        grid = Grid.of(layer, float_weights(self.state, layer))
        bias = float_bias(self.state, layer)
        offset = _offset(layer, bias)
        rounds = isinstance(self.config, AdaRound)
        free = self.config.update_bias and bias is not None
        # Roundings make up for what storing the bias does to it; AdaQuant tunes it with them.
        moves = free and not rounds

        def settle(values: FloatArray) -> FloatArray:
            if bias is None:
                return values
            stored = settled_bias(self.state, layer, values.reshape(bias.shape))
            return np.asarray(stored.reshape(values.shape), np.float32)

        plain = Candidate(grid.nearest, offset, settle(offset))
        rate = self._rate(layer, plain, grid, train)
        found, tuned = self._tune(layer, grid, offset if moves else plain.added, train, rate)
        finish = Finish(
            grid,
            grid.weight if rounds else found,
            sums_of(train),
            settle,
            means_of(train) if free else None,
        )
        choices = finish.candidates(self._codes(found, grid), tuned if moves else offset)
        before, *errors = self._errors(
            layer, [(c.codes * grid.scale, c.added) for c in (plain, *choices)], held or train
        )
        best = int(np.argmin(errors))
        log.info("%s: error on held-out samples %.6g, was %.6g", layer.node, errors[best], before)
        if not errors[best] < before:
            stored = stored_integers(layer, grid.nearest)
            return LayerResult(layer.node, stored, bias, before, before, kept=False)
        chosen = choices[best]
        shaped = None if bias is None else np.asarray(chosen.bias.reshape(bias.shape), np.float32)
        stored = stored_integers(layer, chosen.codes)
        return LayerResult(layer.node, stored, shaped, before, errors[best], kept=True)

    def _rate(
        self, layer: RefinedLayer, plain: Candidate, grid: Grid, samples: Sequence[LayerSample]
    ) -> float:
        """Return the learning rate, which may depend on the error at the start."""
        config = self.config
        if config.lr_adjust is None:
            return config.learning_rate
        (error,) = self._errors(layer, [(plain.codes * grid.scale, plain.added)], samples)
        return config.lr_adjust[1] if error > config.lr_adjust[0] else config.learning_rate

    def _solve_floats(self, layer: RefinedLayer, samples: Sequence[LayerSample]) -> LayerResult:
        """Tune weights of a float or block format, all at once: blocks lie across rows."""
        train, held = held_out_split(samples, self.config.held_out)
        geometry, start = layer.geometry, self.state.weights.tensors[layer.weight.name]()

        def rounding(weight: Array) -> Array:
            stored = np.ascontiguousarray(geometry.weight(self.device.get(weight)))
            return self.device.put(np.asarray(geometry.matrix(layer.values(stored)), np.float32))

        offset = _offset(layer, float_bias(self.state, layer))
        part = Part(slice(None), slice(None))
        weight = np.asarray(geometry.matrix(start), np.float32)
        rows = TunedRows(self.device.put(weight), rounding, self.config.learning_rate)
        batches = PartBatches(train, part, layer.activation, self.device)
        seed = (self.config.fixed_seed, _number(layer.node))
        # The bias is a constant of its own format here.
        config = msgspec.structs.replace(self.config, update_bias=False)
        tuner = Tuner(config, layer.activation, None, seed, self.stop)
        still = self.device.put(offset.copy())
        trace = tuner.tune(rows, still, batches, self.config.learning_rate)
        _log_traces(layer, [trace], self.config.num_iterations)
        tuned = self.device.get(rows.result())
        before, after = self._errors(
            layer,
            [(self.device.get(rounding(self.device.put(w))), offset) for w in (weight, tuned)],
            held or train,
        )
        if not after < before:
            return LayerResult(layer.node, start, None, before, before, kept=False)
        stored = np.ascontiguousarray(geometry.weight(tuned))
        return LayerResult(layer.node, stored, None, before, after, kept=True)

    def _tune(
        self,
        layer: RefinedLayer,
        grid: Grid,
        offset: FloatArray,
        samples: Sequence[LayerSample],
        rate: float,
    ) -> tuple[FloatArray, FloatArray]:
        """Tune all parts and put them together: codes (AdaRound) or weights, and biases."""
        tuned, bias = grid.nearest.copy(), offset.copy()
        config = self.config
        if layer.bias is None:
            config = msgspec.structs.replace(config, update_bias=False)
        parts = parts_of(grid.weight.shape, coupled=layer.activation.couples_channels)

        def work(part: Part) -> tuple[Part, FloatArray, FloatArray, Trace]:
            shift = self.device.put(offset[part.rows].copy())
            rows = self._rows(grid, part, rate)
            batches = PartBatches(samples, part, layer.activation, self.device)
            tuner = Tuner(
                config,
                layer.activation,
                layer.quantizer if self.config.output_qdq else None,
                (self.config.fixed_seed, _number(layer.node)),
                self.stop,
            )
            trace = tuner.tune(rows, shift, batches, rate)
            return part, self.device.get(rows.result()), self.device.get(shift), trace

        traces = []
        for part, found, shift, trace in ordered_map(work, parts):
            bias[part.rows] = shift
            tuned[part.rows] = found
            traces.append(trace)
        _log_traces(layer, traces, self.config.num_iterations)
        return tuned, bias

    def _codes(self, found: FloatArray, grid: Grid) -> FloatArray:
        """Return a result as codes: AdaQuant's are weights yet."""
        if isinstance(self.config, AdaRound):
            return found
        codes: FloatArray = np.clip(np.rint(found / grid.scale), grid.lowest, grid.highest)
        return codes

    def _rows(self, grid: Grid, part: Part, rate: float) -> Rows:
        put, at = self.device.put, part.rows
        weight, scale = put(grid.weight[at].copy()), put(grid.scale[at].copy())
        if isinstance(self.config, AdaRound):
            bounds = (put(grid.low[at].copy()), put(grid.high[at].copy()))
            return RoundedRows(weight, scale, bounds, self.config, rate)
        limits = (put(grid.lowest[at].copy()), put(grid.highest[at].copy()))
        return TunedRows(weight, to_codes(scale, limits), rate)

    def _errors(
        self,
        layer: RefinedLayer,
        choices: Sequence[tuple[FloatArray, FloatArray]],
        samples: Sequence[LayerSample],
    ) -> list[float]:
        """Return the errors of the layer's output after its activation, for each choice."""
        output = layer.quantizer if self.config.output_qdq else None
        totals, columns = np.zeros(len(choices)), 0
        for sample in samples:
            patches = np.asarray(sample.patches)
            targets = layer.activation.apply(np.asarray(sample.targets))
            for index, (weight, offset) in enumerate(choices):
                y: Array = layer.activation.apply(np.matmul(weight, patches) + offset)
                if output is not None:
                    y = output.apply(y)
                y = y - targets
                totals[index] += float(np.einsum("gon,gon->", y, y, dtype=np.float64))
            columns += patches.shape[2]
        return list(totals / columns)


def parts_of(shape: tuple[int, ...], *, coupled: bool) -> list[Part]:
    """Return parts of about equal size that cover groups x outputs x depth."""
    groups, outputs, depth = shape
    everything = slice(None)
    if coupled:
        return [Part(everything, everything)]
    if groups > 1:
        step = max(1, _TOGETHER // (outputs * depth))
        return [Part(slice(i, i + step), everything) for i in range(0, groups, step)]
    # Fewer than 16 rows make poor use of a matrix product.
    step = max(16, _TOGETHER // depth)
    return [Part(everything, slice(i, i + step)) for i in range(0, outputs, step)]


def _offset(layer: RefinedLayer, bias: FloatArray | None) -> FloatArray:
    """Return what a layer adds, as groups x outputs x 1."""
    shape = (layer.geometry.groups, layer.geometry.outputs, 1)
    added = layer.fixed_bias if bias is None else bias
    return np.zeros(shape, np.float32) if added is None else np.asarray(added.reshape(shape))


def _number(name: str) -> int:
    return int.from_bytes(name.encode()[:64], "little")


def _log_traces(layer: RefinedLayer, traces: Sequence[Trace], planned: int) -> None:
    """Report the errors of all parts, added up, at the steps they were noted at."""
    for at in sorted({step for trace in traces for step, _, _ in trace.points}):
        noted = [next((p for p in t.points if p[0] == at), t.points[-1]) for t in traces]
        log.info(
            "%s: step %d of %d, error %.6g, rounding loss %.6g",
            layer.node,
            at,
            planned,
            sum(p[1] for p in noted),
            sum(p[2] for p in noted),
        )


# Positions of each sample that gradients are taken at: neighbours show much the same.
_POSITIONS = 128


def _settings(config: GradientTuning) -> LoopSettings:
    return LoopSettings(
        positions=_POSITIONS,
        op_types=config.target_op_type or tuple(LAYERS),
        seed=config.fixed_seed,
        float_inputs=config.drop_ratio < 1,
        at_once=config.mem_opt_level == 0,
        on_disk=config.mem_opt_level == 2,
        cache_dir=config.cache_dir,
        independent=config.parallel,
        batch_size=config.batch_size if config.dynamic_batch else 1,
        selected_output=config.output_index if config.selective_update else None,
    )


def _solver(state: Quantized, config: GradientTuning, stop: threading.Event) -> Solve:
    return FineTuner(state, config, Device(config.optim_device), stop).solve


def _check(config: GradientTuning) -> Device:
    unknown = [op for op in config.target_op_type if op not in LAYERS]
    if unknown:
        raise ConfigError(
            f"{tag_of(type(config))}.target_op_type names {unknown[0]!r}, which has no weights to "
            f"tune; give some of {', '.join(LAYERS)}"
        )
    return Device(config.optim_device)


ADAROUND = Algorithm(settings=_settings, solver=_solver, check=_check)
ADAQUANT = Algorithm(settings=_settings, solver=_solver, check=_check, integers_only=False)
