"""Model inputs, and one sample that is made to fit them or refused.

A sample that does not fit raises a ``DataError`` that names the sample and the input. Only two things
are put right silently: a missing batch dimension, and float32 for another float type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from lowbit.errors import DataError, did_you_mean
from lowbit.numerics.formats import is_float_type

Sample: TypeAlias = Mapping[str, NDArray[Any]]
"""One feed: input name to array, with the batch dimension the model wants."""


@dataclass(frozen=True, slots=True)
class InputInfo:
    """A model input: its name, type and shape.

    Attributes:
        name: Name of the input.
        dtype: Element type.
        shape: Fixed sizes as numbers, free ones as their name or ``None``; ``None`` for the whole
            shape when not even the rank is known.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...] | None

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers of any width."""
        return is_float_type(self.dtype)

    @property
    def is_text(self) -> bool:
        """Whether the elements are strings."""
        return self.dtype.kind == "U"

    @property
    def shape_text(self) -> str:
        """The shape as it is shown to people, ``?`` for a nameless free size."""
        if self.shape is None:
            return "[any shape]"
        return "[" + ", ".join("?" if size is None else str(size) for size in self.shape) + "]"


def conform(raw: object, inputs: Sequence[InputInfo], label: str) -> dict[str, NDArray[Any]]:
    """Return ``raw`` as one fitting array an input, in the order of the inputs."""
    given = _by_name(raw, inputs, label)
    _check_names(given, inputs, label)
    return {info.name: _conform_array(given[info.name], info, label) for info in inputs}


def _by_name(raw: object, inputs: Sequence[InputInfo], label: str) -> Mapping[str, object]:
    if isinstance(raw, Mapping):
        return raw
    if _is_sequence_of_arrays(raw) and len(raw) - len(inputs) in {0, 1}:
        # What a DataLoader gives: the inputs in order, then perhaps the label, which is not fed.
        return {info.name: value for info, value in zip(inputs, raw, strict=False)}
    if len(inputs) == 1:
        return {inputs[0].name: raw}
    raise DataError(
        f"{label} is of type {type(raw).__name__}, but the model has {len(inputs)} inputs: "
        f"give a dict with an array for each of {_quoted(inputs)}"
    )


def _is_sequence_of_arrays(raw: object) -> TypeGuard[Sequence[object]]:
    return isinstance(raw, tuple | list) and all(hasattr(item, "__array__") for item in raw)


def separated(raw: object, inputs: Sequence[InputInfo]) -> Iterator[object]:
    """Yield what a model takes at a time of a larger batch, such as a DataLoader gives.

    Only a model that fixes its batch needs this. What does not divide is left as it is, for
    ``conform`` to name.
    """
    fixed = [info.shape[0] if info.shape else None for info in inputs]
    given = _batch(raw, inputs)
    if not given or not all(isinstance(size, int) for size in fixed):
        yield raw
        return
    (count, *_), (size, *_) = [len(array) for array in given.values()], fixed
    parts = count // size if isinstance(size, int) and size and count % size == 0 else 0
    if parts < 2 or any(len(array) != count for array in given.values()) or len(set(fixed)) > 1:
        yield raw
        return
    for start in range(0, count, count // parts):
        yield {name: array[start : start + count // parts] for name, array in given.items()}


def _batch(raw: object, inputs: Sequence[InputInfo]) -> dict[str, NDArray[Any]]:
    """Return the arrays of all inputs with a leading axis each; nothing if it is anything else."""
    try:
        given = _by_name(raw, inputs, "batch")
        arrays = {info.name: _as_array(given[info.name], info, "batch") for info in inputs}
    except (DataError, KeyError):
        return {}
    ranks = (len(info.shape) if info.shape is not None else 0 for info in inputs)
    fits = all(a.ndim == rank > 0 for a, rank in zip(arrays.values(), ranks, strict=True))
    return arrays if fits else {}


def _check_names(given: Mapping[str, object], inputs: Sequence[InputInfo], label: str) -> None:
    known = [info.name for info in inputs]
    for name in given:
        if name not in known:
            near = did_you_mean(str(name), known)
            raise DataError(
                f"{label} has an array for {name!r}, which is no input of the model{near} "
                f"(the inputs are {_quoted(inputs)})"
            )
    missing = [name for name in known if name not in given]
    if missing:
        names = ", ".join(map(repr, given)) or "nothing"
        raise DataError(
            f"{label} has no array for input {missing[0]!r}: expected arrays for "
            f"{_quoted(inputs)}, got {names}; add the missing one"
        )


def _conform_array(value: object, info: InputInfo, label: str) -> NDArray[Any]:
    where = f"{label}, input {info.name!r}"
    array = _fit_shape(_as_array(value, info, where), info, where)
    if bad := _count_not_finite(array, info):
        raise DataError(
            f"{where}: {bad} of {array.size} values are NaN or Inf; repair or skip this sample"
        )
    if array.dtype == info.dtype or (info.is_text and array.dtype.kind == "U"):
        return array
    cast = _cast(array, info, where)
    if bad := _count_not_finite(cast, info):
        raise DataError(
            f"{where}: {bad} of {array.size} values are too large for {info.dtype}; scale the data"
        )
    return cast


def _as_array(value: object, info: InputInfo, where: str) -> NDArray[Any]:
    # Tensors of other libraries and numpy scalars convert; a list would guess its own type.
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        array = np.asarray(value)
        return array.astype(np.str_) if info.is_text and array.dtype == object else array
    raise DataError(
        f"{where} is of type {type(value).__name__}, expected a numpy array: "
        f"wrap it with numpy.asarray(..., dtype={info.dtype})"
    )


def _fit_shape(array: NDArray[Any], info: InputInfo, where: str) -> NDArray[Any]:
    if info.shape is None:
        return array
    rank = len(info.shape)
    fitted = array[np.newaxis] if array.ndim == rank - 1 else array
    message = f"{where}: expected shape {info.shape_text}, got {list(array.shape)}"
    if fitted.ndim != rank:
        raise DataError(
            f"{message}; give an array of {rank} dimensions, or of {rank - 1} without the batch"
        )
    wrong = [
        axis
        for axis, size in enumerate(info.shape)
        if isinstance(size, int) and size != fitted.shape[axis]
    ]
    if wrong == [0]:
        raise DataError(
            f"{message}; the model fixes the batch at {info.shape[0]}: feed as many samples at "
            "a time, or give a .npz or one array, whose rows are grouped to fit"
        )
    if wrong:
        axes = ", ".join(map(str, wrong))
        way_out = (
            transposition(fitted.shape[1:], info.shape[1:]) or "; reshape or transpose the data"
        )
        raise DataError(f"{message}, which differs at axis {axes}{way_out}")
    return fitted


def transposition(sizes: Sequence[int], wanted: Sequence[int | str | None]) -> str:
    """Return how to move the channels if that is all that is wrong with the sizes after the batch."""
    last = len(sizes)
    if last < 2 or len(wanted) != last:
        return ""
    orders = {"last": (last, *range(1, last)), "first": (*range(2, last + 1), 1)}
    for where, order in orders.items():
        moved = [sizes[axis - 1] for axis in order]
        if all(w == m or not isinstance(w, int) for w, m in zip(wanted, moved, strict=True)):
            return f"; its channels come {where}: use .transpose{(0, *order)}"
    return ""


def _count_not_finite(array: NDArray[Any], info: InputInfo) -> int:
    """Return how many values are NaN or Inf; minus infinity among numbers is that of a mask."""
    # Anything else is refused for its type, or cannot be NaN.
    if not info.is_float or (array.dtype.kind != "f" and array.dtype != info.dtype):
        return 0
    finite = int(np.count_nonzero(np.isfinite(array)))
    masked = int(np.count_nonzero(np.isneginf(array))) if finite < array.size else 0
    return 0 if finite and finite + masked == array.size else array.size - finite


def _cast(array: NDArray[Any], info: InputInfo, where: str) -> NDArray[Any]:
    is_foreign_byte_order = array.dtype.newbyteorder("=") == info.dtype
    if is_foreign_byte_order or (array.dtype == np.float32 and info.is_float):
        # What overflows is counted and reported by the caller.
        with np.errstate(over="ignore"):
            return array.astype(info.dtype)
    way_out = f"convert it with .astype(numpy.{info.dtype})"
    if array.dtype == np.uint8 and info.is_float:
        way_out = f"name a preprocessing such as 'imagenet' if these are images, or {way_out}"
    raise DataError(f"{where}: expected {info.dtype}, got {array.dtype}; {way_out}")


def _quoted(inputs: Sequence[InputInfo]) -> str:
    return ", ".join(repr(info.name) for info in inputs)
