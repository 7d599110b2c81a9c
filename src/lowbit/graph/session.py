"""Running models in onnxruntime: one place for session options and for extra outputs."""

from __future__ import annotations

import contextlib
import copy
import pathlib
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.data import InputInfo
from lowbit.errors import ConfigError, ModelError, did_you_mean
from lowbit.graph import io
from lowbit.graph.memory import garbage_collection_paused, release_memory, share_pools
from lowbit.graph.naming import name_everything
from lowbit.graph.narrow_types import has_narrow, run_narrow
from lowbit.graph.session_files import is_plain, write_plain

Array = NDArray[Any]
Feed = Mapping[str, Array]
Optimize = Literal["none", "exact", "plain", "all"]
"""As written; whatever leaves quantization and dequantization as they are; no other layout; everything.

Convolutions are faster in another layout, but everything else then has maps in both: with many of them
looked at, memory grows severalfold.
"""

# onnxruntime's names of the types that inputs commonly have.
_NUMPY_TYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        f"tensor({name})": np.dtype(dtype)
        for name, dtype in (
            ("float", "float32"),
            ("double", "float64"),
            *((same, same) for same in "float16 int8 int16 int32 int64 uint8 uint16 bool".split()),
        )
    }
)

_GPU = ("CUDAExecutionProvider", "ROCMExecutionProvider", "MIGraphXExecutionProvider")
_PROVIDERS: Mapping[str, tuple[str, ...]] = MappingProxyType({"cpu": (), "cuda": _GPU})


def copy_of(value: Array) -> Array:
    """Return a copy of what a session gave, which does not keep the memory of its run; a sequence is a list."""
    return copy.deepcopy(value)


