"""Calibration methods as values: by their names, strict, and open for others."""

from __future__ import annotations

import msgspec
import pytest

from lowbit.config.extensible import decode_json
from lowbit.config.methods import BY_NAME, FOR_WEIGHTS, Method, MinMax, OutputMse
from lowbit.errors import ConfigError


@pytest.mark.parametrize("table", [BY_NAME, FOR_WEIGHTS], ids=["activations", "weights"])
def test_every_method_is_written_and_read_by_its_name(table: dict[str, type[Method]]) -> None:
    for name, kind in table.items():
        method = kind()

        encoded = msgspec.json.encode(method)

        assert msgspec.json.decode(encoded)["type"] == name
        assert decode_json(encoded, Method) == method


def test_a_misspelt_setting_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="percentil"):
        decode_json(b'{"type": "percentile", "percentil": 99}', Method)


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"'bogus' \(known: distribution, entropy"):
        decode_json(b'{"type": "bogus"}', Method)


def test_the_output_decides_for_weights_only() -> None:
    assert OutputMse in FOR_WEIGHTS.values()
    assert OutputMse not in BY_NAME.values()


class _Own(Method, msgspec.Struct, frozen=True, tag="test-own"):
    """A method that says nothing of itself."""


def test_what_a_method_of_ones_own_lacks_is_named() -> None:
    with pytest.raises(NotImplementedError, match="_Own does not say what it observes"):
        _Own().observer()
    with pytest.raises(NotImplementedError, match="_Own gives no range for 'act'"):
        _Own().range_of(None, None, "act")
    with pytest.raises(ConfigError, match=r"_Own is not a method for weights; take minmax, mse"):
        _Own().weight_parameters_of(None, None)


def test_a_method_of_ones_own_chooses_a_range_unless_it_chooses_parameters() -> None:
    assert _Own().parameters_of(None, None, "act") is None
    assert not _Own().rounds_to_nearest


def test_methods_are_immutable_values() -> None:
    assert MinMax(moving_average=0.1) == MinMax(moving_average=0.1)
    assert len({MinMax(), MinMax(), MinMax(moving_average="mean")}) == 2
    with pytest.raises(AttributeError):
        MinMax().moving_average = 0.5  # type: ignore[misc]
