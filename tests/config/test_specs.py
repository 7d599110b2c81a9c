from __future__ import annotations

import msgspec
import pytest

from lowbit.config.methods import MinMse, Percentile
from lowbit.config.specs import BiasSpec, IntegerSpec, ProductBias, Rule, TensorOverride
from lowbit.numerics.formats import IntegerFormat


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (IntegerSpec(format=IntegerFormat.INT8), "int8 sym minmax"),
        (
            IntegerSpec(format=IntegerFormat.UINT8, symmetric=False, method=Percentile()),
            "uint8 asym percentile",
        ),
        (
            IntegerSpec(format=IntegerFormat.INT8, power_of_two=True, method=MinMse()),
            "int8 sym pow2 mse",
        ),
        (
            IntegerSpec(format=IntegerFormat.INT8, per_channel=True, reduce_range=True),
            "int8 sym per-channel 7-bit minmax",
        ),
    ],
)
def test_a_spec_describes_itself_in_a_few_words(spec: IntegerSpec, words: str) -> None:
    assert spec.describe() == words


@pytest.mark.parametrize(
    "spec",
    [
        ProductBias(),
        ProductBias(format=IntegerFormat.INT16),
        IntegerSpec(format=IntegerFormat.INT8),
    ],
)
def test_both_kinds_of_bias_survive_a_file(spec: BiasSpec) -> None:
    assert msgspec.json.decode(msgspec.json.encode(spec), type=BiasSpec) == spec


@pytest.mark.parametrize("kind", [Rule, TensorOverride, IntegerSpec, ProductBias])
def test_unknown_fields_are_refused(kind: type) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(
            b'{"tensor": "t", "format": "int8", "type": "x", "bogus": 1}', type=kind
        )
