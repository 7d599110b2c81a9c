"""The float model's side of the walk: one module at a time, or all of them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, Feed
from lowbit.refine.flow import Flow
from lowbit.refine.modules import Module
from lowbit.refine.sights import Goal, aim, enough_positions
from lowbit.refine.store import Store


class Goals:
    """Gives each sample's goal of each module; steps are taken in order.

    ``inputs``: whether goals hold the float model's input as well. ``at_once``: the goals of all
    modules are taken in the first step, in one pass, and kept in memory. ``moments``: of how many
    samples there will be goals, if they are for moments alone; positions are then as many as each
    layer needs.
    """

    def __init__(
        self,
        model: ir.Model,
        modules: Sequence[Module],
        store: Store,
        *,
        positions: int,
        seed: int,
        device: str,
        inputs: bool = False,
        at_once: bool = False,
        moments: int | None = None,
    ) -> None:
        self._modules, self._seed = modules, seed
        self._positions = {
            m.node: positions if moments is None else enough_positions(m.layer, positions, moments)
            for m in modules
        }
        self._inputs = _inputs(model, modules) if inputs else {}
        self._kept: dict[tuple[int, int], Goal] = {}
        self._at_once = at_once
        wanted = [list(filter(None, (m.output, self._inputs.get(m.node)))) for m in modules]
        if at_once:
            wanted = [list(dict.fromkeys(name for names in wanted for name in names))]
        self._flow = Flow(model, wanted, store, device=device, name="the float model")

    def begin(self, step: int) -> None:
        """Make a step ready."""
        if step == 0 or not self._at_once:
            self._flow.begin(step, {})

    def of(self, step: int, sample: int, feed: Feed | None) -> Goal:
        """Return one sample's goal."""
        if not self._at_once:
            return self._goal(self._modules[step], sample, self._flow.run(sample, feed))
        if step == 0:
            found = self._flow.run(sample, feed)
            for index, module in enumerate(self._modules):
                self._kept[index, sample] = self._goal(module, sample, found)
        return self._kept.pop((step, sample))

    def _goal(self, module: Module, sample: int, found: Mapping[str, Array]) -> Goal:
        # Drawn by name, so that a run that continues another draws the same.
        random = np.random.default_rng((self._seed, sample, *module.node.encode()))
        x = self._inputs.get(module.node)
        return aim(
            module.layer,
            found[module.output],
            None if x is None else found[x],
            self._positions[module.node],
            random,
        )


def _inputs(model: ir.Model, modules: Sequence[Module]) -> dict[str, str]:
    """Return what each module's node reads in the float model."""
    values = ir.convenience.create_value_mapping(model.graph, include_subgraphs=False)
    found = {}
    for module in modules:
        producer = values[module.output].producer()
        if producer is not None and producer.inputs[0] is not None:
            found[module.node] = tensor_name(producer.inputs[0])
    return found
