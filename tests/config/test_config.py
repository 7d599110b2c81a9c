from __future__ import annotations

import msgspec
import pytest

from lowbit.config.config import QuantConfig
from lowbit.config.methods import Entropy, MinMax, MinMse, OutputMse
from lowbit.config.specs import IntegerSpec
from lowbit.numerics.formats import IntegerFormat

_CONFIG = QuantConfig(
    activation=IntegerSpec(format=IntegerFormat.INT8), weight=IntegerSpec(format=IntegerFormat.INT8)
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
        (IntegerSpec(format=IntegerFormat.INT8, method=MinMse()), OutputMse()),
        (IntegerSpec(format=IntegerFormat.INT8, method=MinMse(), power_of_two=True), MinMse()),
        (IntegerSpec(format=IntegerFormat.INT8, method=MinMax()), MinMax()),
        (IntegerSpec(format=IntegerFormat.INT8, method=MinMse(histogram="growing")), None),
    ],
)
def test_without_correction_weights_are_chosen_by_the_output(
    weight: IntegerSpec, expected: object
) -> None:
    config = msgspec.structs.replace(_CONFIG, weight=weight, bias_correction=True)

    changed = config.without_correction()

    assert not changed.bias_correction
    assert isinstance(changed.weight, IntegerSpec)
    assert changed.weight.method == (weight.method if expected is None else expected)


def test_a_configuration_is_immutable() -> None:
    with pytest.raises(AttributeError):
        _CONFIG.name = "other"  # type: ignore[misc]
