"""Lists of passes mean the extra options they are; what Quark 0.13 does was looked at, too."""

from __future__ import annotations

import pathlib

import pytest

from lowbit.quark.errors import CompatibilityWarning, NotSupportedError, QuarkConfigError
from lowbit.quark.onnx.quantization.config import QuantizationConfig, get_default_config
from lowbit.quark.translate.passes import with_passes

pytest.importorskip("yaml")
REWRITES = (
    "ConvertBNToConv",
    "ConvertReduceMeanToGlobalAvgPool",
    "ConvertSplitToSlice",
    "SplitLargeKernelPool",
)


def _changed(spec: str, key: str = "ShapeShifterYaml") -> QuantizationConfig:
    config = get_default_config("XINT8")
    config.extra_options[key] = spec
    return with_passes(config)


def _file(folder: pathlib.Path, text: str) -> str:
    path = folder / "passes.yaml"
    path.write_text(text)
    return str(path)


def test_without_a_list_nothing_changes() -> None:
    config = get_default_config("XINT8")

    assert with_passes(config) is config


def test_both_groups(tmp_path: pathlib.Path) -> None:
    spec = _file(
        tmp_path,
        """
preprocess_passes:
  onnx_convert_opset_version: {target_opset_version: 21}
  onnx_simplify: {simplify: true}
  onnx_fold_batch_norm:
  onnx_split_large_kernel_pool: {split_large_kernel_pool: true}
  onnx_fix_shapes: {input_output_name_shapes: {input: [1, 3, 8, 8]}}
postprocess_passes:
  onnx_align_scale: {align_scale: [MaxPool, Concat]}
  onnx_adjust_bias_scale: {adjust_bias_scale: true}
  onnx_xint8_simulate: {xint8_simulate: false}
""",
    )

    options = _changed(spec).extra_options

    assert options["ConvertOpsetVersion"] == 21
    assert options["FixShapes"] == "input:[1, 3, 8, 8]"
    assert options["AlignPool"] is options["AlignConcat"] is True
    assert options["SimulateDPU"] is False
    # What is not in the list is not done.
    assert {key for key in REWRITES if options[key]} == {"SplitLargeKernelPool"}


def test_equalization_as_a_pass_replaces_the_flag(tmp_path: pathlib.Path) -> None:
    on = _file(tmp_path, "passes:\n  onnx_cross_layer_equalization: {cle_steps: 3}\n")
    assert _changed(on).include_cle
    assert _changed(on).extra_options["CLESteps"] == 3

    off = "passes:\n  onnx_cross_layer_equalization: {cross_layer_equalization: false}\n"
    assert not _changed(_file(tmp_path, off)).include_cle


def test_ready_lists() -> None:
    for name, done in (("xint8", True), ("A8W8", False)):
        options = _changed(name, "PreprocessYAML").extra_options
        assert [options[key] for key in REWRITES] == [done] * 4
        assert options["ConvertOpsetVersion"] == 21


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("passes: {onnx_simplfy: {}}", QuarkConfigError, "no pass 'onnx_simplfy'.*onnx_simplify"),
        ("passes: {onnx_fold_div_into_matmul: {}}", NotSupportedError, "fold_div_into_matmul"),
        ("passes: {onnx_align_scale: {align_scale: [Conv]}}", QuarkConfigError, "'Conv'"),
        ("passes: {onnx_convert_bn_to_conv: {on: 1}}", QuarkConfigError, "convert_bn_to_conv"),
        ("passes: [", QuarkConfigError, "passes.yaml"),
    ],
)
def test_what_a_list_cannot_say(
    tmp_path: pathlib.Path, text: str, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        _changed(_file(tmp_path, text))


def test_files_that_are_not_there() -> None:
    with pytest.raises(QuarkConfigError, match=r"cannot read nowhere\.yaml"):
        _changed("nowhere.yaml")
    with pytest.raises(QuarkConfigError, match=r"a \.yaml file or one of xint8"):
        _changed("int8")


def test_the_float_model_in_between_is_not_written(tmp_path: pathlib.Path) -> None:
    spec = _file(tmp_path, "preprocessed_model_path: float.onnx\npasses: {onnx_simplify: {}}\n")

    with pytest.warns(CompatibilityWarning, match="preprocessed_model_path has no effect"):
        _changed(spec)
