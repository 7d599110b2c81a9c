"""Candidates of a search: models that differ from one in a few layers, built and measured.

What a candidate shares with the base is found once: scales and stored weights of the other layers, and
the values of all tensors before the first layer that differs. Only the rest of it is run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lowbit.config.config import QuantConfig
from lowbit.evaluate.runner import ReferenceSample
from lowbit.graph.differences import Advancing, frontier
from lowbit.graph.session import Array
from lowbit.graph.submodels import extracted_session
from lowbit.numerics.metrics import Metric
from lowbit.pipeline import stages
from lowbit.pipeline.pipeline import Clock, Pipeline, ignore_progress
from lowbit.scales.solutions import Solutions
from lowbit.state import Calibrated, Prepared, Quantized, extended

_ROOM_FOR_WEIGHTS = 256 << 20


@dataclasses.dataclass(frozen=True)
class Setting:
    """What candidates are measured on: a value that other processes can have.

    ``output`` is what ``metric`` compares, on the ``samples``.
    """

    base: Calibrated
    output: str
    samples: Sequence[ReferenceSample]
    metric: Metric


class Candidates:
    """The candidates of one setting; those measured in the order of their layers cost least."""

    def __init__(self, setting: Setting) -> None:
        """Build nothing yet."""
        self._setting = setting
        self._known = Solutions(_ROOM_FOR_WEIGHTS)
        self._pipeline = Pipeline(Clock(ignore_progress))
        self._base: Quantized | None = None
        self._values: Advancing | None = None

    def built(self, config: QuantConfig) -> Quantized:
        """Return the candidate of a configuration."""
        base = self._setting.base
        planned = stages.plan(extended(base, Prepared, config=config))
        return self._pipeline.finish(stages.with_stats(planned, base.stats), self._known)

    def score(self, config: QuantConfig) -> float:
        """Return how far the output of a candidate is from the float reference."""
        setting, model = self._setting, self.built(config).emitted.model
        if self._base is None or self._values is None:
            self._base = self._pipeline.finish(setting.base, self._known)
            feeds = (sample.feed for sample in setting.samples)
            self._values = Advancing(self._base.emitted.model, feeds)
        names = frontier(self._base.emitted.model, model, [setting.output])
        values = self._values.at(names)
        got: list[list[Array]] = [[row[setting.output]] for row in values if setting.output in row]
        if setting.output not in names:
            inputs = {name: array.dtype for name, array in values[0].items()}
            part = extracted_session(model, inputs, [setting.output], name="a candidate")
            got = [[part.run([setting.output], row)[0].copy()] for row in values]
            part.close()
        want = [[sample.outputs[setting.output]] for sample in setting.samples]
        return float(setting.metric(want, got))
