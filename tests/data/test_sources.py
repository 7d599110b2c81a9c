from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnxruntime.quantization import CalibrationDataReader

from lowbit.data import Data, InputInfo, open_data
from lowbit.data.sources import FeedSpool, SpoolingSource
from lowbit.errors import DataError

X = InputInfo("x", np.dtype(np.float32), ("n", 4))


def row(value: float) -> np.ndarray:
    return np.full((1, 4), value, np.float32)


def values(data: Data) -> list[float]:
    return [float(feed["x"].flat[0]) for feed in data]


class Reader:
    """Reads 1, 2, 3; has no base class on purpose."""

    def __init__(self, count: int = 3) -> None:
        self.count = count
        self.reads = 0
        self.position = 0

    def get_next(self) -> dict[str, np.ndarray] | None:
        self.reads += 1
        if self.position == self.count:
            return None
        self.position += 1
        return {"x": row(self.position)}


class Rewindable(Reader):
    rewinds = 0

    def rewind(self) -> None:
        self.rewinds += 1
        self.position = 0


class OrtReader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self.feeds = iter([{"x": row(1)}, {"x": row(2)}])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.feeds, None)


class Dataset:
    """Like a dataset of torch: knows its length, never raises IndexError, cannot be iterated."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> np.ndarray:
        return row(index + 1)


class Loader:
    """Iterable again and again, but in another order each time."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[np.ndarray]:
        self.passes += 1
        yield from (row(value * self.passes) for value in (1, 2, 3))


@pytest.mark.parametrize(
    "source",
    [
        [row(1), row(2), row(3)],
        ({"x": row(1)}, {"x": row(2)}, {"x": row(3)}),
        Reader(),
        Rewindable(),
        Dataset(),
        Loader(),
        (row(value) for value in (1, 2, 3)),
        map(row, (1, 2, 3)),
        (row(value)[0] for value in (1, 2, 3)),
    ],
    ids=lambda source: type(source).__name__,
)
def test_every_pass_gives_the_same_feeds(source: object) -> None:
    data = open_data(source, [X])

    assert values(data) == [1, 2, 3]
    assert values(data) == [1, 2, 3]
    assert len(data) == 3
    assert all(feed["x"].shape == (1, 4) for feed in data)


def test_reader_of_onnxruntime_is_taken() -> None:
    data = open_data(OrtReader(), [X])

    assert values(data) == values(data) == [1, 2]
    assert data.description == "2 samples from a Python OrtReader"


@pytest.mark.parametrize("source", [Reader(), Rewindable(), (row(v) for v in (1, 2, 3)), Dataset()])
def test_length_can_be_asked_first(source: object) -> None:
    data = open_data(source, [X])

    assert len(data) == 3
    assert values(data) == [1, 2, 3]


def test_pass_that_stopped_early_is_continued() -> None:
    data = open_data((row(value) for value in range(1, 6)), [X])

    first = iter(data)
    assert [float(next(first)["x"].flat[0]) for _ in range(2)] == [1, 2]

    assert values(data) == [1, 2, 3, 4, 5]
    assert [float(feed["x"].flat[0]) for feed in first] == [3, 4, 5]


def test_passes_side_by_side_see_the_same() -> None:
    data = open_data((row(value) for value in range(1, 6)), [X])

    for one, two in zip(data, data, strict=True):
        np.testing.assert_array_equal(one["x"], two["x"])


def test_generator_is_read_only_as_far_as_asked() -> None:
    made = []

    def generate() -> Iterator[np.ndarray]:
        for value in range(1, 1000):
            made.append(value)
            yield row(value)

    data = open_data(generate(), [X], limit=5)
    assert made == []

    next(iter(data))
    assert made == [1]
    assert values(data) == [1, 2, 3, 4, 5]
    assert made == [1, 2, 3, 4, 5]


