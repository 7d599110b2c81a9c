"""The last steps of a run: refine, sign, verify; and promote, if the model is not usable without."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from lowbit.evaluate.verdict import Verdict
from lowbit.pipeline import stages
from lowbit.pipeline.pipeline import Pipeline
from lowbit.pipeline.verify import verify as verify_model
from lowbit.report.values import Report, Step
from lowbit.search.promotion import Promoter
from lowbit.search.promotion_values import USABLE, Changes, Promoted, Requirement
from lowbit.search.switched_model import can_be_switched
from lowbit.state import Quantized

_BELIEVED, _SAVED = 0.7, 0.08
"""The share of the margin left that will be left again, and the saved cost that justifies another round."""

_BROUGHT = 0.5
"""How much of what refinement brought beyond all expectation it is expected to bring again."""

_LEAST_LOST = 0.5
"""The least loss of verified margin, in decibels, expected for each decibel of a lower requirement."""

_EXPECTED_DB, _HOPELESS_DB = 12.0, 4.0
"""A model expected to have less SQNR is measured before refinement; so far from usable it is promoted first."""

_FREE_DB = 1.0
"""Changes that cost nothing are refined by themselves if they gain more than this."""

Finished: TypeAlias = tuple[Quantized, Report, stages.Refinement]


@dataclasses.dataclass(frozen=True, slots=True)
class Finisher:
    """Refines, signs and verifies a model, and promotes parts of it if it is not usable.

    ``reused``: its statistics came from an earlier run.
    """

    pipeline: Pipeline
    folder: str | os.PathLike[str] | None
    steps: tuple[Step, ...]
    resume: bool
    keep_partial: bool = False
    reused: bool = False

    def finished(self, state: Quantized) -> Finished:
        """Return the refined model and how good it is."""
        state, refinement = self.refined(state)
        state = stages.as_written(state)
        stages.record_origin(state)
        with self.pipeline.clock.stage("verify"):
            report = verify_model(state, state.samples, self.steps, reused=self.reused)
            return state, report, refinement

    def promoted(self, state: Quantized) -> Finished:
        """Return the same, with parts promoted if it is not usable.

        A model of which refinement would make nothing is promoted before it is refined.
        """
        if not can_be_switched(state):
            return _not_promoted(self.finished(state))
        promoter = self._promoter(state) if self._looks_hopeless() else None
        if promoter is not None and promoter.is_hopeless(_HOPELESS_DB):
            return self._in_rounds(state, promoter, None)
        found = self.finished(state)
        verdict = found[1].verdict
        if verdict is None or verdict.is_usable or not found[2].complete:
            return found
        promoter = self._promoter(state, verdict.safe_margin_db)
        return self._in_rounds(state, promoter, found)

    def _in_rounds(self, state: Quantized, promoter: Promoter, found: Finished | None) -> Finished:
        """Promote, and again for another requirement while the refined model is worse or far better than required."""
        best, note, required = found, "", USABLE
        attempts: list[Attempt] = []
        verdicts: dict[Changes, Verdict] = {}
        while len(attempts) < promoter.effort.rounds:
            with self.pipeline.clock.charge("promote"):
                is_first = not attempts and promoter.effort.rounds > 1
                result = _free_changes(promoter, found) if is_first else None
                result = result or promoter.promote(required)
            if not result.is_changed:
                note = note or result.describe()
                break
            verdict = verdicts.get(result.changes)
            if verdict is None:  # another requirement may lead to a model that is known
                again = self.finished(result.state)
                verdict = again[1].verdict
                if not _is_better(again, best):
                    note = note or (
                        "promotion was tried and gained nothing on verification samples: "
                        f"{result.where()}"
                    )
                else:
                    report = msgspec.structs.replace(again[1], promoted=result.regions)
                    best, note = (again[0], report, again[2]), result.describe()
                if verdict is None or not again[2].complete:
                    break
                verdicts[result.changes] = verdict
            gain_db = promoter.gain(required)
            attempts.append(Attempt(required, result.after_db, gain_db, verdict))
            other = next_requirement(attempts, promoter.saved)
            if other is None:
                break
            required = other
        state, report, refinement = best or self.finished(state)
        return state, report, refinement.with_note(note)

    def _promoter(self, state: Quantized, verified_db: float | None = None) -> Promoter:
        with self.pipeline.clock.charge("promote"):
            return Promoter(self.pipeline, state, verified_db=verified_db)

    def _looks_hopeless(self) -> bool:
        """Whether the error that is expected after refinement, known from the steps, is very large."""
        if not self.steps:
            return False
        last = self.steps[-1]
        error = last.after if last.kept else last.before
        return error > 10 ** (-_EXPECTED_DB / 10)

    def refined(
        self, state: Quantized, *, keep: bool = True
    ) -> tuple[Quantized, stages.Refinement]:
        """Return the model refined as its configuration says; ``keep`` finished layers for a resume.

        Where there is a store, they are in it; a folder that is there then only matters to go on with it.
        """
        if state.config.refinement is None:
            return state, stages.Refinement()
        clock, store = self.pipeline.clock, self.pipeline.store
        folder = pathlib.Path(self.folder) if keep and self.folder is not None else None
        if folder is not None and store is not None and not (self.resume and folder.is_dir()):
            folder = None
        with clock.stage("refine"):
            solved, refinement = stages.refine(
                state,
                folder,
                lambda done, total: clock.tell("refine", done, total),
                resume=self.resume,
                keep_partial=self.keep_partial,
                store=store,
            )
        return self.pipeline.emitted(solved), refinement


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """A requirement, the margin of the model that was built for it, what refinement was to bring, and the verdict."""

    required: Requirement
    built_db: float
    gain_db: float
    verdict: Verdict

    @property
    def expected_db(self) -> float:
        """The margin that was expected of the refined model."""
        return self.built_db + self.gain_db

    @property
    def promised_db(self) -> float:
        """The same, or what was required if that is less."""
        return min(self.required.wanted_db, self.expected_db)


def next_requirement(
    attempts: Sequence[Attempt], saved: Callable[[Requirement, float], float]
) -> Requirement | None:
    """Return what to promote for next, if there is a reason; ``saved`` is the cost that less margin saves."""
    last, required = attempts[-1], attempts[-1].required
    usable = [a for a in attempts if a.verdict.is_usable]
    if not last.verdict.is_usable:
        # Less than what was usable once is too little.
        short_db = last.expected_db - last.verdict.margin_db
        if short_db < 0:
            # Refinement brings less the less noise there is.
            required = required.lowered(-_BROUGHT * short_db)
            return None if usable else required
        return None if usable else required.raised(short_db)
    # The surplus margin before refinement could not be given up.
    known_db = max(0.0, last.built_db - required.wanted_db)
    believed = _BELIEVED / _lost_by_lowering(attempts)
    spare_db = believed * (last.verdict.safe_margin_db - USABLE.least_db) - known_db
    too_low = [a.promised_db for a in attempts if not a.verdict.is_usable]
    if too_low:
        spare_db = min(spare_db, (required.wanted_db - max(too_low)) / 2)
    worth_it = spare_db > 0 and saved(required, spare_db) > _SAVED
    return required.lowered(spare_db) if worth_it else None


def _not_promoted(found: Finished) -> Finished:
    """Return a model that is too large to be promoted, and say so if it would have been."""
    state, report, refinement = found
    if report.verdict is None or report.verdict.is_usable:
        return found
    note = (
        f"nothing was promoted: with {report.size_before / 1e9:.1f} GB of constants the search would take several times as "
        "much memory; --exclude, or another preset, leaves parts in wider formats"
    )
    return state, report, refinement.with_note(note)


def _free_changes(promoter: Promoter, found: Finished | None) -> Promoted | None:
    """Return the model with what costs nothing, if that brings much and may be enough once it is refined."""
    result = promoter.change_for_free(USABLE)
    gained_db = result.after_db - result.before_db
    verdict = None if found is None else found[1].verdict
    expected_db = result.after_db if verdict is None else verdict.margin_db + gained_db
    worth_it = gained_db > _FREE_DB and expected_db > -_HOPELESS_DB
    return result if worth_it else None


def _lost_by_lowering(attempts: Sequence[Attempt]) -> float:
    """Return how many decibels of verified margin a requirement lower by one cost, by the last two attempts.

    Refinement makes up for noise, often for more the more there is.
    """
    if len(attempts) < 2:
        return 1.0
    before, last = attempts[-2:]
    less_db = before.required.wanted_db - last.required.wanted_db
    if less_db <= 0:
        return 1.0
    lost_db = before.verdict.safe_margin_db - last.verdict.safe_margin_db
    return min(max(lost_db / less_db, _LEAST_LOST), 1.0)


def _is_better(found: Finished, other: Finished | None) -> bool:
    """Whether a model is better than another, or as good as it has to be with less promoted."""
    if other is None:
        return True
    verdict, before = found[1].verdict, other[1].verdict
    if verdict is not None and before is not None and before.is_usable:
        return verdict.is_usable and verdict.safe_margin_db > 0
    return _margin(found) > _margin(other)


def _margin(found: Finished) -> float:
    verdict = found[1].verdict
    return -math.inf if verdict is None else verdict.margin_db
