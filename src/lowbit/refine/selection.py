"""Selective update: a layer is kept only if the whole model's output comes nearer to float."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from lowbit.errors import ConfigError
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array
from lowbit.graph.submodels import Extractor
from lowbit.refine.algorithm import Feeds
from lowbit.refine.layers import LayerResult, RefinedLayer, replaced_constants, unrefined
from lowbit.state import Quantized


@dataclasses.dataclass(slots=True)
class Selection:
    """Runs the whole model after each layer."""

    state: Quantized
    output: str
    feeds: Feeds
    targets: list[Array]
    device: str
    constants: dict[str, Array]
    error: float = 0.0

    @classmethod
    def of(
        cls,
        state: Quantized,
        layers: Sequence[RefinedLayer],
        output_index: int,
        feeds: Feeds,
        done: Sequence[LayerResult],
        device: str,
    ) -> Selection:
        """Return a selection by one output of the model."""
        outputs = [tensor_name(value) for value in state.adapted.graph.outputs]
        if output_index >= len(outputs):
            raise ConfigError(
                f"output_index is {output_index}, but the model has {len(outputs)} "
                f"outputs: {', '.join(outputs)}"
            )
        output = outputs[output_index]
        floats = state.calibrated_model
        inputs = {tensor_name(v): None for v in floats.graph.inputs}
        running = Extractor(floats).session(inputs, [output], device=device, name="the float model")
        targets = [running.run([output], feed)[0] for feed in feeds()]
        constants: dict[str, Array] = {}
        for layer, result in zip(layers, done, strict=False):
            constants |= replaced_constants(state, layer, result)
        selection = cls(state, output, feeds, targets, device, constants)
        selection.error = selection.measured({})
        return selection

    def choose(self, layer: RefinedLayer, result: LayerResult) -> LayerResult:
        """Return the result, or what the layer was if the model is no nearer to float with it."""
        if not result.kept:
            return result
        changed = replaced_constants(self.state, layer, result)
        error = self.measured(changed)
        if not error < self.error:
            return unrefined(self.state, layer, result.before)
        self.error = error
        self.constants |= changed
        return result

    def measured(self, changed: dict[str, Array]) -> float:
        """Return the mean squared error of the model's output."""
        quantized = self.state.emitted.model
        inputs = {tensor_name(v): None for v in quantized.graph.inputs}
        session = Extractor(quantized).session(
            inputs,
            [self.output],
            self.constants | changed,
            device=self.device,
            name="the quantized model",
        )
        errors = [
            np.square(session.run([self.output], feed)[0] - want, dtype=np.float64).mean()
            for feed, want in zip(self.feeds(), self.targets, strict=True)
        ]
        return float(np.mean(errors))
