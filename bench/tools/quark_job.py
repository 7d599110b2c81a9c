"""AMD Quark, through the presets of its documentation."""

from __future__ import annotations

from common import Reader, Watch, answer, request

asked, watch = request(), Watch()
from onnxruntime.quantization import CalibrationMethod  # noqa: E402
from quark.onnx import ModelQuantizer  # noqa: E402
from quark.onnx.quantization.config import Config, get_default_config  # noqa: E402

watch.lap("import")
settings = asked["settings"]
config = get_default_config(settings["preset"])
config.include_cle = bool(settings.get("cle"))
if "percentile" in settings:
    config.calibrate_method = CalibrationMethod.Percentile
    config.extra_options["Percentile"] = settings["percentile"]
if "iterations" in settings:
    config.extra_options["FastFinetune"]["NumIterations"] = settings["iterations"]
ModelQuantizer(Config(global_quant_config=config)).quantize_model(
    asked["model"], asked["output"], Reader(asked)
)
watch.lap("quantize")
answer(watch, "amd-quark", "torch", "onnxruntime")
