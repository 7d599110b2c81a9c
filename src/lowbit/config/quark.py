"""AMD Quark's presets as values: what Quark 0.13 means by its names, before equalization.

They use Quark's own histograms and placement (the ``quark-*`` targets), so that the same name
gives the same model. The recommended recipes are in ``lowbit.config.presets``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from lowbit.config.config import QuantConfig
from lowbit.config.methods import Entropy, MinMse, NonOverflow, Percentile
from lowbit.config.refinement import AdaQuant, AdaRound, Refinement
from lowbit.config.specs import BLOCKS, FloatSpec, IntegerSpec, ProductBias, Spec
from lowbit.config.transforms import QuarkCle
from lowbit.numerics.float16 import FloatFormat
from lowbit.numerics.formats import IntegerFormat

_BIAS = ProductBias(repair=False, truncate_realigned=True)
_INT8 = IntegerSpec(format=IntegerFormat.INT8)
_QUARK_MSE = MinMse(histogram="growing")
_POW2 = IntegerSpec(format=IntegerFormat.INT8, power_of_two=True, method=_QUARK_MSE)
_UPOW2 = IntegerSpec(format=IntegerFormat.UINT8, power_of_two=True, method=_QUARK_MSE)
_NEAREST = NonOverflow(nearest=True)


def quark_percentile(percent: float = 99.999) -> Percentile:
    """Return Quark's percentile method: absolute values in growing bins."""
    return Percentile(percentile=percent, histogram="growing", symmetric_range=True)


def quark_entropy() -> Entropy:
    """Return Quark's entropy method: 128 growing bins."""
    return Entropy(histogram="growing", bins=128)


def with_cle(config: QuantConfig, cle: QuarkCle = QuarkCle()) -> QuantConfig:  # noqa: B008
    """Return a preset with Quark's equalization, which its ``get_default_config`` switches on."""
    return msgspec.structs.replace(config, equalization=cle)


def _extended(name: str, activation: IntegerSpec) -> QuantConfig:
    return QuantConfig(
        name=name,
        activation=activation,
        weight=_INT8,
        bias=_BIAS,
        target="quark-extended",
        domain="com.microsoft",
        head="int8",
    )


def _standard(name: str, activation: IntegerSpec, target: str = "quark-standard") -> QuantConfig:
    return QuantConfig(
        name=name, activation=activation, weight=_INT8, bias=_BIAS, target=target, head="int8"
    )


def _npu(name: str, activation: IntegerSpec, parts: IntegerSpec = _POW2) -> QuantConfig:
    return QuantConfig(
        name=name,
        activation=activation,
        weight=parts,
        bias=parts,
        target="quark-npu-cnn",
        head="int8",
    )


_FP16 = FloatSpec(format=FloatFormat.FLOAT16, saturate=True)
_BF16 = FloatSpec(format=FloatFormat.BFLOAT16)
_BF16_SCALED = FloatSpec(format=FloatFormat.BFLOAT16, scaled=True)

# What Quark does to the graph for devices, but not for models of Cast.
_DEVICE_REWRITES = (
    "reduce_mean_to_pool",
    "split_large_pool",
    "split_to_slice",
    "batchnorm_to_conv",
)


def _float(
    name: str,
    activation: Spec,
    weight: Spec,
    target: str = "quark-float",
    *,
    casts: bool = False,
) -> QuantConfig:
    return QuantConfig(
        name=name,
        activation=activation,
        weight=weight,
        bias=weight,
        target=target,
        head="int8",
        casts=casts,
        skip_rewrites=_DEVICE_REWRITES if casts else (),
    )


_ALL = (
    _extended("A8W8", _INT8),
    _extended("A16W8", IntegerSpec(format=IntegerFormat.INT16)),
    _npu("XINT8", _UPOW2),
    _npu("XINT8_QCONFIG", _POW2),
    _npu(
        "XINT8_NONOVERFLOW",
        IntegerSpec(format=IntegerFormat.UINT8, power_of_two=True, method=_NEAREST),
        IntegerSpec(format=IntegerFormat.INT8, power_of_two=True, method=_NEAREST),
    ),
    QuantConfig(
        name="VINT8",
        activation=_POW2,
        weight=_POW2,
        bias=_POW2,
        target="quark-vint8",
        head="int8",
    ),
    _standard(
        "A8W8_QCONFIG",
        IntegerSpec(format=IntegerFormat.INT8, method=quark_percentile()),
        "quark-standard-symmetric",
    ),
    _standard("INT8_CNN_DEFAULT", IntegerSpec(format=IntegerFormat.UINT8, symmetric=False)),
    _standard(
        "U8S8_AAWS",
        IntegerSpec(format=IntegerFormat.UINT8, symmetric=False, method=quark_percentile()),
    ),
    _standard(
        "S8S8_AAWS",
        IntegerSpec(format=IntegerFormat.INT8, symmetric=False, method=quark_percentile(99.9999)),
    ),
    _float("BF16", _BF16, _BF16),
    _float("BF16_CAST", _BF16, _BF16, casts=True),
    _float("BF16_SCALED", _BF16_SCALED, _BF16_SCALED),
    _float("BF16_QCONFIG", _BF16, _BF16, "quark-extended"),
    _float("FP16", _FP16, _FP16, "quark-extended"),
    *(_float(name, spec, spec, "quark-block") for name, spec in BLOCKS.items()),
    _float("BF16_BFP16", _BF16, BLOCKS["BFP16"], "quark-mixed"),
    _float("BF16_MXINT8", _BF16, BLOCKS["MXINT8"], "quark-mixed"),
    QuantConfig(
        name="MX9_INT8",
        activation=BLOCKS["MX9"],
        weight=_INT8,
        bias=_INT8,
        target="quark-block",
        domain="com.microsoft",
        head="int8",
    ),
)

# What Quark's own variants tune with.
_ADAROUND = AdaRound(data_size=1000, batch_size=2, early_stop=True, update_bias=True)
_ADAQUANT = AdaQuant(
    data_size=1000, batch_size=2, num_iterations=1000, early_stop=True, update_bias=True
)


def _tuned(config: QuantConfig, name: str, refine: Refinement) -> QuantConfig:
    return msgspec.structs.replace(config, name=name, refinement=refine)


_WITH_INTEGERS = ("A8W8", "A16W8", "XINT8", "U8S8_AAWS", "S8S8_AAWS")
_TUNED = (
    *(_tuned(c, f"{c.name}_ADAROUND", _ADAROUND) for c in _ALL if c.name in _WITH_INTEGERS),
    *(_tuned(c, f"{c.name}_ADAQUANT", _ADAQUANT) for c in _ALL if c.name in _WITH_INTEGERS),
    _tuned(
        _standard(
            "INT8_CNN",
            IntegerSpec(
                format=IntegerFormat.UINT8, symmetric=False, method=quark_percentile(99.9999)
            ),
        ),
        "INT8_CNN_ACCURATE",
        _ADAROUND,
    ),
)

QUARK_PRESETS: Mapping[str, QuantConfig] = MappingProxyType({c.name: c for c in (*_ALL, *_TUNED)})
