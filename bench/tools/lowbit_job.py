"""lowbit: its own presets, or AMD Quark's with Quark's numbers."""

from __future__ import annotations

from common import Watch, answer, request

asked, watch = request(), Watch()
import msgspec  # noqa: E402

import lowbit  # noqa: E402
from lowbit.config.presets import find_preset  # noqa: E402
from lowbit.config.quark import QUARK_PRESETS, quark_percentile, with_cle  # noqa: E402

settings = asked["settings"]
quantize = lowbit.quantize  # loads all that a run needs
watch.lap("import")


def configuration():
    """Return the configuration that was asked for."""
    if settings["family"] == "native":
        config = find_preset(settings["preset"])
        if settings["refine"]:
            return config
        return msgspec.structs.replace(config, refinement=None, keep_only_if_better=False)
    config = QUARK_PRESETS[settings["preset"]]
    if "percentile" in settings:
        config = config.with_method(quark_percentile(settings["percentile"]))
    if settings.get("cle"):
        config = with_cle(config)
    if "iterations" in settings:
        refine = msgspec.structs.replace(config.refinement, num_iterations=settings["iterations"])
        config = msgspec.structs.replace(config, refinement=refine)
    return config


running = ["load"]


def progress(stage: str, *_) -> None:
    """Book the time since the last call on the stage that ran."""
    watch.lap(running[-1])
    running.append(stage)


quantize(
    asked["model"],
    asked["output"],
    data=asked["samples"],
    config=configuration(),
    progress=progress,
)
watch.lap(running[-1])
answer(watch, "onnxruntime", "onnx-ir")
