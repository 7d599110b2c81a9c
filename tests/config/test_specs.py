"""Specs: what each kind says of itself, its bounds, and its way through files."""

from __future__ import annotations

import msgspec
import pytest

from lowbit.config.extensible import decode_json
from lowbit.config.methods import (
    BY_NAME,
    Entropy,
    Method,
    MinMax,
    MinMse,
    OutputMse,
    Percentile,
)
from lowbit.config.specs import (
    BLOCKS,
    AccumulatorBias,
    BfpSpec,
    BiasSpec,
    FloatSpec,
    IntegerSpec,
    MxSpec,
    Requantization,
    Rule,
    Spec,
    TensorOverride,
)
from lowbit.errors import ConfigError
from lowbit.numerics.blocks import Element, Rounding
from lowbit.numerics.formats import FloatFormat, IntegerFormat
from lowbit.quark.extension import QuarkPercentile

_INT4, _INT8, _INT16 = IntegerFormat.INT4, IntegerFormat.INT8, IntegerFormat.INT16
_BF16, _FP16 = FloatFormat.BFLOAT16, FloatFormat.FLOAT16


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (IntegerSpec(format=_INT8), "int8 sym minmax"),
        (
            IntegerSpec(format=IntegerFormat.UINT8, symmetric=False, method=Percentile()),
            "uint8 asym percentile",
        ),
        (IntegerSpec(format=_INT8, power_of_two=True, method=MinMse()), "int8 sym pow2 mse"),
        (
            IntegerSpec(format=_INT8, per_channel=True, reduce_range=True),
            "int8 sym per-channel 7-bit minmax",
        ),
        (
            IntegerSpec(format=_INT4, per_channel=True, group_size=128),
            "int4 sym group size 128 minmax",
        ),
        (IntegerSpec(format=_INT8, method=QuarkPercentile()), "int8 sym quark-percentile"),
        (FloatSpec(format=_BF16), "bfloat16"),
        (FloatSpec(format=_FP16, scaled=True, saturate=True), "float16 scaled minmax saturating"),
        (BfpSpec(), "bfp16 blocks of 8"),
        (BfpSpec(bits=13, block=16, pairs=True), "mx6 blocks of 16"),
        (MxSpec(element=Element.FP8_E4M3), "mxfp8_e4m3 blocks of 32"),
        (AccumulatorBias(), "int32 accumulator"),
    ],
)
def test_a_spec_describes_itself_in_a_few_words(spec: Spec | BiasSpec, words: str) -> None:
    assert spec.describe() == words
    assert spec.format_name == words.split(maxsplit=1)[0]


@pytest.mark.parametrize(
    ("spec", "integer", "block"),
    [
        (IntegerSpec(format=_INT8), True, False),
        (AccumulatorBias(), True, False),
        (FloatSpec(format=_BF16), False, False),
        (BfpSpec(), False, True),
        (MxSpec(element=Element.INT8), False, True),
    ],
)
def test_each_kind_knows_whether_it_is_integers_or_blocks(
    spec: Spec, integer: bool, block: bool
) -> None:
    assert (spec.is_integer, spec.is_block) == (integer, block)


@pytest.mark.parametrize(
    ("spec", "method"),
    [
        (IntegerSpec(format=_INT8, method=Entropy()), Entropy()),
        (FloatSpec(format=_BF16, scaled=True, method=Percentile()), Percentile()),
        (FloatSpec(format=_BF16, method=Percentile()), None),
        (BLOCKS["BFP16"], None),
        (BLOCKS["MXINT8"], None),
        (AccumulatorBias(), None),
    ],
)
def test_what_has_no_scale_to_find_is_not_calibrated(spec: Spec, method: Method | None) -> None:
    assert spec.calibration == method


