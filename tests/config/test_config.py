from __future__ import annotations

import msgspec
import pytest

from lowbit.config.config import QuantConfig
from lowbit.config.methods import Entropy, MinMax, MinMse, OutputMse
from lowbit.config.specs import TensorSpec
from lowbit.numerics.formats import Format

_CONFIG = QuantConfig(
    activation=TensorSpec(format=Format.INT8), weight=TensorSpec(format=Format.INT8)
)


def test_another_method_changes_activations_only() -> None:
    changed = _CONFIG.with_method(Entropy())

    assert changed.activation is not None
    assert changed.activation.method == Entropy()
    assert msgspec.structs.replace(changed, activation=_CONFIG.activation) == _CONFIG


def test_weights_only_configurations_have_no_method_to_change() -> None:
    config = msgspec.structs.replace(_CONFIG, activation=None)

    assert config.with_method(Entropy()) is config


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (TensorSpec(format=Format.INT8, method=MinMse()), OutputMse()),
        (TensorSpec(format=Format.INT8, method=MinMse(), power_of_two=True), MinMse()),
        (TensorSpec(format=Format.INT8, method=MinMax()), MinMax()),
        (TensorSpec(format=Format.INT8, method=MinMse(histogram="growing")), None),
    ],
)
def test_without_correction_weights_are_chosen_by_the_output(
    weight: TensorSpec, expected: object
) -> None:
    config = msgspec.structs.replace(_CONFIG, weight=weight, correct=True)

    changed = config.without_correction()

    assert not changed.correct
    assert isinstance(changed.weight, TensorSpec)
    assert changed.weight.method == (weight.method if expected is None else expected)


def test_a_configuration_is_immutable() -> None:
    with pytest.raises(AttributeError):
        _CONFIG.name = "other"  # type: ignore[misc]
