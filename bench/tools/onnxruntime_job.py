"""onnxruntime's own quantizer, preprocessing included as its documentation advises."""

from __future__ import annotations

from common import Reader, Watch, answer, request

asked, watch = request(), Watch()
from onnxruntime.quantization import (  # noqa: E402
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process  # noqa: E402

watch.lap("import")


class Samples(Reader, CalibrationDataReader):
    """It asks for its own class."""


settings = asked["settings"]
prepared = asked["output"] + ".prepared.onnx"
quant_pre_process(asked["model"], prepared)
quantize_static(
    prepared,
    asked["output"],
    Samples(asked),
    quant_format=QuantFormat.QDQ,
    activation_type=QuantType[settings["activation"]],
    weight_type=QuantType.QInt8,
    calibrate_method=CalibrationMethod[settings["method"]],
    per_channel=settings.get("per_channel", False),
    extra_options={"ActivationSymmetric": settings["activation"] != "QUInt8"},
)
watch.lap("quantize")
answer(watch, "onnxruntime")