def test_only_a_couple_of_samples_are_in_memory() -> None:
    count, size = 50, 250_000
    info = InputInfo("x", np.dtype(np.float32), (1, size))
    data = open_data((np.full((1, size), v, np.float32) for v in range(1, count + 1)), [info])
    gc.collect()

    tracemalloc.start()
    passes = [[float(feed["x"][0, 0]) for feed in data] for _ in range(2)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert passes == [list(range(1, count + 1))] * 2
    assert peak < 4 * size * 4


def test_limit_counts_feeds() -> None:
    assert values(open_data([row(1), row(2), row(3)], [X], limit=2)) == [1, 2]
    assert values(open_data(Rewindable(), [X], limit=2)) == [1, 2]
    assert values(open_data([row(1)], [X], limit=9)) == [1]
    reader = Reader()
    assert values(open_data(reader, [X], limit=2)) == [1, 2]
    assert reader.reads == 2


def test_reader_that_was_used_up_is_rewound() -> None:
    reader = Rewindable()
    while reader.get_next() is not None:
        pass

    data = open_data(reader, [X])

    assert values(data) == values(data) == [1, 2, 3]
    assert reader.rewinds == 2
    assert "rewound" in data.description


def test_rewinding_under_a_running_pass_is_noticed() -> None:
    data = open_data(Rewindable(), [X])

    with pytest.raises(DataError, match="rewound by another pass"):
        list(zip(data, data, strict=True))


def test_list_is_not_copied() -> None:
    feeds = [row(1), row(2)]

    assert all(a["x"] is b for a, b in zip(open_data(feeds, [X]), feeds, strict=True))


def test_spooled_files_go_with_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    data = open_data((row(value) for value in (1, 2)), [X])
    assert values(data) == [1, 2]
    assert len(list(tmp_path.rglob("*.npy"))) == 2

    del data
    gc.collect()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ((row(value) for value in ()), r"a Python generator gave no sample"),
        (Reader(0), r"get_next\(\) of a Python Reader returned None at once"),
        (Rewindable(0), r"get_next\(\) of a Python Rewindable returned None at once"),
    ],
)
def test_nothing_at_all_is_refused_in_every_pass(source: object, message: str) -> None:
    data = open_data(source, [X])

    for _ in range(2):
        with pytest.raises(DataError, match=message):
            list(data)
    with pytest.raises(DataError, match=message):
        len(data)


@pytest.mark.parametrize("empty", [[], ()])
def test_empty_list_is_refused_at_once(empty: object) -> None:
    with pytest.raises(DataError, match=r"data is an empty (list|tuple)"):
        open_data(empty, [X])


@pytest.mark.parametrize("kind", [list, iter])
def test_bad_sample_is_named_by_its_number(kind: type) -> None:
    data = open_data(kind([row(1), row(2), [1.0, 2.0]]), [X])

    with pytest.raises(DataError, match=r"sample 2, input 'x' is of type list.*numpy\.asarray"):
        list(data)


def test_sample_that_failed_is_not_skipped_later() -> None:
    def generate() -> Iterator[np.ndarray]:
        yield row(1)
        yield row(np.nan)
        yield row(3)

    data = open_data(generate(), [X])

    with pytest.raises(DataError, match="sample 1, input 'x': 4 of 4 values are NaN"):
        list(data)
    with pytest.raises(DataError, match="failed at sample 1 before"):
        list(data)


def test_error_of_a_generator_does_not_look_like_its_end() -> None:
    def generate() -> Iterator[np.ndarray]:
        yield row(1)
        raise OSError("disk on fire")

    data = open_data(generate(), [X])

    with pytest.raises(OSError, match="disk on fire"):
        list(data)
    with pytest.raises(DataError, match="failed at sample 1 before"):
        list(data)


def test_several_inputs_are_spooled_together(two_inputs: list[InputInfo]) -> None:
    feeds = [
        {"ids": np.full((1, 2), value), "a/b:0": np.full((1, 3), value, np.float32)}
        for value in (1, 2)
    ]

    data = open_data(iter(feeds), two_inputs)

    for _ in range(2):
        for got, feed in zip(data, feeds, strict=True):
            for name, array in feed.items():
                np.testing.assert_array_equal(got[name], array)


def test_shapes_may_vary() -> None:
    info = InputInfo("x", np.dtype(np.float32), ("n", None))
    feeds = [np.ones((1, size), np.float32) for size in (2, 5, 1)]

    data = open_data(iter(feeds), [info])

    assert [feed["x"].shape for feed in data] == [(1, 2), (1, 5), (1, 1)]
    assert [feed["x"].shape for feed in data] == [(1, 2), (1, 5), (1, 1)]


def test_used_up_iterator_is_let_go() -> None:
    loader = Loader()
    source = SpoolingSource(loader, [X], None)
    list(source)
    reference = weakref.ref(loader)

    del loader
    gc.collect()

    assert reference() is None
    assert source.count() == 3


def save(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)


def test_each_file_is_one_sample_with_or_without_a_batch(
    tmp_path: Path, vector_input: InputInfo
) -> None:
    save(tmp_path / "b.npy", np.full((1, 4), 2, np.float32))
    save(tmp_path / "a.npy", np.full(4, 1, np.float32))
    (tmp_path / "notes.txt").write_text("ignored")
    save(tmp_path / "._a.npy", np.full(4, 9, np.float32))

    data = open_data(tmp_path, [vector_input])

    assert [feed["x"].tolist() for feed in data] == [[[1] * 4], [[2] * 4]]
    assert data.description == f"2 samples from .npy files in folder {tmp_path}"
    assert len(open_data(tmp_path, [vector_input], limit=1)) == 1


