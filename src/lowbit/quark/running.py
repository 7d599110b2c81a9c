"""Run a configuration of Quark's on a model: what ``ModelQuantizer`` and ``quantize_static`` do."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnx_ir as ir

from lowbit.api.compare import compare
from lowbit.api.quantize import Result, quantize
from lowbit.config.specs import FloatSpec, Spec
from lowbit.data.sources import Reader
from lowbit.files import check_outputs
from lowbit.graph import io
from lowbit.graph.session import model_inputs
from lowbit.pipeline.verify import doubt_of_random_data
from lowbit.quark import by_onnxruntime, rewriting
from lowbit.quark.by_onnxruntime import nbits_by_lowbit
from lowbit.quark.errors import (
    MissingModelError,
    NotSupportedError,
    QuarkConfigError,
    QuarkDataError,
    say,
)
from lowbit.quark.models.custom import clip_before, to_npu_normalization, without_casts
from lowbit.quark.models.npu_softmax import to_npu_softmax
from lowbit.quark.models.stored import to_integer_operators
from lowbit.quark.onnx.calibration.data_readers import RandomDataReader
from lowbit.quark.onnx.quantization.config.algorithm import AlgoConfig
from lowbit.quark.onnx.quantization.config.config import QConfig, QuantizationConfig
from lowbit.quark.translate.algorithms import gptq_refinement, read_gptq
from lowbit.quark.translate.job import Job, make_job
from lowbit.quark.translate.options import ExtraOptions
from lowbit.quark.translate.passes import with_passes
from lowbit.quark.translate.qconfig import (
    layer_exceptions,
    to_legacy,
    weight_group,
    with_algorithms,
)
from lowbit.quark.translate.ranges import range_file, save_ranges
from lowbit.quark.translate.selection import LayerException
from lowbit.report.result import show_comparison, show_result
from lowbit.report.tables import stdout
from lowbit.report.values import Report

_MEMORY = "/dev/shm"  # noqa: S108


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Everything a user passes in addition to the configuration."""

    model: str | Path | onnx.ModelProto
    output: str | Path | None = None
    reader: Any = None
    data_path: str | Path | None = None


def run(
    given: Given, config: QuantizationConfig | QConfig, algorithms: Sequence[AlgoConfig]
) -> onnx.ModelProto | None:
    """Quantize as the configuration says; return the model if no output path is given."""
    layers: Sequence[LayerException] = ()
    group: int | None = None
    if isinstance(config, QConfig):
        layers, group = layer_exceptions(config), weight_group(config)
        config = to_legacy(config)
    config = with_passes(with_algorithms(config, algorithms))
    if _is_secret(config):
        _check_secret(given, config)
        given = dataclasses.replace(given, output=None)
        with files_in_memory():
            return _run(given, read_model(given.model), config, layers, group)
    if given.output is not None:
        # In place is allowed, as in Quark: the model is in memory before it is written over.
        check_outputs({"model_output": given.output}, [given.data_path] if given.data_path else [])
    return _run(given, read_model(given.model), config, layers, group)


def _is_secret(config: QuantizationConfig) -> bool:
    return bool(config.crypto_mode or config.extra_options.get("CryptoMode"))


def _check_secret(given: Given, config: QuantizationConfig) -> None:
    """Raise for what would put a model that must stay secret on a disk."""
    if not isinstance(given.model, onnx.ModelProto):
        raise QuarkConfigError("crypto mode takes the model as an onnx.ModelProto, not as a file")
    if config.use_external_data_format:
        raise QuarkConfigError("crypto mode writes no file, and so no external data")
    if given.output is not None:
        say(f"crypto mode writes no file: the model is returned, not written to {given.output}")


@contextlib.contextmanager
def files_in_memory() -> Iterator[None]:
    """Keep temporary files in a file system in memory, while this is open."""
    if not os.path.ismount(_MEMORY) or not os.access(_MEMORY, os.W_OK):
        raise NotSupportedError(
            f"crypto mode keeps temporary copies in {_MEMORY}, a file system in memory, which this "
            "system does not have; switch crypto_mode off"
        )
    before, tempfile.tempdir = tempfile.tempdir, _MEMORY
    try:
        yield
    finally:
        tempfile.tempdir = before