@pytest.mark.parametrize(
    ("spec", "largest"),
    [
        (IntegerSpec(format=_INT4), 7),
        (IntegerSpec(format=IntegerFormat.UINT8), 127),
        (IntegerSpec(format=_INT16), 32767),
        (FloatSpec(format=_FP16), 127),
        (BLOCKS["MX9"], 127),
    ],
)
def test_fineness_in_integers(spec: Spec, largest: int) -> None:
    assert spec.largest_integer == largest


@pytest.mark.parametrize(
    ("spec", "limits"),
    [
        (IntegerSpec(format=_INT8), (-127, 127)),
        (IntegerSpec(format=_INT8, symmetric=False), (-128, 127)),
        (IntegerSpec(format=_INT8, reduce_range=True), (-63, 63)),
        (IntegerSpec(format=IntegerFormat.UINT4, symmetric=False), (0, 15)),
    ],
)
def test_the_integers_in_use(spec: IntegerSpec, limits: tuple[int, int]) -> None:
    assert spec.limits == limits


def test_only_floats_that_are_not_scaled_overflow() -> None:
    assert FloatSpec(format=_FP16).overflows_at == 65504.0
    assert FloatSpec(format=_FP16, scaled=True).overflows_at is None
    assert IntegerSpec(format=_INT8).overflows_at is None
    assert BLOCKS["MX4"].overflows_at is None


@pytest.mark.parametrize(
    ("spec", "opset"),
    [
        (IntegerSpec(format=_INT8), 0),
        (IntegerSpec(format=_INT4), 21),
        (IntegerSpec(format=_INT8, group_size=32), 21),
        (FloatSpec(format=_BF16), 0),
        (BLOCKS["MX6"], 0),
    ],
)
def test_4_bits_and_scales_per_group_need_operator_set_21(spec: Spec, opset: int) -> None:
    assert spec.lowest_opset == opset


def test_bounds_of_scales_per_group() -> None:
    with pytest.raises(ConfigError, match="group_size is 1; at least 2 weights share a scale"):
        IntegerSpec(format=_INT8, group_size=1)
    with pytest.raises(ConfigError, match="float scales, not powers of two"):
        IntegerSpec(format=_INT8, group_size=16, power_of_two=True)


@pytest.mark.parametrize("kind", [*BY_NAME.values(), OutputMse])
def test_scales_of_16_bit_floats_are_found_by_minmax_or_percentile(kind: type[Method]) -> None:
    if kind in (MinMax, Percentile):
        assert FloatSpec(format=_FP16, scaled=True, method=kind()).calibration == kind()
        return
    word = kind.__struct_config__.tag
    with pytest.raises(ConfigError, match=f"cannot be found by {word}; take minmax or percentile"):
        FloatSpec(format=_FP16, scaled=True, method=kind())


def test_the_block_formats_have_the_names_of_their_presets() -> None:
    bits = {name: spec.bits for name, spec in BLOCKS.items() if isinstance(spec, BfpSpec)}
    elements = {name: spec.element for name, spec in BLOCKS.items() if isinstance(spec, MxSpec)}

    # Of the bits of MX4, 6 and 9 eight are the shared exponent's, and one is a pair's own.
    assert bits == {"BFP16": 16, "MX4": 11, "MX6": 13, "MX9": 16}
    assert elements == {
        "MXINT8": Element.INT8,
        "MXFP8E5M2": Element.FP8_E5M2,
        "MXFP8E4M3": Element.FP8_E4M3,
        "MXFP6E3M2": Element.FP6_E3M2,
        "MXFP6E2M3": Element.FP6_E2M3,
        "MXFP4E2M1": Element.FP4_E2M1,
    }


