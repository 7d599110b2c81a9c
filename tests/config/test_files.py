"""Configuration files: what is written comes back, and what is misspelt is named."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lowbit.config.config import QuantConfig
from lowbit.config.files import config_json, read_config
from lowbit.config.mixed_precision import LayerOption, MixedPrecision
from lowbit.config.presets import PRESETS, find_preset
from lowbit.config.refinement import AdaRound
from lowbit.config.specs import (
    BLOCKS,
    FloatSpec,
    IntegerSpec,
    Requantization,
    Rule,
    TensorOverride,
)
from lowbit.config.transforms import RotatedStream, Rotation
from lowbit.errors import ConfigError
from lowbit.numerics.formats import FloatFormat, IntegerFormat
from lowbit.quark.extension import QuarkCle, QuarkMinMse

_OWN_KINDS = msgspec.structs.replace(
    find_preset("XINT8"),
    name="OWN",
    activation=IntegerSpec(
        format=IntegerFormat.UINT8, power_of_two=True, method=QuarkMinMse(bins=64)
    ),
    equalization=QuarkCle(steps=3),
    refinement=AdaRound(beta_range=(9.0, 2.0)),
    rotation=Rotation(streams=(RotatedStream(producers=("a",), norm="n"),), size=8),
    mixed_precision=MixedPrecision(options=(LayerOption(weight=BLOCKS["MX6"], layers=("c",)),)),
    rules=(Rule(op_type="Gemm", activation=FloatSpec(format=FloatFormat.FLOAT16, saturate=True)),),
    tensors=(TensorOverride(tensor="t", range=(-1.0, 2.0), optional=True),),
    requantize=(Requantization(tensor="t", consumers=("n",), name="u", before=True),),
)


@pytest.mark.parametrize(
    "config", [*(p.config for p in PRESETS.values()), _OWN_KINDS], ids=lambda config: config.name
)
def test_every_configuration_survives_a_file(config: QuantConfig, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(config_json(config))

    assert read_config(path) == config


def test_a_file_may_hold_only_what_differs_from_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"preset": "XINT8", "bias_correction": false, "exclude": ["head*"]}')

    config = read_config(path)

    expected = msgspec.structs.replace(
        find_preset("XINT8"), bias_correction=False, exclude=("head*",)
    )
    assert config == expected


def test_the_preset_may_come_from_outside(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"bias_correction": false}')

    assert read_config(path, "A16W8").name == "A16W8"
    path.write_text('{"preset": "A8W8"}')
    with pytest.raises(ConfigError, match="'A8W8'"):
        read_config(path, "A16W8")


def test_toml_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        'preset = "A8W8"\n[[rules]]\nop_type = "Softmax"\nexclude = true\n'
        '[activation]\ntype = "integer"\nformat = "uint8"\nsymmetric = false\n'
    )

    config = read_config(path)

    assert config.rules[0].op_type == "Softmax"
    assert config.activation is not None
    assert not config.activation.symmetric


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"preset": "A8W8", "bias_corection": false}',
            "unknown option 'bias_corection'; did you mean 'bias_correction'",
        ),
        ('{"preset": "A9W9"}', "unknown preset 'A9W9'; did you mean"),
        ('{"preset": "A8W8", "bias_correction": "no"}', r"`bool`, got `str` - at `\$.bias_corr"),
        (
            '{"preset": "A8W8", "activation": {"type": "integer", "format": "int9"}}',
            r"'int9' - at `\$.activation.format`",
        ),
        (
            '{"preset": "A8W8", "refinement": {"type": "adaround", "early_stopp": true}}',
            r"`early_stopp` - at `\$.refinement`",
        ),
        (
            '{"preset": "A8W8", "refinement": {"type": "adaround", "num_iterations": 0}}',
            "adaround.num_iterations is 0; it must be at least 1",
        ),
        ("{", "cannot be parsed"),
        ("[1]", "holds list, not options"),
        ("{}", "activation"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)

    with pytest.raises(ConfigError, match=message):
        read_config(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json: No such file"):
        read_config(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.toml", b'preset = "A8W8"\n[refinement]\ntype = "reconstruction"\nridge = nan', "ridge"),
        ("c.toml", b'preset = "A8W8"\n[equalization]\ntype = "cross-layer"\nheadroom = inf', "inf"),
        (
            "c.json",
            b'{"preset": "A8W8", "refinement": {"type": "gptq", "perc_damp": 1e999}}',
            "range",
        ),
        (
            "c.json",
            b'{"preset": "A8W8", "refinement": {"type": "gptq", "perc_damp": NaN}}',
            "malformed",
        ),
        ("c.json", b'{"preset": "\xff"}', "not UTF-8"),
        ("c.toml", b'preset = "\xff"', "not UTF-8"),
        ("c.json", b"[" * 100_000, "nested too deeply"),
        ("c.json", b'{"preset": "A8W8", "rules": ' + b"[" * 500 + b"]" * 500 + b"}", "rules"),
    ],
)
def test_what_no_configuration_can_hold_is_named(tmp_path: Path, name, content, message) -> None:
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=message):
        read_config(path)
