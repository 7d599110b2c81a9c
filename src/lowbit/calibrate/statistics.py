"""Statistics of tensors, in a size that does not depend on the number of samples.

``a | b`` is the statistics of both sets of samples, so that shards and machines add up. They can
be saved and reused: another method, percentile or bit width then costs no inference.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Annotated, Any, BinaryIO, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from lowbit.calibrate import log_histogram
from lowbit.calibrate.channels import ChannelTotals
from lowbit.calibrate.sensitivity import Sensitivity
from lowbit.config.transforms import Rescaling
from lowbit.errors import CalibrationError
from lowbit.files import DAMAGED
from lowbit.numerics.exact_sums import ExactSums, are_sums
from lowbit.numerics.formats import DoubleArray, FloatArray

_FORMAT = 4


class CustomStatistics(Protocol):
    """Statistics that a calibration method of one's own collects, sample by sample."""

    def add(self, x: FloatArray) -> CustomStatistics:
        """Return the statistics with one more sample."""


@dataclasses.dataclass(frozen=True, slots=True)
class TensorStats:
    """The statistics of one tensor.

    Attributes:
        low: The smallest value, or a bound not above zero that the graph sets it; ``high`` the largest.
        count: How many values were finite; ``not_finite`` how many were not.
        counts: The log histogram, or ``None`` if only the range was asked for.
        custom: Statistics of a method's own, for the methods that read them.
        average: Range by moving average, for the methods that read one.
        totals: Sums of the channels, whose means bias correction reads.
        sensitivity: The sensitivity of the outputs to errors in the tensor, where it was measured.
    """

    low: float
    high: float
    count: int
    not_finite: int = 0
    counts: NDArray[np.int64] | None = None
    custom: CustomStatistics | None = None
    average: tuple[float, float] | None = None
    totals: ChannelTotals | None = None
    sensitivity: Sensitivity | None = None

    @property
    def channels(self) -> DoubleArray | None:
        """The mean of each channel, if asked for."""
        return None if self.totals is None else self.totals.means

    @property
    def variances(self) -> DoubleArray | None:
        """The variance of each channel, where a weight's scale is to be chosen by it."""
        return None if self.totals is None else self.totals.variances

    @classmethod
    def of(cls, x: FloatArray, *, histogram: bool, floor: float | None = None) -> TensorStats:
        """Measure one array; nothing in it is below ``floor``, if that is known."""
        if x.size == 0:
            return cls(0.0, 0.0, 0)
        low, high = float(x.min()) if floor is None else floor, float(x.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            return cls._of_broken(x, histogram=histogram)
        counts = log_histogram.count(x)[0] if histogram else None
        return cls(low, high, x.size, 0, counts)

    @classmethod
    def _of_broken(cls, x: FloatArray, *, histogram: bool) -> TensorStats:
        good = x[np.isfinite(x)]
        if good.size == 0:
            return cls(0.0, 0.0, 0, x.size)
        rest = cls.of(good, histogram=histogram)
        return dataclasses.replace(rest, not_finite=x.size - good.size)

    def __or__(self, other: TensorStats) -> TensorStats:
        """Return the statistics over the samples of both."""
        if self.custom is not None or other.custom is not None:
            raise CalibrationError(
                "histograms that depend on the order of samples cannot be merged"
            )
        if self.average is not None or other.average is not None:
            raise CalibrationError("moving averages depend on the order of samples: not mergeable")
        if self.count == 0 or other.count == 0:
            full, empty = (other, self) if self.count == 0 else (self, other)
            not_finite = full.not_finite + empty.not_finite
            return dataclasses.replace(full, not_finite=not_finite).with_channels(empty)
        counts = None
        if self.counts is not None and other.counts is not None:
            counts = self.counts + other.counts
        merged = TensorStats(
            min(self.low, other.low),
            max(self.high, other.high),
            self.count + other.count,
            self.not_finite + other.not_finite,
            counts,
            sensitivity=_both(self.sensitivity, other.sensitivity),
        )
        return merged.with_channels(self).with_channels(other)

    def with_channels(self, other: TensorStats) -> TensorStats:
        """Return these statistics with the channel sums of ``other`` added."""
        if other.totals is None:
            return self
        totals = other.totals if self.totals is None else self.totals | other.totals
        return dataclasses.replace(self, totals=totals)

    def __reduce__(self) -> tuple[object, ...]:
        """Return how to make it again from what is not zero: most bins of a histogram are empty."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        counts = fields.pop("counts")
        return _from_bins, (fields, None if counts is None else _bins(counts))


def _both(mine: Sensitivity | None, theirs: Sensitivity | None) -> Sensitivity | None:
    """Return the sum of both, or the one there is: sensitivity is measured on some of the samples only."""
    return mine | theirs if mine is not None and theirs is not None else mine or theirs


_Bins = tuple[NDArray[np.uint16], NDArray[np.int64]]


def _bins(counts: NDArray[np.int64]) -> _Bins:
    """Return the bins of a histogram that hold anything, and how much."""
    at = np.flatnonzero(counts)
    return at.astype(np.uint16), counts[at]


def _counts(bins: _Bins) -> NDArray[np.int64]:
    counts = np.zeros(2 * log_histogram.BINS + 1, np.int64)
    counts[bins[0]] = bins[1]
    return counts


def _from_bins(fields: dict[str, Any], bins: _Bins | None) -> TensorStats:
    return TensorStats(**fields, counts=None if bins is None else _counts(bins))


@dataclasses.dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of many tensors over the same samples.

    ``equalized`` and ``smoothed``: whether they are those of the model after equalization, and
    after SmoothQuant. ``rescaling``: how its tensors were multiplied.
    """

    tensors: Mapping[str, TensorStats]
    samples: int = 0
    equalized: bool = False
    smoothed: bool = False
    rescaling: Rescaling | None = None

    def __getitem__(self, name: str) -> TensorStats:
        """Return what is known of a tensor."""
        try:
            return self.tensors[name]
        except KeyError:
            raise CalibrationError(
                f"no statistics of tensor {name!r}; they were collected for another plan. "
                "Collect them again without --stats"
            ) from None

    @property
    def adds_up(self) -> bool:
        """Whether statistics of further samples can be merged in: none depend on the order of samples."""
        return all(s.custom is None and s.average is None for s in self.tensors.values())

    def __or__(self, other: Stats) -> Stats:
        """Return the statistics over the samples of both."""
        made = (self.equalized, self.smoothed, self.rescaling)
        if made != (other.equalized, other.smoothed, other.rescaling):
            raise CalibrationError(
                "two statistics are of models with different equalization, smoothing or rescaling: "
                "not mergeable"
            )
        names = dict.fromkeys((*self.tensors, *other.tensors))
        merged = {}
        for name in names:
            mine, theirs = self.tensors.get(name), other.tensors.get(name)
            merged[name] = mine | theirs if mine and theirs else (mine or theirs)
        return Stats({k: v for k, v in merged.items() if v}, self.samples + other.samples, *made)


def save_stats(stats: Stats, path: str | os.PathLike[str]) -> None:
    """Write statistics to a ``.npz``: a table of ranges, and the histograms' nonzero part."""
    arrays = _arrays(stats)
    with pathlib.Path(path).open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def pack_stats(stats: Stats) -> bytes:
    """Return the same as bytes, which takes more room and less time."""
    file = io.BytesIO()
    np.savez(file, **_arrays(stats))  # type: ignore[arg-type]
    return file.getvalue()


def _arrays(stats: Stats) -> dict[str, NDArray[np.generic]]:
    table: list[dict[str, object]] = []
    arrays: dict[str, NDArray[np.generic]] = {}
    for index, (name, s) in enumerate(stats.tensors.items()):
        if s.custom is not None or s.average is not None:
            raise CalibrationError("only statistics of the built-in methods can be saved")
        row: dict[str, object] = {"name": name, "low": s.low, "high": s.high, "count": s.count}
        row |= {"not_finite": s.not_finite, "histogram": s.counts is not None}
        table.append({**row, "positions": 0 if s.totals is None else s.totals.positions})
        if s.counts is not None:
            arrays[f"{index}_at"], arrays[f"{index}_n"] = _bins(s.counts)
        if s.totals is not None:
            arrays[f"{index}_sums"] = s.totals.sums
            if s.totals.squares is not None:
                arrays[f"{index}_squares"] = s.totals.squares
        if s.sensitivity is not None:
            arrays[f"{index}_sensitivity"] = s.sensitivity.packed()
    made = {"equalized": stats.equalized, "smoothed": stats.smoothed}
    rescaling = None if stats.rescaling is None else msgspec.to_builtins(stats.rescaling)
    about = {"samples": stats.samples, **made, "rescaling": rescaling}
    header = json.dumps({"format": _FORMAT, **about, "tensors": table})
    return {"header": np.array(header), **arrays}


class _Row(msgspec.Struct):
    """The header's row of a tensor."""

    name: str
    low: float
    high: float
    count: Annotated[int, msgspec.Meta(ge=0)]
    not_finite: Annotated[int, msgspec.Meta(ge=0)]
    histogram: bool
    positions: Annotated[int, msgspec.Meta(ge=0)]


class _Format(msgspec.Struct):
    """All that is known of a header before its format is."""

    format: int


class _Header(_Format):
    """The header of a statistics file."""

    samples: Annotated[int, msgspec.Meta(ge=0)]
    equalized: bool
    smoothed: bool
    tensors: list[_Row]
    rescaling: Rescaling | None = None


_H = TypeVar("_H", bound=_Format)


def load_stats(path: str | os.PathLike[str]) -> Stats:
    """Read statistics back; what no run can have written is refused."""
    try:
        with pathlib.Path(path).open("rb") as raw:
            return _read(raw, str(path))
    except OSError as error:
        raise CalibrationError(
            f"cannot read the statistics {path}: {error.strerror or error}; --save-stats writes them"
        ) from error


def unpack_stats(data: bytes) -> Stats:
    """Return what ``pack_stats`` was given."""
    return _read(io.BytesIO(data), "given")


def _read(raw: BinaryIO, path: str) -> Stats:
    try:
        with np.load(raw, allow_pickle=False) as file:
            text = str(file["header"])
            found = _decoded(text, _Format).format
            if found != _FORMAT:
                raise CalibrationError(
                    f"statistics {path} are of format {found}, another version's "
                    f"(expected {_FORMAT}): collect them again with --save-stats"
                )
            header = _decoded(text, _Header)
            tensors = {row.name: _read_row(file, i, row) for i, row in enumerate(header.tensors)}
    except DAMAGED as error:
        raise CalibrationError(
            f"{path} holds no statistics that can be read ({error}); --save-stats writes them"
        ) from error
    made = (header.equalized, header.smoothed, header.rescaling)
    return Stats(tensors, header.samples, *made)


def _decoded(text: str, kind: type[_H]) -> _H:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


def _read_row(file: Mapping[str, NDArray[Any]], index: int, row: _Row) -> TensorStats:
    if not row.low <= row.high:
        raise ValueError(f"tensor {row.name!r} has a range of {row.low} to {row.high}")
    totals = None
    if row.positions:
        squares = _figures(file, at, row.name) if (at := f"{index}_squares") in file else None
        sums = _figures(file, f"{index}_sums", row.name)
        totals = ChannelTotals(sums, squares, row.positions)
    counts = None
    if row.histogram:
        at_bins, n = file[f"{index}_at"], file[f"{index}_n"]
        if {at_bins.dtype.kind, n.dtype.kind} - {"i", "u"} or (at_bins < 0).any() or (n < 0).any():
            raise ValueError(f"the histogram of tensor {row.name!r} holds no counts")
        counts = _counts((at_bins, n))
    sensitivity = (
        Sensitivity.unpacked(file[at], row.name) if (at := f"{index}_sensitivity") in file else None
    )
    return TensorStats(
        row.low, row.high, row.count, row.not_finite, counts, totals=totals, sensitivity=sensitivity
    )


def _figures(file: Mapping[str, NDArray[Any]], key: str, tensor: str) -> ExactSums:
    array = file[key]
    if not are_sums(array):
        raise ValueError(f"the channels of tensor {tensor!r} have no sums")
    return array
