"""The same preset through the same entry point gives Quark 0.13's model, to the last bit."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.quark_cases import (
    AFTER_A_NORM,
    DATA,
    QUARK_THREADS,
    differences,
    outputs_of,
    read_quantized,
    same_arrays,
    samples,
)
from helpers.quark_helpers import BareReader, ListReader, quiet
from onnx import numpy_helper

from lowbit.pipeline import stages
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
from lowbit.quark.onnx.algorithm import cle_transforms
from lowbit.quark.onnx.quantization.config import DefaultConfigMapping

# The goldens are of a tiny network on few samples, which some formats do not suit.
pytestmark = pytest.mark.filterwarnings("ignore:the quantized model is")

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
    "xint8_default, adaptive": quiet("XINT8", {"CLESteps": -1}),
    "xint8_nocle": quiet("XINT8", include_cle=False),
    "xint8_nocle_opset21": quiet("XINT8", include_cle=False),
    "xint8_nonoverflow_nocle": quiet(
        "XINT8", include_cle=False, calibrate_method=PowerOfTwoMethod.NonOverflow
    ),
    "xint8_cle_clip6relu": quiet(_POF2, {"ReplaceClip6Relu": True}),
    "xint8_qconfig": _qconfig(XINT8_QCONFIG),
    "xint8_qconfig_cle": _qconfig(XINT8_QCONFIG, CLEConfig()),
    "a8w8_default": quiet("A8W8"),
    "a8w8_nocle": quiet("A8W8", include_cle=False),
    "a8w8_nocle_opset21": quiet("A8W8", include_cle=False),
    "a8w8_percentile_nocle": quiet(
        "A8W8", include_cle=False, calibrate_method=CalibrationMethod.Percentile
    ),
    "a8w8_percentile99.9_nocle": quiet(
        "A8W8",
        {"Percentile": 99.9},
        include_cle=False,
        calibrate_method=CalibrationMethod.Percentile,
    ),
    "a8w8_entropy_nocle": quiet(
        "A8W8", include_cle=False, calibrate_method=CalibrationMethod.Entropy
    ),
    "a8w8_perchannel_nocle": quiet("A8W8", include_cle=False, per_channel=True),
    "a8w8_qconfig": _qconfig(A8W8_QCONFIG),
    "a16w8_default": quiet("A16W8"),
    "a16w8_nocle": quiet("A16W8", include_cle=False),
    "a16w8_nocle_opset21": quiet("A16W8", include_cle=False),
    "a16w8_qconfig": _qconfig(A16W8_QCONFIG),
    "vint8_nocle": quiet("VINT8", include_cle=False),
    "u8s8_aaws_nocle": quiet("U8S8_AAWS", include_cle=False),
    "s8s8_aaws_nocle": quiet("S8S8_AAWS", include_cle=False),
    "int8_cnn_default_nocle": quiet("INT8_CNN_DEFAULT", include_cle=False),
    "u8s8_seed003_noft": _percentile(),
}

FLOATS = {
    "bf16_default": quiet("BF16"),
    "bf16_nocle": quiet("BF16", include_cle=False),
    "bf16_qconfig": _qconfig(BF16_QCONFIG),
    "bfp16_nocle": quiet("BFP16", include_cle=False),
    "mxint8_nocle": quiet("MXINT8", include_cle=False),
    "bf16_cast_seed": quiet(_BF16, {"BF16QDQToCast": True}),
    "bf16_cast_nocle": quiet(_BF16, {"BF16QDQToCast": True}, include_cle=False),
    "bf16_scaled_nocle": quiet(
        _BF16, {"WeightScaled": True, "ActivationScaled": True}, include_cle=False
    ),
}


_NUMPY = tuple(map(int, np.__version__.split(".")[:2]))
# NumPy 1 computes the edges of bins in float64, which differ in the last bit from those of the version Quark ran with.
_SUMMED_BY_NUMPY = frozenset({"a8w8_entropy_nocle"})


@pytest.fixture(autouse=True)
def _quarks_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrate with as many threads a sample as Quark had: float sums depend on it."""
    collect = functools.partial(stages.collect, threads_per_sample=QUARK_THREADS)
    monkeypatch.setattr(stages, "collect", collect)


@functools.cache
def _stored_outputs(case: str) -> np.ndarray | None:
    """Return what Quark's own file gave, where that was stored."""
    for file in ("outputs.npz", "outputs_cle.npz", "outputs_float.npz"):
        with np.load(DATA / file) as stored:
            if f"{case}__noopt" in stored:
                return stored[f"{case}__noopt"]
    return None


