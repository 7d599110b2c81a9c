"""From options to preprocessing and configuration: preset, then file, then single options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowbit.cli.configuration import make_config, make_preprocessing
from lowbit.cli.options import make_parser
from lowbit.config.config import QuantConfig
from lowbit.config.methods import Entropy, MinMax, MinMse, OutputMse, Percentile
from lowbit.config.presets import find_preset
from lowbit.config.specs import Rule
from lowbit.config.transforms import CrossLayerEqualization, SmoothQuant
from lowbit.data import PREPROCESSINGS, Preprocessing
from lowbit.errors import ConfigError
from lowbit.planning.plan import Plan


def images(*words: str) -> Preprocessing | None:
    parser = make_parser()
    return make_preprocessing(parser.parse(["compare", "a", "b", "--data", "c", *words]))


def test_no_image_option_is_no_preprocessing() -> None:
    assert images() is None


def test_a_named_preprocessing_is_taken_whole() -> None:
    assert images("--preprocess", "caffe") == PREPROCESSINGS["caffe"]


def test_options_override_parts_of_a_named_preprocessing() -> None:
    made = images("--preprocess", "imagenet", "--std", "1", "--channel-order", "BGR")

    assert made is not None
    assert (made.std, made.channel_order) == ((1.0,), "BGR")
    assert (made.mean, made.resize) == (PREPROCESSINGS["imagenet"].mean, 256)


def test_options_alone_start_from_nothing() -> None:
    made = images("--scale", "1", "--layout", "NHWC")

    assert made == Preprocessing(scale=1.0, layout="NHWC")


def test_sizes_given_in_full_are_no_proportion() -> None:
    both = images("--preprocess", "imagenet", "--resize", "300", "--crop", "280")
    one = images("--preprocess", "imagenet", "--resize", "300")
    boxed = images("--preprocess", "yolo", "--resize", "320,320")

    assert both is not None
    assert one is not None
    assert boxed is not None
    assert (both.proportional, one.proportional, boxed.proportional) == (False, True, False)


def test_what_no_image_could_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="letterbox"):
        images("--preprocess", "yolo", "--crop", "100")


# Configuration


def config(*words: str, plan: Plan | None = None, command: str = "quantize") -> QuantConfig:
    files = ["m.onnx", "q.onnx", "--data", "d"] if command == "quantize" else ["m.onnx"]
    return make_config(make_parser().parse([command, *files, *words]), plan)


def test_without_options_it_is_the_default_preset() -> None:
    assert config() == find_preset("A8W8")
    assert config(command="plan") == find_preset("A8W8")


def test_a_preset_is_found_whatever_its_case() -> None:
    assert config("--preset", "xint8") == find_preset("XINT8")


@pytest.mark.parametrize(
    ("words", "method"),
    [
        (["--calibration", "minmax"], MinMax()),
        (["--calibration", "entropy"], Entropy()),
        (["--calibration", "percentile"], Percentile()),
        (["--percentile", "99.5"], Percentile(percentile=99.5)),
        (["--calibration", "percentile", "--percentile", "97"], Percentile(percentile=97)),
    ],
)
def test_the_method_is_that_of_activations(words, method) -> None:
    made = config(*words)

    assert made.activation.method == method
    assert made.weight == find_preset("A8W8").weight


@pytest.mark.parametrize(
    ("word", "method"), [("minmax", MinMax()), ("mse", MinMse()), ("output", OutputMse())]
)
def test_the_method_of_weights_is_apart(word, method) -> None:
    made = config("--weights", word)

    assert made.weight.method == method
    assert made.activation == find_preset("A8W8").activation


def test_what_is_quantized_adds_to_what_a_file_says() -> None:
    Path("mine.json").write_text(
        json.dumps({"preset": "A8W8", "exclude": ["conv1"], "include": ["c*"]})
    )

    made = config(
        "--config", "mine.json", "--exclude", "conv2", "--include", "x", "--exclude-op", "Add"
    )

    assert (made.exclude, made.include) == (("conv1", "conv2"), ("c*", "x"))
    assert made.rules == (Rule(op_type="Add", exclude=True),)


def test_the_preset_of_a_file_is_changed_by_what_it_says() -> None:
    Path("mine.json").write_text('{"preset": "XINT8", "head": "float"}')

    made = config("--config", "mine.json")

    assert (made.head, made.activation) == ("float", find_preset("XINT8").activation)
    assert config("--config", "mine.json", "--head", "int8").head == "int8"


def test_steps_can_be_skipped() -> None:
    start = find_preset("A8W8")
    assert start.equalization == CrossLayerEqualization()
    assert start.smooth_quant == SmoothQuant()

    assert config("--no-equalization").equalization is None
    assert config("--no-smooth-quant").smooth_quant is None
    assert config("--no-reconstruction").refinement is None
    assert not config("--keep-all-steps").keep_only_if_better
    uncorrected = config("--no-bias-correction")
    assert not uncorrected.bias_correction
    # The shift of means that nothing corrects counts in the choice of the scale.
    assert uncorrected.weight.method == OutputMse()


def test_only_reconstruction_is_skipped_not_another_refinement() -> None:
    assert config("--preset", "BF16_ACCURATE", "--no-reconstruction").refinement == (
        find_preset("BF16_ACCURATE").refinement
    )


def test_the_domain_and_rewrites_of_the_target() -> None:
    made = config(
        "--preset", "XINT8", "--domain", "com.microsoft", "--skip-rewrite", "split_to_slice"
    )

    assert (made.domain, made.skip_rewrites) == ("com.microsoft", ("split_to_slice",))


def test_a_rewrite_that_the_target_does_not_have_names_those_it_has() -> None:
    with pytest.raises(
        ConfigError, match=r"ryzen-ai-cnn has no rewrite 'split_slice' to skip; did"
    ):
        config("--preset", "XINT8", "--skip-rewrite", "split_slice")
    with pytest.raises(ConfigError, match=r"tensorrt has no rewrite .* none at all"):
        config("--preset", "S8S8", "--target", "tensorrt", "--skip-rewrite", "split_to_slice")


def test_a_percentile_goes_with_its_method() -> None:
    with pytest.raises(
        ConfigError, match="--percentile 99 goes with --calibration percentile, not mse"
    ):
        config("--percentile", "99", "--calibration", "mse")


# A plan already made


def plan(preset: str = "XINT8", target: str = "ryzen-ai-cnn") -> Plan:
    return Plan(preset=preset, target=target, tensors=(), biases=(), groups=(), float_nodes=())


def test_a_plan_brings_the_preset_it_was_made_from() -> None:
    assert config(plan=plan()) == find_preset("XINT8")
    assert config("--preset", "VINT8", plan=plan("XINT8", "vint8")) == find_preset("VINT8")


def test_a_plan_from_a_file_needs_that_file() -> None:
    with pytest.raises(
        ConfigError, match="made from 'mine', which is no preset; give the --config"
    ):
        config(plan=plan("mine"))


@pytest.mark.parametrize(
    "words",
    [
        ["--calibration", "mse"],
        ["--percentile", "99"],
        ["--weights", "mse"],
        ["--include", "a"],
        ["--exclude", "a"],
        ["--exclude-op", "Gemm"],
        ["--head", "float"],
    ],
)
def test_options_that_decide_a_plan_are_refused_beside_one(words) -> None:
    with pytest.raises(ConfigError, match=f"{words[0]} decides the plan, but --plan gives one"):
        config(*words, plan=plan())


def test_a_plan_for_another_target_is_refused() -> None:
    with pytest.raises(ConfigError, match="made for target vint8, but XINT8 is for ryzen-ai-cnn"):
        config(plan=plan("XINT8", "vint8"))