def _run(
    given: Given,
    loaded: ir.Model,
    config: QuantizationConfig,
    layers: Sequence[LayerException] = (),
    group: int | None = None,
) -> onnx.ModelProto | None:
    if config.use_dynamic_quant:
        return _handed_over(by_onnxruntime.dynamic(loaded, config), given, config)
    if config.extra_options.get("UseMatMulNBits"):
        return _handed_over(_nbits(given, loaded, config), given, config)
    return _calibrated(given, loaded, config, layers, group)


def _nbits(given: Given, loaded: ir.Model, config: QuantizationConfig) -> ir.Model:
    parameters = by_onnxruntime.nbits_parameters(config.extra_options)
    algorithm = parameters.get("Algorithm", "DEFAULT")
    if algorithm == "HQQ":
        return nbits_by_lowbit(loaded, parameters, None, None)
    if algorithm != "GPTQ":
        return by_onnxruntime.nbits(loaded, parameters)
    data = given.data_path if given.reader is None else _feeds(given.reader, loaded)
    if data is None:
        raise QuarkDataError("GPTQ rounds by data: give calibration_data_reader")
    asked = read_gptq(config.extra_options.get("GPTQParams") or {}, lenient=config.ignore_warnings)
    return nbits_by_lowbit(loaded, parameters, gptq_refinement(asked), data)


def _calibrated(
    given: Given,
    loaded: ir.Model,
    config: QuantizationConfig,
    layers: Sequence[LayerException] = (),
    group: int | None = None,
) -> onnx.ModelProto | None:
    job = make_job(config, loaded, layers=layers, group=group, lenient=config.ignore_warnings)
    source = _prepared(loaded, config, job)
    result = quantize(
        source,
        data=_data(given, loaded, config, job),
        config=job.config,
        target=job.target,
        metric=job.metric,
        # The same name gives the same model: nothing is promoted, nothing refused.
        promote=False,
        allow_ruined=True,
    )
    path = range_file(job.options)
    if path is not None and not path.exists() and not _is_secret(config):
        save_ranges(path, result.state)
    report = _with_doubts(result.report, given, job.options)
    _warn(report)
    message = _handed_over(_in_format(result.quantized, config, job.options), given, config)
    _tell(result, report, source, given, config, job.options)
    return message


def _with_doubts(report: Report, given: Given, options: ExtraOptions) -> Report:
    """Return the report with the doubt that random data deserve: Quark refines on them, so lowbit is not told."""
    source = given.reader if given.reader is not None else given.data_path
    is_random = options.UseRandomData if source is None else getattr(source, "is_random", False)
    if not is_random:
        return report
    doubt = doubt_of_random_data(calibrated=report.calibration_samples > 0)
    return msgspec.structs.replace(report, doubts=(doubt, *report.doubts))


def _warn(report: Report) -> None:
    """Say how good the model is, if it is not."""
    verdict = report.verdict
    if verdict is not None and not verdict.is_usable:
        say(f"the quantized model is {verdict.level}: {verdict.describe()}")


def _in_format(model: ir.Model, config: QuantizationConfig, options: ExtraOptions) -> ir.Model:
    """Return the quantized model in the form of file that is asked for."""
    if options.ConvertInstanceNormToDPUVersion:
        model = to_npu_normalization(model)
    if options.ConvertSoftmaxToDPUVersion and options.SimulateDPU is not False:
        model = to_npu_softmax(model)
    if options.EnableVaimlBF16:
        return without_casts(model)
    if options.BF16WithClip:
        return clip_before(model)
    if getattr(config.quant_format, "name", "") == "QOperator":
        return to_integer_operators(model)
    return model


def _handed_over(
    model: ir.Model, given: Given, config: QuantizationConfig
) -> onnx.ModelProto | None:
    """Write the model if there is a path, and return it otherwise."""
    if given.output is None:
        return io.to_proto(model)
    io.save(model, given.output, external_data=config.use_external_data_format)
    return None


