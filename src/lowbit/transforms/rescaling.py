"""Multiply tensors by given factors, so that power-of-two scales fit them."""

from __future__ import annotations

import onnx_ir as ir

from lowbit.config.transforms import Rescaling
from lowbit.transforms.factor_groups import FactorGroups, factors_of
from lowbit.transforms.implementation import Context, TransformedModel


class Rescale:
    """Multiplies tensors, and divides them in the layers that read them."""

    def applies(self, model: ir.Model, config: Rescaling) -> bool:
        """Whether any tensor of the model has a factor other than one."""
        groups = FactorGroups.of(model.graph)
        return any(factor != 1.0 for factor in factors_of(groups, config.factors))

    def apply(self, model: ir.Model, config: Rescaling, context: Context) -> TransformedModel:
        """Return a copy of ``model`` with its tensors multiplied."""
        del context
        model = model.clone()
        groups = FactorGroups.of(model.graph)
        factors = factors_of(groups, config.factors)
        groups.rescale(model.graph, factors)
        count = sum(factor != 1.0 for factor in factors)
        note = f"rescaled {count} of {len(factors)} groups of tensors to fit power-of-two scales"
        return TransformedModel(model, (note,))
