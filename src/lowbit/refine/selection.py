"""Selective update: a module is kept only if the whole model's output comes nearer to float."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from lowbit.config.refinement import Gptq, LayerReconstruction, Refinement
from lowbit.errors import ConfigError
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, extracted_session
from lowbit.refine.modules import Draft, Module, Outcome, drafted
from lowbit.refine.walk import Feeds, replaced_constants


@dataclasses.dataclass(slots=True)
class Selection:
    """Runs the whole model after each module."""

    draft: Draft
    output: str
    feeds: Feeds
    targets: list[Array]
    device: str
    constants: dict[str, Array]
    error: float = 0.0

    @classmethod
    def of(
        cls,
        draft: Draft,
        modules: Sequence[Module],
        config: Refinement,
        feeds: Feeds,
        done: Sequence[Outcome],
    ) -> Selection | None:
        """Return a selection if the configuration asks for it."""
        if isinstance(config, (LayerReconstruction, Gptq)) or not config.selective_update:
            return None
        outputs = [tensor_name(value) for value in draft.adapted.graph.outputs]
        if config.output_index >= len(outputs):
            raise ConfigError(
                f"output_index is {config.output_index}, but the model has {len(outputs)} "
                f"outputs: {', '.join(outputs)}"
            )
        output = outputs[config.output_index]
        inputs = {tensor_name(v): None for v in draft.floats.graph.inputs}
        floats = extracted_session(
            draft.floats, inputs, [output], {}, device=config.infer_device, name="the float model"
        )
        targets = [floats.run([output], feed)[0] for feed in feeds()]
        constants: dict[str, Array] = {}
        for module, outcome in zip(modules, done, strict=False):
            constants |= replaced_constants(draft, module, outcome)
        chosen = cls(draft, output, feeds, targets, config.infer_device, constants)
        chosen.error = chosen.measured({})
        return chosen

    def choose(self, module: Module, outcome: Outcome) -> Outcome:
        """Return the outcome, or the draft's own if the model is no nearer to float with it."""
        if not outcome.kept:
            return outcome
        changed = replaced_constants(self.draft, module, outcome)
        error = self.measured(changed)
        if not error < self.error:
            return drafted(self.draft, module, outcome)
        self.error = error
        self.constants |= changed
        return outcome

    def measured(self, changed: dict[str, Array]) -> float:
        """Return the mean squared error of the model's output."""
        inputs = {tensor_name(v): None for v in self.draft.quantized.graph.inputs}
        session = extracted_session(
            self.draft.quantized,
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
