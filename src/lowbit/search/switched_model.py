"""A quantized model of which any part can be tried in float, run from where it first differs from float.

Nothing before the first quantizer that is on has to be run again: it is in float for every choice, and the
values that cross a few cuts are kept from one float pass.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.analyze.quantizers import find_quantizers, read_constants
from lowbit.analyze.sensitivity import Switch, Switched, add_switches
from lowbit.evaluate.runner import Outputs, ReferenceSample
from lowbit.graph.session import Array
from lowbit.graph.submodels import Tail, open_tails
from lowbit.parallel import ordered_map
from lowbit.state import Quantized

_CUTS = 4
_MEMORY_FOR_CUTS = 128 << 20


class SwitchedModel:
    """Runs one model on a few samples, with quantizers switched off."""

    def __init__(
        self,
        tails: Sequence[Tail],
        switches: Mapping[str, Switch],
        outputs: Sequence[str],
        samples: Sequence[ReferenceSample],
    ) -> None:
        self._tails, self._switches, self._outputs = tails, switches, outputs
        self._samples = samples
        self._kept: dict[int, Outputs] = {}
        self._room = _MEMORY_FOR_CUTS

    def run(self, off: set[str], samples: Sequence[int]) -> Iterator[tuple[Outputs, Outputs]]:
        """Yield what is wanted of each sample, and what comes out; ``off`` tensors are not quantized."""
        on = [s.first_node for name, s in self._switches.items() if name not in off]
        names = [s.name for name, s in self._switches.items() if name in off]
        tail = [t for t in self._tails if t.start <= min(on, default=sys.maxsize)][-1]

        def work(index: int) -> dict[str, Array]:
            values = self._values(index) if tail.start else self._samples[index].feed
            own = self._tails[0] if values is None else tail
            feed = self._samples[index].feed if values is None else values
            given = {name: feed[name] for name in own.inputs}
            given |= {name: np.array(False) for name in names if name in own.defaults}
            return dict(zip(self._outputs, own.session.run(self._outputs, given), strict=True))

        for index, got in zip(samples, ordered_map(work, samples), strict=True):
            yield self._samples[index].outputs, got

    def _values(self, index: int) -> Outputs | None:
        """Return what the tails read of a sample in float; ``None`` where there is no room for it."""
        if index in self._kept:
            return self._kept[index]
        if self._room <= 0:
            return None
        feed, whole = self._samples[index].feed, self._tails[0]
        names = sorted({name for tail in self._tails for name in tail.inputs if name not in feed})
        off = {s.name: np.array(False) for s in self._switches.values() if s.name in whole.defaults}
        arrays = whole.session.run(names, {**feed, **off}) if names else []
        # Copied: an array of onnxruntime's keeps all memory of its session.
        values = {name: np.array(array) for name, array in zip(names, arrays, strict=True)}
        self._room -= sum(array.nbytes for array in values.values())
        self._kept[index] = {**feed, **values}
        return self._kept[index]


@contextlib.contextmanager
def open_switched(
    state: Quantized, outputs: Sequence[str], samples: Sequence[ReferenceSample]
) -> Iterator[SwitchedModel]:
    """Yield a quantized model with switches; its sessions end with it."""
    switched = _switched(state)
    values = ir.convenience.create_value_mapping(switched.model.graph, include_subgraphs=False)
    switched.model.graph.outputs[:] = [values[name] for name in outputs]
    with open_tails(switched.model, _CUTS, (), "the model with switches") as tails:
        yield SwitchedModel(tails, switched.switches, outputs, samples)


def _switched(state: Quantized) -> Switched:
    quantizers = find_quantizers(state.emitted.model)
    constants = read_constants(state.emitted.model, state.adapted, quantizers)
    known = {n: c.float_value for n, c in constants.items() if c.float_value is not None}
    return add_switches(state.emitted.model, quantizers, known)
