"""Predict the error of a model after refinement, from two errors that can be measured before.

Refinement makes up for most of what rounding the weights costs, and for little of what rounding the
activations does. A step that moves error from activations to weights would be refused for an error
that is gone in the end. So the model is run as it is, and with its weights in float.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from lowbit.evaluate.validation import Validation
from lowbit.graph.editing import add_constant, constant_shape
from lowbit.numerics.formats import DoubleArray, FloatArray
from lowbit.pipeline.stages import will_be_refined
from lowbit.pipeline.verify import quantized_names
from lowbit.scales.parameters import bias_values, constant_values
from lowbit.state import Quantized

LEFT = 0.3
"""The share of the weights' error that refinement is taken to leave: an estimate, not tuned to a model."""


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """The SQNR of each sample as it is expected, and with all weights in float, if that was measured."""

    sqnr: DoubleArray
    float_weights: DoubleArray | None = None


def expected_sqnr(
    validation: Validation, state: Quantized, known: DoubleArray | None = None
) -> Expected:
    """Return the SQNR of each sample, as it is or, if the model will be refined, as expected then.

    ``known`` is the SQNR with all weights in float, of a model that differs in weights and biases only.
    """
    names = quantized_names(state)
    if not will_be_refined(state):
        return Expected(validation.sqnr(state.emitted.model, names))
    models = [state.emitted.model, *([with_float_weights(state)] if known is None else [])]
    found, *more = validation.sqnr_of_each(models, names)
    floats = more[0] if known is None else known
    if len(floats) != len(found):
        return Expected(found)
    total, activations = (np.power(10.0, -decibels / 10) for decibels in (found, floats))
    left = activations + LEFT * np.maximum(total - activations, 0)
    return Expected(np.asarray(-10 * np.log10(np.minimum(left, total))), floats)


def with_float_weights(state: Quantized) -> ir.Model:
    """Return the quantized model with weights and biases as they were before rounding."""
    model, emitted = state.emitted.model.clone(), state.emitted
    values = ir.convenience.create_value_mapping(model.graph, include_subgraphs=False)
    floats: dict[str, FloatArray | ir.TensorProtocol] = {}
    for row in state.plan.weights():
        if row.spec.is_integer and row.name in emitted.tensors:
            floats[emitted.tensors[row.name].read] = _read_later(state.adapted, row.name)
    for bias in state.plan.biases:
        if bias.node in emitted.biases:
            floats[emitted.biases[bias.node].read] = bias_values(state.adapted, bias)
    for name, data in floats.items():
        value = values.get(name)
        if value is not None and value.producer() is not None:
            constant = add_constant(model.graph, f"{name}_float", data)
            ir.convenience.replace_all_uses_with(value, constant)
    return model


def _read_later(model: ir.Model, name: str) -> ir.TensorProtocol:
    """Return a constant that is read when it is written: all at once may be too much for memory."""
    return ir.LazyTensor(
        lambda: ir.Tensor(constant_values(model, name), name=name),
        dtype=ir.DataType.FLOAT,
        shape=ir.Shape(constant_shape(model.graph.initializers[name]) or ()),
        name=name,
    )
