"""Accuracy of both models on labelled samples, and how sure the gap between them is."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import math
import pathlib
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import onnx_ir as ir

from lowbit.errors import ConfigError, DataError
from lowbit.evaluate.labels import Label
from lowbit.evaluate.runner import Outputs, Run, output_names, run_model
from lowbit.graph.session import Feed
from lowbit.numerics.intervals import (
    TAIL,
    Interval,
    interval_of_mean,
    interval_of_share,
    normal_quantile,
    student_quantile,
)

_GROUPS = 20


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of merit of both models on labelled samples, and how sure the gap is.

    ``gap`` is float less quantized; ``low`` and ``high`` are its 95 % interval, paired by sample.
    ``samples_needed`` would narrow that interval to the tolerance on either side.
    """

    name: str
    unit: str
    samples: int
    float_score: float
    quantized_score: float
    fused_score: float | None
    gap: float
    low: float
    high: float
    tolerance: float
    samples_needed: int


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """A difference, its interval of 95 %, and the variance a single sample adds to it."""

    value: float
    low: float
    high: float
    variance: float

    def samples_needed(self, tolerance: float) -> int:
        """Return how many samples would know the gap to within the tolerance."""
        return max(2, math.ceil(self.variance * (normal_quantile(TAIL) / tolerance) ** 2))


def gap_of_hits(
    float_hits: Sequence[bool], quantized_hits: Sequence[bool], tail: float = TAIL
) -> Gap:
    """Return the gap of two shares of hits, as shares.

    The interval of Bonett and Price (2012) for paired proportions: a hit lost and a hit won are
    added to those seen, so that it holds for few samples, too.
    """
    count = len(float_hits)
    pairs = list(zip(float_hits, quantized_hits, strict=True))
    lost = sum(a and not b for a, b in pairs)
    won = sum(b and not a for a, b in pairs)
    p, q = (lost + 1) / (count + 2), (won + 1) / (count + 2)
    variance = p + q - (p - q) ** 2
    half = normal_quantile(tail) * math.sqrt(variance / (count + 2))
    return Gap((lost - won) / count, max(-1.0, p - q - half), min(1.0, p - q + half), variance)


def gap_of_scores(
    float_scores: Sequence[float], quantized_scores: Sequence[float], tail: float = TAIL
) -> Gap:
    """Return the gap of two means, with Student's interval of the paired differences."""
    differences = [a - b for a, b in zip(float_scores, quantized_scores, strict=True)]
    mean = statistics.fmean(differences)
    if len(differences) < 2:
        return Gap(mean, -math.inf, math.inf, math.inf)
    variance = statistics.variance(differences)
    half = student_quantile(len(differences) - 1, tail) * math.sqrt(variance / len(differences))
    return Gap(mean, mean - half, mean + half, variance)


def gap_of_sets(
    float_items: Sequence[Any],
    quantized_items: Sequence[Any],
    summarize: Callable[[Sequence[Any]], float],
    tail: float = TAIL,
) -> Gap:
    """Return the gap of a figure of a whole set, such as a mean average precision."""

    def gap(kept: Sequence[int]) -> float:
        whole = summarize([float_items[i] for i in kept])
        return whole - summarize([quantized_items[i] for i in kept])

    return _jackknife(len(float_items), gap, tail)


def _jackknife(count: int, figure: Callable[[Sequence[int]], float], tail: float) -> Gap:
    """Return a figure over ``count`` samples, with a jackknife interval over twenty groups."""
    whole = figure(range(count))
    groups = min(_GROUPS, count)
    if groups < 2:
        return Gap(whole, -math.inf, math.inf, math.inf)
    rest = [figure([i for i in range(count) if i % groups != group]) for group in range(groups)]
    error = (groups - 1) * statistics.pvariance(rest)
    half = student_quantile(groups - 1, tail) * math.sqrt(error)
    return Gap(whole, whole - half, whole + half, error * count)


Metric = Callable[[Outputs, Label], Any]
_KINDS = ("float", "quantized", "fused")
_PERCENT = 100.0
# Of fewer samples a fair model may get as few right as chance does.
_FEWEST_DOUBTED = 16


