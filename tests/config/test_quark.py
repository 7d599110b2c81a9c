"""That these give Quark's numbers is in ``tests/golden``."""

from __future__ import annotations

import pytest

from lowbit.config.quark import QUARK_PRESETS, quark_entropy, quark_percentile
from lowbit.targets import find_target


@pytest.mark.parametrize("name", QUARK_PRESETS)
def test_every_preset_places_where_quark_does(name: str) -> None:
    config = QUARK_PRESETS[name]

    assert config.name == name
    assert find_target(config.target).name.startswith("quark-")
    assert config.head == "int8"
    assert not config.bias_correction


def test_xint8_is_unsigned_as_quarks_is() -> None:
    config = QUARK_PRESETS["XINT8"]

    assert config.activation is not None
    assert config.activation.format.value == "uint8"
    assert config.activation.power_of_two


def test_quarks_histograms_grow() -> None:
    assert quark_percentile(99.9).percentile == 99.9
    assert quark_percentile().histogram == quark_entropy().histogram == "growing"
    assert quark_entropy().bins == 128
