from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from lowbit.data import Data, InputInfo


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


def test_data_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Data()  # type: ignore[abstract]
