from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lowbit.config.config import QuantConfig
from lowbit.config.files import config_json, read_config
from lowbit.config.presets import PRESETS, find_preset
from lowbit.config.quark import QUARK_PRESETS
from lowbit.errors import ConfigError


@pytest.mark.parametrize("config", [*(p.config for p in PRESETS.values()), *QUARK_PRESETS.values()])
def test_every_preset_survives_a_file(config: QuantConfig, tmp_path: Path) -> None:
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
        '[activation]\ntype = "tensor"\nformat = "uint8"\nsymmetric = false\n'
    )

    config = read_config(path)

    assert config.rules[0].op_type == "Softmax"
    assert config.activation is not None
    assert not config.activation.symmetric


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"preset": "A8W8", "corect": false}', "unknown option 'corect'; did you mean 'correct'"),
        ('{"preset": "A9W9"}', "unknown preset 'A9W9'; did you mean"),
        ('{"preset": "A8W8", "bias_correction": "no"}', "correct"),
        ('{"preset": "A8W8", "activation": {"type": "tensor", "format": "int9"}}', "int9"),
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
