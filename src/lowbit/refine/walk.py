"""The walk along the modules.

Float and quantized values flow forward, each module is solved where they meet, and what comes
after it sees the solved one.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from lowbit.calibrate.collect import bounded_map
from lowbit.graph.session import Array, Feed
from lowbit.numerics.formats import Floats
from lowbit.numerics.qparams import dequantize
from lowbit.refine.flow import Flow
from lowbit.refine.modules import Draft, Module, Outcome, settled_bias
from lowbit.refine.store import Store

Progress = Callable[[int, int, Outcome | None], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Sight:
    """What one sample shows of a module, at some positions of its output.

    Attributes:
        patches: groups x depth x positions of the quantized model's input.
        targets: groups x outputs x positions of the float model's output.
        float_patches: Those of the float model's input, if asked for.
        patch_sum: groups x depth, the quantized patches of all positions added up.
        target_sum: groups x outputs, the targets of all positions added up.
        count: How many positions there are in all.
    """

    patches: Floats
    targets: Floats
    patch_sum: Floats
    target_sum: Floats
    count: int
    float_patches: Floats | None = None


Solve = Callable[[Module, Sequence[Sight]], Outcome]


@dataclasses.dataclass(slots=True)
class Walk:
    """One walk over all modules of a draft, for all samples of the data."""

    draft: Draft
    modules: Sequence[Module]
    feeds: Callable[[], Iterable[Feed]]
    positions: int
    float_flow: Flow
    quantized_flow: Flow
    seed: int = 0

    def run(self, solve: Solve, progress: Progress) -> list[Outcome]:
        """Solve every module in turn."""
        constants: dict[str, Array] = {}
        outcomes: list[Outcome] = []
        for index, module in enumerate(self.modules):
            sights = self._look(index, module, constants)
            outcome = solve(module, sights)
            outcomes.append(outcome)
            constants |= replaced_constants(self.draft, module, outcome)
            progress(index + 1, len(self.modules), outcome)
        return outcomes

    def _look(self, index: int, module: Module, constants: Mapping[str, Array]) -> list[Sight]:
        self.quantized_flow.begin(index, constants)
        self.float_flow.begin(index, {})

        def work(item: tuple[int, Feed | None]) -> Sight:
            sample, feed = item
            x = self.quantized_flow.run(sample, feed)[module.source.name]
            y = self.float_flow.run(sample, feed)[module.output]
            random = np.random.default_rng((self.seed, index, sample))
            return see(module, module.source.floats(x), y, self.positions, random)

        return list(bounded_map(work, self._samples(index), os.cpu_count() or 1))

    def _samples(self, index: int) -> Iterator[tuple[int, Feed | None]]:
        if index == 0:
            self._count = 0
            for sample, feed in enumerate(self.feeds()):
                self._count = sample + 1
                yield sample, feed
        else:
            yield from ((sample, None) for sample in range(self._count))

    _count: int = 0


def see(module: Module, x: Floats, y: Floats, positions: int, random: np.random.Generator) -> Sight:
    """Return what one sample shows of a module at random positions."""
    layer = module.layer
    count = layer.count(y.shape)
    at = np.arange(count)
    if count > positions:
        at = np.sort(random.choice(count, positions, replace=False))
    flat = layer.flat(y)
    return Sight(
        patches=layer.patches(x, at, y.shape),
        targets=layer.values(y, at),
        patch_sum=layer.patch_sums(x, y.shape),
        target_sum=np.asarray(flat.sum(axis=1)).reshape(layer.groups, layer.outputs),
        count=count,
    )


def replaced_constants(draft: Draft, module: Module, outcome: Outcome) -> dict[str, Array]:
    """Return the values that a solved module's node reads from now on."""
    values: dict[str, Array] = {module.weight_value: dequantize(outcome.codes, module.params)}
    if module.bias_value is not None and outcome.bias is not None:
        values[module.bias_value] = settled_bias(draft, module, outcome.bias)
    return values


def flows(
    draft: Draft, modules: Sequence[Module], stores: tuple[Store, Store], device: str
) -> tuple[Flow, Flow]:
    """Return the float and the quantized model's flow along the modules."""
    outputs = [[module.output] for module in modules]
    sources = [[module.source.name] for module in modules]
    return (
        Flow(
            draft.floats, outputs, stores[0], optimise="all", device=device, name="the float model"
        ),
        Flow(draft.quantized, sources, stores[1], device=device, name="the quantized model"),
    )
