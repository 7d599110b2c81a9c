"""Readers of calibration data, as Quark has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization.calibrate import CalibrationDataReader

from lowbit.data import open_data
from lowbit.graph import io
from lowbit.graph.session import model_inputs
from lowbit.quark.errors import QuarkConfigError, QuarkDataError

_SEED = 42
_GUESSED = {2: (1, 16), 4: (1, 3, 32, 32)}

Feed = dict[str, Any]


class CachedDataReader(CalibrationDataReader):  # type: ignore[misc]
    """Keeps what another reader gives, to give it again after ``reset_iter``."""

    def __init__(
        self,
        dr: Any,
        data_size: int | None = None,
        convert_nchw_to_nhwc: bool = False,  # noqa: FBT001, FBT002
        quantize_fp16: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        from lowbit.quark.rewriting import feed_to_nhwc

        self._feeds: list[Feed] = []
        while (feed := dr.get_next()) and (data_size is None or len(self._feeds) < data_size):
            kept = {name: _array(name, value) for name, value in feed.items()}
            if quantize_fp16:
                kept = {
                    n: a.astype(np.float16) if a.dtype == np.float32 else a for n, a in kept.items()
                }
            self._feeds.append(feed_to_nhwc(kept) if convert_nchw_to_nhwc else kept)
        if not self._feeds:
            raise QuarkDataError("No data in the input calibration data reader")
        self.reset_iter()

    def __len__(self) -> int:
        """Return the number of feeds."""
        return len(self._feeds)

    def reset_iter(self) -> None:
        """Start again at the first feed."""
        self._next = iter(self._feeds)

    def rewind(self) -> None:
        """Start again at the first feed."""
        self.reset_iter()

    def get_next(self) -> Feed | None:
        """Return the next feed, or ``None`` after the last."""
        return next(self._next, None)


class RandomDataReader(CalibrationDataReader):  # type: ignore[misc]
    """One feed of random numbers, the same each time."""

    is_random = True
    """No accuracy figure follows from it."""

    def __init__(
        self,
        model_input: str | Path | onnx.ModelProto,
        input_shape: Mapping[str, Sequence[int]] | Sequence[int] | None = None,
        input_data_range: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self._model = model_input
        # `vai_q_onnx` gave one shape, for a model of one input.
        self._shapes = (
            {info.name: input_shape for info in model_inputs(io.load(model_input))}
            if isinstance(input_shape, Sequence)
            else dict(input_shape or {})
        )
        self._ranges = None if input_data_range is None else dict(input_data_range)
        self._next: Iterator[Feed] | None = None

    def get_next(self) -> Feed | None:
        """Return the feed the first time, ``None`` afterwards."""
        if self._next is None:
            self._next = iter([self._make()])
        return next(self._next, None)

    def rewind(self) -> None:
        """Give the feed once more."""
        self._next = None

    def _make(self) -> Feed:
        feed = {}
        for info in model_inputs(io.load(self._model)):
            # Each input is drawn afresh, so one input's numbers do not depend on the others.
            draw = np.random.RandomState(_SEED)
            shape = self._shape(info.name, info.shape)
            low, high = self._range(info.name)
            if info.dtype.kind in "iu" and self._ranges is not None:
                feed[info.name] = draw.randint(int(low), int(high) + 1, shape).astype(info.dtype)
            else:
                feed[info.name] = (low + (high - low) * draw.random_sample(shape)).astype(
                    info.dtype
                )
        return feed

    def _range(self, name: str) -> tuple[float, float]:
        if self._ranges is None:
            return 0.0, 1.0
        if name not in self._ranges:
            raise QuarkConfigError(f"RandomDataReaderInputDataRange lacks the input {name!r}")
        low, high = self._ranges[name]
        return low, high

    def _shape(self, name: str, shape: Sequence[Any] | None) -> tuple[int, ...]:
        if self._shapes:
            if name not in self._shapes:
                raise QuarkConfigError(f"RandomDataReaderInputShape lacks the input {name!r}")
            shape = self._shapes[name]
        dims = [d if isinstance(d, int) and d > 0 else None for d in shape or ()]
        guess = _GUESSED.get(len(dims), (1,) * len(dims))
        return tuple(guess[i] if d is None else d for i, d in enumerate(dims)) or (1,)


class PathDataReader(CalibrationDataReader):  # type: ignore[misc]
    """Feeds from a folder of ``.npy`` files or images, or anything else lowbit reads."""

    def __init__(
        self,
        model_input: str | Path | onnx.ModelProto,
        data_path: str | Path,
        input_shape: Sequence[Any] = (),
    ) -> None:
        del input_shape  # The model knows it.
        self._data = open_data(data_path, model_inputs(io.load(model_input)))
        self.rewind()

    def get_next(self) -> Feed | None:
        """Return the next feed, or ``None`` after the last."""
        feed = next(self._next, None)
        return None if feed is None else dict(feed)

    def rewind(self) -> None:
        """Start again at the first feed."""
        self._next = iter(self._data)


def get_data_reader(
    model_input: str | Path | onnx.ModelProto,
    calibration_data_reader: Any = None,
    calibration_data_path: str | Path | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> Any:
    """Return the reader that is given, or one of the path, or random data if that is asked for."""
    options = extra_options or {}
    if calibration_data_reader is not None:
        return calibration_data_reader
    if calibration_data_path is not None:
        return PathDataReader(model_input, calibration_data_path)
    if options.get("UseRandomData"):
        return RandomDataReader(
            model_input,
            options.get("RandomDataReaderInputShape"),
            options.get("RandomDataReaderInputDataRange"),
        )
    raise QuarkDataError("give a reader, a path, or the extra option UseRandomData")


def _array(name: str, value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        raise QuarkDataError(
            f"input {name!r} is a {type(value).__name__}; the reader must give numpy arrays"
        )
    return value