@pytest.mark.parametrize(
    "spec",
    [
        AccumulatorBias(),
        AccumulatorBias(format=_INT16, repair=False, truncate_realigned=True),
        IntegerSpec(format=_INT8, method=QuarkPercentile(percentile=99.0)),
        FloatSpec(format=_FP16, scaled=True),
        BfpSpec(rounding=Rounding.UP),
        MxSpec(element=Element.FP6_E2M3, block=16),
    ],
)
def test_every_kind_survives_a_file(spec: BiasSpec) -> None:
    assert decode_json(msgspec.json.encode(spec), BiasSpec) == spec


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Rule, {"op_type": "Conv"}),
        (TensorOverride, {"tensor": "t"}),
        (Requantization, {"tensor": "t", "consumers": ["n"], "name": "u"}),
        (IntegerSpec, {"type": "integer", "format": "int8"}),
        (FloatSpec, {"type": "float", "format": "float16"}),
        (BfpSpec, {"type": "bfp"}),
        (MxSpec, {"type": "mx", "element": "int8"}),
        (AccumulatorBias, {"type": "accumulator"}),
    ],
)
def test_unknown_fields_are_refused(kind: type, fields: dict[str, object]) -> None:
    assert isinstance(decode_json(msgspec.json.encode(fields), kind), kind)
    with pytest.raises(msgspec.ValidationError, match="unknown field `bogus`"):
        decode_json(msgspec.json.encode({**fields, "bogus": 1}), kind)


def test_each_kind_takes_the_methods_that_find_its_scale() -> None:
    integer = IntegerSpec(format=IntegerFormat.INT8)
    scaled = FloatSpec(format=FloatFormat.FLOAT16, scaled=True)

    assert integer.with_method(Entropy()).calibration == Entropy()
    assert scaled.with_method(Percentile()).calibration == Percentile()
    for spec, method in ((scaled, Entropy()), (BLOCKS["BFP16"], MinMax())):
        with pytest.raises(ConfigError, match="cannot be calibrated by"):
            spec.with_method(method)


def test_each_kind_says_what_becomes_of_zero() -> None:
    skewed = IntegerSpec(format=IntegerFormat.UINT8, symmetric=False)
    wide = FloatSpec(format=FloatFormat.BFLOAT16)

    assert not skewed.is_symmetric
    assert wide.is_symmetric
    assert [spec.rounds_to_zero for spec in (skewed, wide, BLOCKS["MX9"])] == [True, False, True]


@pytest.mark.parametrize(
    ("spec", "reduced", "channel", "found"),
    [
        (IntegerSpec(format=_INT8), 0, 1, (None, False)),
        (IntegerSpec(format=_INT8, per_channel=True), 0, -1, (1, True)),
        (IntegerSpec(format=_INT8, per_channel=True), 0, None, (None, True)),
        (IntegerSpec(format=_INT4, group_size=16), -2, -1, (0, False)),
        # One group would be a scale per channel.
        (IntegerSpec(format=_INT4, group_size=64), 0, 1, (1, True)),
        (IntegerSpec(format=_INT4, group_size=16), None, 1, (1, True)),
        (IntegerSpec(format=_INT4, group_size=16), None, None, (None, True)),
    ],
)
def test_scales_of_a_constant_lie_along_groups_or_channels(
    spec: IntegerSpec, reduced: int | None, channel: int | None, found: tuple[int | None, bool]
) -> None:
    made, axis = spec.along((64, 8), reduced=reduced, channel=channel)

    assert (axis, made.per_channel) == found
    assert made.group_size == (spec.group_size if axis == 0 else None)


@pytest.mark.parametrize("spec", [FloatSpec(format=_BF16), BfpSpec(), MxSpec(element=Element.INT8)])
def test_what_has_no_scale_of_its_own_has_none_along_an_axis(spec: Spec) -> None:
    assert spec.along((64, 8), reduced=0, channel=1) == (spec, None)


def test_the_integers_of_blocks() -> None:
    assert BLOCKS["BFP16"].integers == BLOCKS["MX9"].integers == (-127, 127)
    assert BLOCKS["MX4"].integers == (-3, 3)
    assert BLOCKS["MXINT8"].integers == (-128, 127)
