"""``lowbit presets`` and ``lowbit targets``."""

from __future__ import annotations

import json

import msgspec
import pytest

from lowbit.config.config import QuantConfig
from lowbit.config.presets import PRESETS
from lowbit.targets.builtin import BUILTIN
from lowbit.targets.target import Target


@pytest.mark.parametrize("width", ["80", "160"])
def test_presets_are_listed_with_formats_and_target(run, monkeypatch, width) -> None:
    monkeypatch.setenv("COLUMNS", width)

    ran = run("presets")

    assert ran.code == 0
    assert all(name in ran.out for name in PRESETS)
    assert "uint8 asym mse" in ran.out
    assert "int8 sym per-channel mse" in ran.out
    assert "ryzen-ai-cnn" in ran.out
    assert max(map(len, ran.out.splitlines())) <= int(width)


def test_presets_as_json_are_whole_configurations(run) -> None:
    rows = json.loads(run("presets", "--json").out)

    read = {row["name"]: msgspec.convert(row["config"], QuantConfig) for row in rows}
    assert read == {name: preset.config for name, preset in PRESETS.items()}
    assert all(row["summary"] for row in rows)


@pytest.mark.parametrize("width", ["80", "160"])
def test_targets_are_listed(run, monkeypatch, width) -> None:
    monkeypatch.setenv("COLUMNS", width)

    ran = run("targets")

    assert all(name in ran.out for name in BUILTIN)
    assert "power-of-two" in ran.out
    assert max(map(len, ran.out.splitlines())) <= int(width)


def test_a_target_as_json_can_be_read_back(run) -> None:
    text = run("targets", "ryzen-ai-cnn").out
    everything = json.loads(run("targets", "--json").out)

    assert msgspec.json.decode(text, type=Target) == BUILTIN["ryzen-ai-cnn"]
    assert [row["name"] for row in everything] == list(BUILTIN)


def test_an_unknown_target_names_the_nearest(run) -> None:
    ran = run("targets", "onnxruntim")

    assert ran.code == 2
    assert "did you mean 'onnxruntime'" in ran.err