@pytest.mark.parametrize("name", ["a_b_0", "a/b:0"])
def test_several_inputs_have_a_subfolder_each(
    tmp_path: Path, two_inputs: list[InputInfo], name: str
) -> None:
    for index in range(3):
        save(tmp_path / name / f"{index}.npy", np.full((1, 3), index + 1, np.float32))
        save(tmp_path / "ids" / f"{index}.npy", np.full((2,), index))

    feeds = list(open_data(tmp_path, two_inputs))

    assert [feed["a/b:0"].tolist() for feed in feeds] == [[[1] * 3], [[2] * 3], [[3] * 3]]
    assert [feed["ids"].tolist() for feed in feeds] == [[[0] * 2], [[1] * 2], [[2] * 2]]


def test_one_input_may_have_a_subfolder_too(tmp_path: Path, vector_input: InputInfo) -> None:
    save(tmp_path / "x" / "a.npy", np.ones(4, np.float32))

    assert len(list(open_data(tmp_path, [vector_input]))) == 1


def test_missing_partner_is_named(tmp_path: Path, two_inputs: list[InputInfo]) -> None:
    save(tmp_path / "a_b_0" / "1.npy", np.ones((1, 3), np.float32))
    save(tmp_path / "ids" / "1.npy", np.ones((1, 2), np.int64))
    save(tmp_path / "ids" / "2.npy", np.ones((1, 2), np.int64))

    with pytest.raises(DataError, match=r"a_b_0 has no file '2\.npy' for input 'a/b:0'"):
        open_data(tmp_path, two_inputs)


def test_missing_subfolder_is_named(tmp_path: Path, two_inputs: list[InputInfo]) -> None:
    save(tmp_path / "a_b_0" / "1.npy", np.ones((1, 3), np.float32))
    save(tmp_path / "idz" / "1.npy", np.ones((1, 2), np.int64))

    with pytest.raises(DataError, match="no subfolder for input 'ids'; did you mean 'idz'"):
        open_data(tmp_path, two_inputs)


def test_unknown_subfolder_is_named(tmp_path: Path, vector_input: InputInfo) -> None:
    save(tmp_path / "x" / "a.npy", np.ones(4, np.float32))
    save(tmp_path / "x2" / "a.npy", np.ones(4, np.float32))

    with pytest.raises(
        DataError, match=r"'x2' .* named after no input of the model; did you mean 'x'"
    ):
        open_data(tmp_path, [vector_input])


def test_empty_subfolders_are_refused(tmp_path: Path, two_inputs: list[InputInfo]) -> None:
    save(tmp_path / "other" / "deep" / "1.npy", np.ones(1))
    (tmp_path / "a_b_0").mkdir()
    (tmp_path / "ids").mkdir()

    with pytest.raises(DataError, match=r"no \.npy file in .*a_b_0, .*ids"):
        open_data(tmp_path, two_inputs)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.ones(5, np.float32), r"file bad\.npy of .*, input 'x': expected shape \[batch, 4\], got \[5\]"),
        (np.ones(4), r"bad\.npy.*expected float32, got float64"),
        (np.array([1, 2, np.inf, 3], np.float32), r"bad\.npy.*1 of 4 values are NaN or Inf"),
        (np.array([object()]), r"file .*bad\.npy cannot be read"),
    ],
)  # fmt: skip
def test_bad_file_is_named(
    tmp_path: Path, vector_input: InputInfo, content: np.ndarray, message: str
) -> None:
    save(tmp_path / "bad.npy", content)

    with pytest.raises(DataError, match=message):
        list(open_data(tmp_path, [vector_input]))


def test_truncated_file_is_named(tmp_path: Path, vector_input: InputInfo) -> None:
    save(tmp_path / "a.npy", np.ones(4, np.float32))
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-3])

    with pytest.raises(DataError, match=r"file .*a\.npy cannot be read"):
        list(open_data(tmp_path, [vector_input]))


def test_fixed_batch_is_not_grouped_from_files(tmp_path: Path) -> None:
    save(tmp_path / "a.npy", np.ones(4, np.float32))

    with pytest.raises(DataError, match="fixes the batch at 2"):
        list(open_data(tmp_path, [InputInfo("x", np.dtype(np.float32), (2, 4))]))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.bool_, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (3,), (1, 0, 2), (2, 3)])
def test_feeds_come_back_as_they_were(dtype: type, shape: tuple[int, ...]) -> None:
    spool = FeedSpool([InputInfo("a/b", np.dtype(dtype), None)])
    feeds = [{"a/b": np.full(shape, value).astype(dtype)} for value in (0, 1)]

    for feed in feeds:
        spool.append(feed)

    assert len(spool) == 2
    for index, feed in enumerate(feeds):
        got = spool.load(index)["a/b"]
        assert got.dtype == dtype
        assert got.shape == shape
        assert got.tobytes() == feed["a/b"].tobytes()
