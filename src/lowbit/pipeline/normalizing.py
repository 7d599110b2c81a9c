"""The part of normalization that several configurations of one model have in common."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Hashable

import onnx_ir as ir

from lowbit.config.config import QuantConfig
from lowbit.evaluate.random_outputs import mark_drawn
from lowbit.evaluate.runner import Run, run_model
from lowbit.normalize.normalize import normalize as normalize_model
from lowbit.state import Loaded


class ReusedModel(os.PathLike[str]):
    """The file of a model that several runs quantize, which is normalized once for all of them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._known: dict[Hashable, ir.Model] = {}

    def __fspath__(self) -> str:
        return self._path

    def normalized(self, state: Loaded) -> ir.Model:
        """Return the model in its one form, from the first run whose configuration asks for the same."""
        key = normalization_key(state.config)
        if key not in self._known:
            self._known[key] = normalized_model(state)
        return self._known[key]


def normalized_model(state: Loaded) -> ir.Model:
    """Return the model in its one form, checked to run."""
    _check_float_model(state)
    sample = None if state.samples is None else state.samples.first()
    return normalize_model(state.loaded, sample, _lowest_opset(state.config))


def normalization_key(config: QuantConfig) -> Hashable:
    """Return what of a configuration the normalized model depends on."""
    inputs = (sorted(config.fix_inputs.items()), sorted(config.input_shapes.items()))
    return _lowest_opset(config), repr(inputs)


def _lowest_opset(config: QuantConfig) -> int:
    """Return the operator set that every format asked for can be stored in."""
    specs = [config.weight, config.final_weight, *(rule.weight for rule in config.rules)]
    specs += [override.spec for override in config.tensors]
    return max((spec.lowest_opset for spec in specs if spec is not None), default=0)


def _check_float_model(state: Loaded) -> None:
    """Raise before any work if onnxruntime cannot run the model on the first sample."""
    sample = None if state.samples is None else state.samples.first()
    if sample is not None:
        run = dataclasses.replace(Run.float_model(state.loaded), optimize="none")
        list(run_model(run, [sample]))
        mark_drawn(state.loaded, sample)
