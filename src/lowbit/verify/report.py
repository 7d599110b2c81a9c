"""What a run did, what it cost in accuracy, and how long it took."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from lowbit.numerics.metrics import Closeness
from lowbit.plan.plan import FloatNode
from lowbit.resolve.params import Adjustment
from lowbit.verify.findings import Accuracy, Budget, Latency, TensorView


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How close one tensor of the quantized model is to the float one."""

    tensor: str
    snr_db: float
    cosine: float
    max_error: float

    @classmethod
    def of(cls, tensor: str, closeness: Closeness) -> Score:
        """Return the figures of a closeness."""
        return cls(
            tensor=tensor,
            snr_db=closeness.snr_db,
            cosine=closeness.cosine,
            max_error=closeness.max_error,
        )


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step that may help or harm, and what it did on samples held out of calibration.

    ``before`` and ``after`` are the error of the outputs, relative to their power; ``note`` says
    what the step did, or why it was dropped.
    """

    name: str
    before: float
    after: float
    kept: bool
    note: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run; ``outputs`` are against the model as it was loaded.

    ``parts`` are runs of channels of outputs that mix values of unlike size; ``fused`` are the
    outputs through onnxruntime's int8 kernels, where all else is exact.
    """

    preset: str
    target: str
    version: str
    data: str
    calibration_samples: int
    verification_samples: int
    held_out: bool
    outputs: tuple[Score, ...]
    layers: tuple[Score, ...] = ()
    quantized: dict[str, int] = {}
    float_nodes: tuple[FloatNode, ...] = ()
    adjustments: tuple[Adjustment, ...] = ()
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()
    size_before: int = 0
    size_after: int = 0
    seconds: dict[str, float] = {}
    parts: tuple[Score, ...] = ()
    fused: tuple[Score, ...] = ()
    accuracy: tuple[Accuracy, ...] = ()
    budget: Budget | None = None
    latency: Latency | None = None
    tensors: tuple[TensorView, ...] = ()

    @property
    def snr_db(self) -> float:
        """The signal-to-noise ratio of the worst output."""
        return min((score.snr_db for score in self.outputs), default=math.nan)

    @property
    def worst_part_db(self) -> float:
        """The same, where an output mixes values of unlike size that of its worst part."""
        return min((score.snr_db for score in (*self.outputs, *self.parts)), default=math.nan)

    def worst_layers(self, count: int = 5) -> tuple[Score, ...]:
        """Return the layers with the lowest signal-to-noise ratio."""
        return tuple(sorted(self.layers, key=lambda score: score.snr_db)[:count])

    def steepest_drops(self, count: int = 5) -> tuple[Score, ...]:
        """Return the layers at which the signal-to-noise ratio falls most from the one before."""
        falls = [
            (_fall(before, after), after)
            for before, after in zip(self.layers, self.layers[1:], strict=False)
        ]
        steep = sorted((f for f in falls if f[0] > 0), key=lambda pair: -pair[0])
        return tuple(score for _, score in steep[:count])

    def to_json(self) -> bytes:
        """Return the report as JSON; an infinite ratio is null."""
        return msgspec.json.encode(_finite(msgspec.to_builtins(self)))


def _fall(before: Score, after: Score) -> float:
    """Return by how much the ratio falls; 0 where both are exact."""
    if before.snr_db == after.snr_db:
        return 0.0
    return before.snr_db - after.snr_db


def scores(closenesses: dict[str, Closeness]) -> tuple[Score, ...]:
    """Return the figures of many tensors, in their order."""
    return tuple(Score.of(name, closeness) for name, closeness in closenesses.items())


def count_formats(formats: Iterable[str]) -> dict[str, int]:
    """Return how often each word comes."""
    counts: dict[str, int] = {}
    for word in formats:
        counts[word] = counts.get(word, 0) + 1
    return counts


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
