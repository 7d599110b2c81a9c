"""The presets: the best recipe known for a target within its constraints, as values."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from lowbit.config.config import QuantConfig
from lowbit.config.methods import MinMax, MinMse
from lowbit.config.refinement import AdaQuant, Gptq, LayerReconstruction, Refinement
from lowbit.config.scale_search import Centering, PowerOfTwoFit, SensitivityWeighting
from lowbit.config.specs import BLOCKS, AccumulatorBias, DynamicSpec, FloatSpec, IntegerSpec, Spec
from lowbit.config.transforms import CrossLayerEqualization, SmoothQuant
from lowbit.errors import ConfigError, did_you_mean
from lowbit.numerics.formats import FloatFormat, IntegerFormat

_MSE = MinMse()
_WEIGHT = IntegerSpec(format=IntegerFormat.INT8, method=_MSE)
_PER_CHANNEL = IntegerSpec(format=IntegerFormat.INT8, per_channel=True, method=_MSE)
_HEADROOM = 1.1
_POWER_OF_TWO = IntegerSpec(format=IntegerFormat.INT8, power_of_two=True, method=_MSE)


INT8_CACHE = IntegerSpec(format=IntegerFormat.INT8, method=_MSE)
"""Caches of keys and values in 8 bits."""


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """A named configuration and a sentence about it."""

    config: QuantConfig
    summary: str

    @property
    def name(self) -> str:
        """The name it is asked for by."""
        return self.config.name


def _float_scales(
    name: str,
    summary: str,
    activation: IntegerSpec,
    weight: IntegerSpec,
    target: str,
) -> Preset:
    # A format with zero points, or with 16 bits, has nothing to gain.
    lacks_codes = activation.symmetric and activation.format.bits <= 8
    config = QuantConfig(
        name=name,
        activation=activation,
        weight=weight,
        final_headroom=_HEADROOM,
        bias=AccumulatorBias(),
        target=target,
        equalization=CrossLayerEqualization(),
        smooth_quant=SmoothQuant(),
        bias_correction=True,
        keep_only_if_better=True,
        sensitivity=SensitivityWeighting(),
        centering=Centering() if lacks_codes else None,
        refinement=LayerReconstruction(),
    )
    return Preset(config=config, summary=summary)


def _pair(name: str, summary: str, activation: IntegerSpec) -> tuple[Preset, Preset]:
    """Return a preset for any runtime, with weight scales per tensor and per channel."""
    return (
        _float_scales(name, summary, activation, _WEIGHT, "onnxruntime"),
        _float_scales(
            f"{name}_PERCHANNEL",
            f"{summary}; weight scales per channel",
            activation,
            _PER_CHANNEL,
            "onnxruntime",
        ),
    )


def _fixed_point(name: str, summary: str, target: str) -> Preset:
    """Return a preset of int8 with power-of-two scales for activations, weights and biases."""
    config = QuantConfig(
        name=name,
        activation=_POWER_OF_TWO,
        weight=_POWER_OF_TWO,
        final_headroom=_HEADROOM,
        bias=_POWER_OF_TWO,
        target=target,
        equalization=CrossLayerEqualization(),
        bias_correction=True,
        keep_only_if_better=True,
        sensitivity=SensitivityWeighting(),
        power_of_two_fit=PowerOfTwoFit(),
        refinement=LayerReconstruction(),
    )
    return Preset(config=config, summary=summary)


def _without_integers(
    name: str, summary: str, activation: Spec, weight: Spec, *, casts: bool = False
) -> Preset:
    config = QuantConfig(
        name=name,
        activation=activation,
        weight=weight,
        bias=weight if activation.is_block else activation,
        target="ryzen-ai-float",
        head="int8",
        casts=casts,
    )
    return Preset(config=config, summary=summary)


def _weights(
    name: str,
    summary: str,
    weight: IntegerSpec,
    activation: Spec | None = None,
    refinement: Refinement | None = None,
    final_weight: IntegerSpec | None = None,
) -> Preset:
    """Return a preset that calibrates nothing: no activation has a scale of its own."""
    config = QuantConfig(
        name=name,
        activation=activation,
        weight=weight,
        final_weight=final_weight,
        target="onnxruntime-weights",
        head="int8",
        refinement=refinement,
    )
    return Preset(config=config, summary=summary)


_W8 = _PER_CHANNEL
_W4 = IntegerSpec(format=IntegerFormat.UINT4, symmetric=False, group_size=32, method=_MSE)
_BF16 = FloatSpec(format=FloatFormat.BFLOAT16)
_FP16 = FloatSpec(format=FloatFormat.FLOAT16, saturate=True)

_ALL = (
    _float_scales(
        "A8W8",
        "Ryzen AI: symmetric int8 activations and weights, int32 bias, float scales",
        IntegerSpec(format=IntegerFormat.INT8, method=_MSE),
        _WEIGHT,
        "ryzen-ai",
    ),
    _float_scales(
        "A16W8",
        "Ryzen AI: symmetric int16 activations, int8 weights, int32 bias, float scales",
        IntegerSpec(format=IntegerFormat.INT16, method=MinMax()),
        _WEIGHT,
        "ryzen-ai",
    ),
    _fixed_point(
        "XINT8",
        "Ryzen AI CNN datapath: int8 throughout, power-of-two scales, the NPU's limits",
        "ryzen-ai-cnn",
    ),
    *_pair(
        "U8S8",
        "any runtime: asymmetric uint8 activations, symmetric int8 weights",
        IntegerSpec(format=IntegerFormat.UINT8, symmetric=False, method=_MSE),
    ),
    *_pair(
        "S8S8",
        "any runtime: asymmetric int8 activations, symmetric int8 weights",
        IntegerSpec(format=IntegerFormat.INT8, symmetric=False, method=_MSE),
    ),
    *_pair(
        "U16S8",
        "any runtime: asymmetric uint16 activations, symmetric int8 weights",
        IntegerSpec(format=IntegerFormat.UINT16, symmetric=False, method=MinMax()),
    ),
    _fixed_point(
        "VINT8",
        "power-of-two int8 with a Q/DQ pair on every tensor, no NPU arithmetic",
        "vint8",
    ),
    _weights(
        "DYNAMIC8",
        "onnxruntime, no data: int8 weights per channel, uint8 activations with scales found at run time",
        _PER_CHANNEL,
        DynamicSpec(),
    ),
    _weights(
        "W8", "no data: int8 weights per channel, embeddings included, the rest in float", _W8
    ),
    _weights(
        "W4",
        "no data needed, better with data: uint4 weights in groups of 32, embeddings included, the rest in float",
        _W4,
        refinement=LayerReconstruction(),
        final_weight=_W8,
    ),
    _weights(
        "W4_GPTQ", "W4, its weights rounded by GPTQ", _W4, refinement=Gptq(), final_weight=_W8
    ),
    _without_integers(
        "BF16", "Ryzen AI: bfloat16 throughout, in AMD's named operators", _BF16, _BF16
    ),
    _without_integers(
        "BF16_CAST", "any runtime: bfloat16 throughout, as pairs of Cast", _BF16, _BF16, casts=True
    ),
    _without_integers("FP16", "Ryzen AI: float16 throughout, clipped at 65504", _FP16, _FP16),
    _without_integers(
        "FP16_CAST", "any runtime: float16 throughout, as pairs of Cast", _FP16, _FP16, casts=True
    ),
    *(
        _without_integers(
            f"{name}_SCALED",
            f"Ryzen AI: {spec.format.value}, every tensor scaled to avoid overflow",
            msgspec.structs.replace(spec, scaled=True),
            msgspec.structs.replace(spec, scaled=True),
        )
        for name, spec in (("BF16", _BF16), ("FP16", _FP16))
    ),
    *(
        _without_integers(name, f"Ryzen AI: {spec.describe()}, everything", spec, spec)
        for name, spec in BLOCKS.items()
    ),
    *(
        _without_integers(
            f"BF16_{name}",
            f"Ryzen AI: bfloat16 activations and biases, weights in {BLOCKS[name].describe()}",
            _BF16,
            BLOCKS[name],
        )
        for name in ("BFP16", "MXINT8")
    ),
)

MORE_POSITIONS = LayerReconstruction(positions=256, sweeps=8)
"""Reconstruction of the accurate presets."""

_ACCURATE: Mapping[str, Refinement] = MappingProxyType(
    {
        "A8W8": MORE_POSITIONS,
        "A16W8": MORE_POSITIONS,
        "XINT8": MORE_POSITIONS,
        "U8S8_PERCHANNEL": MORE_POSITIONS,
        "BF16": AdaQuant(),
    }
)


_MORE_SAMPLES = SensitivityWeighting(samples=64)


def _accurate(preset: Preset) -> Preset:
    """Return the variant that takes more time for more accuracy."""
    refine = _ACCURATE[preset.name]
    how = ["weights tuned by AdaQuant"]
    if isinstance(refine, LayerReconstruction):
        how = ["reconstruction on four times the positions, with twice the sweeps"]
    activation, sensitivity = preset.config.activation, preset.config.sensitivity
    # Ranges of 16 bits hold everything: they do not depend on sensitivity.
    is_coarse = isinstance(activation, IntegerSpec) and activation.format.bits <= 8
    if sensitivity is not None and is_coarse:
        times = _MORE_SAMPLES.samples // sensitivity.samples
        how.insert(0, f"sensitivity measured on up to {times} times the samples")
        sensitivity = _MORE_SAMPLES
    config = msgspec.structs.replace(
        preset.config,
        name=f"{preset.name}_ACCURATE",
        refinement=refine,
        sensitivity=sensitivity,
    )
    summary = f"{preset.name}, slower and more accurate: {'; '.join(how)}"
    return Preset(config=config, summary=summary)


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {p.name: p for p in (*_ALL, *(_accurate(p) for p in _ALL if p.name in _ACCURATE))}
)


class Purpose(msgspec.Struct, frozen=True, kw_only=True):
    """A group of presets by their targets, and which one to start with.

    ``first`` are the presets to start with, at most one of each target; ``advice`` says it in words.
    """

    title: str
    targets: tuple[str, ...]
    first: tuple[str, ...]
    advice: str


PURPOSES = (
    Purpose(
        title="AMD Ryzen AI NPU, integers",
        targets=("ryzen-ai", "ryzen-ai-cnn"),
        first=("A8W8", "XINT8"),
        advice="Start with XINT8 for a CNN and with A8W8 for anything else; "
        "take A16W8 where 8 bits lose too much.",
    ),
    Purpose(
        title="onnxruntime, and every runtime that reads standard Q/DQ",
        targets=("onnxruntime", "openvino", "onnxruntime-weights", "onnxruntime-nbits"),
        first=("U8S8_PERCHANNEL", "DYNAMIC8"),
        advice="Start with U8S8_PERCHANNEL, the fastest measured on x86; "
        "take U16S8_PERCHANNEL where 8 bits lose too much. Without data: DYNAMIC8, W8, W4.",
    ),
    Purpose(
        title="AMD Ryzen AI NPU, 16-bit floats and block formats",
        targets=("ryzen-ai-float",),
        first=("BF16",),
        advice="Start with BF16, which is nearly exact; block formats have fewer bits.",
    ),
    Purpose(
        title="Other devices",
        targets=("vint8", "qnn", "tensorrt", "coreml", "vitis-ai"),
        first=("VINT8",),
        advice="VINT8 quantizes every tensor and assumes nothing about the device. "
        "`lowbit targets` says which preset goes with --target qnn, tensorrt, coreml and vitis-ai.",
    ),
)
"""The presets by purpose; every built-in target is in one of them."""

MORE_PRECISE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ryzen-ai": ("A16W8", "BF16"),
        "ryzen-ai-cnn": ("A16W8", "BF16"),
        "ryzen-ai-float": ("BF16",),
        "onnxruntime": ("U16S8_PERCHANNEL", "W8"),
        "openvino": ("W8",),
        "onnxruntime-weights": ("W8",),
        "onnxruntime-nbits": ("W8",),
    }
)
"""Presets for the same devices that lose less, each less than those before it, by the name of the target."""


def find_preset(name: str) -> QuantConfig:
    """Return the configuration of a preset, built in or installed.

    A package installs presets as entry points of the group ``lowbit.presets``, each a ``QuantConfig``.
    """
    preset = PRESETS.get(name.upper())
    if preset is None:
        for entry in importlib.metadata.entry_points(group="lowbit.presets", name=name):
            installed: QuantConfig = entry.load()
            return installed
        raise ConfigError(
            f"unknown preset {name!r}{did_you_mean(name, PRESETS)} (known: {', '.join(PRESETS)})"
        )
    return preset.config
