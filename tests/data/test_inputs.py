from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowbit.data.inputs import InputInfo, conform, separated
from lowbit.errors import DataError


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.float16, True),
        (np.float32, True),
        (np.float64, True),
        (ml_dtypes.bfloat16, True),
        (np.int64, False),
        (np.uint8, False),
        (np.bool_, False),
    ],
)
def test_knows_which_types_are_float(dtype: type, *, expected: bool) -> None:
    assert InputInfo("x", np.dtype(dtype), (1,)).is_float is expected


def test_shape_text_shows_free_sizes() -> None:
    assert InputInfo("x", np.dtype(np.float32), ("N", 3, None)).shape_text == "[N, 3, ?]"
    assert InputInfo("x", np.dtype(np.float32), None).shape_text == "[any shape]"


X = InputInfo("x", np.dtype(np.float32), ("batch", 4))
ROW = np.ones((1, 4), np.float32)


def one(dtype: type, shape: tuple[int | str | None, ...] | None = ("n", 4)) -> list[InputInfo]:
    return [InputInfo("x", np.dtype(dtype), shape)]


def test_fitting_feed_is_passed_without_a_copy() -> None:
    assert conform({"x": ROW}, [X], "sample 0")["x"] is ROW


def test_bare_array_serves_the_only_input() -> None:
    assert list(conform(ROW, [X], "sample 0")) == ["x"]


def test_missing_batch_dimension_is_added() -> None:
    assert conform(ROW[0], [X], "sample 0")["x"].shape == (1, 4)


def test_feed_comes_in_the_order_of_the_inputs(two_inputs: list[InputInfo]) -> None:
    raw = {"ids": np.ones((1, 2), np.int64), "a/b:0": np.ones((1, 3), np.float32)}

    assert list(conform(raw, two_inputs, "sample 0")) == ["a/b:0", "ids"]


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_float32_is_cast_to_other_float_types(dtype: type) -> None:
    cast = conform(ROW * 1.5, one(dtype), "sample 0")["x"]

    assert cast.dtype == dtype
    assert (cast == 1.5).all()


def test_foreign_byte_order_is_turned() -> None:
    turned = conform(ROW.astype(">f4"), [X], "sample 0")["x"]

    assert turned.dtype == np.float32
    np.testing.assert_array_equal(turned, ROW)


def test_objects_that_convert_to_arrays_are_taken() -> None:
    class Tensor:
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return ROW

    np.testing.assert_array_equal(conform({"x": Tensor()}, [X], "sample 0")["x"], ROW)


def test_unknown_rank_takes_any_shape() -> None:
    assert conform(np.ones((2, 3, 4), np.float32), one(np.float32, None), "s")["x"].ndim == 3


def test_scalar_input_takes_a_numpy_scalar() -> None:
    assert conform(np.float32(2), one(np.float32, ()), "sample 0")["x"].shape == ()


@pytest.mark.parametrize(
    ("raw", "info", "message"),
    [
        ({"x": ROW, "y": ROW}, X, r"sample 7 has an array for 'y', which is no input .*inputs are 'x'"),
        ({"X1": ROW}, X, r"'X1', which is no input of the model; did you mean 'x'"),
        ({}, X, r"sample 7 has no array for input 'x'.*got nothing"),
        ([[1, 2, 3, 4]], X, r"sample 7, input 'x' is of type list.*numpy\.asarray\(\.\.\., dtype=float32\)"),
        ({"x": (1, 2)}, X, r"type tuple.*wrap it with numpy\.asarray"),
        (None, X, r"input 'x' is of type NoneType"),
        (ROW.astype(np.float64), X, r"input 'x': expected float32, got float64; .*astype\(numpy\.float32\)"),
        (ROW.astype(np.uint8), X, r"expected float32, got uint8; name a preprocessing"),
        (ROW, one(np.int64)[0], r"expected int64, got float32"),
        (ROW.astype(np.int32), one(np.int64)[0], r"expected int64, got int32"),
        (np.ones((1, 5), np.float32), X, r"expected shape \[batch, 4\], got \[1, 5\].*axis 1"),
        (np.ones((1, 1, 4), np.float32), X, r"expected shape \[batch, 4\], got \[1, 1, 4\].*2 dimensions"),
        (ROW, one(np.float32, (2, 4))[0], r"fixes the batch at 2"),
        (ROW[0], one(np.float32, (2, 4))[0], r"got \[4\]; the model fixes the batch at 2"),
        (np.array([[np.nan, 1, np.inf, -np.inf]], np.float32), X, r"3 of 4 values are NaN or Inf"),
        (ROW * 1e6, one(np.float16)[0], r"4 of 4 values are too large for float16"),
        (np.array([["a"] * 4]), X, r"expected float32, got <U1"),
    ],
)  # fmt: skip
def test_feed_that_does_not_fit_is_refused(raw: object, info: InputInfo, message: str) -> None:
    with pytest.raises(DataError, match=message):
        conform(raw, [info], "sample 7")