def _quantized(config: Any, source: str = "float", data: str = "calib.npz") -> onnx.ModelProto:
    quantizer = ModelQuantizer(config)
    model = quantizer.quantize_model(DATA / f"{source}.onnx", None, ListReader(samples(data)))
    assert model is not None
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize("case", INTEGERS)
@pytest.mark.filterwarnings("ignore:DedicatedQDQPair")
def test_parameters_integers_and_outputs_are_quarks(case: str) -> None:
    file = case.partition(",")[0]
    theirs = read_quantized(onnx.load(DATA / f"{file}.onnx"))
    source = "float_opset21" if case.endswith("opset21") else "float"

    model = _quantized(INTEGERS[case], source)

    ours = read_quantized(model)
    assert len(theirs.constants) >= 14
    older = (
        frozenset(theirs.activations) if file in _SUMMED_BY_NUMPY and _NUMPY < (2,) else frozenset()
    )
    assert differences(ours.activations, theirs.activations, last_bit=older) == set()
    biases = {key for key in theirs.constants if older and key[1] == 2}  # their scale follows
    assert differences(ours.constants, theirs.constants, last_bit=biases) == set()
    expected = _stored_outputs(file)
    if expected is not None and not older:
        got = outputs_of(model, "test_input.npz")["output"]
        np.testing.assert_array_equal(got.reshape(expected.shape), expected)


def test_most_cases_compare_outputs_too() -> None:
    stored = [case for case in INTEGERS if _stored_outputs(case.partition(",")[0]) is not None]

    assert len(stored) >= 22


_RENAMED = "_QuantizeLinear_Input"
_CONVERTING = frozenset(
    "ExtendedQuantizeLinear ExtendedDequantizeLinear BFPQuantizeDequantize MXQuantizeDequantize "
    "Cast".split()
)


def _conversions(model: onnx.ModelProto) -> list[tuple]:
    """Return type and attributes of what reads each activation to round it, and each weight.

    Quark names folded weights otherwise, so constants are told apart by their shape alone. The
    attribute ``block_shape`` is ours alone: our function reads it.
    """
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer}
    found = []
    for node in model.graph.node:
        if node.op_type in _CONVERTING and not node.input[0].endswith("_QuantizeLinear_Output"):
            source = shapes.get(node.input[0], node.input[0].removesuffix(_RENAMED))
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            attributes.pop("block_shape", None)
            found.append((node.op_type, str(source), sorted(attributes.items())))
    return sorted(found)


@pytest.mark.parametrize("case", FLOATS)
def test_nodes_and_outputs_of_float_formats_are_quarks(case: str) -> None:
    theirs, expected = onnx.load(DATA / f"{case}.onnx"), _stored_outputs(case)

    model = _quantized(FLOATS[case])

    assert _operators(model) == _operators(theirs)
    assert _conversions(model) == _conversions(theirs)
    got = outputs_of(model, "test_input.npz")["output"]
    assert expected is not None
    np.testing.assert_array_equal(got.reshape(expected.shape), expected)
    plain = ort.InferenceSession(model.SerializeToString())
    optimized = np.stack([plain.run(None, feed)[0] for feed in samples("test_input.npz")])
    # Fused kernels may sum in another order, before a value is rounded: half a step of 16 bits.
    np.testing.assert_allclose(optimized.reshape(expected.shape), expected, rtol=2**-7, atol=0.05)


# The gate inside HardSwish is named after its node here, by an inliner's numbering in Quark.
_OUR_GATE, _QUARKS_GATE = "hswish_o_gate", "_inlfunc_HardSwish_HS_X"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expected:
    """What differs from Quark: which activations, stored constants and outputs, and why."""

    preset: str
    activations: frozenset[str] = frozenset()
    constants: frozenset[tuple[str, int]] = frozenset()
    outputs: frozenset[str] = frozenset()
    why: str


