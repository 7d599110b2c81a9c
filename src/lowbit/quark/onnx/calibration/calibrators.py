"""Quark's calibrator objects: they run a model on data and say the range of each tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData
from onnxruntime.quantization.quant_utils import QuantType

from lowbit.calibrate.observers import OrderedObserver, observer_of
from lowbit.calibrate.statistics import TensorStats
from lowbit.config.methods import NonOverflow
from lowbit.config.specs import IntegerSpec
from lowbit.graph import io
from lowbit.graph.session import session
from lowbit.quark.errors import NotSupportedError, QuarkDataError
from lowbit.quark.onnx.quantization.quant_utils import PowerOfTwoMethod
from lowbit.scales.ranges import params_of, range_of

Source: TypeAlias = str | Path | onnx.ModelProto


class Calibrator:
    """Observes what the operators of some types read and write. It keeps statistics, not data."""

    def __init__(self, model: ir.Model, op_types: Sequence[str], spec: IntegerSpec) -> None:
        self._model, self._spec = model, spec
        self._names = _tensors(model.graph, op_types)
        self.clear_collected_data()

    def clear_collected_data(self) -> None:
        """Forget what was observed."""
        needed = observer_of(self._spec.method)
        self._observer = OrderedObserver(dict.fromkeys(self._names, needed))
        self._samples = 0

    def augment_graph(self) -> None:
        """Do nothing: tensors are observed without a change of the model."""

    def create_inference_session(self) -> None:
        """Do nothing: a session is opened while data is collected."""

    def set_execution_providers(self, execution_providers: Sequence[str] = ()) -> None:
        """Do nothing: calibration runs on the CPU."""
        del execution_providers

    def get_augment_model(self) -> onnx.ModelProto:
        """Return the model."""
        return io.to_proto(self._model)

    def collect_data(self, data_reader: Any) -> None:
        """Run the model on all that a reader gives, and observe its tensors."""
        with session(self._model, self._names, name="the model to calibrate") as running:
            while feed := data_reader.get_next():
                self._samples += 1
                for name, array in zip(self._names, running.run(self._names, feed), strict=True):
                    self._observer.add(name, np.asarray(array))
        if not self._samples:
            raise QuarkDataError("the reader gave no sample; at least one is needed")

    def compute_data(self) -> TensorsData:
        """Return the range of each tensor, as onnxruntime has them."""
        if not self._samples:
            raise QuarkDataError("nothing was observed yet: call collect_data first")
        found = self._observer.result()
        ranges = {name: self._range(name, stats) for name, stats in found.items()}
        data = {
            name: TensorData(lowest=np.array(low, np.float32), highest=np.array(high, np.float32))
            for name, (low, high) in ranges.items()
        }
        return TensorsData(CalibrationMethod.MinMax, data)

    compute_range = compute_data

    def _range(self, name: str, stats: TensorStats) -> tuple[float, float]:
        if not self._spec.power_of_two:
            return range_of(stats, self._spec, name)
        if isinstance(self._spec.method, NonOverflow):
            top = max(abs(stats.low), abs(stats.high))
            return -top, top
        top = float(params_of(stats, self._spec, name).scale) * (2**self._spec.format.bits // 2 - 1)
        return -top, top


def create_calibrator_power_of_two(
    model_input: Source,
    op_types_to_calibrate: Sequence[str] | None = None,
    augmented_model_path: str = "",
    activation_type: Any = QuantType.QInt8,
    calibrate_method: Any = PowerOfTwoMethod.NonOverflow,
    use_external_data_format: bool = False,  # noqa: FBT001, FBT002
    execution_providers: Sequence[str] | None = None,
    quantized_tensor_type: Mapping[Any, Any] | None = None,
    extra_options: Mapping[str, Any] | None = None,
    **older: Any,
) -> Calibrator:
    """Return a calibrator of ranges that power-of-two scales hold."""
    del augmented_model_path, use_external_data_format, execution_providers, quantized_tensor_type
    method = older.get("method", calibrate_method)
    options = {**(extra_options or {}), "ActivationSymmetric": True}
    return _calibrator(model_input, op_types_to_calibrate, activation_type, method, options)


def create_calibrator_float_scale(
    model_input: Source,
    op_types_to_calibrate: Sequence[str] | None = None,
    augmented_model_path: str = "",
    activation_type: Any = QuantType.QInt8,
    calibrate_method: Any = CalibrationMethod.MinMax,
    use_external_data_format: bool = False,  # noqa: FBT001, FBT002
    execution_providers: Sequence[str] | None = None,
    extra_options: Mapping[str, Any] | None = None,
    **older: Any,
) -> Calibrator:
    """Return a calibrator of the ranges that a method of float scales chooses."""
    del augmented_model_path, use_external_data_format, execution_providers
    method = older.get("method", calibrate_method)
    return _calibrator(
        model_input, op_types_to_calibrate, activation_type, method, extra_options or {}
    )


def calibrate_model(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise: there is no calibration apart from a run or a calibrator."""
    del args, kwargs
    raise NotSupportedError(
        "calibrate_model is not supported: quantize with ModelQuantizer, or take a calibrator "
        "(create_calibrator_float_scale, create_calibrator_power_of_two)"
    )


# By Quark's keys of these options: a calibrator takes them in words of its own.
_WORDS = {
    "symmetric": "CalibTensorRangeSymmetric",
    "moving_average": "CalibMovingAverage",
    "averaging_constant": "CalibMovingAverageConstant",
    "percentile": "Percentile",
    "num_bins": "NumBins",
    "num_quantized_bins": "NumQuantizedBins",
}


def _calibrator(
    source: Source,
    op_types: Sequence[str] | None,
    kind: Any,
    method: Any,
    options: Mapping[str, Any],
) -> Calibrator:
    from lowbit.quark.translate.options import read_options
    from lowbit.quark.translate.specs import activation_method, integer_format, is_power_of_two

    named = {_WORDS.get(key, key): value for key, value in options.items()}
    read = read_options(named, lenient=True)
    chosen = activation_method(method, read)
    spec = IntegerSpec(
        format=integer_format(kind),
        symmetric=bool(read.ActivationSymmetric),
        power_of_two=is_power_of_two(method, read),
        method=chosen,
    )
    return Calibrator(io.load(source), op_types or (), spec)


def _tensors(graph: ir.Graph, op_types: Sequence[str]) -> list[str]:
    """Return the float tensors that nodes of some types (all, if none are named) read and write."""
    found: dict[str, None] = {}
    for node in graph:
        if op_types and node.op_type not in op_types:
            continue
        for value in (*node.inputs, *node.outputs):
            if value is None or not value.name or value.name in graph.initializers:
                continue
            if value.dtype in (None, ir.DataType.FLOAT, ir.DataType.FLOAT16):
                found[value.name] = None
    return list(found)
