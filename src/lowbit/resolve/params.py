"""The parameters of every planned tensor: what ``resolve`` gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from lowbit.numerics.formats import Floats
from lowbit.numerics.qparams import QParams


@dataclasses.dataclass(frozen=True, slots=True)
class Adjustment:
    """A parameter that had to move, and what it cost.

    ``cost_db`` is how far the tensor's own signal-to-noise ratio fell.
    """

    tensor: str
    before: float
    after: float
    why: str
    cost_db: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Params:
    """Scales and zero points, by tensor; those of biases by node.

    ``bias_values`` are the float biases as added, where they are no longer the model's own.
    ``biases_before`` are those of product biases before an alignment moved their input's scale.
    ``scales`` are of tensors in 16-bit floats that are scaled; others have none.
    """

    tensors: Mapping[str, QParams]
    biases: Mapping[str, QParams]
    adjustments: tuple[Adjustment, ...] = ()
    bias_values: Mapping[str, Floats] = dataclasses.field(default_factory=dict)
    biases_before: Mapping[str, QParams] = dataclasses.field(default_factory=dict)
    scales: Mapping[str, float] = dataclasses.field(default_factory=dict)
