"""Refine a draft: the one place that knows which method does what."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from lowbit.config.refine import Reconstruct, Refinement
from lowbit.graph.session import Feed
from lowbit.numerics.formats import Floats
from lowbit.refine.modules import Draft, Outcome, find_modules
from lowbit.refine.reconstruct import reconstruct
from lowbit.refine.store import MemoryStore
from lowbit.refine.walk import Progress, Walk, flows

_RECONSTRUCTED = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))


@dataclasses.dataclass(frozen=True, slots=True)
class Refined:
    """Integers of refined weights by tensor, float biases by node, and how each module fared."""

    weights: Mapping[str, NDArray[np.integer]]
    biases: Mapping[str, Floats]
    outcomes: tuple[Outcome, ...]
    skipped: tuple[tuple[str, str], ...]

    @property
    def note(self) -> str:
        """A sentence for the report."""
        better = sum(o.kept != "nothing" for o in self.outcomes)
        ratios = [o.after / o.before for o in self.outcomes if o.before > 0]
        words = f"refined {better} of {len(self.outcomes)} layers"
        if ratios:
            mean = float(np.exp(np.mean(np.log(np.maximum(ratios, 1e-9)))))
            words += f": their error on held-out samples fell to {mean:.0%} on average"
        if self.skipped:
            node, why = self.skipped[0]
            words += f"; {len(self.skipped)} left alone ({node}: {why})"
        return words


def refine(
    draft: Draft,
    config: Refinement,
    feeds: Callable[[], Iterable[Feed]],
    progress: Progress = lambda done, total, outcome: None,
) -> Refined:
    """Return better integers for the weights of a draft, and biases that fit them."""
    if not isinstance(config, Reconstruct):
        raise NotImplementedError(type(config).__name__)
    modules, skipped = find_modules(draft, _RECONSTRUCTED)
    if not modules:
        return Refined({}, {}, (), tuple(skipped))
    limited = functools.partial(_first, feeds, config.data_size)
    pair = flows(draft, modules, (MemoryStore(), MemoryStore()), config.infer_device)
    walk = Walk(draft, modules, limited, config.positions, *pair)
    outcomes = walk.run(lambda m, s: reconstruct(draft, m, s, config), progress)
    return Refined(
        {m.weight: o.codes for m, o in zip(modules, outcomes, strict=True)},
        {o.node: o.bias for o in outcomes if o.bias is not None},
        tuple(outcomes),
        tuple(skipped),
    )


def _first(feeds: Callable[[], Iterable[Feed]], count: int | None) -> Iterable[Feed]:
    return itertools.islice(feeds(), count)
