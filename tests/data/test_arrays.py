from __future__ import annotations

import gc
import io
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from lowbit.data import InputInfo, open_data
from lowbit.data.arrays import RowSource, load_npy, read_npz, take_array
from lowbit.errors import DataError, LowbitError, OutputError

ROWS = np.arange(1, 29, dtype=np.float32).reshape(7, 4)


def vector(batch: int | str | None = "n") -> list[InputInfo]:
    return [InputInfo("x", np.dtype(np.float32), (batch, 4))]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_each_row_of_an_npz_is_a_sample(tmp_path: Path, save: object) -> None:
    save(tmp_path / "a.npz", x=ROWS, labels=np.arange(7))  # type: ignore[operator]

    data = open_data(tmp_path / "a.npz", vector())

    assert len(data) == 7
    np.testing.assert_array_equal([feed["x"] for feed in data], ROWS[:, None])
    assert data.description == f"7 samples from {tmp_path / 'a.npz'}"


def test_fixed_batch_groups_rows_and_drops_the_rest() -> None:
    data = open_data(ROWS, vector(3))

    assert [feed["x"].tolist() for feed in data] == [ROWS[:3].tolist(), ROWS[3:6].tolist()]
    assert data.description == "6 samples from an array, 3 at a time"


def test_limit_takes_the_first_feeds() -> None:
    assert [feed["x"][0, 0] for feed in open_data(ROWS, vector(), limit=2)] == [1, 5]


def test_npy_file_is_the_rows_of_the_only_input(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ROWS)

    np.testing.assert_array_equal(
        [feed["x"][0] for feed in open_data(str(tmp_path / "a.npy"), vector())], ROWS
    )


def test_row_that_has_the_batch_already_is_a_feed() -> None:
    feeds = list(
        open_data(ROWS.reshape(7, 2, 2, 1)[:4], [InputInfo("x", np.dtype(np.float32), (2, 2, 1))])
    )

    assert len(feeds) == 4
    assert feeds[0]["x"].shape == (2, 2, 1)


def test_unknown_rank_gets_one_row_at_a_time() -> None:
    feeds = list(open_data(ROWS, [InputInfo("x", np.dtype(np.float32), None)]))

    assert [feed["x"].shape for feed in feeds] == [(1, 4)] * 7


def test_several_inputs_share_the_fixed_batch(tmp_path: Path, two_inputs: list[InputInfo]) -> None:
    fixed = [InputInfo("a/b:0", np.dtype(np.float32), (2, 3)), two_inputs[1]]
    a, ids = np.arange(15, dtype=np.float32).reshape(5, 3), np.arange(10).reshape(5, 2)
    np.savez(tmp_path / "a.npz", **{"a/b:0": a, "ids": ids})

    feeds = list(open_data(tmp_path / "a.npz", fixed))

    assert len(feeds) == 2
    np.testing.assert_array_equal(feeds[1]["a/b:0"], a[2:4])
    np.testing.assert_array_equal(feeds[1]["ids"], ids[2:4])


def test_feed_does_not_alias_the_array() -> None:
    rows = ROWS.copy()

    next(iter(open_data(rows, vector())))["x"][:] = 0

    np.testing.assert_array_equal(rows, ROWS)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": ROWS, "more": ROWS}, r"no array for input 'x' \(its arrays: 'images', 'more'\).*numpy\.savez\('a\.npz', \*\*\{'x': \.\.\.\}\)"),
        ({"x1": ROWS, "y": ROWS}, r"no array for input 'x'; did you mean 'x1'"),
        ({}, r"its arrays: none"),
        ({"x": ROWS.astype(np.float64)}, r"row 0 of .*a\.npz, input 'x': expected float32, got float64"),
        ({"x": ROWS.astype(np.uint8)}, r"expected float32, got uint8; name a preprocessing"),
        ({"x": ROWS[:, :3]}, r"array 'x' of .* has shape \[7, 3\], but the input wants \[n, 4\]: axis 1 is 3, expected 4"),
        ({"x": ROWS[:, 0]}, r"has shape \[7\], but the input wants \[n, 4\]: give 2 dimensions"),
        ({"x": np.float32(1)}, r"is a single number"),
        ({"x": ROWS[:0]}, r"has 0 rows"),
        ({"x": np.where(ROWS == 6, np.nan, ROWS)}, r"row 1 of .*: 1 of 4 values are NaN"),
        ({"x": np.array([object()] * 3)}, r"array 'x' of .* cannot be read"),
        ({"x": ROWS * 0}, r"all values of 7 samples are 0"),
    ],
)  # fmt: skip
def test_npz_that_does_not_fit_is_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]

    with pytest.raises(DataError, match=message):
        list(open_data(tmp_path / "a.npz", vector()))