class Session:
    """A model that can be run; ``run`` may be called from several threads at once."""

    def __init__(
        self,
        path: pathlib.Path | bytes,
        *,
        threads: int,
        optimize: Optimize,
        name: str,
        device: str = "cpu",
        plan_memory: bool = True,
        keep_memory: bool = True,
        cleanup: Callable[[], object] | None = None,
    ) -> None:
        """Load the file. ``threads`` = 0 leaves the number to onnxruntime.

        ``plan_memory``: whether it is planned which values share memory. onnxruntime takes seconds for that
        where functions have many inner values of unknown sizes, and gains a few percent of a run.
        ``keep_memory``: whether the memory of a run waits for the next one. Of several sessions that stay open
        each would hold its own.
        ``cleanup`` is called when the session is closed or nobody has it any more.

        Quantized models are measured at ``optimize="none"`` or ``"exact"``: there Q/DQ is computed as
        written, while the fused int8 kernels of x86 without VNNI saturate in 16 bits. ``"exact"`` is
        half as fast again, and adds floats up in another order.
        """
        import onnxruntime as ort

        share_pools()
        options = ort.SessionOptions()
        levels = ort.GraphOptimizationLevel
        options.graph_optimization_level = {
            "none": levels.ORT_DISABLE_ALL,
            "plain": levels.ORT_ENABLE_EXTENDED,
        }.get(optimize, levels.ORT_ENABLE_ALL)
        if optimize == "exact":
            options.add_session_config_entry("session.disable_quant_qdq", "1")
        # In the order of the graph: what looks at a value stands right after what computes it, and is
        # to run while that is in the cache, not when all values that are looked at have piled up.
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
        options.intra_op_num_threads = threads
        options.enable_mem_reuse = plan_memory
        # One block for all that a run needs, as the first run needed it, is kept next to the memory of that
        # first run: twice as much, and no faster.
        options.enable_mem_pattern = False
        options.enable_cpu_mem_arena = keep_memory
        if threads > 1:
            # Threads that wait would take the processors from what is done with the results.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 4
        providers = providers_of(device)
        try:
            self._session: Any = ort.InferenceSession(path, options, providers=providers)
        except Exception as error:  # onnxruntime's exceptions share no public base
            raise ModelError(f"onnxruntime cannot load {name}: {_reason(error)}") from error
        self._name = name
        self._has_narrow = has_narrow(self._session)
        self._cleanup = None if cleanup is None else weakref.finalize(self, cleanup)

    def run(self, outputs: Sequence[str], feed: Feed) -> list[Array]:
        """Return the named outputs for one feed.

        An array of onnxruntime's keeps all memory of its session: copy what is to be kept.
        """
        if self._session is None:
            raise ModelError(f"the session of {self._name} is closed")
        # An input asked for as an output is the feed's: onnxruntime 1.22 gives an array on the feed's
        # memory that does not keep it alive.
        computed = [name for name in outputs if name not in feed]
        try:
            arrays = dict(zip(computed, self._computed(computed, feed), strict=True))
        except Exception as error:  # onnxruntime's exceptions share no public base
            reason = self._wrong_feed(feed) or self._wrong_outputs(outputs) or _reason(error)
            raise ModelError(f"onnxruntime cannot run {self._name}: {reason}") from error
        return [arrays[n] if n in arrays else np.asarray(feed[n]) for n in outputs]

    def _computed(self, outputs: list[str], feed: Feed) -> list[Array]:
        if not outputs:
            return []  # onnxruntime would give all of them
        if self._has_narrow:
            return run_narrow(self._session, outputs, feed)
        return list(self._session.run(outputs, dict(feed)))

    def repeated(self, outputs: Sequence[str]) -> Callable[[Feed], list[Array]]:
        """Return ``run`` for one thread, which gives the same arrays each time: read, then rerun.

        onnxruntime writes straight into them, which saves allocating and copying what is to be
        looked at once only.
        """
        if self._has_narrow:
            return lambda feed: self.run(outputs, feed)
        return _Repeated(self, self._session, outputs)

    def close(self, *, release: bool = True) -> None:
        """Release the model and the memory of its runs; it cannot be run any more.

        ``release``: whether the system gets that memory at once. A small session that follows would only
        ask for it again.
        """
        self._session = None
        if self._cleanup is not None:
            self._cleanup()
        if release:
            release_memory()

    def _wrong_feed(self, feed: Feed) -> str:
        """Return what is wrong with a feed, which onnxruntime says without the input's name."""
        required = {value.name: value for value in self._session.get_inputs()}
        defaults = {value.name: value for value in self._session.get_overridable_initializers()}
        known = required | defaults
        for name in feed:
            if name not in known:
                return f"it has no input {name!r}{did_you_mean(name, known)}"
        for name in required:
            if name not in feed:
                return f"its input {name!r} is missing from the feed (given: {', '.join(feed)})"
        for name, value in feed.items():
            dtype = np.asarray(value).dtype
            wanted = _NUMPY_TYPES.get(known[name].type, dtype)
            if wanted != dtype:
                return f"its input {name!r} is of type {dtype}; expected {wanted}"
        return ""

    def _wrong_outputs(self, outputs: Sequence[str]) -> str:
        known = self.outputs
        unknown = [name for name in outputs if name not in known]
        return (
            f"it has no output {unknown[0]!r}{did_you_mean(unknown[0], known)}" if unknown else ""
        )

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs the session was made with."""
        return [output.name for output in self._session.get_outputs()]

    @property
    def output_types(self) -> dict[str, tuple[ir.TensorType, ir.Shape | None]]:
        """Type and shape of each output that is a tensor of numbers, as onnxruntime infers them."""
        return {
            output.name: (
                ir.TensorType(ir.DataType.from_numpy(_NUMPY_TYPES[output.type])),
                # Of an unknown rank it says the same as of a scalar.
                ir.Shape(output.shape) if output.shape else None,
            )
            for output in self._session.get_outputs()
            if output.type in _NUMPY_TYPES
        }


class _Repeated:
    """Runs of one thread into the same buffers, as long as inputs keep their shapes."""

    def __init__(self, session: Session, runtime: Any, outputs: Sequence[str]) -> None:
        self._session, self._runtime, self._outputs = session, runtime, list(outputs)
        self._shapes: dict[str, tuple[int, ...]] | None = None
        self._buffers: dict[str, Array] = {}
        self._binding: Any = None

    def __call__(self, feed: Feed) -> list[Array]:
        """Return the outputs for one feed."""
        shapes = {name: np.shape(value) for name, value in feed.items()}
        if self._binding is None or shapes != self._shapes:
            return self._plain(feed, shapes)
        # Kept until the run is over: the binding does not.
        contiguous = {name: np.ascontiguousarray(value) for name, value in feed.items()}
        try:
            for name, value in contiguous.items():
                self._binding.bind_cpu_input(name, value)
            self._runtime.run_with_iobinding(self._binding)
        except Exception:  # an output's shape may depend on values; a plain run names other errors
            return self._plain(feed, shapes)
        return [self._buffers[n] if n in self._buffers else feed[n] for n in self._outputs]

    def _plain(self, feed: Feed, shapes: dict[str, tuple[int, ...]]) -> list[Array]:
        """Run once as usual and, the first time, take the arrays as buffers."""
        import onnxruntime as ort

        arrays = self._session.run(self._outputs, feed)
        if self._shapes is None and all(isinstance(a, np.ndarray) and a.size for a in arrays):
            self._shapes = shapes
            self._binding = self._runtime.io_binding()
            for name, array in zip(self._outputs, arrays, strict=True):
                if name not in feed:
                    self._buffers[name] = array
                    value = ort.OrtValue.ortvalue_from_numpy(array)
                    self._binding.bind_ortvalue_output(name, value)
        return arrays


def providers_of(device: str) -> list[Any]:
    """Return onnxruntime's execution providers for ``cpu``, ``cuda:0`` (NVIDIA, AMD) or such."""
    import onnxruntime as ort

    kind, _, index = device.partition(":")
    if kind not in _PROVIDERS or (index and not index.isdigit()):
        raise ConfigError(f"unknown device {device!r}; expected cpu, cuda:0, cuda:1, ...")
    available = ort.get_available_providers()
    if kind == "cpu":
        return ["CPUExecutionProvider"]
    for provider in _PROVIDERS[kind]:
        if provider in available:
            return [(provider, {"device_id": int(index or 0)}), "CPUExecutionProvider"]
    raise ConfigError(
        f"onnxruntime has no provider for {device!r} here (it has {', '.join(available)}); "
        "install onnxruntime-gpu (NVIDIA) or onnxruntime-rocm (AMD), or take infer_device='cpu'"
    )


