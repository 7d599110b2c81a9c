"""Tune one module by AdaRound or AdaQuant, and keep the result only if it holds elsewhere."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import logging
import os
import threading
from collections.abc import Sequence

import msgspec
import numpy as np
from threadpoolctl import threadpool_limits

from lowbit.config.refinement import AdaQuant, AdaRound
from lowbit.numerics.formats import FloatArray
from lowbit.ops.activations import Activation
from lowbit.refine.adaquant import TunedRows, to_steps
from lowbit.refine.adaround import RoundedRows
from lowbit.refine.devices import Device
from lowbit.refine.finish import Choice, Finish
from lowbit.refine.modules import (
    Draft,
    Module,
    Outcome,
    float_bias,
    float_weights,
    settled_bias,
    stored_in,
)
from lowbit.refine.reconstruct import Grid, codes_of, divided
from lowbit.refine.sights import Sight, means_of, sums_of
from lowbit.refine.tune import Array, Look, Rows, Trace, Tuner

log = logging.getLogger(__name__)

# Weights tuned together: their state then fits a processor's second cache.
_TOGETHER = 1 << 17


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a module: a range of groups, and of outputs in each."""

    groups: slice
    outputs: slice

    @property
    def rows(self) -> tuple[slice, slice]:
        """The index of these rows in groups x outputs x anything."""
        return self.groups, self.outputs


class PartLooks:
    """All samples' columns for one part, on the device; read anew each time if ``fresh``."""

    def __init__(
        self,
        sights: Sequence[Sight],
        part: Part,
        activation: Activation,
        device: Device,
        *,
        fresh: bool,
    ) -> None:
        self._sights, self._part, self._device = sights, part, device
        self._activation, self._fresh = activation, fresh
        self._looks: dict[int, Look] = {}

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self._sights)

    def __getitem__(self, sample: int) -> Look:
        """Return one sample's columns."""
        if sample in self._looks:
            return self._looks[sample]
        sight, part = self._sights[sample], self._part
        other = sight.float_patches
        look = Look(
            self._device.put(sight.patches[part.groups]),
            self._activation.apply(self._device.put(sight.targets[part.rows])),
            None if other is None else self._device.put(other[part.groups]),
        )
        if not self._fresh:
            self._looks[sample] = look
        return look


