"""One feed against the model's inputs: names, type, shape and finite values.

A feed that does not fit raises a ``DataError`` that names the sample and the input. Only two things
are put right silently: a missing batch dimension, and float32 for another float type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowbit.data.feeds import InputInfo
from lowbit.errors import DataError, did_you_mean


def conform(raw: object, inputs: Sequence[InputInfo], label: str) -> dict[str, NDArray[Any]]:
    """Return ``raw`` as one fitting array an input, in the order of the inputs."""
    given = _by_name(raw, inputs, label)
    _check_names(given, inputs, label)
    return {info.name: _conform_array(given[info.name], info, label) for info in inputs}


def _by_name(raw: object, inputs: Sequence[InputInfo], label: str) -> Mapping[str, object]:
    if isinstance(raw, Mapping):
        return raw
    if len(inputs) == 1:
        return {inputs[0].name: raw}
    raise DataError(
        f"{label} is of type {type(raw).__name__}, but the model has {len(inputs)} inputs: "
        f"give a dict with an array for each of {_quoted(inputs)}"
    )


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
            f"{where}: {bad} of {array.size} values are NaN or Inf; mend or leave out this sample"
        )
    if array.dtype == info.dtype:
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
        return np.asarray(value)
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
        raise DataError(f"{message}, which differs at axis {axes}; reshape or transpose the data")
    return fitted


def _count_not_finite(array: NDArray[Any], info: InputInfo) -> int:
    # Anything else is refused for its type, or cannot be NaN.
    if not info.is_float or (array.dtype.kind != "f" and array.dtype != info.dtype):
        return 0
    return array.size - int(np.count_nonzero(np.isfinite(array)))


def _cast(array: NDArray[Any], info: InputInfo, where: str) -> NDArray[Any]:
    is_foreign_byte_order = array.dtype.newbyteorder("=") == info.dtype
    if is_foreign_byte_order or (array.dtype == np.float32 and info.is_float):
        # What overflows is counted and reported by the caller.
        with np.errstate(over="ignore"):
            return array.astype(info.dtype)
    way_out = f"convert it with .astype(numpy.{info.dtype})"
    if array.dtype == np.uint8 and info.is_float:
        way_out = f"name a preprocessing such as 'imagenet' if these are pictures, or {way_out}"
    raise DataError(f"{where}: expected {info.dtype}, got {array.dtype}; {way_out}")


def _quoted(inputs: Sequence[InputInfo]) -> str:
    return ", ".join(repr(info.name) for info in inputs)
