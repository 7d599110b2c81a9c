"""Presets and defaults against AMD Quark 0.13's own, written down from its objects."""

from __future__ import annotations

import dataclasses
import enum
import json
import pathlib
from typing import Any

import pytest

from lowbit.quark.onnx.quantization.config import algorithm, custom_config
from lowbit.quark.onnx.quantization.config.config import QConfig

QUARK = json.loads((pathlib.Path(__file__).parent / "data/quark-0.13.json").read_text())


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, type):
        return value.__name__
    return _plain(vars(value)) if dataclasses.is_dataclass(value) else value


def test_the_names_are_quarks() -> None:
    assert set(custom_config.get_default_config_mapping()) == set(QUARK["legacy"])


@pytest.mark.parametrize("name", QUARK["legacy"])
def test_a_preset_has_quarks_fields(name: str) -> None:
    assert _plain(custom_config.get_default_config(name)) == QUARK["legacy"][name]
    assert getattr(custom_config, f"{name}_CONFIG") == custom_config.DefaultConfigMapping[name]


@pytest.mark.parametrize("name", QUARK["qconfig"])
def test_a_preset_object_has_quarks_fields(name: str) -> None:
    config = getattr(custom_config, name)

    assert _plain(config.global_config) == QUARK["qconfig"][name]["g"]
    assert _plain(config.extra_options) == QUARK["qconfig"][name]["x"]
    assert [_plain(a) for a in config.algo_config] == QUARK["qconfig"][name]["a"]


@pytest.mark.parametrize("name", QUARK["algorithms"])
def test_an_algorithm_has_quarks_defaults(name: str) -> None:
    assert _plain(getattr(algorithm, name)()) == QUARK["algorithms"][name]


def test_presets_are_copies() -> None:
    custom_config.get_default_config("XINT8").extra_options["CLESteps"] = 5

    assert "CLESteps" not in custom_config.get_default_config("XINT8").extra_options


def test_the_documented_spelling_with_config_is_known() -> None:
    wanted = custom_config.XINT8_ADAROUND_CONFIG

    assert QConfig.get_default_config("XINT8_ADAROUND_CONFIG").global_quant_config == wanted


def test_an_unknown_preset_is_a_value_error_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="'A8W9'; did you mean 'A8W8'"):
        custom_config.get_default_config("A8W9")
