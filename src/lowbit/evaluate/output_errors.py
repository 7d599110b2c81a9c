"""The errors of a quantized model's outputs, added up over samples, and the verdict that follows from them."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from lowbit.evaluate.figures import BEST_CLASS, LEVELS, Figure, Level, figure_of
from lowbit.evaluate.output_kinds import MeasuredOutput, is_near_zero
from lowbit.evaluate.perplexity import PerplexitySums
from lowbit.evaluate.runner import Outputs
from lowbit.evaluate.verdict import OutputVerdict, Verdict
from lowbit.graph.session import Array, Feed
from lowbit.numerics.formats import DoubleArray
from lowbit.numerics.intervals import (
    ONE_ERROR,
    TAIL,
    Interval,
    error_of_sqnr,
    half_interval,
    interval_of_mean,
    interval_of_share,
    interval_of_sqnr,
)
from lowbit.numerics.metrics import SignalNoise, binary_divergence, divergence

# Positions of a map of classes that are looked at; more say nothing new.
_POSITIONS = 4096
_LEAST_PROBABILITY = 1e-6
# In nats.
_FARTHEST = 100.0
# Fewer classes, or fewer samples, may well agree.
_MANY_CLASSES, _ENOUGH_SAMPLES, _NEARLY_ALL = 10, 16, 0.9
# Logits of this SQNR are usable, whatever their divergence on few samples.
_LOGITS_DB = 10.0
# How likely the truth may lie beyond one end of the interval where more samples are not run: an interval of
# 99.8 %, as it is asked more than once, and errors have longer tails than Student's distribution.
_CERTAIN_TAIL = 0.001


class OutputErrors:
    """The figures of all measured outputs, added up over samples."""

    def __init__(self, measured: Sequence[MeasuredOutput], paired: Mapping[str, str]) -> None:
        """Begin; ``paired`` says what tensors are called in the quantized model."""
        self._measured = measured
        self._paired = paired
        self._errors: list[list[SignalNoise]] = [[] for _ in measured]
        self._values: list[list[float]] = [[] for _ in measured]
        self._agreement: list[list[float]] = [[] for _ in measured]
        self._perplexity = [PerplexitySums() for _ in measured]
        self._best: list[list[int]] = [[] for _ in measured]
        self._decisions: list[list[float]] = [[] for _ in measured]
        self._largest = [0.0 for _ in measured]
        self._resized = [0 for _ in measured]
        self._samples = 0

    def add(self, want: Outputs, got: Outputs, feed: Feed | None = None) -> None:
        """Add one sample; ``feed`` is what it was, whose tokens language models predict."""
        self._samples += 1
        for index, row in enumerate(self._measured):
            a, b = want.get(row.tensor), got.get(self._paired.get(row.tensor, row.tensor))
            if a is not None and (b is None or a.shape != b.shape):
                self._resized[index] += 1
                continue
            if a is None or b is None or not a.size:
                continue
            part = row.of(a, want)
            if part.size:  # channels that this sample has
                self._add(index, row, part, row.of(b, want))
            if feed is not None and row.kind == "classes" and row.logits:
                self._perplexity[index].add(feed, a, b)

    def _add(self, index: int, row: MeasuredOutput, a: Array, b: Array) -> None:
        if a.dtype.kind != "f":
            self._values[index].append(float(np.mean(a == b)))
            return
        self._largest[index] = max(self._largest[index], float(np.abs(a).max()))
        p, q = (_rows(x, row) for x in (a, b)) if row.kind == "classes" else (a, b)
        found = SignalNoise.of(p, q)
        self._errors[index].append(found)
        match row.kind:
            case "classes":
                self._values[index].append(_mean_divergence(p, q))
                same = p.argmax(axis=-1) == q.argmax(axis=-1)
                self._agreement[index].append(float(np.mean(same)))
                if len(p) == 1 or a.ndim == 2:  # not a sequence or a map
                    self._decisions[index].append(float(np.mean(same)))
                if len(p) == 1 and p.shape[-1] >= _MANY_CLASSES:
                    self._best[index].append(int(p.argmax()))
            case "labels":
                self._values[index].append(float(np.mean(binary_divergence(a, b))))
                same = (a > 0) == (b > 0)
                self._agreement[index].append(float(np.mean(same)))
                self._decisions[index].append(float(np.mean(same)))
            case "embedding":
                self._values[index].append(found.cosine)
            case _ if found.signal > 0:
                self._values[index].append(float(np.clip(found.sqnr_db, -20, 120)))

    def intervals(self, figure: str, tail: float = TAIL) -> dict[MeasuredOutput, Interval]:
        """Return a figure of ``GOALS`` of each output that has it, with its interval."""
        found: dict[MeasuredOutput, Interval] = {}
        for index, row in enumerate(self._measured):
            known = self._interval(index, row, figure, tail)
            if known is not None and not self._is_near_zero(index):
                found[row] = known
        return found

    def _is_near_zero(self, index: int) -> bool:
        """Whether these channels of an output are near zero in all samples."""
        tensor = self._measured[index].tensor
        siblings = [
            n for row, n in zip(self._measured, self._largest, strict=True) if row.tensor == tensor
        ]
        return bool(self._errors[index]) and is_near_zero(self._largest[index], max(siblings))

    def _interval(
        self, index: int, row: MeasuredOutput, figure: str, tail: float
    ) -> Interval | None:
        errors, agreement = self._errors[index], self._agreement[index]
        is_divergence = row.kind in ("classes", "labels") and bool(errors)
        match figure:
            case "sqnr" if errors:
                return interval_of_sqnr(errors, tail)
            case "cosine" if errors:
                return interval_of_mean([error.cosine for error in errors], tail)
            case "kl" if is_divergence:
                return interval_of_mean(self._values[index], tail)
            case "agreement" if agreement:
                return interval_of_share(agreement, tail)
            case "agreement" if not errors and self._values[index]:
                return interval_of_share(self._values[index], tail)
        return None

    def noise_shares(self) -> list[float]:
        """Return which share of the noise each sample has, of the output where that is most."""
        whole = [rows for rows in self._errors if len(rows) == self._samples]
        noises = [
            [row.noise if math.isfinite(row.noise) else 1e30 for row in rows] for rows in whole
        ]
        shares = [[noise / (sum(row) or 1.0) for noise in row] for row in noises]
        return [max(column) for column in zip(*shares, strict=True)]

    def is_certain(self, total: int) -> bool:
        """Whether the rest of ``total`` samples would hardly change the level of any output.

        The level is then the same at both ends of a wide interval around what all of them will give. Scores are
        never certain: one sample with a rare object may hold most of their noise, and a few do not show it.
        """
        telling = self._telling()
        if not telling or any(self._measured[index].kind == "scores" for index in telling):
            return False
        return all(
            figure.level(found.low) == figure.level(found.high)
            for index in telling
            for figure, found in self._wide_intervals(index, total)
        )

    def _wide_intervals(self, index: int, total: int) -> Iterator[tuple[Figure, Interval]]:
        """Yield what the level of an output rests on, as it will be on ``total`` samples."""
        figure, values, tail = figure_of(self._measured[index]), self._values[index], _CERTAIN_TAIL
        if figure.unit == "dB":
            yield figure, interval_of_sqnr(self._errors[index], tail).with_all(len(values), total)
        elif self._errors[index]:
            yield figure, interval_of_mean(values, tail).with_all(len(values), total)
        else:
            yield figure, interval_of_share(values, tail)
        if self._decisions[index]:
            yield BEST_CLASS, interval_of_share(self._decisions[index], tail)

    def _telling(self) -> list[int]:
        return [i for i, v in enumerate(self._values) if v and not self._is_near_zero(i)]

    def verdict(self, *, held_out: bool | None) -> Verdict | None:
        """Return the verdict; ``None`` if no output can be measured."""
        telling = self._telling()
        rows = [self._row(i) for i in telling]
        if not rows:
            return None
        level = max((row.level for row in rows), key=LEVELS.index)
        counts = zip(self._measured, self._resized, strict=True)
        return Verdict(
            level=level,
            outputs=tuple(rows),
            samples=self._samples,
            held_out=held_out,
            resized=tuple((row.name, count) for row, count in counts if count),
        )

    def _row(self, index: int) -> OutputVerdict:
        measured, values = self._measured[index], np.array(self._values[index])
        figure = figure_of(measured)
        sums = functools.reduce(operator.or_, self._errors[index], SignalNoise())
        is_ratio = figure.unit == "dB"
        # Of all samples together, so that one without any signal does not decide.
        value = sums.sqnr_db if is_ratio else float(values.mean())
        error = error_of_sqnr(self._errors[index]) if is_ratio else _standard_error(values)
        worst, best = figure.range(value, half_interval(error, len(values)))
        agreement, decisions = self._agreement[index], self._decisions[index]
        levels = figure.sure_level(value, error), _level_of_decisions(decisions)
        return OutputVerdict(
            output=measured.name,
            kind=measured.kind,
            figure=figure.name,
            unit=figure.unit,
            value=value,
            standard_error=error,
            level=max(levels, key=LEVELS.index),
            samples=len(values),
            sqnr_db=sums.sqnr_db,
            margin_db=min(_margin(figure, value, sums, measured), _margin_of_decisions(decisions)),
            error_db=figure.error_db(value, error),
            worst_level=max(worst, levels[1], key=LEVELS.index),
            best_level=max(best, levels[1], key=LEVELS.index),
            agreement=float(np.mean(agreement)) if agreement else None,
            agreement_decides=LEVELS.index(levels[1]) > LEVELS.index(levels[0]),
            perplexity=self._perplexity[index].result(),
            one_class=_one_class(self._best[index]),
        )


def _mean_divergence(p: DoubleArray, q: DoubleArray) -> float:
    """Return the mean divergence of rows; logits that are not finite are as far off as can be."""
    mean = float(np.mean(divergence(p, q)))
    return _FARTHEST if math.isnan(mean) else mean


def _one_class(best: Sequence[int]) -> int | None:
    """Return the class of nearly all samples, if they are enough to wonder at it."""
    if len(best) < _ENOUGH_SAMPLES:
        return None
    commonest = max(set(best), key=best.count)
    return commonest if best.count(commonest) >= _NEARLY_ALL * len(best) else None


def _margin(figure: Figure, value: float, sums: SignalNoise, measured: MeasuredOutput) -> float:
    """Return the margin of an output; of logits also by their noise.

    A model that is sure of itself has no divergence on most samples, and then much on one.
    """
    margin = figure.margin_db(value)
    is_logits = measured.logits or measured.kind == "classes"
    return min(margin, sums.sqnr_db - _LOGITS_DB) if is_logits else margin


def _level_of_decisions(same: Sequence[float]) -> Level:
    """Return the level of how often decisions are the same; only one that is so for certain is ruined.

    A few samples decide nothing.
    """
    if len(same) < _ENOUGH_SAMPLES:
        return LEVELS[0]
    # The level of an agreement one standard error better, since a few samples near a tie change it much.
    level = BEST_CLASS.level(interval_of_share(same, ONE_ERROR).high)
    is_sure = BEST_CLASS.level(interval_of_share(same).high) == "ruined"
    return "poor" if level == "ruined" and not is_sure else level


def _margin_of_decisions(same: Sequence[float]) -> float:
    """Return the same in decibels of noise, whose amplitude decisions that differ grow with."""
    if len(same) < _ENOUGH_SAMPLES:
        return math.inf
    return 2 * BEST_CLASS.margin_db(interval_of_share(same, ONE_ERROR).high)


def _standard_error(values: DoubleArray) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _rows(array: Array, row: MeasuredOutput) -> DoubleArray:
    """Return logits with the classes last, at a bounded number of positions."""
    moved = np.moveaxis(np.asarray(array, np.float64), row.axis, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    if len(rows) > _POSITIONS:
        rows = rows[:: -(-len(rows) // _POSITIONS)]
    rows = rows if row.logits else np.log(np.maximum(rows, _LEAST_PROBABILITY))
    # A constant added to all logits changes nothing.
    with np.errstate(invalid="ignore"):
        return np.asarray(rows - rows.mean(axis=-1, keepdims=True))
