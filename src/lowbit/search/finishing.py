"""The last steps of a run: refine, sign, verify; and promote, if the model is not usable without."""

from __future__ import annotations

import dataclasses
import os
import pathlib

import msgspec

from lowbit.pipeline import stages
from lowbit.pipeline.pipeline import Pipeline
from lowbit.pipeline.verify import verify as verify_model
from lowbit.report.values import Report, Step
from lowbit.search.promotion import Promoter
from lowbit.state import Quantized


@dataclasses.dataclass(frozen=True, slots=True)
class Finisher:
    """Refines, signs and verifies a model, and promotes parts of it if it is not usable."""

    pipeline: Pipeline
    folder: str | os.PathLike[str] | None
    steps: tuple[Step, ...]
    resume: bool

    def finished(self, state: Quantized) -> tuple[Quantized, Report, tuple[str, ...]]:
        """Return the refined model and how good it is."""
        state, notes = _refined(self.pipeline, state, self.folder, resume=self.resume)
        stages.sign(state)
        with self.pipeline.clock.stage("verify"):
            return state, verify_model(state, state.samples, self.steps), notes

    def promoted(self, state: Quantized) -> tuple[Quantized, Report, tuple[str, ...]]:
        """Return the same, with parts promoted and refined once more if it is not usable."""
        found = self.finished(state)
        verdict = found[1].verdict
        if verdict is None or verdict.is_usable:
            return found
        with self.pipeline.clock.charge("promote"):
            result = Promoter(self.pipeline, state, found[0]).promote()
        if not result.regions:
            return found[0], found[1], (*found[2], result.describe())
        again = self.finished(result.state)
        better = again[1].verdict
        if better is None or better.margin_db <= verdict.margin_db:
            return found
        report = msgspec.structs.replace(again[1], promoted=result.regions)
        return again[0], report, (*again[2], result.describe())


def _refined(
    pipeline: Pipeline, state: Quantized, folder: str | os.PathLike[str] | None, *, resume: bool
) -> tuple[Quantized, tuple[str, ...]]:
    if state.config.refinement is None:
        return state, ()
    clock = pipeline.clock
    with clock.stage("refine"):
        solved, notes = stages.refine(
            state,
            None if folder is None else pathlib.Path(folder),
            lambda done, total: clock.tell("refine", done, total),
            resume=resume,
        )
    return pipeline.emitted(solved), notes
