"""Predict the error of a model after refinement, from two errors that can be measured before.

Refinement makes up for most of what rounding the weights costs, and for little of what rounding the
activations does. A step that moves error from activations to weights would be refused for an error
that is gone in the end. So the model is run as it is, and with its weights in float.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lowbit.evaluate.output_kinds import MeasuredOutput
from lowbit.evaluate.validation import Ratios, Validation
from lowbit.graph.editing import add_constant, constant_shape
from lowbit.numerics.formats import DoubleArray, FloatArray
from lowbit.pipeline.stages import will_be_refined
from lowbit.pipeline.verify import quantized_names
from lowbit.scales.parameters import bias_values, constant_values
from lowbit.state import Quantized

LEFT = 0.3
"""The share of the weights' error that refinement is taken to leave: an estimate, not tuned to a model."""


class ExpectedError:
    """The SQNR of a model, as it is or, if it will be refined, as expected then; measured as far as asked for."""

    def __init__(
        self, validation: Validation, state: Quantized, known: ExpectedError | None = None
    ) -> None:
        """Begin; ``known`` is a model that differs in weights and biases only: it tells what float weights give."""
        self._validation, self._state, self._known = validation, state, known
        self._is_refined = will_be_refined(state)
        self._found = self._floats = Ratios(())

    def sqnr(self, count: int | None = None) -> DoubleArray:
        """Return the SQNR of each of the first samples; of all if ``count`` is not given."""
        count = len(self._validation) if count is None else count
        found = self._measured(count).of_samples
        if not self._is_refined:
            return found
        floats = self.with_float_weights(count).of_samples
        if len(floats) != len(found):
            return found
        total, activations = (np.power(10.0, -decibels / 10) for decibels in (found, floats))
        left = activations + LEFT * np.maximum(total - activations, 0)
        return np.asarray(-10 * np.log10(np.minimum(left, total)))

    @property
    def of_outputs(self) -> dict[MeasuredOutput, float]:
        """The SQNR of each output, on the samples measured so far."""
        return self._found.of_outputs

    def with_float_weights(self, count: int) -> Ratios:
        """Return the SQNR of the first samples with all weights in float."""
        if self._known is None:
            self._measured(count)
        else:
            self._floats = self._known.with_float_weights(count)
            if count == len(self._validation):
                self._known = None  # nothing more is asked of it, and its model takes memory
        return self._floats.first(count)

    def _measured(self, count: int) -> Ratios:
        """Return the SQNR of the first samples; those that were not measured yet are run."""
        done = len(self._found.by_sample)
        if count > done:
            models = [self._state.emitted.model]
            if self._is_refined and self._known is None:
                models.append(with_float_weights(self._state))
            names = quantized_names(self._state)
            found, *floats = self._validation.ratios(models, names, slice(done, count))
            self._found += found
            self._floats = sum(floats, self._floats)
        return self._found.first(count)


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
