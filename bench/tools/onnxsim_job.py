"""onnxsim, through its front like AMD Quark's."""

from __future__ import annotations

import dataclasses

from common import Reader, Watch, answer, request

asked, watch = request(), Watch()
from onnxsim.quark_compat import CLEConfig, ModelQuantizer, QConfig  # noqa: E402

watch.lap("import")
settings = asked["settings"]
config = QConfig.get_default_config(settings["preset"])
config.algo_config = [CLEConfig()] if settings.get("cle") else []
if "percentile" in settings:
    layer = config.global_config
    method = f"percentile:{settings['percentile']}"
    layer.activation = dataclasses.replace(layer.activation, calibration_method=method)
ModelQuantizer(config).quantize_model(asked["model"], asked["output"], Reader(asked))
watch.lap("quantize")
answer(watch, "onnxsim", "onnxruntime")