class Scorer(Protocol):
    """Sees the outputs of the models for each sample in turn, then gives figures."""

    def add(self, runs: Sequence[Outputs | None], label: Label) -> None:
        """Take what the float, the quantized and the fused model give for one sample."""

    def figures(self, tolerance: float, tail: float = TAIL) -> tuple[Accuracy, ...]:
        """Return the figures; the tolerance is in their unit, ``tail`` says how sure the gaps are."""

    def scores(self, tail: float = TAIL) -> Mapping[str, Interval]:
        """Return the quantized model's own figures, by name."""

    def doubts(self) -> tuple[str, ...]:
        """Return what is odd about the float model's figures, in words."""


class TopScorer:
    """How often the right class is the first, and among the first five."""

    def __init__(self) -> None:
        self._ranks: dict[str, list[int]] = {kind: [] for kind in _KINDS}
        self._classes = 0

    def add(self, runs: Sequence[Outputs | None], label: Label) -> None:
        """Take the outputs of one sample."""
        for kind, outputs in zip(_KINDS, runs, strict=True):
            if outputs is not None:
                self._ranks[kind].append(self._rank(outputs, label))

    def _rank(self, outputs: Outputs, label: Label) -> int:
        name, scores = next(iter(outputs.items()))
        if scores.shape[0] != 1 and scores.ndim > 1:
            raise DataError(
                f"output {name!r} holds {scores.shape[0]} samples at a time; top-1 needs a model of "
                "batch 1, or a --metric"
            )
        flat = scores.reshape(-1)
        if not isinstance(label, int) or not 0 <= label < flat.size:
            raise DataError(
                f"label {label!r} is no class of output {name!r}, which has {flat.size} of them "
                "(0 is the first); give a --metric for other labels"
            )
        self._classes = flat.size
        # Of equal scores the first wins, as with argmax: rounded outputs do have equal ones.
        ahead = np.count_nonzero(flat > flat[label]) + np.count_nonzero(flat[:label] == flat[label])
        return int(ahead)

    @property
    def _tops(self) -> tuple[int, ...]:
        return (1, 5) if self._classes > 5 else (1,)

    def doubts(self) -> tuple[str, ...]:
        """Doubt the labels where the float model is no better than chance."""
        ranks = self._ranks["float"]
        count, hits = len(ranks), ranks.count(0)
        chance = 1 / max(1, self._classes)
        sure = interval_of_share([float(rank == 0) for rank in ranks]).low
        if count < _FEWEST_DOUBTED or sure > chance:
            return ()
        note = (
            f"the float model itself is right on {hits} of {count} samples, and chance on {chance * count:.1f}: are the "
            "labels in the order of the data and counted from 0, and are inputs preprocessed as in training?"
        )
        return (note,)

    def scores(self, tail: float = TAIL) -> Mapping[str, Interval]:
        """Return the share of hits in percent, with its interval."""
        ranks, tops = self._ranks["quantized"], self._tops
        shares = [interval_of_share([float(rank < top) for rank in ranks], tail) for top in tops]
        return {f"top{top}": share.times(_PERCENT) for top, share in zip(tops, shares, strict=True)}

    def figures(self, tolerance: float, tail: float = TAIL) -> tuple[Accuracy, ...]:
        """Return top-1, and top-5 where there are more than five classes."""
        ranks = self._ranks
        found = []
        for top in self._tops:
            hits = {kind: [rank < top for rank in ranks[kind]] for kind in _KINDS}
            gap = gap_of_hits(hits["float"], hits["quantized"], tail)
            means = {k: float(np.mean(v)) * _PERCENT for k, v in hits.items() if v}
            found.append(_accuracy(f"top{top}", "%", gap, means, len(ranks["float"]), tolerance))
        return tuple(found)