@pytest.mark.parametrize(
    "others",
    [{}, {"labels": np.arange(7), "names": np.array(list("abcdefg")), "one": np.ones((7, 9))}],
)
def test_the_only_array_that_could_be_fed_needs_no_name(
    tmp_path: Path, others: dict[str, np.ndarray]
) -> None:
    np.savez(tmp_path / "a.npz", **others, images=ROWS)  # type: ignore[arg-type]

    found = [feed["x"] for feed in open_data(tmp_path / "a.npz", vector())]

    np.testing.assert_array_equal(found, ROWS[:, None])


def test_arrays_saved_without_names_are_those_of_the_inputs_in_order(
    tmp_path: Path, two_inputs: list[InputInfo]
) -> None:
    first, ids = ROWS[:, :3], np.arange(14).reshape(7, 2)
    np.savez(tmp_path / "a.npz", first, ids)

    feeds = list(open_data(tmp_path / "a.npz", two_inputs))

    np.testing.assert_array_equal([feed["a/b:0"] for feed in feeds], first[:, None])
    np.testing.assert_array_equal([feed["ids"] for feed in feeds], ids[:, None])


def test_fewer_rows_than_the_batch_are_refused() -> None:
    with pytest.raises(DataError, match="an array has 7 rows, but the model takes 8 at a time"):
        open_data(ROWS, vector(8))


def test_different_numbers_of_rows_are_refused(tmp_path: Path, two_inputs: list[InputInfo]) -> None:
    np.savez(tmp_path / "a.npz", **{"a/b:0": ROWS[:, :3], "ids": np.ones((6, 2), np.int64)})

    with pytest.raises(DataError, match=r"differ in rows \('a/b:0' has 7, 'ids' has 6\)"):
        open_data(tmp_path / "a.npz", two_inputs)


def test_different_fixed_batches_are_refused(tmp_path: Path) -> None:
    inputs = [
        InputInfo(name, np.dtype(np.float32), (size, 4)) for name, size in (("x", 1), ("y", 2))
    ]
    np.savez(tmp_path / "a.npz", x=ROWS, y=ROWS)

    with pytest.raises(DataError, match=r"different batches.*one more dimension"):
        open_data(tmp_path / "a.npz", inputs)


@pytest.mark.parametrize("kind", ["array", "npy"])
def test_one_array_for_several_inputs_is_refused(
    tmp_path: Path, two_inputs: list[InputInfo], kind: str
) -> None:
    np.save(tmp_path / "a.npy", ROWS)

    with pytest.raises(DataError, match=r"model of one input, this one has 2 .*\.npz"):
        open_data(ROWS if kind == "array" else tmp_path / "a.npy", two_inputs)


@pytest.mark.parametrize("name", ["a.npz", "a.npy"])
@pytest.mark.parametrize("content", [b"", b"not an array"])
def test_damaged_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(DataError, match=name):
        open_data(tmp_path / name, vector())


def test_truncated_npz_is_named(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.random.default_rng(0).random((100, 4), np.float32))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[200:900] = bytes(700)
    (tmp_path / "a.npz").write_bytes(content)

    with pytest.raises(DataError, match=r"a\.npz is not a sound \.npz"):
        open_data(tmp_path / "a.npz", vector())


def test_npz_under_the_name_of_an_npy_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=ROWS)
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")

    with pytest.raises(DataError, match=r"is a \.npz by its content"):
        open_data(tmp_path / "a.npy", vector())


