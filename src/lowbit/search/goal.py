"""Goals: a figure and a limit that a quantized model is to meet, surely, on samples nothing else saw."""

from __future__ import annotations

import dataclasses

from lowbit.errors import ConfigError
from lowbit.evaluate.accuracy import Metric
from lowbit.evaluate.conditions import Condition, read_condition
from lowbit.evaluate.figures import GOALS
from lowbit.numerics.intervals import Interval

_DROP = "drop"
_EXAMPLE = "drop<=0.5 or sqnr>=25"


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """The goal that the quantized model has to reach.

    Attributes:
        text: A figure, a comparison and a number. ``drop`` is what accuracy loses against float, in
            points of top-1 (or of the metric); ``top1``, ``top5`` and their ``_drop`` need labels, too;
            ``sqnr``, ``kl``, ``cosine`` and ``agreement`` need none, and are of the worst output.
        metric: A function of one's own, ``metric(outputs, label)``, as for ``lowbit.compare``: a number
            for each sample, the higher the better. ``drop`` and its name are then figures of it.
        confidence: How sure it has to be, on samples not used for the search.
    """

    text: str
    metric: Metric | None = None
    confidence: float = 0.95

    def __post_init__(self) -> None:
        """Raise for what cannot be a goal."""
        condition = self.condition
        if not 0.5 <= self.confidence < 1:
            raise ConfigError(
                f"goal {self.text!r} asks for a confidence of {self.confidence:g}; expected 0.5 to 1"
            )
        if condition.is_lower_limit != self._higher_is_better:
            sign = ">=" if self._higher_is_better else "<="
            raise ConfigError(
                f"goal {self.text!r} asks for a worse model: expected {self.figure}{sign}NUMBER"
            )
        if self.figure in ("agreement", "cosine") and not 0 < condition.limit <= 1:
            raise ConfigError(
                f"goal {self.text!r}: {self.figure} is at most 1; write {self.figure}>=0.98 or 98%"
            )

    @property
    def condition(self) -> Condition:
        """The condition; percentages become shares of 1."""
        found = read_condition(self.text, "goal", _EXAMPLE)
        known = (*GOALS, *self._accuracies)
        if found.figure not in known:
            raise ConfigError(
                f"goal {self.text!r} names {found.figure!r}; expected one of {', '.join(known)}"
            )
        if found.percent and found.figure in GOALS:
            return dataclasses.replace(found, limit=found.limit / 100)
        return found

    @property
    def figure(self) -> str:
        """The figure that it names."""
        return self.condition.figure

    def is_met_by(self, found: Interval) -> bool:
        """Whether it holds surely: at the worse end of an interval."""
        return self.condition.holds(self.worse_end(found))

    def worse_end(self, found: Interval) -> float:
        """Return the end of an interval that is further from the goal."""
        return found.low if self.condition.is_lower_limit else found.high

    @property
    def is_of_accuracy(self) -> bool:
        """Whether labels or a metric say how good the model is, not the float model's outputs."""
        return self.figure not in GOALS

    @property
    def needs_labels(self) -> bool:
        """Whether it cannot be measured without labels."""
        return self.is_of_accuracy and self.metric is None

    @property
    def is_drop(self) -> bool:
        """Whether it is the loss against the float model."""
        return self.figure == _DROP or self.figure.endswith(f"_{_DROP}")

    @property
    def scored(self) -> str:
        """The name of the accuracy that it is about."""
        name = self.figure.removesuffix(_DROP).removesuffix("_")
        return name or self._accuracies[-1]

    @property
    def _accuracies(self) -> tuple[str, ...]:
        names: tuple[str, ...] = ("top1", "top5")
        if self.metric is not None:
            names = (getattr(self.metric, "__name__", "metric"),)
        # The last is what ``drop`` alone is of.
        return (_DROP, *(f"{name}_{_DROP}" for name in names), *reversed(names))

    @property
    def _higher_is_better(self) -> bool:
        if self.is_of_accuracy:
            return not self.is_drop
        return GOALS[self.figure].higher_is_better


_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def read_budget(text: str | float) -> float:
    """Return the seconds of a budget: ``90``, ``45s``, ``20m``, ``1.5h``."""
    words = str(text).strip().lower()
    unit = words.lstrip("0123456789.")
    try:
        seconds = float(words.removesuffix(unit)) * (_UNITS[unit] if unit else 1.0)
    except (ValueError, KeyError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"budget {text!r} is not a time above zero, such as 45s, 20m or 1.5h")
    return seconds