class MetricScorer:
    """A function of the user's: ``metric(outputs, label)`` gives a number for each sample.

    If it has an attribute ``summarize``, it may give anything, and ``summarize`` of a list of these
    gives the number for a whole set, such as a mean average precision.
    """

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._name = getattr(metric, "__name__", "metric")
        self._items: dict[str, list[Any]] = {kind: [] for kind in _KINDS}

    def add(self, runs: Sequence[Outputs | None], label: Label) -> None:
        """Take the outputs of one sample."""
        for kind, outputs in zip(_KINDS, runs, strict=True):
            if outputs is not None:
                self._items[kind].append(self._metric(outputs, label))

    def doubts(self) -> tuple[str, ...]:
        """Return nothing: what a metric gives by chance is not known."""
        return ()

    def scores(self, tail: float = TAIL) -> Mapping[str, Interval]:
        """Return the metric of the quantized model, with its interval."""
        items = self._items["quantized"]
        summarize = getattr(self._metric, "summarize", None)
        if summarize is None:
            return {self._name: interval_of_mean([self._number(v) for v in items], tail)}
        found = _jackknife(
            len(items), lambda kept: float(summarize([items[i] for i in kept])), tail
        )
        return {self._name: Interval(found.value, found.low, found.high)}

    def figures(self, tolerance: float, tail: float = TAIL) -> tuple[Accuracy, ...]:
        """Return the metric."""
        items = self._items
        summarize = getattr(self._metric, "summarize", None)
        if summarize is not None:
            gap = gap_of_sets(items["float"], items["quantized"], summarize, tail)
            means = {kind: float(summarize(found)) for kind, found in items.items() if found}
        else:
            numbers = {kind: [self._number(v) for v in found] for kind, found in items.items()}
            gap = gap_of_scores(numbers["float"], numbers["quantized"], tail)
            means = {kind: float(np.mean(found)) for kind, found in numbers.items() if found}
        return (_accuracy(self._name, "", gap, means, len(items["float"]), tolerance),)

    def _number(self, value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"metric {self._name} gives {type(value).__name__} for a sample, expected a number; "
                "if it is for a whole set, give the function an attribute summarize"
            ) from error


def find_metric(name: str) -> Metric:
    """Return the function that ``module:function`` names; modules in the working directory are found, too."""
    module, _, function = name.partition(":")
    if not function:
        raise ConfigError(f"metric {name!r} is not of the form module:function")
    here = str(pathlib.Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module.removesuffix(".py")), function)
    except ImportError as error:
        raise ConfigError(f"the metric's module {module!r} cannot be imported: {error}") from error
    except AttributeError as error:
        raise ConfigError(f"module {module!r} has no function {function!r}") from error
    if not callable(found):
        raise ConfigError(f"{name} is a {type(found).__name__}, not a function")
    metric: Metric = found
    return metric


def _accuracy(
    name: str, unit: str, gap: Gap, means: Mapping[str, float], count: int, tolerance: float
) -> Accuracy:
    factor = _PERCENT if unit == "%" else 1.0
    known = gap.variance < float("inf")
    return Accuracy(
        name=name,
        unit=unit,
        samples=count,
        float_score=means["float"],
        quantized_score=means["quantized"],
        fused_score=means.get("fused"),
        gap=gap.value * factor,
        low=gap.low * factor,
        high=gap.high * factor,
        tolerance=tolerance,
        samples_needed=gap.samples_needed(tolerance / factor) if known else 0,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class LabelledSamples:
    """Samples with labels, and the float model's scores on them: it is run once for any number of others."""

    feeds: Iterable[Feed]
    labels: Sequence[Label]
    scores: Scorer

    @classmethod
    def of(
        cls, model: ir.Model, feeds: Iterable[Feed], labels: Sequence[Label], scorer: Scorer
    ) -> LabelledSamples:
        """Run the float model; ``feeds`` can be gone through any number of times."""
        run = Run.float_model(model)
        for outputs, label in zip(run_model(run, feeds), labels, strict=True):
            scorer.add([outputs, None, None], label)
        return cls(feeds, labels, scorer)

    def accuracy(self, quantized: ir.Model, tolerance: float = 1.0) -> tuple[Accuracy, ...]:
        """Return the accuracy of a quantized model, with exact integer semantics, and of the float model."""
        scorer = copy.deepcopy(self.scores)
        run = Run.quantized_model(quantized, output_names(quantized))
        for outputs, label in zip(run_model(run, self.feeds), self.labels, strict=True):
            scorer.add([None, outputs, None], label)
        return scorer.figures(tolerance)
