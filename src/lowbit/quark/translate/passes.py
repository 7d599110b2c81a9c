"""Lists of graph passes in YAML (``ShapeShifterYaml``), as the extra options that mean the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from lowbit.errors import did_you_mean
from lowbit.quark.errors import NotSupportedError, QuarkConfigError, say
from lowbit.quark.onnx.quantization.config.algorithm import CLEConfig
from lowbit.quark.onnx.quantization.config.config import QuantizationConfig
from lowbit.quark.translate.flows import ALIGNED

_KEY, _OLDER_KEY = "ShapeShifterYaml", "PreprocessYAML"
_BEFORE, _AFTER, _FLAT = "preprocess_passes", "postprocess_passes", "passes"
_SAVED = "preprocessed_model_path"
_EQUALIZE = "cross_layer_equalization"

_REWRITES: Mapping[str, str] = MappingProxyType(
    {
        "convert_bn_to_conv": "ConvertBNToConv",
        "convert_reduce_mean_to_global_avg_pool": "ConvertReduceMeanToGlobalAvgPool",
        "convert_split_to_slice": "ConvertSplitToSlice",
        "split_large_kernel_pool": "SplitLargeKernelPool",
    }
)
"""Passes and their options; what a list leaves out is not done."""

_OPTIONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        **{name: (name, option) for name, option in _REWRITES.items()},
        "convert_clip_to_relu": ("convert_clip_to_relu", "ConvertClipToRelu"),
        "convert_nchw_to_nhwc": ("convert_nchw_to_nhwc", "ConvertNCHWToNHWC"),
        "convert_opset_version": ("target_opset_version", "ConvertOpsetVersion"),
        "insert_clip_before_bfloat16_qdq": ("insert_clip_before_bfloat16_qdq", "BF16WithClip"),
        "remove_bfloat16_cast": ("remove_bfloat16_cast", "EnableVaimlBF16"),
        "remove_qdq_between_op_types": ("remove_qdq_between_op_types", "RemoveQDQBetweenOps"),
        "replace_bfloat16_qdq_with_cast": ("replace_bfloat16_qdq_with_cast", "BF16QDQToCast"),
        "xint8_adjust": ("xint8_adjust", "NPULimitationCheck"),
        "xint8_simulate": ("xint8_simulate", "SimulateDPU"),
    }
)
"""By the pass: its parameter, and the option it is."""

_NORMAL = frozenset(
    "adjust_bias_scale convert_fp16_to_fp32 copy_bias_init copy_shared_init fold_batch_norm "
    "fold_batch_norm_after_concat fuse_gelu fuse_instance_norm fuse_l2_norm fuse_layer_norm "
    "optimize_with_ort remove_input_init simplify".split()
)
"""Passes that are always done, or that change only how a file looks."""

_NOT_BUILT = frozenset(
    "constrain_per_channel_weight_scale fold_div_into_matmul set_node_attributes".split()
)
_ALIGNED: Mapping[str, str] = MappingProxyType(
    {name: option for option, names, _ in ALIGNED for name in names}
)
_EQUALIZATION: Mapping[str, str] = MappingProxyType(
    {field.name: field.metadata["option"] for field in dataclasses.fields(CLEConfig)}
    | {"replace_clip6_relu": "ReplaceClip6Relu"}
)
_TEMPLATES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"xint8": tuple(_REWRITES), "a8w8": (), "a16w8": (), "bf16": (), "bfp16": ()}
)
"""By the name of a list that Quark has ready: its passes in addition to the usual ones."""

_TEMPLATE_OPSET = 21

Passes = Mapping[str, Mapping[str, Any]]


def with_passes(config: QuantizationConfig) -> QuantizationConfig:
    """Return a configuration with the options that its list of passes means, if it has one."""
    spec, older = config.extra_options.get(_KEY), config.extra_options.get(_OLDER_KEY)
    if spec and older:
        say(f"{_OLDER_KEY} has no effect together with {_KEY}")
    if not spec and not older:
        return config
    passes = _passes(str(spec or older))
    options: dict[str, Any] = dict.fromkeys(_REWRITES.values(), False)
    for name, parameters in passes.items():
        options.update(_options(name, parameters))
    changes: dict[str, Any] = {"extra_options": {**config.extra_options, **options}}
    if _EQUALIZE in passes:
        changes["include_cle"] = passes[_EQUALIZE].get(_EQUALIZE, True)
    return dataclasses.replace(config, **changes)


def _passes(spec: str) -> Passes:
    """Return the passes of a file or of a ready list, by their names without ``onnx_``."""
    known = (*_OPTIONS, *_NORMAL, *_NOT_BUILT, *_SPECIAL)
    found: dict[str, Mapping[str, Any]] = {}
    for name, parameters in _given(spec).items():
        short = name.removeprefix("onnx_")
        if short not in known or not name.startswith("onnx_"):
            near = did_you_mean(name, [f"onnx_{one}" for one in known])
            raise QuarkConfigError(f"{spec}: there is no pass {name!r}{near}")
        if short in _NOT_BUILT:
            raise NotSupportedError(f"{spec}: the pass {name} is not built; leave it out")
        found[short] = parameters or {}
    return found


def _given(spec: str) -> dict[str, Any]:
    if not spec.endswith((".yaml", ".yml", ".json")):
        if spec.lower() not in _TEMPLATES:
            raise QuarkConfigError(
                f"{_KEY} is {spec!r}; expected a .yaml file or one of {', '.join(_TEMPLATES)}"
            )
        opset = {"onnx_convert_opset_version": {"target_opset_version": _TEMPLATE_OPSET}}
        return {**opset, **{f"onnx_{name}": {} for name in _TEMPLATES[spec.lower()]}}
    content = _read(Path(spec))
    if content.get(_SAVED):
        say(f"{spec}: {_SAVED} has no effect: the float model in between is not written")
    groups = [content.get(_BEFORE), content.get(_AFTER)]
    if groups == [None, None]:
        groups = [content.get(_FLAT)]
    return {name: parameters for group in groups for name, parameters in (group or {}).items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise QuarkConfigError(f"{_KEY}: cannot read {path}: {error.strerror}") from error
    try:
        return msgspec.yaml.decode(content, type=dict[str, Any])
    except ImportError as error:
        raise QuarkConfigError(f"{_KEY} needs a reader of YAML: pip install pyyaml") from error
    except msgspec.DecodeError as error:
        raise QuarkConfigError(f"{path}: {error}") from error


def _options(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    if name in _NORMAL:
        return {}
    if name in _SPECIAL:
        return _SPECIAL[name](parameters)
    parameter, option = _OPTIONS[name]
    _check(name, parameters, (parameter,))
    return {option: parameters.get(parameter, True)}


def _aligned(parameters: Mapping[str, Any]) -> dict[str, Any]:
    _check("align_scale", parameters, ("align_scale",))
    given = parameters.get("align_scale") or []
    names = [given] if isinstance(given, str) else list(given)
    _check("align_scale", dict.fromkeys(names), tuple(_ALIGNED))
    return {_ALIGNED[name]: True for name in names}


def _equalized(parameters: Mapping[str, Any]) -> dict[str, Any]:
    _check(_EQUALIZE, parameters, (_EQUALIZE, *_EQUALIZATION))
    return {_EQUALIZATION[key]: value for key, value in parameters.items() if key != _EQUALIZE}


def _fixed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    key = "input_output_name_shapes"
    _check("fix_shapes", parameters, (key,))
    shapes = parameters.get(key) or {}
    return {"FixShapes": ";".join(f"{name}:{list(shape)}" for name, shape in shapes.items())}


_SPECIAL: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = MappingProxyType(
    {"align_scale": _aligned, _EQUALIZE: _equalized, "fix_shapes": _fixed}
)


def _check(name: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise QuarkConfigError(
                f"the pass onnx_{name} does not take {key!r} here (it takes {', '.join(known)})"
            )