# About 45 kinds of operators: Quark's model again, but for what is listed here with its reason. A
# listed difference that no longer exists fails the test as much as a new one does.
OPERATORS = {
    "ops_xint8_nocle": Expected(preset="XINT8", why="nothing differs"),
    "ops_a8w8_nocle": Expected(
        preset="A8W8",
        constants=frozenset({("inorm", 2)}),
        outputs=frozenset({"inorm_o"}),
        why="Quark's AlignConcat copies the Concat output's scale to its inputs (bug 7) and "
        "rescales the biases of Conv, Gemm and ConvTranspose, but not InstanceNormalization's",
    ),
    "ops_a16w8_nocle": Expected(
        preset="A16W8",
        activations=frozenset(
            "gather_o maxpool_o reshape_o resize_o squeeze_o transpose_o unsq_o".split()
        ),
        constants=frozenset({("inorm", 2)}),
        outputs=frozenset(
            "gather_o inorm_o matmul_dyn_o maxpool_o relu_alone_o resize_o softmax_o "
            "squeeze_o".split()
        ),
        why="as A8W8; and Quark's overrides for 16-bit elementwise operators stop data movement "
        "beside them from sharing its input's parameters (bug 12), which all outputs after show",
    ),
    "ops_int8_cnn_default_nocle": Expected(
        preset="INT8_CNN_DEFAULT",
        outputs=frozenset({"clipm22_o"}),
        why="Quark drops the Clip and lets the quantizer's range clip, which ends half a step off",
    ),
}


@pytest.mark.parametrize("case", OPERATORS)
def test_only_listed_differences_from_quark_exist(case: str) -> None:
    expected = OPERATORS[case]
    theirs = onnx.load(DATA / f"{case}.onnx")

    ours = _quantized(quiet(expected.preset, include_cle=False), "ops_float", "ops_calib.npz")

    mine, quarks = read_quantized(ours), read_quantized(theirs)
    renamed = {_QUARKS_GATE, _OUR_GATE}
    assert len(mine.activations) == len(quarks.activations)
    older = AFTER_A_NORM
    different = differences(mine.activations, quarks.activations, last_bit=older)
    assert different == expected.activations | renamed
    assert same_arrays(mine.activations[_OUR_GATE], quarks.activations[_QUARKS_GATE])
    assert differences(mine.constants, quarks.constants) == expected.constants
    got = outputs_of(ours, "ops_test_input.npz")
    want = outputs_of(theirs, "ops_test_input.npz")
    assert list(got) == list(want)
    unequal = {name for name in want if not np.array_equal(got[name], want[name])}
    assert unequal - expected.outputs <= older
    assert expected.outputs <= unequal
    for name in unequal:
        span = float(np.abs(want[name]).max())
        assert np.abs(got[name] - want[name]).max() < 0.02 * span


def test_realigned_instance_normalization_bias_means_the_same_number() -> None:
    """Where our scale of it differs from Quark's, the value does not."""
    theirs = read_quantized(onnx.load(DATA / "ops_a8w8_nocle.onnx"))
    config = quiet("A8W8", include_cle=False)

    ours = read_quantized(_quantized(config, "ops_float", "ops_calib.npz"))

    values = [
        codes.astype(np.float64) * scale
        for codes, scale, _ in (ours.constants["inorm", 2], theirs.constants["inorm", 2])
    ]
    step = float(ours.constants["inorm", 2][1])
    assert np.abs(values[0] - values[1]).max() <= 1.5 * step


def test_45_kinds_of_operators_in_bf16_are_quarks() -> None:
    theirs = onnx.load(DATA / "ops_bf16_nocle.onnx")

    ours = _quantized(quiet("BF16", include_cle=False), "ops_float", "ops_calib.npz")

    mine = [str(row).replace(_OUR_GATE, _QUARKS_GATE) for row in _conversions(ours)]
    assert sorted(mine) == sorted(str(row) for row in _conversions(theirs))
    with np.load(DATA / "outputs_float.npz") as stored:
        for name, got in outputs_of(ours, "ops_test_input.npz").items():
            expected = stored[f"ops_bf16_nocle__noopt__{name}"]
            np.testing.assert_array_equal(got.reshape(expected.shape), expected, err_msg=name)


def _constants(model: onnx.ModelProto) -> dict[str, list[np.ndarray]]:
    """Return weights and biases by the layer that reads them."""
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return {
        node.name.removesuffix("_out"): [stored[name] for name in node.input[1:]]
        for node in model.graph.node
        if node.op_type in ("Conv", "Gemm")
    }


@pytest.mark.parametrize(("case", "steps"), [("float_cle1", 1), ("float_cle_adaptive", -1)])
def test_equalized_weights_are_quarks(case: str, steps: int) -> None:
    """Quark's float models after equalization, in one step and until it settles."""
    theirs = _constants(onnx.load(DATA / f"{case}.onnx"))

    mine = _constants(
        cle_transforms(
            onnx.load(DATA / "float.onnx"), cle_steps=steps, cle_total_layer_diff_threshold=2e-7
        )
    )

    assert mine.keys() == theirs.keys()
    for name, arrays in theirs.items():
        for our, their in zip(mine[name], arrays, strict=True):
            np.testing.assert_array_equal(our, their)


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
