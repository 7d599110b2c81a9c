"""What is another function, however near its numbers are."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

from lowbit.errors import VerificationError
from lowbit.evaluate.same_outputs import (
    arrays_of,
    check_same_outputs,
    difference,
    finite_pair,
    is_float,
    is_number,
    outputs_sized_by_data,
)
from lowbit.graph import io

ROW = np.array([1, 2, 3], np.float32)


def check(want: object, got: object, **how: object) -> None:
    check_same_outputs(dict(arrays_of("y", want)), dict(arrays_of("y", got)), **how)


@pytest.mark.parametrize(
    "value",
    [
        ROW,
        np.array(["a", "bc"]),
        np.zeros((0, 3), np.float32),
        [ROW, ROW[:2]],
        [],
        None,
        [{"cat": 0.25, "dog": 0.75}],
        np.array([np.nan, np.inf, -np.inf], np.float32),
        ROW.astype(ml_dtypes.bfloat16),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_value_equals_itself(value: object) -> None:
    check(value, value)


@pytest.mark.parametrize(
    ("want", "got", "word"),
    [
        (ROW, ROW[None], "shape"),
        (ROW, ROW.astype(np.float64), "type float32"),
        (ROW, ROW.astype(np.int64), "type float32"),
        (ROW, np.array([1, np.nan, 3], np.float32), "1 of 3 values are NaN or Inf"),
        (ROW, np.array([1, np.inf, 3], np.float32), "1 of 3 values are NaN or Inf"),
        (np.array([1, -np.inf], np.float32), ROW[:2], "minus infinity at 1 places"),
        ([ROW, ROW], [ROW], "sequence of another length"),
        ([], [ROW], "sequence of another length"),
        ([ROW], [ROW[:1]], "shape"),
        (None, ROW, "another length"),
    ],
)
def test_what_is_another_function_is_refused_by_name(want, got, word: str) -> None:
    with pytest.raises(VerificationError, match=word) as raised:
        check(want, got)

    assert "y" in str(raised.value)


def test_other_numbers_are_a_matter_of_degree() -> None:
    check(ROW, -ROW)
    check(np.array([True, False]), np.array([False, True]))
    check(np.array([1, 2]), np.array([2, 1]))


def test_another_float_type_is_the_same_function_where_types_do_not_count() -> None:
    check(ROW, ROW.astype(np.float16), types=False)


def test_where_float_has_no_number_anything_may_be() -> None:
    broken = np.array([1, np.nan], np.float32)

    assert difference(broken, np.array([1, 7], np.float32)) == ""
    want, got = finite_pair(broken, np.array([1, 7], np.float32))
    np.testing.assert_array_equal(want, [1])
    np.testing.assert_array_equal(got, [1])


RELU, ZEROS = (
    f"then_branch = a () => (p) {{ p = {op}(x) }}, else_branch = b () => (q) {{ q = {op}(x) }}"
    for op in ("Relu", "NonZero")
)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ("g (float[4] x) => (float[4] y) { y = Relu(x) }", False),
        ("g (float[4] x) => (int64[1,n] y) { y = NonZero(x) }", True),
        ("g (float[4] x) => (float[n] y) { m = Greater(x, x) y = Compress(x, m) }", True),
        ("g (float[4] x) => (int64[1] y) { s = Shape(x) y = Cast<to=7>(s) }", False),
        ("g (float[4] x) => (float[n] y) { i = Cast<to=7>(x) y = ConstantOfShape(i) }", True),
        (f"g (float[4] x, bool c) => (float[n] y) <bool t = {{1}}> {{ y = If(c) <{RELU}> }}", True),
        (
            f"g (float[4] x, bool c) => (float[n] y) <bool t = {{1}}> {{ y = If(t) <{RELU}> }}",
            False,
        ),
        (
            f"g (float[4] x, bool c) => (int64[1,n] y) <bool t = {{1}}> {{ y = If(t) <{ZEROS}> }}",
            True,
        ),
    ],
)
def test_shapes_that_follow_from_numbers_are_known(graph: str, *, expected: bool) -> None:
    header = '<ir_version: 8, opset_import: ["": 17]>'
    model = io.load(onnx.parser.parse_model(f"{header}\n{graph}"))

    assert outputs_sized_by_data(model) == (frozenset({"y"}) if expected else frozenset())


def test_outputs_sized_by_data_may_have_other_sizes_but_no_other_rank() -> None:
    free = frozenset({"y"})

    check(ROW, ROW[:2], sized_by_data=free)
    check([ROW], [ROW, ROW], sized_by_data=free)
    with pytest.raises(VerificationError, match="shape"):
        check(ROW, ROW[None], sized_by_data=free)
    with pytest.raises(VerificationError, match="NaN"):
        check(ROW, ROW * np.nan, sized_by_data=free)


def test_narrow_types_are_numbers() -> None:
    narrow = ROW.astype(ml_dtypes.bfloat16)

    assert is_float(narrow)
    assert is_number(narrow)
    assert is_number(np.ones(2, ml_dtypes.int4))
    assert not is_float(np.ones(2, ml_dtypes.int4))
    assert not is_number(np.array(["a"]))
    assert finite_pair(narrow, narrow)[0].dtype == np.float32
