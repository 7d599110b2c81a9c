"""Accuracy of several quantized models beside one float model, which is run once for all of them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from lowbit.evaluate.accuracy import Accuracy, Scorer
from lowbit.evaluate.labels import Label
from lowbit.evaluate.runner import Run, output_names, run_model
from lowbit.graph.session import Feed


@dataclasses.dataclass(frozen=True, slots=True)
class LabelledSamples:
    """Samples with labels, and what the float model scores on each."""

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
        """Return the accuracy of a quantized model, with exact integer semantics, beside float."""
        scorer = copy.deepcopy(self.scores)
        run = Run.quantized_model(quantized, output_names(quantized))
        for outputs, label in zip(run_model(run, self.feeds), self.labels, strict=True):
            scorer.add([None, outputs, None], label)
        return scorer.figures(tolerance)
