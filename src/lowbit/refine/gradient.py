"""Gradient descent on some rows of a layer: the loop that AdaRound and AdaQuant share, and AdaQuant.

Rows of a layer are problems of their own, as long as the activation does not mix them; so a large
layer is tuned in parts, each small enough for a processor's cache, several at a time. The result
does not depend on how many.

Written against the array API: arrays may be NumPy's or PyTorch's.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from lowbit.config.refinement import AdaQuant, AdaRound
from lowbit.numerics.array_api import array_namespace, asarray_like
from lowbit.ops.activations import Activation

Array = Any
_FIRST, _SECOND, _SMALL = 0.9, 0.999, 1e-8
# Columns of one step, of all its samples, and the fewest of each.
_AT_A_STEP, _OF_EACH = 128, 32


class Adam:
    """Adam on one array, which it changes in place."""

    def __init__(self, like: Array, rate: float) -> None:
        xp = array_namespace(like)
        self._xp, self._rate, self._steps = xp, rate, 0
        self._mean, self._power = xp.zeros_like(like), xp.zeros_like(like)

    def step(self, values: Array, gradient: Array) -> None:
        """Go one step down the gradient. Changes ``values``, and ``gradient`` is used up."""
        self._steps += 1
        # Both sums are kept without the factor 1 - decay, which the last line makes up for.
        self._mean *= _FIRST
        self._mean += gradient
        gradient *= gradient
        self._power *= _SECOND
        self._power += gradient
        spread = ((1.0 - _SECOND) / (1.0 - _SECOND**self._steps)) ** 0.5
        root = self._xp.sqrt(self._power)
        root += _SMALL / spread
        change = self._mean / root
        change *= self._rate * (1.0 - _FIRST) / (1.0 - _FIRST**self._steps) / spread
        values -= change

    def keep(self, chosen: Array) -> None:
        """Go on with some of the values."""
        self._mean, self._power = (
            self._xp.take(a, chosen, axis=0) for a in (self._mean, self._power)
        )


class Rows(Protocol):
    """Weights being tuned: what the method is."""

    def weights(self) -> Array:
        """Return the weights as the layer would compute with them now."""

    def step(self, gradient: Array, at: int) -> float:
        """Go one step, given the gradient of the weights; return the method's own loss."""

    @property
    def settled(self) -> bool:
        """Whether further steps would change nothing."""

    def result(self) -> Array:
        """Return the final codes, or weights that are yet to be rounded."""


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """One sample's columns for some rows: inputs, float inputs, and targets after activation."""

    patches: Array
    targets: Array
    float_patches: Array | None = None


class Batches(Protocol):
    """All samples' columns, read when they are asked for."""

    def __len__(self) -> int:
        """How many samples there are."""

    def __getitem__(self, sample: int) -> Batch:
        """Return one sample's columns."""


