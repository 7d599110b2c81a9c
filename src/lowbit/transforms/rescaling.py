"""Multiply tensors by given factors, and take given offsets off them, so that scales fit them."""

from __future__ import annotations

import onnx_ir as ir

from lowbit.config.transforms import Rescaling
from lowbit.transforms.centering import find_offset_groups, take_offsets
from lowbit.transforms.factor_groups import FactorGroups, factors_of
from lowbit.transforms.implementation import Context, TransformedModel


class Rescale:
    """Multiplies tensors, and divides them in the layers that read them; the same with offsets."""

    def applies(self, model: ir.Model, config: Rescaling) -> bool:
        """Whether any tensor of the model has a factor other than one, or an offset."""
        groups = FactorGroups.of(model.graph)
        if any(factor != 1.0 for factor in factors_of(groups, config.factors)):
            return True
        named = {name for name, offset in config.offsets.items() if offset}
        return any(not named.isdisjoint(g.tensors) for g in find_offset_groups(model.graph))

    def apply(self, model: ir.Model, config: Rescaling, context: Context) -> TransformedModel:
        """Return a copy of ``model`` with its tensors multiplied, and the offsets taken off them."""
        del context
        model = model.clone()
        notes = []
        if config.factors or not config.offsets:
            groups = FactorGroups.of(model.graph)
            factors = factors_of(groups, config.factors)
            groups.rescale(model.graph, factors)
            count = sum(factor != 1.0 for factor in factors)
            notes.append(
                f"rescaled {count} of {len(factors)} groups of tensors to fit power-of-two scales"
            )
        if config.offsets:
            count = take_offsets(model.graph, config.offsets)
            notes.append(f"centered {count} tensors after a Relu, or groups of them, around zero")
        return TransformedModel(model, tuple(notes))