@contextlib.contextmanager
def session(
    model: ir.Model,
    extra_outputs: Sequence[str] = (),
    *,
    threads: int = 0,
    optimize: Optimize = "none",
    name: str = "the model",
) -> Iterator[Session]:
    """Yield a session on ``model`` that can also return the values named in ``extra_outputs``."""
    with _as_file(model, extra_outputs) as path:
        running = Session(
            path,
            threads=threads,
            optimize=optimize,
            name=name,
            plan_memory=not model.functions,
        )
        with contextlib.closing(running):
            yield running


@contextlib.contextmanager
def _as_file(model: ir.Model, extra_outputs: Sequence[str]) -> Iterator[pathlib.Path]:
    """Yield the path of a temporary copy that also gives the values named."""
    if not is_plain(model):
        with io.as_file(with_outputs(model, extra_outputs)) as path:
            yield path
        return
    values = _further_outputs(model.graph, extra_outputs)
    with io.temporary_copy(lambda folder: write_plain(model, values, folder)) as path:
        yield path


@garbage_collection_paused()
def with_outputs(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """Return a copy of ``model`` whose outputs also include the named values."""
    probe = model.clone()
    # onnxruntime refuses two nodes of one name, which files do have.
    name_everything(probe)
    probe.graph.outputs.extend(_further_outputs(probe.graph, names))
    return probe


def _further_outputs(graph: ir.Graph, names: Sequence[str]) -> list[ir.Value]:
    """Return the named values that are no outputs yet."""
    if not names:
        return []
    values = ir.convenience.create_value_mapping(graph, include_subgraphs=False)
    refuse_unknown(names, values)
    present = {value.name for value in graph.outputs}
    return [values[name] for name in dict.fromkeys(names) if name not in present]


def refuse_unknown(names: Iterable[str], values: Mapping[str, ir.Value]) -> None:
    """Raise for a name that no value of a model has."""
    for name in names:
        if name not in values:
            raise ModelError(f"the model has no tensor {name!r}{did_you_mean(name, values)}")


def input_dtype(value: ir.Value) -> np.dtype[Any]:
    """Return the NumPy type of a graph input."""
    kind = value.type.elem_type if isinstance(value.type, ir.OptionalType) else value.type
    if kind is not None and not isinstance(kind, ir.TensorType):
        raise ModelError(
            f"model input {value.name!r} is a {_words(kind)}; only tensors can be fed: cut what "
            "makes tensors of it off the model"
        )
    if value.dtype is None:
        raise ModelError(f"model input {value.name!r} has no element type")
    if value.dtype == ir.DataType.STRING:
        return np.dtype(np.str_)
    try:
        return np.dtype(value.dtype.numpy())
    except TypeError as error:
        raise ModelError(
            f"model input {value.name!r} is of type {value.dtype}; expected numbers"
        ) from error


def _words(kind: Any) -> str:
    """Return a type as ONNX writes it: ``seq(tensor(float))``."""
    if isinstance(kind, ir.SequenceType | ir.OptionalType):
        word = "seq" if isinstance(kind, ir.SequenceType) else "optional"
        return f"{word}({_words(kind.elem_type)})"
    word = "tensor" if isinstance(kind, ir.TensorType) else "sparse_tensor"
    return f"{word}({kind.dtype.name.lower()})"


def model_inputs(model: ir.Model) -> list[InputInfo]:
    """Return what each input of a model wants to be fed."""
    return [
        InputInfo(
            name=str(value.name),
            dtype=input_dtype(value),
            shape=None if value.shape is None else tuple(_size(d) for d in value.shape),
        )
        for value in model.graph.inputs
        if value.name not in model.graph.initializers
    ]


def _size(dim: int | ir.SymbolicDim) -> int | str | None:
    """Return a size; some exporters write -1 where it is free."""
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return dim.value


_TOO_NEW = (
    (r"Unsupported model IR version: (\d+), max supported IR version: (\d+)", "IR version"),
    (r"Opset (\d+) is under development .* is till opset (\d+)", "operator set"),
)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    for pattern, what in _TOO_NEW:
        if found := re.search(pattern, text):
            return _too_new(what, *found.groups())
    # Where the model was put for onnxruntime to read is nobody's business.
    text = re.sub(r"Load model from \S+ failed: ?", "", text)
    way_out = ""
    if "is not a registered function/op" in text:
        way_out = "; AMD's operators get bodies by `lowbit convert MODEL OUTPUT --to functions`"
    return f"{text.split(' : ', 3)[-1][:600]}{way_out}"


def _too_new(what: str, given: str, most: str) -> str:
    import onnxruntime as ort

    return (
        f"its {what} is {given}, and onnxruntime {ort.__version__} knows up to {most}; install a newer "
        f"onnxruntime, or export the model with {what} {most}"
    )
