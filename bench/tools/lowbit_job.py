"""lowbit: its own presets, or AMD Quark's with Quark's numbers."""

from __future__ import annotations

from common import Watch, answer, request

asked, watch = request(), Watch()
import msgspec  # noqa: E402

import lowbit  # noqa: E402
from lowbit.config.presets import find_preset  # noqa: E402

settings = asked["settings"]
quantize = lowbit.quantize  # loads all that a run needs
watch.lap("import")


def configuration():
    """Return the configuration that was asked for."""
    if settings["family"] == "native":
        config = find_preset(settings["preset"])
        if settings["refine"]:
            return config, None
        plain = msgspec.structs.replace(config, refinement=None, keep_only_if_better=False)
        return bare(plain) if settings.get("bare") else plain, None
    return of_quark()


def bare(config):
    """Return a configuration that takes the ranges of the samples and does nothing else."""
    method = lowbit.config.methods.MinMax()
    replace = msgspec.structs.replace
    return replace(
        config,
        activation=replace(config.activation, method=method),
        weight=replace(config.weight, method=method),
        equalization=None,
        smooth_quant=None,
        bias_correction=False,
    )


def of_quark():
    """Return what one of Quark's presets means here."""
    import dataclasses

    from lowbit.graph import io
    from lowbit.quark.onnx import CalibrationMethod
    from lowbit.quark.onnx.quantization.config import get_default_config
    from lowbit.quark.translate.job import make_job

    config = get_default_config(settings["preset"])
    options = dict(config.extra_options)
    changes = {"include_cle": bool(settings.get("cle"))}
    if "percentile" in settings:
        changes["calibrate_method"] = CalibrationMethod.Percentile
        options["Percentile"] = settings["percentile"]
    if "iterations" in settings:
        given = options.get("FastFinetune", {})
        options["FastFinetune"] = {**given, "NumIterations": settings["iterations"]}
    config = dataclasses.replace(config, extra_options=options, **changes)
    job = make_job(config, io.load(asked["model"]), lenient=False)
    return job.config, job.target


running = ["load"]


def progress(stage: str, *_) -> None:
    """Book the time since the last call on the stage that ran."""
    watch.lap(running[-1])
    running.append(stage)


config, target = configuration()
# No rival promotes. Only a whole run of lowbit's own does, where it has to.
whole = settings["family"] == "native" and bool(settings.get("refine"))
quantize(
    asked["model"],
    asked["output"],
    data=asked["samples"],
    config=config,
    target=target,
    promote=whole,
    allow_ruined=not whole,
    progress=progress,
)
watch.lap(running[-1])
answer(watch, "onnxruntime", "onnx-ir")
