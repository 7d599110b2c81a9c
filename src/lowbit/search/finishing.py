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
from lowbit.search.promotion import USABLE, Promoter
from lowbit.state import Quantized

_ROUNDS = 2
"""How often parts are promoted: once more if the first time was too little on verification samples."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finisher:
    """Refines, signs and verifies a model, and promotes parts of it if it is not usable."""

    pipeline: Pipeline
    folder: str | os.PathLike[str] | None
    steps: tuple[Step, ...]
    resume: bool
    keep_partial: bool = False

    def finished(self, state: Quantized) -> tuple[Quantized, Report, stages.Refinement]:
        """Return the refined model and how good it is."""
        state, refinement = self.refined(state)
        stages.sign(state)
        with self.pipeline.clock.stage("verify"):
            return state, verify_model(state, state.samples, self.steps), refinement

    def promoted(self, state: Quantized) -> tuple[Quantized, Report, stages.Refinement]:
        """Return the same, with parts promoted and refined once more if it is not usable."""
        found = self.finished(state)
        verdict = found[1].verdict
        if verdict is None or verdict.is_usable or not found[2].complete:
            return found
        best, margin, note, required = found, verdict.margin_db, "", USABLE
        for _ in range(_ROUNDS):
            with self.pipeline.clock.charge("promote"):
                promoter = Promoter(self.pipeline, state, found[0], required)
                result = promoter.promote()
            if not result.regions:
                note = note or result.describe()
                break
            again = self.finished(result.state)
            better = again[1].verdict
            if better is None or better.margin_db <= margin:
                note = note or (
                    "promotion was tried and brought nothing on verification samples: "
                    f"{result.where()}"
                )
            else:
                report = msgspec.structs.replace(again[1], promoted=result.regions)
                best, margin, note = (
                    (again[0], report, again[2]),
                    better.margin_db,
                    result.describe(),
                )
            if better is None or better.is_usable:
                break
            required = required.raised(promoter.margin(again[0]) - better.margin_db)
        return best[0], best[1], best[2].with_note(note)

    def refined(
        self, state: Quantized, *, keep: bool = True
    ) -> tuple[Quantized, stages.Refinement]:
        """Return the model refined as its configuration says; ``keep`` finished layers for a resume."""
        if state.config.refinement is None:
            return state, stages.Refinement()
        clock = self.pipeline.clock
        with clock.stage("refine"):
            solved, refinement = stages.refine(
                state,
                pathlib.Path(self.folder) if keep and self.folder is not None else None,
                lambda done, total: clock.tell("refine", done, total),
                resume=self.resume,
                keep_partial=self.keep_partial,
            )
        return self.pipeline.emitted(solved), refinement
