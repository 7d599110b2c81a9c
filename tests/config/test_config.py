"""The configuration as one value: what its own changes leave alone."""

from __future__ import annotations

import msgspec
import pytest

from lowbit.config.config import QuantConfig
from lowbit.config.methods import Entropy, Method, MinMax, MinMse, OutputMse, Percentile
from lowbit.config.specs import BLOCKS, FloatSpec, IntegerSpec, Spec
from lowbit.errors import ConfigError
from lowbit.numerics.formats import FloatFormat, IntegerFormat
from lowbit.quark.extension.methods import QuarkMinMse

_CONFIG = QuantConfig(
    activation=IntegerSpec(format=IntegerFormat.INT8), weight=IntegerSpec(format=IntegerFormat.INT8)
)


def test_another_method_changes_activations_only() -> None:
    changed = _CONFIG.with_method(Entropy())

    assert changed.activation is not None
    assert changed.activation.method == Entropy()
    assert msgspec.structs.replace(changed, activation=_CONFIG.activation) == _CONFIG


@pytest.mark.parametrize("method", [MinMax(), Percentile(percentile=99.0)])
def test_scaled_floats_take_the_methods_that_give_a_range(method: Method) -> None:
    scaled = FloatSpec(format=FloatFormat.FLOAT16, scaled=True, saturate=True)
    config = msgspec.structs.replace(_CONFIG, activation=scaled)

    changed = config.with_method(method)

    assert changed.activation == msgspec.structs.replace(scaled, method=method)


@pytest.mark.parametrize(
    ("spec", "method"),
    [
        (FloatSpec(format=FloatFormat.FLOAT16, scaled=True), MinMse()),
        (FloatSpec(format=FloatFormat.BFLOAT16), MinMax()),
        (BLOCKS["MX6"], MinMax()),
    ],
)
def test_formats_that_a_method_finds_no_scale_for_are_named(spec: Spec, method: Method) -> None:
    config = msgspec.structs.replace(_CONFIG, activation=spec)

    with pytest.raises(ConfigError) as raised:
        config.with_method(method)

    assert spec.describe() in str(raised.value)
    assert type(method).__name__ in str(raised.value)
    assert "take minmax and percentile" in str(raised.value)


def test_weights_only_configurations_have_no_method_to_change() -> None:
    config = msgspec.structs.replace(_CONFIG, activation=None)

    assert config.with_method(Entropy()) is config


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (IntegerSpec(format=IntegerFormat.INT8, method=MinMse()), OutputMse()),
        (IntegerSpec(format=IntegerFormat.INT8, method=MinMse(), power_of_two=True), MinMse()),
        (IntegerSpec(format=IntegerFormat.INT8, method=MinMax()), MinMax()),
        (IntegerSpec(format=IntegerFormat.INT8, method=QuarkMinMse()), QuarkMinMse()),
        (FloatSpec(format=FloatFormat.BFLOAT16), None),
        (None, None),
    ],
)
def test_without_bias_correction_weights_are_chosen_by_the_output(
    weight: Spec | None, expected: Method | None
) -> None:
    config = msgspec.structs.replace(_CONFIG, weight=weight, bias_correction=True)

    changed = config.skip_bias_correction()

    assert not changed.bias_correction
    if expected is None:
        assert changed.weight == weight
    else:
        assert changed.weight == msgspec.structs.replace(weight, method=expected)


def test_a_configuration_is_immutable() -> None:
    with pytest.raises(AttributeError):
        _CONFIG.name = "other"  # type: ignore[misc]