def test_bare_array_for_several_inputs_is_refused(two_inputs: list[InputInfo]) -> None:
    with pytest.raises(DataError, match=r"model has 2 inputs.*dict.*'a/b:0', 'ids'"):
        conform(ROW, two_inputs, "sample 0")


def test_missing_one_of_several_inputs_is_refused(two_inputs: list[InputInfo]) -> None:
    with pytest.raises(DataError, match=r"no array for input 'ids'.*got 'a/b:0'"):
        conform({"a/b:0": np.ones((1, 3), np.float32)}, two_inputs, "sample 0")


def test_braces_in_a_file_name_do_no_harm() -> None:
    with pytest.raises(DataError, match=re.escape("file {x}.npy, input 'x': 1 of 4")):
        conform(np.array([1, 2, 3, np.nan], np.float32), [X], "file {x}.npy")


@given(
    bad=st.lists(st.booleans(), min_size=1, max_size=50).filter(any),
    value=st.sampled_from([np.nan, np.inf]),
)
def test_all_bad_values_are_counted(bad: list[bool], value: float) -> None:
    array = np.where(bad, value, 1.0).astype(np.float32)[np.newaxis]

    with pytest.raises(DataError, match=rf"\b{sum(bad)} of {len(bad)} values"):
        conform(array, one(np.float32, (1, None)), "sample 0")


def test_minus_infinity_among_numbers_is_a_mask() -> None:
    mask = np.array([[0, -np.inf, 0, -np.inf]], np.float32)

    np.testing.assert_array_equal(conform(mask, [X], "sample 0")["x"], mask)
    with pytest.raises(DataError, match="4 of 4 values"):
        conform(np.full((1, 4), -np.inf, np.float32), [X], "sample 0")


# What a DataLoader gives


def test_inputs_in_order_and_a_label_that_is_not_fed(two_inputs: list[InputInfo]) -> None:
    a, ids = np.ones((2, 3), np.float32), np.ones((2, 2), np.int64)

    pair = conform((a, ids), two_inputs, "sample 0")
    labelled = conform([a, ids, np.zeros(2)], two_inputs, "sample 0")

    for found in (pair, labelled):
        assert list(found) == ["a/b:0", "ids"]
        np.testing.assert_array_equal(found["a/b:0"], a)
    np.testing.assert_array_equal(conform((ROW, np.int64(3)), [X], "sample 0")["x"], ROW)


def test_a_batch_is_separated_into_what_the_model_takes_at_a_time() -> None:
    rows = np.arange(24, dtype=np.float32).reshape(6, 4)
    labels = np.arange(6)

    for fixed in (1, 2, 3):
        info = InputInfo("x", np.dtype(np.float32), (fixed, 4))
        parts = [conform(part, [info], "s")["x"] for part in separated((rows, labels), [info])]
        assert len(parts) == 6 // fixed
        np.testing.assert_array_equal(np.concatenate(parts), rows)


@pytest.mark.parametrize("size", ["batch", 6, 4, 12])
def test_a_batch_that_fits_or_does_not_divide_is_left_as_it_is(size) -> None:
    rows = np.zeros((6, 4), np.float32)
    info = InputInfo("x", np.dtype(np.float32), (size, 4))

    (part,) = separated(rows, [info])

    assert part is rows


@pytest.mark.parametrize(
    ("shape", "wanted", "order"),
    [
        ((1, 8, 9, 3), ("n", 3, 8, 9), (0, 3, 1, 2)),
        ((1, 3, 8, 9), ("n", 8, 9, 3), (0, 2, 3, 1)),
        ((1, 8, 9, 3), (1, 3, "h", "w"), (0, 3, 1, 2)),
    ],
)
def test_channels_in_the_wrong_place_are_told_with_what_moves_them(shape, wanted, order) -> None:
    info = one(np.float32, wanted)
    array = np.ones(shape, np.float32)

    with pytest.raises(DataError, match=re.escape(f"use .transpose{order}")):
        conform(array, info, "sample 0")

    assert conform(array.transpose(order), info, "sample 0")["x"].shape[1:] != shape[1:]


def test_other_sizes_are_not_taken_for_channels() -> None:
    with pytest.raises(DataError, match="axis 2; reshape or transpose the data"):
        conform(np.ones((1, 3, 8, 9), np.float32), one(np.float32, ("n", 3, 7, 9)), "sample 0")
