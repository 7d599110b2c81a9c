from __future__ import annotations

import msgspec
import pytest

from lowbit.config.presets import PRESETS, find_preset
from lowbit.config.specs import BfpSpec, FloatSpec, MxSpec
from lowbit.errors import ConfigError
from lowbit.targets import find_target


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_suits_its_target(name: str) -> None:
    config = PRESETS[name].config
    target = find_target(config.target)

    for spec, formats in (
        (config.activation, target.activation_formats),
        (config.weight, target.weight_formats),
    ):
        if isinstance(spec, FloatSpec):
            assert spec.format in target.float_formats
        elif isinstance(spec, (BfpSpec, MxSpec)):
            assert target.blocks
        elif spec is not None and target.name == config.target:
            assert spec.format in formats
            assert spec.power_of_two or not target.power_of_two
            assert target.per_channel or not spec.per_channel


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_upper_case_named_and_summed_up(name: str) -> None:
    preset = PRESETS[name]

    assert name == preset.name == preset.config.name
    assert name == name.upper()
    assert preset.summary


def test_case_does_not_matter() -> None:
    assert find_preset("xint8") is find_preset("XINT8")


def test_unknown_presets_get_the_nearest_and_all_names() -> None:
    with pytest.raises(ConfigError, match=r"'XINT9'; did you mean 'XINT8'.*A8W8, A16W8"):
        find_preset("XINT9")


@pytest.mark.parametrize("name", ["A8W8", "A16W8", "XINT8", "BF16"])
def test_an_accurate_variant_differs_by_its_refinement_only(name: str) -> None:
    plain, accurate = find_preset(name), find_preset(f"{name}_ACCURATE")

    assert accurate.refinement != plain.refinement
    assert accurate == msgspec.structs.replace(
        plain, name=f"{name}_ACCURATE", refinement=accurate.refinement
    )
