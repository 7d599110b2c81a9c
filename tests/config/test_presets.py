"""The presets: each fits its target, is found by its name, and differs where it says so."""

from __future__ import annotations

import importlib.metadata
import re

import msgspec
import pytest

from lowbit.config.config import QuantConfig
from lowbit.config.presets import PRESETS, PURPOSES, find_preset
from lowbit.config.refinement import AdaQuant, LayerReconstruction
from lowbit.config.specs import BLOCKS, FloatSpec, IntegerSpec
from lowbit.errors import ConfigError
from lowbit.targets import find_target
from lowbit.targets.builtin import BUILTIN


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_suits_its_target(name: str) -> None:
    config = PRESETS[name].config
    target = find_target(config.target)

    assert target.name == config.target
    for spec, formats in (
        (config.activation, target.activation_formats),
        (config.weight, target.weight_formats),
    ):
        if spec is None:
            assert spec is config.activation
            continue
        assert target.takes(spec, formats)
        if isinstance(spec, FloatSpec):
            assert spec.format in target.float_formats
        elif spec.is_block:
            assert spec.__struct_config__.tag in target.format_kinds
        elif spec.is_dynamic:
            assert target.dynamic
        else:
            assert isinstance(spec, IntegerSpec)
            assert spec.format in formats
            assert spec.power_of_two or not target.power_of_two
            assert target.per_channel or not spec.per_channel


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_upper_case_named_and_summed_up(name: str) -> None:
    preset = PRESETS[name]

    assert name == preset.name == preset.config.name
    assert name == name.upper()
    assert preset.summary


def test_every_block_format_has_a_preset_of_nothing_else() -> None:
    for name, spec in BLOCKS.items():
        config = find_preset(name)

        assert (config.activation, config.weight, config.bias) == (spec, spec, spec)


def test_case_does_not_matter() -> None:
    assert find_preset("xint8") is find_preset("XINT8")


def test_unknown_presets_get_the_nearest_and_all_names() -> None:
    with pytest.raises(ConfigError, match=r"'XINT9'; did you mean 'XINT8'.*A8W8, A16W8"):
        find_preset("XINT9")


def test_a_preset_of_an_installed_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = msgspec.structs.replace(find_preset("A8W8"), name="mine", exclude=("head*",))

    class Entry:
        def load(self) -> QuantConfig:
            return mine

    def entries(*, group: str, name: str) -> list[Entry]:
        return [Entry()] if (group, name) == ("lowbit.presets", "mine") else []

    monkeypatch.setattr(importlib.metadata, "entry_points", entries)

    assert find_preset("mine") is mine
    with pytest.raises(ConfigError, match="unknown preset 'yours'"):
        find_preset("yours")


@pytest.mark.parametrize("name", ["A8W8", "A16W8", "XINT8", "U8S8_PERCHANNEL", "BF16"])
def test_an_accurate_variant_differs_by_its_refinement_and_samples_only(name: str) -> None:
    plain, accurate = find_preset(name), find_preset(f"{name}_ACCURATE")

    assert accurate.refinement != plain.refinement
    assert accurate == msgspec.structs.replace(
        plain,
        name=f"{name}_ACCURATE",
        refinement=accurate.refinement,
        sensitivity=accurate.sensitivity,
    )


@pytest.mark.parametrize("name", ["A8W8", "XINT8", "U8S8_PERCHANNEL"])
def test_accurate_variants_measure_sensitivity_on_four_times_the_samples(name: str) -> None:
    plain, accurate = find_preset(name), find_preset(f"{name}_ACCURATE")

    assert accurate.sensitivity.samples == 4 * plain.sensitivity.samples
    assert "up to 4 times the samples" in PRESETS[f"{name}_ACCURATE"].summary


def test_formats_without_zero_points_are_centered() -> None:
    centered = {name for name in PRESETS if find_preset(name).centering is not None}
    assert centered == {"A8W8", "A8W8_ACCURATE"}


def test_accurate_summaries_say_what_takes_the_time() -> None:
    """Four times the positions and twice the sweeps of the usual reconstruction."""
    usual, more = LayerReconstruction(), find_preset("A8W8_ACCURATE").refinement

    assert isinstance(more, LayerReconstruction)
    assert (more.positions, more.sweeps) == (4 * usual.positions, 2 * usual.sweeps)
    assert "four times the positions, with twice the sweeps" in PRESETS["A8W8_ACCURATE"].summary
    assert find_preset("BF16_ACCURATE").refinement == AdaQuant()
    assert "AdaQuant" in PRESETS["BF16_ACCURATE"].summary


@pytest.mark.parametrize("name", ["U8S8", "S8S8", "U16S8"])
def test_a_per_channel_variant_differs_by_the_scales_of_weights_only(name: str) -> None:
    plain, fine = find_preset(name), find_preset(f"{name}_PERCHANNEL")

    assert isinstance(plain.weight, IntegerSpec)
    weight = msgspec.structs.replace(plain.weight, per_channel=True)
    assert fine == msgspec.structs.replace(plain, name=f"{name}_PERCHANNEL", weight=weight)


def test_presets_to_start_with_are_for_the_targets_of_their_purpose() -> None:
    for purpose in PURPOSES:
        targets = [PRESETS[name].config.target for name in purpose.first]
        assert set(targets) <= set(purpose.targets)
        assert len(set(targets)) == len(targets)
        assert all(name in purpose.advice for name in purpose.first)


def test_every_built_in_target_has_one_purpose_and_advice_names_presets() -> None:
    targets = [target for purpose in PURPOSES for target in purpose.targets]

    assert sorted(targets) == sorted(BUILTIN)
    for purpose in PURPOSES:
        named = re.findall(r"\b[A-Z]+\d+\w*\b", purpose.advice)
        assert named
        for name in named:
            assert find_preset(name).target in purpose.targets
