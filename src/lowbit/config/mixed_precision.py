"""Mixed precision as a value: which layers may have other formats, and how far that may go."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from lowbit.config.extensible import Extensible
from lowbit.config.specs import BiasSpec, Spec
from lowbit.errors import ConfigError

Distance: TypeAlias = Literal["l2", "kl", "cosine", "sqnr", "psnr"]
Objective: TypeAlias = Literal["speed", "quality"]
Sharing: TypeAlias = Literal["propagate", "unshare"]


class LayerOption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An alternative scheme for a layer; fields that are not given stay as they are.

    ``layers``: if given, the option is for these alone, and they have no other.
    """

    inputs: Spec | None = None
    weight: Spec | None = None
    bias: BiasSpec | None = None
    outputs: Spec | None = None
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not any((self.inputs, self.weight, self.bias, self.outputs)):
            raise ConfigError("an option of mixed precision changes nothing: give it a spec")


class Subgraph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Layers between start and end nodes that change together."""

    name: str
    start: tuple[str, ...]
    end: tuple[str, ...]


class PrecisionSearch(Extensible):
    """Base of all searches for layers in other formats; one of your own returns ``strategy``."""

    __slots__ = ()

    def strategy(self) -> Any:
        """Return a ``lowbit.search.strategies.Strategy``; ``None`` for the package's own."""
        return None


class MixedPrecision(
    PrecisionSearch,
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="sensitivity",
):
    """Give layers another format one after another, those that do least harm first.

    Each layer alone is measured in each option first: how far the model's output then is from the
    float one's. Layers are changed in the order of that distance, nearest first, as long as
    ``threshold`` allows.

    Attributes:
        options: What layers may have instead; the best of several is taken for each.
        op_types: Operators that are layers; all linear layers if none is given.
        include: Names of the only layers to change; all if none is given.
        exclude: Names of layers that stay.
        subgraphs: Layers that change together; what is in none is one more subgraph.
        metric: The distance of outputs: ``l2``, ``kl``, ``cosine`` (one less the similarity),
            ``sqnr`` and ``psnr`` (in decibels, negative). Lower is nearer.
        threshold: How far the output may get (``speed``), or how near it must come (``quality``).
            0 changes all layers, ``None`` none: it measures only.
        objective: ``speed`` changes to cheaper formats until the threshold would be passed,
            ``quality`` to better ones until it is reached.
        output: Which output of the model is measured.
        data_size: How many calibration samples to measure on; all of them if not given.
        most: At most so many layers change; any number if not given.
        ranks: If given, only the layers of these ranks in that order change, counted from 0.
        not_ranks: The layers of these ranks stay.
        unshared_inputs: Skip layers whose input is quantized for other layers as well.
        sharing: What becomes of tensors with the scale of a layer's input, such as those after a
            Transpose: they change along (``propagate``), or stay as they are (``unshare``).
        requantize: Put a requantization pair at every format boundary, so that each operator reads and
            computes its own.
        cache: A JSON file that keeps what was measured; ``enabled`` may be set to false there.
        workers: How many layers are measured at a time.
    """

    options: tuple[LayerOption, ...]
    op_types: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    subgraphs: tuple[Subgraph, ...] = ()
    metric: Distance = "l2"
    threshold: float | None = 0.0
    objective: Objective = "speed"
    output: int = 0
    data_size: int | None = None
    most: int | None = None
    ranks: tuple[int, ...] = ()
    not_ranks: tuple[int, ...] = ()
    unshared_inputs: bool = False
    sharing: Sharing = "propagate"
    requantize: bool = False
    cache: str | None = None
    workers: int = 1

    def __post_init__(self) -> None:
        if not self.options:
            raise ConfigError("mixed precision has nothing to choose from: give it an option")
        for field, least in (("output", 0), ("data_size", 1), ("most", 1), ("workers", 1)):
            value = getattr(self, field)
            if value is not None and value < least:
                raise ConfigError(
                    f"mixed_precision.{field} is {value}; it must be at least {least}"
                )