def test_big_npz_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    inputs = [InputInfo("x", np.dtype(np.float32), (1, 1000, 100))]
    np.savez_compressed(tmp_path / "a.npz", x=np.ones((100, 1000, 100), np.float32))
    gc.collect()

    tracemalloc.start()
    data = open_data(tmp_path / "a.npz", inputs)
    for _ in range(2):
        assert sum(1 for _ in data) == 100
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 8e6  # the array has 40 MB, a row 0.4 MB


def test_npz_is_unpacked_once_and_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "a.npz", x=ROWS)
    opened = []
    original = zipfile.ZipFile.open
    monkeypatch.setattr(
        zipfile.ZipFile, "open", lambda *args: opened.append(args[1]) or original(*args)
    )

    table = read_npz(tmp_path / "a.npz", vector())
    source = RowSource(table, vector(), None)
    passes = [list(source), list(source)]

    assert len(passes[0]) == len(passes[1]) == 7
    assert opened == ["x.npy"]
    assert table.folder is not None
    folder = table.folder.path
    del table, source
    gc.collect()
    assert not folder.exists()
    np.testing.assert_array_equal(passes[1][6][1]["x"], ROWS[6:])  # type: ignore[index]


def test_array_in_memory_is_not_copied_to_disk() -> None:
    assert take_array(ROWS, vector()).folder is None


def _claiming(path: Path, shape: tuple[int, ...], data: bytes, name: str = "x") -> None:
    """Write an archive whose array says that it has a shape."""
    header = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, fields)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.npy", header.getvalue() + data)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1, 1 << 40), "axis 1 is 1099511627776, expected 4"),
        ((1 << 50, 4), r"unpacks to 1\.8e\+07 GB"),
        ((7, 4), "ends 96 bytes early"),
    ],
)
def test_an_array_that_claims_too_much_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape, words
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    _claiming(tmp_path / "a.npz", shape, bytes(16))

    with pytest.raises(LowbitError, match=words):
        read_npz(tmp_path / "a.npz", vector())
    gc.collect()
    assert list((tmp_path / "temporary").iterdir()) == []


def test_no_more_is_unpacked_than_the_limit_needs(tmp_path: Path) -> None:
    # Of a billion rows that are promised, the first three are there and asked for.
    _claiming(tmp_path / "a.npz", (10**9, 4), ROWS[:3].tobytes())

    data = open_data(tmp_path / "a.npz", vector(), limit=3)

    np.testing.assert_array_equal([feed["x"] for feed in data], ROWS[:3, None])
    assert len(open_data(tmp_path / "a.npz", vector(3), limit=1)) == 1


def test_columns_first_are_unpacked_whole(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.asfortranarray(ROWS))

    data = open_data(tmp_path / "a.npz", vector(), limit=2)

    np.testing.assert_array_equal([feed["x"] for feed in data], ROWS[:2, None])


def test_an_encrypted_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=ROWS)
    data = bytearray(path.read_bytes())
    # The flag of an encrypted member, in its own header and in the archive's.
    for mark, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(mark) + offset] |= 1
    path.write_bytes(data)

    with pytest.raises(DataError, match=r"not a sound \.npz .*encrypted"):
        read_npz(path, vector())


def test_a_full_temporary_folder_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "a.npz", x=ROWS)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array_header_2_0", full)

    with pytest.raises(OutputError, match=r"cannot unpack .*No space left on device; set TMPDIR"):
        read_npz(tmp_path / "a.npz", vector())


def test_a_header_that_python_fails_to_parse_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    np.save(file, ROWS)
    read, calls = np.lib.format.read_array, []

    def fails_at_first(source: io.BytesIO, **options: object) -> np.ndarray:
        calls.append(source.read(8))
        if len(calls) < 3:
            raise SystemError("AST constructor recursion depth mismatch (before=57, after=53)")
        source.seek(0)
        return read(source, **options)

    monkeypatch.setattr(np.lib.format, "read_array", fails_at_first)
    file.seek(0)

    np.testing.assert_array_equal(load_npy(file), ROWS)

    assert calls == [file.getvalue()[:8]] * 3