def read_model(model: str | Path | onnx.ModelProto) -> ir.Model:
    """Return the model at a path or a message."""
    if isinstance(model, (str, os.PathLike)) and not Path(model).exists():
        raise MissingModelError(f"no such model: {model}")
    if not isinstance(model, (str, os.PathLike, onnx.ModelProto)):
        raise QuarkConfigError(
            f"model_input is a {type(model).__name__}; expected a path or an onnx.ModelProto"
        )
    return io.load(model)


def _prepared(model: ir.Model, config: QuantizationConfig, job: Job) -> ir.Model:
    """Return the model with the changes the configuration asks for before all else."""
    options, activation = job.options, job.config.activation
    if options.FixShapes:
        model = rewriting.fix_shapes(model, rewriting.parse_shapes(options.FixShapes))
    if config.convert_nchw_to_nhwc or options.ConvertNCHWToNHWC:
        model = rewriting.nchw_to_nhwc(model)
    if options.ConvertOpsetVersion is not None:
        model = rewriting.to_opset(model, options.ConvertOpsetVersion)
    if isinstance(activation, FloatSpec) and not activation.scaled:
        model = rewriting.finite_in(model, activation.format)
    return model


def _data(given: Given, loaded: ir.Model, config: QuantizationConfig, job: Job) -> Any:
    """Return what to calibrate on: the reader, the path, or random data if that is asked for."""
    options = job.options
    if given.reader is not None:
        source = _feeds(given.reader, loaded)
        if config.convert_nchw_to_nhwc or options.ConvertNCHWToNHWC:
            source = (rewriting.feed_to_nhwc(feed) for feed in source)
        # What has no range to find is not calibrated: there is nothing for a limit to limit.
        limit = options.CalibDataSize if _is_calibrated(job.config.activation) else None
        return _first(source, limit)
    if given.data_path is not None:
        return given.data_path
    if options.UseRandomData:
        return _feeds(
            RandomDataReader(
                given.model,
                options.RandomDataReaderInputShape or {},
                options.RandomDataReaderInputDataRange,
            ),
            loaded,
        )
    raise QuarkDataError(
        "there is nothing to calibrate on: give calibration_data_reader or calibration_data_path, "
        "or set the extra option UseRandomData"
    )


def _is_calibrated(spec: Spec | None) -> bool:
    return spec is not None and spec.calibration is not None


def _feeds(reader: Any, model: ir.Model) -> Iterator[Any]:
    """Yield what a reader gives, from where it stands."""
    types = {info.name: info.dtype for info in model_inputs(model)}
    for feed in _read(reader):
        yield _with_arrays(feed, types) if isinstance(feed, Mapping) else feed


def _read(reader: Any) -> Iterator[Any]:
    if not isinstance(reader, Reader):
        yield from reader
        return
    while (feed := reader.get_next()) is not None:
        yield feed


def _with_arrays(feed: Mapping[str, Any], types: Mapping[str, np.dtype[Any]]) -> dict[str, Any]:
    """Return a feed with arrays of the model's types for lists, which onnxruntime takes as well."""
    return {
        name: np.asarray(value, types[name]) if isinstance(value, list) and name in types else value
        for name, value in feed.items()
    }


def _first(feeds: Iterator[Any], count: int | None) -> Iterator[Any]:
    if count is not None and count < 1:
        raise QuarkConfigError(f"CalibDataSize is {count}; at least one sample is needed")
    return feeds if count is None else itertools.islice(feeds, count)


def _tell(
    result: Result,
    report: Report,
    source: ir.Model,
    given: Given,
    config: QuantizationConfig,
    options: ExtraOptions,
) -> None:
    """Print what was done, unless told not to."""
    if config.print_summary and options.PrintSummary is not False:
        show_result(stdout(), report, str(given.output or "(returned)"))
    if options.EvalMetrics:
        if options.EvalDataReader is not None:
            report = compare(source, result.quantized, _feeds(options.EvalDataReader, source))
        show_comparison(stdout(), report)
