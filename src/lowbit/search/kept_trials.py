"""Finished trials of a search in a store, so that a search that was killed goes on where it was.

A trial's key is a hash of all that it depends on: the model, its plan and parameters, the samples and what
they are for, labels, the goal, the version, and everything that the search had kept before. What is kept is
what a trial gave: its figures, and the configuration from which the model can be built again. Its refined
layers are in the store by themselves, so that to build it costs little.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import onnx_ir as ir

from lowbit.config.config import QuantConfig
from lowbit.config.extensible import convert, decode_errors
from lowbit.evaluate.labels import Label
from lowbit.graph.identity import hash_model
from lowbit.ops.traits import OPERATORS
from lowbit.refine.checkpoint import fingerprint_of
from lowbit.report.values import PromotedRegion
from lowbit.search.candidates import digest_of_stats
from lowbit.search.goal import Goal
from lowbit.search.goal_evaluator import Measurement
from lowbit.state import Quantized
from lowbit.store import Store, content_key

_T = TypeVar("_T")


class Took(msgspec.Struct, frozen=True):
    """The seconds that the preset alone took: its refinement, and the whole run."""

    refinement: float = 0.0
    whole: float = 0.0


class KeptTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a trial; without figures there was nothing to measure, as ``note`` says.

    ``model`` is a hash of the refined model: one that is built again has to have the same.
    """

    measured: Measurement | None = None
    config: str = ""
    model: str = ""
    promoted: tuple[PromotedRegion, ...] = ()
    note: str = ""
    refinement_notes: tuple[str, ...] = ()
    took: Took = Took()

    def configuration(self) -> QuantConfig | None:
        """Return the configuration of the model, if this program knows all that it names."""
        try:
            with decode_errors():
                return convert(msgspec.json.decode(self.config), QuantConfig)
        except msgspec.DecodeError:
            return None


def model_hash(model: ir.Model) -> str:
    """Return a hash of all that a model computes."""
    whole = hashlib.sha256()
    hash_model(whole.update, model)
    return whole.hexdigest()


@dataclasses.dataclass(slots=True)
class KeptTrials:
    """The trials of one search; without a store nothing is kept or found.

    ``key`` stands for all that the next trial depends on.
    """

    store: Store | None = None
    key: str = ""

    @classmethod
    def of(
        cls, store: Store | None, built: Quantized, goal: Goal, labels: Sequence[Label] | None
    ) -> KeptTrials:
        """Return those of a search that starts from a model.

        What a metric of one's own gives depends on its code, and so do operators of one's own.
        """
        samples, statistics = built.samples, digest_of_stats(built.stats)
        is_own = goal.metric is not None or built.operators is not OPERATORS
        if store is None or samples is None or statistics is None or is_own:
            return cls()
        state = fingerprint_of(built, built.config.refinement, samples.fingerprint())
        confidence = repr(goal.confidence)
        key = content_key("goal", goal.text, confidence, repr(labels), statistics, state)
        return cls(store, key)

    @property
    def is_open(self) -> bool:
        """Whether anything is kept."""
        return self.store is not None

    def get(self, *words: str) -> KeptTrial | None:
        """Return a trial that an earlier run finished."""
        return self._read(KeptTrial, words)

    def put(self, trial: KeptTrial, *words: str) -> None:
        """Keep a trial."""
        self._write(trial, words)

    def measured(self, make: Callable[[], Measurement], *words: str) -> Measurement:
        """Return figures that were kept, or make and keep them."""
        found = self.known(*words)
        if found is None:
            found = make()
            self._write(found, words)
        return found

    def known(self, *words: str) -> Measurement | None:
        """Return figures that were kept, if there are any."""
        return self._read(Measurement, words)

    def follow(self, *words: str) -> None:
        """Make the keys of all later trials depend on something that the search has kept or seen."""
        if self.store is not None:
            self.key = content_key(self.key, *words)

    def _read(self, kind: type[_T], words: Sequence[str]) -> _T | None:
        if self.store is None:
            return None
        data = self.store.get(content_key(self.key, kind.__name__, *words))
        return None if data is None else msgspec.msgpack.decode(data, type=kind)

    def _write(self, value: KeptTrial | Measurement, words: Sequence[str]) -> None:
        if self.store is not None:
            key = content_key(self.key, type(value).__name__, *words)
            self.store.put(key, msgspec.msgpack.encode(value))