@dataclasses.dataclass(frozen=True, slots=True)
class Quantizer:
    """The quantizer of the layer's output, if ``output_qdq``: rounding within limits."""

    scale: float
    low: float
    high: float

    def apply(self, y: Array) -> Array:
        """Return the rounded values."""
        xp = array_namespace(y)
        codes = xp.round(y / self.scale)
        return xp.minimum(xp.maximum(codes, self.low), self.high) * self.scale

    def back(self, y: Array, gradient: Array) -> Array:
        """Straight through, but not beyond the limits."""
        xp = array_namespace(y)
        inside = (y >= self.low * self.scale) & (y <= self.high * self.scale)
        return gradient * xp.astype(inside, y.dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """Steps gone, with the errors at some of them: step, output's error, method's own loss."""

    steps: int
    points: tuple[tuple[int, float, float], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Tuner:
    """Tunes rows on batches; ``stop`` ends it early, with what there is."""

    config: AdaRound | AdaQuant
    activation: Activation
    output: Quantizer | None
    seed: Sequence[int]
    stop: threading.Event

    def tune(self, rows: Rows, bias: Array, batches: Batches, rate: float) -> Trace:
        """Go all steps. Changes ``rows``, and ``bias`` if it is to be tuned."""
        config = self.config
        random = np.random.default_rng(tuple(self.seed))
        window = max(1, config.num_iterations // 10)
        period = config.log_period or window
        bias_adam = Adam(bias, rate) if _tunes_bias(config) else None
        progress = _Progress(config)
        points = []
        for at in range(config.num_iterations):
            noted = at % period == 0 or at == config.num_iterations - 1
            weights = rows.weights()
            batch = self._batch(batches, random)
            loss, gradient, offset = self._gradients(
                weights, bias, batch, measured=noted or (config.early_stop and progress.needs_error)
            )
            own = rows.step(gradient, at)
            if bias_adam is not None:
                bias_adam.step(bias, offset)
            if noted:
                points.append((at, loss, own))
            ends = self.stop.is_set() or (config.early_stop and progress.ends(at, loss, own))
            if ends or rows.settled:
                break
        return Trace(at + 1, tuple(points))

    def _batch(self, batches: Batches, random: np.random.Generator) -> Batch:
        """Return some columns of one step's samples, concatenated."""
        config = self.config
        size = min(config.batch_size, len(batches))
        each = max(_OF_EACH, _AT_A_STEP // (config.num_batches * config.batch_size))
        picked = [
            self._mixed(_some(batches[int(sample)], each, random), random)
            for _ in range(config.num_batches)
            for sample in random.permutation(len(batches))[:size]
        ]
        return picked[0] if len(picked) == 1 else _concatenated(picked)

    def _gradients(
        self, weights: Array, bias: Array, batch: Batch, *, measured: bool
    ) -> tuple[float, Array, Array]:
        """Return the error, if it is to be measured, and the gradients of weights and bias."""
        xp = array_namespace(weights)
        z = xp.matmul(weights, batch.patches)
        z += bias
        error, back = self._error(z, batch.targets)
        columns = batch.patches.shape[2]
        loss = float(xp.sum(error * error)) / columns if measured else 0.0
        back *= 2.0 / columns
        offset = xp.sum(back, axis=2, keepdims=True) if _tunes_bias(self.config) else None
        return loss, xp.matmul(back, xp.matrix_transpose(batch.patches)), offset

    def _mixed(self, batch: Batch, random: np.random.Generator) -> Batch:
        """Return the inputs, some of them the float model's if asked for."""
        if batch.float_patches is None:
            return batch
        xp = array_namespace(batch.patches)
        chosen = random.random(batch.patches.shape, np.float32) < self.config.drop_ratio
        where = asarray_like(chosen, batch.patches)
        return Batch(xp.where(where, batch.patches, batch.float_patches), batch.targets)

    def _error(self, z: Array, targets: Array) -> tuple[Array, Array]:
        """Return the error of the output, and half its square's gradient at ``z``."""
        y = self.activation.apply(z)
        if self.output is None:
            error = y - targets
            return error, self.activation.back(z, y, error)
        error = self.output.apply(y) - targets
        return error, self.activation.back(z, y, self.output.back(y, error))


def _some(batch: Batch, wanted: int, random: np.random.Generator) -> Batch:
    """Return some neighbouring columns, which are many and alike: a step costs as many."""
    count = batch.patches.shape[2]
    if count <= wanted:
        return batch
    first = int(random.integers(count - wanted + 1))
    part = slice(first, first + wanted)
    other = batch.float_patches
    return Batch(
        batch.patches[:, :, part],
        batch.targets[:, :, part],
        None if other is None else other[:, :, part],
    )


def _concatenated(batches: Sequence[Batch]) -> Batch:
    """Return the columns of several samples as those of one."""
    xp = array_namespace(batches[0].patches)
    return Batch(
        xp.concat([batch.patches for batch in batches], axis=2),
        xp.concat([batch.targets for batch in batches], axis=2),
    )


class _Progress:
    """Says when a tenth of the steps brought nothing; AdaRound goes by its own loss."""

    def __init__(self, config: AdaRound | AdaQuant) -> None:
        self._own = isinstance(config, AdaRound)
        self._window = max(1, config.num_iterations // 10)
        self._from = int(config.warm_start * config.num_iterations) if self._own else 0  # type: ignore[union-attr]
        self._sum, self._count, self._best = 0.0, 0, float("inf")

    @property
    def needs_error(self) -> bool:
        """Whether it needs the output's error of every step."""
        return not self._own

    def ends(self, at: int, loss: float, own: float) -> bool:
        """Whether this step is the last one."""
        if at < self._from:
            return False
        self._sum += own if self._own else loss
        self._count += 1
        if self._count < self._window:
            return False
        mean, self._sum, self._count = self._sum / self._count, 0.0, 0
        if mean >= self._best:
            return True
        self._best = mean
        return False


def _tunes_bias(config: AdaRound | AdaQuant) -> bool:
    # AdaRound's rate is that of its roundings; its bias is set in closed form afterwards.
    return config.update_bias and isinstance(config, AdaQuant)


Rounding = Callable[[Array], Array]
"""Gives the value that a weight becomes by being stored."""


class TunedRows:
    """Rows of float weights that the layer sees rounded."""

    def __init__(self, weight: Array, rounding: Rounding, rate: float) -> None:
        """Start from the float weights."""
        self._weight, self._rounding = weight + 0.0, rounding
        self._adam = Adam(self._weight, rate)

    def weights(self) -> Array:
        """Return the weights, rounded."""
        return self._rounding(self._weight)

    def step(self, gradient: Array, at: int) -> float:
        """Go one step."""
        del at
        self._adam.step(self._weight, gradient)
        return 0.0

    @property
    def settled(self) -> bool:
        """Never: every step moves every weight."""
        return False

    def result(self) -> Array:
        """Return the tuned weights, not rounded."""
        return self._weight


def to_codes(scale: Array, limits: tuple[Array, Array]) -> Rounding:
    """Return the rounding to codes times ``scale`` within ``limits``."""

    def rounding(weight: Array) -> Array:
        xp = array_namespace(weight)
        codes = xp.round(weight / scale)
        codes = xp.minimum(xp.maximum(codes, limits[0]), limits[1])
        codes *= scale
        return codes

    return rounding
