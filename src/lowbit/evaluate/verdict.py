"""The verdict on a quantized model: good, usable, poor or ruined, by the figure that fits each output."""

from __future__ import annotations

import math

import msgspec

from lowbit.evaluate.figures import LEVELS, Level, with_error
from lowbit.evaluate.output_kinds import Kind
from lowbit.evaluate.perplexity import Perplexity
from lowbit.numerics.intervals import half_interval

_USABLE = LEVELS[:2]
# Fewer say little: of what is wrong in one sample of ten, seven hold nothing half of the time.
_FEW_SAMPLES = 8


class OutputVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """How good one output is.

    ``value`` is its figure, of so many ``samples``, ``agreement`` how often the best class is the float model's, and
    ``margin_db`` how far the noise is below what is usable, known to ``error_db``. ``worst_level`` and
    ``best_level`` are those at the ends of the figure's 95 % interval. ``agreement_decides``: the level
    is that of the agreement, which is worse than the figure's. ``perplexity`` is that of a
    language model, ``one_class`` the class that the float model gives for nearly every sample, where it
    does.
    """

    output: str
    kind: Kind
    figure: str
    unit: str
    value: float
    standard_error: float
    level: Level
    samples: int = 0
    sqnr_db: float
    margin_db: float
    error_db: float = 0.0
    worst_level: Level
    best_level: Level
    agreement: float | None = None
    agreement_decides: bool = False
    perplexity: Perplexity | None = None
    one_class: int | None = None

    def describe(self) -> str:
        """Return it in words: ``logits: KL divergence 0.043 ± 0.004, same best class in 97 %``."""
        text = f"{self.output}: {self.figure} {self._value_with_error()}"
        if self.agreement is not None:
            only = "only " if self.agreement_decides else ""
            text += f", same best class in {only}{self.agreement:.0%}"
        if self.perplexity is not None:
            text += f", {self.perplexity.describe()}"
        return text

    def _value_with_error(self) -> str:
        """Return the figure with its standard error; with the interval where samples are few.

        The standard error of two samples is itself hardly known: their 95 % interval is six times wider than
        it would be with many.
        """
        if not 1 < self.samples < _FEW_SAMPLES:
            return with_error(self.value, self.standard_error, self.unit)
        half = half_interval(self.standard_error, self.samples)
        text = with_error(self.value, half, self.unit)
        return f"{text} (95 %)" if math.isfinite(half) and half > 0 else text


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How good a quantized model is; its worst output decides.

    ``held_out``: whether the samples were held out of calibration; ``None`` if that is not known.
    ``fused``: it is that of a default onnxruntime session here, whose kernels make the model worse.
    ``resized``: outputs that have another size than the float model's, with the number of samples where they have,
    which are not compared.
    """

    level: Level
    outputs: tuple[OutputVerdict, ...]
    samples: int
    held_out: bool | None = True
    fused: bool = False
    resized: tuple[tuple[str, int], ...] = ()

    @property
    def worst(self) -> OutputVerdict:
        """The output that decides."""
        return min(self.outputs, key=lambda row: row.margin_db)

    @property
    def margin_db(self) -> float:
        """How many decibels of noise are left until it is no longer usable."""
        return self.worst.margin_db

    @property
    def safe_margin_db(self) -> float:
        """The same if every figure is worse by its standard error."""
        return min(row.margin_db - row.error_db for row in self.outputs)

    @property
    def is_usable(self) -> bool:
        """Whether it is good or usable."""
        return self.level in _USABLE

    @property
    def doubt(self) -> str:
        """Words for what these samples leave open; none if they are enough."""
        worst, best = (
            max((getattr(row, end) for row in self.outputs), key=LEVELS.index)
            for end in ("worst_level", "best_level")
        )
        matters = (worst in _USABLE) != (best in _USABLE) or "ruined" in (worst, best)
        more = "give more" if self.held_out is None else "--verify more"
        if worst == best or not matters:
            says_little = self.samples < _FEW_SAMPLES and self.level != "ruined"
            return f"; so few samples say little ({more})" if says_little else ""
        return f"; so few samples leave open whether it is {best} or {worst} ({more})"

    def doubts_of_inputs(self) -> tuple[str, ...]:
        """Doubt the inputs where the float model itself sees one class in nearly all of them."""
        return tuple(
            f"the float model itself gives class {row.one_class} for nearly every sample ({row.output}): are "
            "inputs preprocessed as in its training (--preprocess, --mean, --std, --scale, --channel-order)?"
            for row in self.outputs
            if row.one_class is not None
        )

    def doubts_of_sizes(self) -> tuple[str, ...]:
        """Doubt the figures of outputs that have another size than the float model's in some samples."""
        return tuple(
            f"{output} has another size than the float model's in {count} of {self.samples} samples, which are not "
            "compared"
            for output, count in self.resized
        )

    def describe(self) -> str:
        """Return it in words, with the number it rests on."""
        where = "sample" if self.samples == 1 else "samples"
        if self.held_out is not None:
            where = f"{'held-out' if self.held_out else 'calibration'} {where}"
        how = " through this processor's fused kernels" if self.fused else ""
        return f"{self.worst.describe()}, on {self.samples} {where}{how}{self.doubt}"
