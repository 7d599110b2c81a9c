"""Models of the onnx package's backend tests that onnxruntime runs, to be quantized one by one.

Each is taken as it is and with all inputs but the first as constants, the way real models have their
weights; of models that differ in numbers alone one is enough. A Conv and a Relu beside a model make
sure that there is something to quantize.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import pathlib
import warnings
from collections.abc import Iterator
from unittest import mock

import ml_dtypes  # noqa: F401  # gives NumPy the names of narrow types
import numpy as np
import onnx
import onnx.backend.test
import onnxruntime as ort
from onnx import helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

from lowbit.evaluate.same_outputs import arrays_of, difference, finite_pair, is_float
from lowbit.graph.narrow_types import has_narrow, run_narrow

Feed = dict[str, object]


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and what it is fed."""

    name: str
    model: onnx.ModelProto
    feed: Feed

    @property
    def number(self) -> int:
        """A number that is the same in every run, to choose some of all."""
        return int(hashlib.sha256(self.name.encode()).hexdigest()[:12], 16)

    @property
    def signature(self) -> tuple[object, ...]:
        graph = self.model.graph
        return (
            "@" in self.name,
            tuple(sorted(collections.Counter(node.op_type for node in graph.node).items())),
            *(
                tuple(v.type.tensor_type.elem_type for v in ends)
                for ends in (graph.input, graph.output)
            ),
            tuple(v.type.WhichOneof("value") for v in (*graph.input, *graph.output)),
            tuple(tensor.data_type for tensor in graph.initializer),
        )


@functools.cache
def corpus() -> tuple[Case, ...]:
    """Return one model of each signature, whether onnxruntime runs it or not."""
    found: dict[object, Case] = {}
    for case in (*_of_nodes(), *_of_files()):
        for variant in (case, _with_constants(case)):
            if variant is not None:
                found.setdefault(variant.signature, variant)
    return tuple(found.values())


def _empty_pool(padded, x_shape, _kernel, _strides, out_shape, *_, **__) -> np.ndarray:
    return np.zeros((*x_shape[:2], *out_shape), padded.dtype)


def _of_nodes() -> Iterator[Case]:
    # Of the outputs that onnx computes only types and shapes are read; its pools take most of the time.
    with (
        warnings.catch_warnings(),
        mock.patch("onnx.reference.ops.op_pool_common.pool", _empty_pool),
        mock.patch("onnx.backend.test.case.base.process_snippet", return_value=("", "")),
    ):
        warnings.simplefilter("ignore")
        tests = list(collect_testcases(None))
    for test in tests:
        if not test.data_sets:
            continue
        names = [value.name for value in test.model.graph.input]
        values = [_value(value) for value in test.data_sets[0][0]]
        yield Case(f"node/{test.name}", test.model, dict(zip(names, values, strict=False)))


def _of_files() -> Iterator[Case]:
    root = pathlib.Path(onnx.backend.test.__file__).parent / "data"
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        for path in sorted((root / kind).glob("*/model.onnx")):
            model = onnx.load(path)
            feed = {
                value.name: _read(path.parent / "test_data_set_0" / f"input_{index}.pb", value)
                for index, value in enumerate(model.graph.input)
                if (path.parent / "test_data_set_0" / f"input_{index}.pb").exists()
            }
            yield Case(f"{kind}/{path.parent.name}", model, feed)


