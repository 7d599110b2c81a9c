"""The same preset through the same entry point gives Quark 0.13's model, to the last bit."""

from __future__ import annotations

import collections
import copy
import functools
from typing import Any

import numpy as np
import onnx
import pytest
from quark_cases import (
    DATA,
    QUARK_THREADS,
    differences,
    outputs_of,
    read_quantized,
    samples,
)
from quark_helpers import BareReader, ListReader, quiet

from lowbit.pipeline import building
from lowbit.quark.onnx import (
    A8W8_QCONFIG,
    A16W8_QCONFIG,
    BF16_QCONFIG,
    XINT8_QCONFIG,
    AdaRoundConfig,
    CalibrationMethod,
    CLEConfig,
    Config,
    ExtendedQuantFormat,
    ExtendedQuantType,
    Int8Spec,
    ModelQuantizer,
    PowerOfTwoMethod,
    QConfig,
    QLayerConfig,
    QuantizationConfig,
    QuantType,
    UInt8Spec,
    VitisQuantType,
)
from lowbit.quark.onnx.quantization.config import DefaultConfigMapping

_QUIET = {"PrintSummary": False}
_POF2 = QuantizationConfig(
    calibrate_method=PowerOfTwoMethod.MinMSE,
    activation_type=QuantType.QUInt8,
    weight_type=QuantType.QInt8,
    enable_npu_cnn=True,
    extra_options={"ActivationSymmetric": True},
)
_BF16 = QuantizationConfig(
    calibrate_method=CalibrationMethod.MinMax,
    quant_format=ExtendedQuantFormat.QDQ,
    activation_type=ExtendedQuantType.QBFloat16,
    weight_type=VitisQuantType.QBFloat16,
)


def _qconfig(config: QConfig, *algorithms: CLEConfig) -> QConfig:
    config = copy.deepcopy(config)
    config.algo_config += algorithms
    config.extra_options.update(_QUIET)
    return config


def _operators(model: onnx.ModelProto) -> collections.Counter:
    """Return how often each operator of a domain occurs, the pool's own arithmetic aside."""
    kinds = ((node.domain, node.op_type) for node in model.graph.node)
    return collections.Counter(kind for kind in kinds if kind[1] not in ("Mul", "Constant"))


def _percentile() -> QConfig:
    layer = QLayerConfig(activation=UInt8Spec(), weight=Int8Spec())
    return QConfig(global_config=layer, extra_options=_QUIET)


INTEGERS = {
    "xint8_default": quiet("XINT8"),
    "xint8_default, by hand": quiet(_POF2, include_cle=True),
    "xint8_nocle": quiet("XINT8", include_cle=False),
    "xint8_cle_clip6relu": quiet(
        _POF2, extra_options={"ActivationSymmetric": True, "ReplaceClip6Relu": True}
    ),
    "xint8_qconfig": _qconfig(XINT8_QCONFIG),
    "xint8_qconfig_cle": _qconfig(XINT8_QCONFIG, CLEConfig()),
    "a8w8_default": quiet("A8W8"),
    "a8w8_qconfig": _qconfig(A8W8_QCONFIG),
    "a16w8_default": quiet("A16W8"),
    "a16w8_qconfig": _qconfig(A16W8_QCONFIG),
    "vint8_nocle": quiet("VINT8", include_cle=False),
    "u8s8_aaws_nocle": quiet("U8S8_AAWS", include_cle=False),
    "s8s8_aaws_nocle": quiet("S8S8_AAWS", include_cle=False),
    "int8_cnn_default_nocle": quiet("INT8_CNN_DEFAULT", include_cle=False),
    "u8s8_seed003_noft": _percentile(),
}

FLOATS = {
    "bf16_default": quiet("BF16"),
    "bf16_qconfig": _qconfig(BF16_QCONFIG),
    "bfp16_nocle": quiet("BFP16", include_cle=False),
    "mxint8_nocle": quiet("MXINT8", include_cle=False),
    "bf16_cast_seed": quiet(_BF16, extra_options={"BF16QDQToCast": True}),
    "bf16_scaled_nocle": quiet(
        _BF16,
        include_cle=False,
        extra_options={"WeightScaled": True, "ActivationScaled": True},
    ),
}


