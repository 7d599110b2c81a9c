"""The interface of a refinement: settings of the layer-by-layer loop, and the solver of one layer."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

from lowbit.graph.session import Feed
from lowbit.refine.layers import LayerResult, RefinedLayer
from lowbit.refine.samples import Columns
from lowbit.state import Quantized

Feeds = Callable[[], Iterable[Feed]]
Solve = Callable[[RefinedLayer, Any], LayerResult]
"""Solves a layer from its samples, or from the collector that took them in."""


class Collector(Protocol):
    """Takes in the samples of a layer, so that none need be kept."""

    def add(self, samples: Sequence[tuple[int, Columns]]) -> None:
        """Add some samples, with their numbers; they come in order."""

    def finish(self) -> None:
        """Finish: all samples were added."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """How the loop goes.

    Attributes:
        positions: How many positions of each sample a layer is looked at.
        op_types: Operators that are refined; all linear layers if there are none.
        moments: Whether samples serve for moments alone; positions are then as many as each layer
            needs.
        few_samples: Whether no more samples are used than the layers need, if no number is asked for.
        seed: Of the positions drawn.
        float_inputs: Whether samples hold the float model's layer inputs as well.
        at_once: Whether the targets of all layers are taken in one pass and kept in memory.
        on_disk: Whether all samples are kept in files.
        cache_dir: Where files are kept; in a temporary directory if not given.
        independent: Whether each layer is solved as if no other were, several at a time.
        batch_size: How many samples onnxruntime runs at once.
        held_out: The share of the samples that a collector does not solve on.
        selected_output: The output of the model by whose error each layer is kept or not.
    """

    positions: int
    op_types: tuple[str, ...] = ()
    moments: bool = False
    few_samples: bool = False
    seed: int = 0
    float_inputs: bool = False
    at_once: bool = False
    on_disk: bool = False
    cache_dir: str | None = None
    independent: bool = False
    batch_size: int = 1
    held_out: float = 0.0
    selected_output: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One kind of refinement; its functions get the configuration of that kind.

    Attributes:
        settings: Returns how the loop goes.
        solver: Returns what solves one layer of a quantized model; the event asks it to end early.
        collector: Returns what takes in the samples of one layer, given the numbers of those held out.
            The solver then gets that; without one it gets all samples.
        check: Raises for what cannot be had here, such as a device.
        integers_only: Whether it can refine only weights that are stored as integers.
        needs_data: Whether it has no use for random data.
    """

    settings: Callable[[Any], LoopSettings]
    solver: Callable[[Quantized, Any, threading.Event], Solve]
    collector: Callable[[Quantized, RefinedLayer, Collection[int]], Collector] | None = None
    check: Callable[[Any], object] = lambda config: None
    integers_only: bool = True
    needs_data: bool = False
