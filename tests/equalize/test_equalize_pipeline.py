"""Equalization as part of a run: it is said, it can be switched, and the output stays right."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from chains import chain, node

import lowbit
from lowbit.api import prepare
from lowbit.config.files import config_json
from lowbit.config.presets import PRESETS, find_preset
from lowbit.config.quark import QUARK_PRESETS, with_cle
from lowbit.config.transforms import CrossLayerEqualization, QuarkCle, SmoothQuant
from lowbit.graph import io


def model():
    return io.to_proto(
        chain(
            node("Conv", "x w1 b1", "a"), node("Clip", "a zero six", "b"),
            node("Conv", "b w2", "c"), node("Relu", "c", "d"), node("Conv", "d w3", "y"),
            w1=(6, 3, 3, 3), b1=(6,), w2=(6, 6, 1, 1), w3=(4, 6, 1, 1),
            zero=np.float32(0), six=np.float32(60),
        )
    )  # fmt: skip


def data() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(8)]


def test_the_report_says_what_was_equalized() -> None:
    config = msgspec.structs.replace(find_preset("A8W8"), equalization=CrossLayerEqualization())

    result = lowbit.quantize(model(), data=data(), config=config)

    assert any(note.startswith("equalized") for note in result.report.notes)
    assert result.report.sqnr_db > 20


def test_layers_before_a_clip_are_free_only_with_data() -> None:
    config = msgspec.structs.replace(find_preset("A8W8"), equalization=CrossLayerEqualization())

    without = prepare(io.load(model()), config).equalized
    seen = prepare(io.load(model()), config, data=data()).equalized

    assert without.groups[0].free == 0
    assert seen.groups[0].free > 0
    assert prepare(io.load(model()), config, equalized=seen).equalized is seen


def test_excluded_layers_are_not_equalized_like_quark() -> None:
    config = with_cle(QUARK_PRESETS["XINT8"])
    excluding = msgspec.structs.replace(config, exclude=("y_node",))

    assert "1 pairs" in prepare(io.load(model()), config).equalized.notes[0]
    assert "0 pairs" in prepare(io.load(model()), excluding).equalized.notes[0]


@pytest.mark.parametrize("value", [None, CrossLayerEqualization(rounds=2), QuarkCle(steps=-1)])
def test_a_configuration_keeps_it_in_a_file(
    value: CrossLayerEqualization | QuarkCle | None,
) -> None:
    config = msgspec.structs.replace(find_preset("A8W8"), equalization=value)

    again = msgspec.json.decode(config_json(config), type=lowbit.QuantConfig)

    assert again == config


@pytest.mark.parametrize("name", PRESETS)
def test_presets_equalize_only_where_they_try_whether_it_helps(name: str) -> None:
    config = find_preset(name)

    assert config.equalization in (None, CrossLayerEqualization())
    assert config.smooth_quant in (None, SmoothQuant())
    assert config.keep_only_if_better or (
        config.equalization is None and config.smooth_quant is None
    )