@dataclasses.dataclass(frozen=True, slots=True)
class FineTuner:
    """Tunes modules of one draft."""

    draft: Draft
    config: AdaRound | AdaQuant
    device: Device
    stop: threading.Event

    def solve(self, module: Module, sights: Sequence[Sight]) -> Outcome:
        """Return the tuned module, or the draft's where that is no better."""
        if module.params is None:
            return self._solve_floats(module, sights)
        # Threads of the matrix product would only wait for each other.
        with threadpool_limits(1, user_api="blas"):
            return self._solve_integers(module, sights)

    def _solve_integers(self, module: Module, sights: Sequence[Sight]) -> Outcome:
        train, held = divided(sights, self.config.held_out)
        grid = Grid.of(module, float_weights(self.draft, module))
        bias = float_bias(self.draft, module)
        offset = _offset(module, bias)
        rounds = isinstance(self.config, AdaRound)
        free = self.config.update_bias and bias is not None
        # Roundings make up for what storing the bias does to it; AdaQuant tunes it with them.
        moves = free and not rounds

        def settle(values: FloatArray) -> FloatArray:
            if bias is None:
                return values
            stored = settled_bias(self.draft, module, values.reshape(bias.shape))
            return np.asarray(stored.reshape(values.shape), np.float32)

        plain = Choice(grid.nearest, offset, settle(offset))
        rate = self._rate(module, plain, grid, train)
        found, tuned = self._tune(module, grid, offset if moves else plain.added, train, rate)
        finish = Finish(
            grid,
            grid.weight if rounds else found,
            sums_of(train),
            settle,
            means_of(train) if free else None,
        )
        choices = finish.choices(self._steps(found, grid), tuned if moves else offset)
        before, *errors = self._errors(
            module, [(c.steps * grid.scale, c.added) for c in (plain, *choices)], held or train
        )
        best = int(np.argmin(errors))
        log.info("%s: error on held-out samples %.6g, was %.6g", module.node, errors[best], before)
        if not errors[best] < before:
            codes = codes_of(module, grid.nearest)
            return Outcome(module.node, codes, bias, before, before, kept=False)
        chosen = choices[best]
        shaped = None if bias is None else np.asarray(chosen.bias.reshape(bias.shape), np.float32)
        return Outcome(
            module.node, codes_of(module, chosen.steps), shaped, before, errors[best], kept=True
        )

    def _rate(self, module: Module, plain: Choice, grid: Grid, sights: Sequence[Sight]) -> float:
        """Return the learning rate, which may depend on the error at the start."""
        config = self.config
        if config.lr_adjust is None:
            return config.learning_rate
        (error,) = self._errors(module, [(plain.steps * grid.scale, plain.added)], sights)
        return config.lr_adjust[1] if error > config.lr_adjust[0] else config.learning_rate

    def _solve_floats(self, module: Module, sights: Sequence[Sight]) -> Outcome:
        """Tune weights of a float or block format, all at once: blocks lie across rows."""
        train, held = divided(sights, self.config.held_out)
        layer, start = module.layer, stored_in(self.draft, module)

        def rounding(weight: Array) -> Array:
            stored = layer.weight(self.device.get(weight))
            return self.device.put(np.asarray(layer.matrix(module.values(stored)), np.float32))

        offset = _offset(module, float_bias(self.draft, module))
        part = Part(slice(None), slice(None))
        weight = np.asarray(layer.matrix(start), np.float32)
        rows = TunedRows(self.device.put(weight), rounding, self.config.learning_rate)
        fresh = self.config.mem_opt_level == 2
        looks = PartLooks(train, part, module.activation, self.device, fresh=fresh)
        seed = (self.config.fixed_seed, _number(module.node))
        # The bias is a constant of its own format here.
        config = msgspec.structs.replace(self.config, update_bias=False)
        tuner = Tuner(config, module.activation, None, seed, self.stop)
        still = self.device.put(offset.copy())
        trace = tuner.tune(rows, still, looks, self.config.learning_rate)
        _log_traces(module, [trace], self.config.num_iterations)
        tuned = self.device.get(rows.result())
        before, after = self._errors(
            module,
            [(self.device.get(rounding(self.device.put(w))), offset) for w in (weight, tuned)],
            held or train,
        )
        if not after < before:
            return Outcome(module.node, start, None, before, before, kept=False)
        return Outcome(module.node, layer.weight(tuned), None, before, after, kept=True)

    def _tune(
        self, module: Module, grid: Grid, offset: FloatArray, sights: Sequence[Sight], rate: float
    ) -> tuple[FloatArray, FloatArray]:
        """Tune all parts and put them together: steps (AdaRound) or weights, and biases."""
        tuned, bias = grid.nearest.copy(), offset.copy()
        config = self.config
        if module.bias is None:
            config = msgspec.structs.replace(config, update_bias=False)
        parts = parts_of(grid.weight.shape, mixed=module.activation.mixes)

        def work(part: Part) -> tuple[Part, FloatArray, FloatArray, Trace]:
            shift = self.device.put(offset[part.rows].copy())
            rows = self._rows(grid, part, rate)
            looks = PartLooks(
                sights,
                part,
                module.activation,
                self.device,
                fresh=self.config.mem_opt_level == 2,
            )
            tuner = Tuner(
                config,
                module.activation,
                module.quantizer if self.config.output_qdq else None,
                (self.config.fixed_seed, _number(module.node)),
                self.stop,
            )
            trace = tuner.tune(rows, shift, looks, rate)
            return part, self.device.get(rows.result()), self.device.get(shift), trace

        traces = []
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for part, found, shift, trace in pool.map(work, parts):
                bias[part.rows] = shift
                tuned[part.rows] = found
                traces.append(trace)
        _log_traces(module, traces, self.config.num_iterations)
        return tuned, bias

    def _steps(self, found: FloatArray, grid: Grid) -> FloatArray:
        """Return a result as steps: AdaQuant's are weights yet."""
        if isinstance(self.config, AdaRound):
            return found
        steps: FloatArray = np.clip(np.rint(found / grid.scale), grid.lowest, grid.highest)
        return steps

    def _rows(self, grid: Grid, part: Part, rate: float) -> Rows:
        put, at = self.device.put, part.rows
        weight, scale = put(grid.weight[at].copy()), put(grid.scale[at].copy())
        if isinstance(self.config, AdaRound):
            bounds = (put(grid.low[at].copy()), put(grid.high[at].copy()))
            return RoundedRows(weight, scale, bounds, self.config, rate)
        limits = (put(grid.lowest[at].copy()), put(grid.highest[at].copy()))
        return TunedRows(weight, to_steps(scale, limits), rate)

    def _errors(
        self,
        module: Module,
        choices: Sequence[tuple[FloatArray, FloatArray]],
        sights: Sequence[Sight],
    ) -> list[float]:
        """Return the errors of the module's output behind its activation, for each choice."""
        output = module.quantizer if self.config.output_qdq else None
        totals, columns = np.zeros(len(choices)), 0
        for sight in sights:
            patches = np.asarray(sight.patches)
            targets = module.activation.apply(np.asarray(sight.targets))
            for index, (weight, offset) in enumerate(choices):
                y: Array = module.activation.apply(np.matmul(weight, patches) + offset)
                if output is not None:
                    y = output.apply(y)
                y = y - targets
                totals[index] += float(np.einsum("gon,gon->", y, y, dtype=np.float64))
            columns += patches.shape[2]
        return list(totals / columns)


def parts_of(shape: tuple[int, ...], *, mixed: bool) -> list[Part]:
    """Return parts of about equal size that cover groups x outputs x depth."""
    groups, outputs, depth = shape
    everything = slice(None)
    if mixed:
        return [Part(everything, everything)]
    if groups > 1:
        step = max(1, _TOGETHER // (outputs * depth))
        return [Part(slice(i, i + step), everything) for i in range(0, groups, step)]
    # Fewer than 16 rows make poor use of a matrix product.
    step = max(16, _TOGETHER // depth)
    return [Part(everything, slice(i, i + step)) for i in range(0, outputs, step)]


def _offset(module: Module, bias: FloatArray | None) -> FloatArray:
    """Return what a module adds, as groups x outputs x 1."""
    shape = (module.layer.groups, module.layer.outputs, 1)
    added = module.fixed_bias if bias is None else bias
    return np.zeros(shape, np.float32) if added is None else np.asarray(added.reshape(shape))


def _number(name: str) -> int:
    return int.from_bytes(name.encode()[:64], "little")


def _log_traces(module: Module, traces: Sequence[Trace], planned: int) -> None:
    """Report the errors of all parts, added up, at the steps they were noted at."""
    for at in sorted({step for trace in traces for step, _, _ in trace.points}):
        noted = [next((p for p in t.points if p[0] == at), t.points[-1]) for t in traces]
        log.info(
            "%s: step %d of %d, error %.6g, rounding loss %.6g",
            module.node,
            at,
            planned,
            sum(p[1] for p in noted),
            sum(p[2] for p in noted),
        )
