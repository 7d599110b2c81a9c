"""Configurations as dictionaries and back, and algorithms as options."""

from __future__ import annotations

import copy
import json

import pytest

from lowbit.quark.errors import CompatibilityWarning
from lowbit.quark.onnx import (
    A16W8_ADAROUND_QCONFIG,
    AdaQuantConfig,
    AdaRoundConfig,
    AutoMixprecisionConfig,
    BFP16Spec,
    BiasCorrectionConfig,
    CalibMethod,
    CLEConfig,
    GPTQConfig,
    Int8Spec,
    Int16Spec,
    MX6Spec,
    QConfig,
    QLayerConfig,
    QuantGranularity,
    QuarotConfig,
    SmoothQuantConfig,
    UInt8Spec,
    XInt8Spec,
)
from lowbit.quark.onnx.quantization.config.algorithm import from_dict

EVERYTHING = QConfig(
    global_config=QLayerConfig(activation=UInt8Spec(), weight=Int8Spec(symmetric=False)),
    specific_layer_config={
        QLayerConfig(input_tensors=Int16Spec(), output_tensors=Int16Spec()): ["conv1", "^fc.*"]
    },
    layer_type_config={None: ["Softmax"], QLayerConfig(weight=MX6Spec()): ["MatMul"]},
    exclude=["conv2", (["a"], ["b"])],
    algo_config=[
        CLEConfig(cle_steps=3),
        SmoothQuantConfig(alpha=0.7),
        BiasCorrectionConfig(),
        GPTQConfig(bits=4),
        QuarotConfig(r_config_path="r.json"),
        AdaRoundConfig(beta_range=(10, 1), reg_param=0.5, lr_adjust=(1.0, 0.2)),
        AutoMixprecisionConfig([QLayerConfig(input_tensors=BFP16Spec(), weight=BFP16Spec())]),
    ],
    use_external_data_format=True,
    extra_options={"Percentile": 99.9, "RemoveQDQBetweenOps": [["Mul", "Add"]]},
)


@pytest.mark.parametrize("config", [EVERYTHING, A16W8_ADAROUND_QCONFIG])
def test_a_configuration_survives_json(config: QConfig) -> None:
    text = json.dumps(config.to_dict())

    again = QConfig.from_dict(json.loads(text))

    assert again.to_dict() == config.to_dict()
    assert again.global_config.inputs().data_type is config.global_config.inputs().data_type
    assert again.exclude == config.exclude
    assert again.extra_options == config.extra_options


@pytest.mark.parametrize("part", EVERYTHING.algo_config, ids=lambda part: part.name)
def test_an_algorithm_survives_a_dictionary(part: object) -> None:
    again = part.from_dict(json.loads(json.dumps(part.to_dict())))

    assert type(again) is type(part)
    assert again.to_dict() == part.to_dict()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "adarond"}, "no algorithm is called 'adarond'; did you mean 'adaround'"),
        ({"name": "cle", "cle_step": 2}, "CLEConfig has no 'cle_step'; did you mean 'cle_steps'"),
        ({}, "no algorithm is called None"),
    ],
)
def test_a_wrong_dictionary_is_named(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_dict(given)


def test_all_parameters_of_finetuning_reach_the_options() -> None:
    config = AdaQuantConfig(
        output_index=2,
        ref_model_path="float.onnx",
        dynamic_batch=True,
        parallel=True,
        reg_param=0.2,
        beta_range=(15, 3),
        warm_start=0.3,
    )

    options = config.get_options()["FastFinetune"]

    assert options["OptimAlgorithm"] == "adaquant"
    names = "OutputIndex RefModelPath DynamicBatch Parallel RegParam BetaRange WarmStart".split()
    assert [options[name] for name in names] == [2, "float.onnx", True, True, 0.2, (15, 3), 0.3]


def test_setters_change_a_spec() -> None:
    spec = XInt8Spec()

    spec.set_symmetric(False)
    spec.set_calibration_method(CalibMethod.MinMax)
    spec.set_quant_granularity(QuantGranularity.Channel)

    assert spec == XInt8Spec(
        symmetric=False,
        calibration_method=CalibMethod.MinMax,
        quant_granularity=QuantGranularity.Channel,
    )
    assert spec != XInt8Spec()


def test_bare_options_are_taken_with_a_warning() -> None:
    layer = QLayerConfig(input_tensors=Int8Spec(), weight=Int8Spec())

    with pytest.warns(CompatibilityWarning, match="Percentile inside extra_options"):
        config = QConfig(layer, Percentile=99.0)

    assert config.extra_options == {"Percentile": 99.0}


def test_copies_are_independent() -> None:
    again = copy.deepcopy(EVERYTHING)

    again.extra_options["Percentile"] = 50.0

    assert EVERYTHING.extra_options["Percentile"] == 99.9


def test_the_inputs_spec_may_stand_under_both_of_its_names() -> None:
    # Olive copies `activation` into `input_tensors`; Quark reads the latter.
    inputs, weight = UInt8Spec().to_dict(), Int8Spec().to_dict()
    both = {"activation": inputs, "input_tensors": inputs, "weight": weight}

    layer = QLayerConfig.from_dict(both)

    assert layer.inputs() == QLayerConfig.from_dict({"activation": inputs}).inputs()
    with pytest.warns(CompatibilityWarning, match="activation is ignored"):
        layer = QLayerConfig.from_dict({**both, "activation": Int16Spec().to_dict()})
    assert layer.inputs().data_type.__name__ == "UInt8"
