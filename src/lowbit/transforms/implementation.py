"""The interface of transforms of the float model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Protocol

import onnx_ir as ir

from lowbit.graph.session import Feed


@dataclasses.dataclass(frozen=True, slots=True)
class Levels:
    """How finely activations and weights are rounded, as their largest integers; 0: not at all."""

    activation: int = 127
    weight: int = 127
    per_channel: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The information that a transform gets in addition to the model.

    Attributes:
        data: Samples that show how far activations go; ``None``: there are none.
        float_nodes: Gives the names of the nodes of a model that will not be quantized.
        own_inputs: Gives the names of the tensors of a model that only linear layers read quantized,
            each with whether these have a scale per channel. A product before them costs little.
        levels: How finely tensors will be rounded.
        progress: Told after each sample how many are done.
    """

    data: Iterable[Feed] | None = None
    float_nodes: Callable[[ir.Model], Container[str]] = lambda _: ()
    own_inputs: Callable[[ir.Model], Mapping[str, bool]] = lambda _: {}
    levels: Levels = Levels()
    progress: Callable[[int], None] = lambda _: None


@dataclasses.dataclass(frozen=True, slots=True)
class TransformedModel:
    """A model that computes the same in float, and an account of what was done."""

    model: ir.Model
    notes: tuple[str, ...] = ()


class Implementation(Protocol):
    """The implementation of one kind of transform."""

    def applies(self, model: ir.Model, config: Any) -> bool:
        """Whether the transform would change this model; costs no pass over data."""

    def apply(self, model: ir.Model, config: Any, context: Context) -> TransformedModel:
        """Return the transformed model; ``model`` itself is not changed."""