@pytest.fixture(autouse=True)
def _quarks_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrate with as many threads a sample as Quark had: float sums depend on it."""
    collect = functools.partial(building.collect, threads_per_sample=QUARK_THREADS)
    monkeypatch.setattr(building, "collect", collect)


@pytest.mark.parametrize("case", INTEGERS)
@pytest.mark.filterwarnings("ignore:DedicatedQDQPair")
def test_integers_are_quarks(case: str) -> None:
    theirs = read_quantized(onnx.load(DATA / f"{case.partition(',')[0]}.onnx"))
    quantizer = ModelQuantizer(INTEGERS[case])

    model = quantizer.quantize_model(DATA / "float.onnx", None, ListReader(samples("calib.npz")))

    assert model is not None
    ours = read_quantized(model)
    assert len(theirs.constants) >= 14
    assert differences(ours.activations, theirs.activations) == set()
    assert differences(ours.constants, theirs.constants) == set()


@pytest.mark.parametrize("case", FLOATS)
def test_sixteen_bit_floats_are_quarks(case: str) -> None:
    with np.load(DATA / "outputs_float.npz") as stored:
        expected = stored[f"{case}__noopt"]
    quantizer = ModelQuantizer(FLOATS[case])

    model = quantizer.quantize_model(DATA / "float.onnx", None, BareReader(samples("calib.npz")))

    assert model is not None
    assert _operators(model) == _operators(onnx.load(DATA / f"{case}.onnx"))
    got = outputs_of(model, "test_input.npz")["output"]
    np.testing.assert_array_equal(got.reshape(expected.shape), expected)


def test_a_configuration_serves_twice_and_stays_as_it_was() -> None:
    config: Config = quiet("A8W8")
    before = copy.deepcopy(config)
    quantizer = ModelQuantizer(config)

    models = [
        quantizer.quantize_model(DATA / "float.onnx", None, ListReader(samples("calib.npz")))
        for _ in range(2)
    ]

    assert config == before
    assert models[0] == models[1]


# Sessions of block formats take seconds to open, and they differ in a number or two.
_BLOCKS = "BFP16 MX4 MX9 MXFP8E5M2 MXFP6E3M2 MXFP6E2M3 MXFP4E2M1 MXINT8".split()
_BLOCKS += ["BF16_MIXED_BFP16", "BF16_MIXED_MXINT8"]  # these have tests of their own
_PLAIN = [
    name
    for name in DefaultConfigMapping
    if "ADA" not in name and "ACCURATE" not in name and name not in _BLOCKS
]


@pytest.mark.parametrize("name", _PLAIN)
@pytest.mark.filterwarnings("ignore:Dedicate")
def test_every_preset_runs(name: str) -> None:
    quantizer = ModelQuantizer(quiet(name))
    reader = BareReader(samples("calib.npz"))

    model = quantizer.quantize_model(DATA / "float.onnx", None, reader)

    onnx.checker.check_model(model)
    want = outputs_of(onnx.load(DATA / "float.onnx"), "test_input.npz")["output"]
    got = outputs_of(model, "test_input.npz")["output"]
    ratio = (
        10 * np.log10((want**2).sum() / ((want - got) ** 2).sum()) if (got != want).any() else 99
    )
    # VINT8 replaces ReLU6 by ReLU.
    assert ratio > (3 if name == "VINT8" else 12)


def _ratio(model: onnx.ModelProto) -> float:
    want = outputs_of(onnx.load(DATA / "float.onnx"), "test_input.npz")["output"]
    got = outputs_of(model, "test_input.npz")["output"]
    return float(10 * np.log10((want**2).sum() / ((want - got) ** 2).sum()))


def _seed003() -> QConfig:
    config = _percentile()
    config.algo_config.append(AdaRoundConfig(batch_size=1, num_iterations=1000, learning_rate=0.1))
    return config


@pytest.mark.parametrize(
    ("config", "plain", "quarks"),
    [
        (quiet("A8W8_ADAROUND"), "a8w8_default", "a8w8_adaround_seed000"),
        (quiet("A8W8_ADAQUANT"), "a8w8_default", "a8w8_adaquant_seed000"),
        (_seed003(), "u8s8_seed003_noft", "u8s8_adaround_seed003"),
    ],
)
def test_finetuning_wins_no_less_than_quarks_does(config: Any, plain: str, quarks: str) -> None:
    with np.load(DATA / "outputs_finetuned.npz") as stored:
        theirs = stored[f"{quarks}__noopt"]
    want = outputs_of(onnx.load(DATA / "float.onnx"), "test_input.npz")["output"]
    error = want.reshape(theirs.shape) - theirs
    reached = float(10 * np.log10((want**2).sum() / (error**2).sum()))

    model = ModelQuantizer(config).quantize_model(
        DATA / "float.onnx", None, BareReader(samples("calib.npz"))
    )

    before = read_quantized(onnx.load(DATA / f"{plain}.onnx"))
    tuned = read_quantized(model)
    assert differences(tuned.activations, before.activations) == set()
    assert _ratio(model) > _ratio(onnx.load(DATA / f"{plain}.onnx"))
    assert _ratio(model) > reached - 0.5
