"""Solve layers in other processes, which get no more than the layer itself needs."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from threadpoolctl import threadpool_limits

from lowbit.config.refinement import Refinement
from lowbit.graph.session import Array
from lowbit.parallel import distributed_map
from lowbit.refine.algorithm import Algorithm, Collector
from lowbit.refine.layers import LayerResult, RefinedLayer
from lowbit.refine.samples import LayerSample
from lowbit.scales.parameters import constant_values
from lowbit.scales.stored import Weights
from lowbit.state import Quantized, extended

_MODELS = ("loaded", "normalized", "float_model", "calibrated_model", "adapted")
_NOT_READ = (*_MODELS, "samples", "operators", "plan", "stats", "emitted")


@dataclasses.dataclass(frozen=True)
class LayerWork:
    """One layer, its samples or what took them in, and the constants that it has."""

    layer: RefinedLayer
    seen: Sequence[LayerSample] | Collector
    constants: Mapping[str, Array]
    state: Quantized

    def __str__(self) -> str:
        return f"layer {self.layer.node}"

    @classmethod
    def of(
        cls, state: Quantized, layer: RefinedLayer, seen: Sequence[LayerSample] | Collector
    ) -> LayerWork:
        """Take of a state what solving one layer reads."""
        names = [layer.weight.name, *([layer.bias.tensor] if layer.bias is not None else [])]
        constants = {name: constant_values(state.adapted, name) for name in names}
        stored = state.weights.tensors[layer.weight.name]()
        weights = Weights({layer.weight.name: functools.partial(_same, stored)}, {})
        fields = dict.fromkeys(_NOT_READ)
        return cls(layer, seen, constants, extended(state, Quantized, weights=weights, **fields))


def _same(stored: Array) -> Array:
    return stored


@dataclasses.dataclass(frozen=True)
class LayerSolver:
    """Solves layers of one kind of refinement in a worker."""

    algorithm: Algorithm
    config: Refinement

    def __call__(self, work: LayerWork) -> LayerResult:
        """Return the solved layer, the same as in the process that it came from."""
        state = extended(work.state, Quantized, adapted=_model(work.constants))
        solve = self.algorithm.solver(state, self.config, threading.Event())
        with threadpool_limits(1, user_api="blas"):  # as many as in the process it came from
            return solve(work.layer, work.seen)

    def results(self, works: Sequence[LayerWork]) -> Iterator[LayerResult]:
        """Yield the solved layers in order."""
        return distributed_map(self, works, name="refine")


def _model(constants: Mapping[str, Array]) -> ir.Model:
    """Return a model that is nothing but constants."""
    values = [
        ir.Value(name=name, const_value=ir.tensor(np.array(data), name=name))
        for name, data in constants.items()
    ]
    return ir.Model(ir.Graph([], [], nodes=[], initializers=values), ir_version=10)
