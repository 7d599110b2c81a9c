"""Ranges that come from a file or from a tensor upstream, and where scales per channel may lie."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import onnx
import pytest
from helpers.quark_cases import DATA, read_quantized, samples
from helpers.quark_helpers import ListReader, quiet

from lowbit.graph import io
from lowbit.quark.errors import NotSupportedError, QuarkConfigError
from lowbit.quark.onnx import ModelQuantizer
from lowbit.quark.translate.ranges import passed_through
from lowbit.quark.translate.selection import Nodes


def _scales(preset: str, options: dict[str, Any], **fields: Any) -> dict[str, tuple[float, int]]:
    model = ModelQuantizer(quiet(preset, options, include_cle=False, **fields)).quantize_model(
        onnx.load(DATA / "float.onnx"), None, ListReader([dict(f) for f in samples("calib.npz")])
    )
    found = read_quantized(model).activations
    return {name: (float(scale), int(zero)) for name, (scale, zero) in found.items()}


@pytest.mark.parametrize("preset", ["XINT8", "A8W8", "U8S8_AAWS"])
@pytest.mark.parametrize("key", ["SaveAndRestore", "TensorsRangeFile"])
def test_ranges_are_kept_in_a_file_and_come_back(
    preset: str, key: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "ranges.json"
    plain = _scales(preset, {})

    assert _scales(preset, {key: str(path)}) == plain
    written = json.loads(path.read_text())
    assert set(written["tensors_range"]) >= {"input", "relu2_out"}
    assert _scales(preset, {key: str(path)}) == plain


def test_an_edited_file_decides(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "ranges.json"
    path.write_text(json.dumps({"tensors_range": {"input": [-25.4, 3.0]}}))

    found = _scales("A8W8", {"SaveAndRestore": str(path)})

    plain = _scales("A8W8", {})
    assert found.pop("input")[0] == pytest.approx(25.4 / 127)
    assert found == {name: value for name, value in plain.items() if name != "input"}


def test_a_file_that_holds_no_ranges_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("[1, 2]")

    with pytest.raises(QuarkConfigError, match=r"other\.json is no file of ranges"):
        _scales("A8W8", {"SaveAndRestore": str(path)})


def test_what_passes_values_on_is_followed_to_its_source() -> None:
    nodes = Nodes(io.load(onnx.load(DATA / "float.onnx")), lenient=False)

    found = passed_through(["Relu", "BatchNormalization"], nodes)

    assert found["relu1_out"] == found["bn1_out"] == "conv1_out"


def test_scales_per_channel_lie_along_outputs() -> None:
    own = _scales("A8W8", {"QDQOpTypePerChannelSupportToAxis": {"Conv": 0}}, per_channel=True)
    assert own == _scales("A8W8", {}, per_channel=True)

    with pytest.raises(NotSupportedError, match="axis 1 for Conv, but the outputs"):
        _scales("A8W8", {"QDQOpTypePerChannelSupportToAxis": {"Conv": 1}}, per_channel=True)