def _read(path: pathlib.Path, info: onnx.ValueInfoProto) -> object:
    kinds = {"sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto}
    proto = kinds.get(info.type.WhichOneof("value"), onnx.TensorProto)()
    proto.ParseFromString(path.read_bytes())
    return _value(proto)


def _value(value: object) -> object:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    return numpy_helper.to_optional(value) if isinstance(value, onnx.OptionalProto) else value


def _with_constants(case: Case) -> Case | None:
    """Return the model with every array but the first float one as a constant, if there are more."""
    arrays = {n: a for n, a in case.feed.items() if isinstance(a, np.ndarray) and a.dtype != object}
    first = next((n for n, a in arrays.items() if is_float(a)), next(iter(arrays), None))
    moved = [name for name in arrays if name != first]
    if not moved:
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    inputs = [value for value in model.graph.input if value.name not in moved]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(numpy_helper.from_array(arrays[n], n) for n in moved)
    model.ir_version = max(model.ir_version, 4)
    left = {name: value for name, value in case.feed.items() if name not in moved}
    return Case(f"{case.name}@constants", model, left)


def beside_a_layer(case: Case) -> Case:
    """Return the model with a Conv and a Relu of its own beside it."""
    rng = np.random.default_rng(1)
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    if not any(entry.domain in ("", "ai.onnx") for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", 15))
    model.ir_version = max(model.ir_version, 4)
    shape = [1, 4, 5, 5]
    nodes = [
        helper.make_node("Conv", ["own_x", "own_w", "own_b"], ["own_c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["own_c"], ["own_y"]),
    ]
    model.graph.node.extend(nodes)
    weights = {"own_w": rng.normal(size=(4, 4, 3, 3)), "own_b": rng.normal(size=4)}
    model.graph.initializer.extend(
        numpy_helper.from_array(data.astype(np.float32), name) for name, data in weights.items()
    )
    model.graph.input.append(helper.make_tensor_value_info("own_x", 1, shape))
    model.graph.output.append(helper.make_tensor_value_info("own_y", 1, shape))
    own = {"own_x": rng.normal(size=shape).astype(np.float32)}
    return Case(f"{case.name}+layer", model, case.feed | own)


def opened(model: onnx.ModelProto, *, optimized: bool = False) -> ort.InferenceSession:
    """Return a session of onnxruntime's own."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options)


def outputs_of(session: ort.InferenceSession, feed: Feed) -> list[object]:
    """Return all outputs."""
    names = [value.name for value in session.get_outputs()]
    return run_narrow(session, names, feed) if has_narrow(session) else session.run(names, feed)


def reference_outputs(case: Case) -> list[object] | None:
    """Return what onnxruntime gives for a model, or ``None`` if it does not run it."""
    try:
        return outputs_of(opened(case.model, optimized=True), case.feed)
    except Exception:
        return None


def problem_of(case: Case, want: list[object], quantized: onnx.ModelProto, lowest: float) -> str:
    """Return what is wrong with a quantized model, or nothing."""
    float_session, session = opened(case.model), opened(quantized, optimized=True)
    for ends in ("get_inputs", "get_outputs"):
        before, after = (
            [(v.name, v.type) for v in getattr(s, ends)()] for s in (float_session, session)
        )
        if before != after:
            return f"{ends[4:]} {before} became {after}"
    if _is_random(case, want, float_session):
        return ""
    got = outputs_of(opened(quantized), case.feed)
    for value, first, second in zip(session.get_outputs(), want, got, strict=True):
        if problem := _difference(value.name, first, second, lowest):
            return problem
    return ""


def _is_random(case: Case, want: list[object], session: ort.InferenceSession) -> bool:
    again = outputs_of(session, case.feed)
    pairs = zip(want, again, strict=True)
    return any(_difference("", first, second, 60.0) for first, second in pairs)


def _difference(name: str, want: object, got: object, lowest: float) -> str:
    first, second = (dict(arrays_of(name, value)) for value in (want, got))
    if first.keys() != second.keys():
        return f"{list(first)} became {list(second)}"
    for part, array in first.items():
        if array.dtype != second[part].dtype:
            return f"{part}: {array.dtype} became {second[part].dtype}"
        if problem := difference(array, second[part]):
            return f"{part} {problem}"
        if is_float(array):
            ratio = _sqnr(*finite_pair(array, second[part]))
            if ratio < lowest:
                return f"{part} has an SQNR of {ratio:.1f} dB"
        elif np.isfinite(lowest) and not np.array_equal(array, second[part]):
            return f"{part} has other values"
    return ""


def _sqnr(want: np.ndarray, got: np.ndarray) -> float:
    a, b = want.astype(np.float64), got.astype(np.float64)
    noise, signal = float(np.square(a - b).sum()), float(np.square(a).sum())
    if noise == 0:
        return np.inf
    return float(10 * np.log10(signal / noise)) if signal else -np.inf
