"""Which implementation does the work of a transform, and what it may look at."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np
import onnx_ir as ir
import pytest
from helpers.chains import chain, node

import lowbit
from lowbit.config.presets import find_preset
from lowbit.config.transforms import (
    CrossLayerEqualization,
    FloatTransform,
    Rescaling,
    RotatedStream,
    Rotation,
    SmoothQuant,
)
from lowbit.graph import io
from lowbit.transforms import TRANSFORMS, Context, Levels, TransformedModel, implementation_of
from lowbit.transforms.cross_layer import CrossLayer
from lowbit.transforms.rotation import Rotate
from lowbit.transforms.smooth_quant import Smooth


class Negate(FloatTransform, msgspec.Struct, frozen=True, tag="test-negate"):
    """Negate a constant twice: the same function, and a note."""

    is_optional: ClassVar[bool] = False

    name: str = "w"

    def implementation(self) -> Negation:
        return Negation()


class Negation:
    """Notes what it was given."""

    contexts: ClassVar[list[Context]] = []

    def applies(self, model: ir.Model, config: Negate) -> bool:
        return config.name in model.graph.initializers

    def apply(self, model: ir.Model, config: Negate, context: Context) -> TransformedModel:
        self.contexts.append(context)
        return TransformedModel(model, (f"negated {config.name} twice",))


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (CrossLayerEqualization(), CrossLayer),
        (SmoothQuant(alpha=0.3), Smooth),
        (Rotation(streams=(RotatedStream(producers=("a",)),), size=8), Rotate),
        (Negate(), Negation),
    ],
)
def test_a_transform_knows_what_does_its_work(config: FloatTransform, kind: type) -> None:
    assert isinstance(implementation_of(config), kind)


def test_the_packages_own_cannot_be_replaced() -> None:
    assert set(TRANSFORMS) == {CrossLayerEqualization, SmoothQuant, Rotation, Rescaling}
    with pytest.raises(TypeError):
        TRANSFORMS[Negate] = Negation()  # type: ignore[index]


def test_a_context_says_nothing_of_its_own() -> None:
    context = Context()

    assert context.data is None
    assert list(context.float_nodes(None)) == []  # type: ignore[arg-type]
    assert context.levels == Levels(activation=127, weight=127, per_channel=False)


def test_a_transform_of_ones_own_runs_with_the_others() -> None:
    model = chain(
        node("Conv", "x w", "a"), node("Relu", "a", "b"), node("Conv", "b v", "y"),
        w=(6, 3, 1, 1), v=(4, 6, 1, 1),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    data = [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]
    preset = find_preset("A8W8")
    config = msgspec.structs.replace(
        preset, equalization=Negate(), smooth_quant=None, exclude=("y_node",),
        keep_only_if_better=False, refinement=None, bias_correction=False,
    )  # fmt: skip
    Negation.contexts.clear()

    result = lowbit.quantize(io.to_proto(model), data=data, config=config)

    assert "negated w twice" in result.report.notes
    (context,) = Negation.contexts
    assert len(list(context.data)) == len(list(context.data)) == 4
    assert set(context.float_nodes(model)) == {"y_node"}
    assert context.levels.weight == 127
