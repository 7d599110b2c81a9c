"""Quantize an image classifier for Ryzen AI as AMD's tutorial does, on lowbit.

    python advanced_quark_quantize.py --model_input models/mobilenetv2.onnx \
        --model_output models/mobilenetv2_quant.onnx --calib_data calib_data

Without an option: XINT8. ``--fast_finetune``: INT8 with percentile calibration and AdaRound;
``--cross_layer_equalization``: XINT8 with equalization; ``--adaround`` and ``--adaquant``: XINT8
finetuned by one of the two. The calls are AMD Quark's; nothing but the imports says lowbit.
"""

from __future__ import annotations

import argparse
import sys

from lowbit import LowbitError
from lowbit.data import open_data
from lowbit.graph import io
from lowbit.graph.session import model_inputs
from lowbit.quark.onnx import (
    CalibrationDataReader,
    CalibrationMethod,
    Config,
    ModelQuantizer,
    PowerOfTwoMethod,
    QuantizationConfig,
    QuantType,
)
from lowbit.quark.onnx.quantization.config import get_default_config
from lowbit.quark.onnx.quantization.config.custom_config import DEFAULT_ADAROUND_PARAMS


class ImageReader(CalibrationDataReader):
    """Pictures of a folder, prepared as ImageNet classifiers want them."""

    def __init__(self, folder: str, model: str, limit: int | None) -> None:
        inputs = model_inputs(io.load(model))
        self._feeds = iter(open_data(folder, inputs, preprocessing="imagenet", limit=limit))

    def get_next(self) -> dict | None:
        """Return the next image's feed, or None after the last."""
        feed = next(self._feeds, None)
        return None if feed is None else dict(feed)


def choose(args: argparse.Namespace) -> QuantizationConfig:
    """Return the configuration that the options ask for."""
    if args.fast_finetune:
        return QuantizationConfig(
            calibrate_method=CalibrationMethod.Percentile,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            include_fast_ft=True,
            extra_options={"Percentile": 99.9999, "FastFinetune": DEFAULT_ADAROUND_PARAMS},
        )
    if args.cross_layer_equalization:
        return QuantizationConfig(
            calibrate_method=PowerOfTwoMethod.MinMSE,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            enable_npu_cnn=True,
            include_cle=True,
            extra_options={"ActivationSymmetric": True},
        )
    if args.adaround:
        return get_default_config("XINT8_ADAROUND")
    if args.adaquant:
        return get_default_config("XINT8_ADAQUANT")
    return get_default_config("XINT8")


def main() -> int:
    """Quantize; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_input", required=True, help="the float model")
    parser.add_argument("--model_output", required=True, help="the quantized model")
    parser.add_argument("--calib_data", default="calib_data", help="a folder of images")
    parser.add_argument("--samples", type=int, help="how many images to take (default all)")
    way = parser.add_mutually_exclusive_group()
    for option in ("fast_finetune", "cross_layer_equalization", "adaround", "adaquant"):
        way.add_argument(f"--{option}", action="store_true")
    args = parser.parse_args()
    config = Config(global_quant_config=choose(args))
    print(f"The configuration of the quantization is {config}")
    try:
        reader = ImageReader(args.calib_data, args.model_input, args.samples)
        ModelQuantizer(config).quantize_model(
            model_input=args.model_input,
            model_output=args.model_output,
            calibration_data_reader=reader,
        )
    except LowbitError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    print(f"The quantized model is {args.model_output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
