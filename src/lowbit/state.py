"""The state of a run: one value that each stage extends.

A class for each stage says what is known after it. ``extended`` adds what the next stage found out;
nothing is ever taken back, and no field is held twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import onnx_ir as ir

from lowbit.calibrate.statistics import Stats
from lowbit.config.config import QuantConfig
from lowbit.data.split import Split
from lowbit.emit.emission import Emitted
from lowbit.ops.traits import Operators
from lowbit.planning.head import Head
from lowbit.planning.plan import Plan
from lowbit.scales.parameters import Params
from lowbit.scales.stored import Weights
from lowbit.targets.target import Target


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model as it was loaded, with what it is to become and the samples it is made on."""

    loaded: ir.Model
    samples: Split | None
    config: QuantConfig
    target: Target
    operators: Operators


@dataclasses.dataclass(frozen=True, kw_only=True)
class Normalized(Loaded):
    """In the one form the stages accept."""

    normalized: ir.Model
    rotation_notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transformed(Normalized):
    """Equalized and smoothed: another model that computes the same in float."""

    float_model: ir.Model
    transform_notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared(Transformed):
    """In the target's operators.

    ``calibrated_model`` is what calibration runs: with the target's arithmetic next to the float one, if
    the target has any of its own. ``float_names`` are the float counterparts of tensors that differ.
    """

    calibrated_model: ir.Model
    adapted: ir.Model
    float_names: Mapping[str, str]
    head: Head


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned(Prepared):
    """Every decision that is made before any data is seen."""

    plan: Plan


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibrated(Planned):
    """Statistics of every tensor that the plan observes."""

    stats: Stats


@dataclasses.dataclass(frozen=True, kw_only=True)
class Solved(Calibrated):
    """Scales and zero points, and what is stored of constants and biases."""

    params: Params
    weights: Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantized(Solved):
    """The quantized graph."""

    emitted: Emitted


S = TypeVar("S", bound=Loaded)


def extended(state: Loaded, kind: type[S], **found: Any) -> S:
    """Return ``state`` with what a stage found out; what ``found`` names again is replaced."""
    known = {
        field.name: getattr(state, field.name)
        for field in dataclasses.fields(kind)
        if hasattr(state, field.name)
    }
    return kind(**{**known, **found})
