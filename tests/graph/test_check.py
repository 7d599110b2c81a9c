from __future__ import annotations

import onnx
import pytest

from lowbit.errors import VerificationError
from lowbit.graph.check import check_file


def test_a_good_file_passes(parse, tmp_path) -> None:
    onnx.save(parse("g (float[2] x) => (float[2] y) { y = Relu(x) }"), tmp_path / "m.onnx")

    check_file(tmp_path / "m.onnx")


def test_a_file_that_is_not_sorted_is_refused(parse, tmp_path) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(h) h = Neg(x) }")
    onnx.save(model, tmp_path / "m.onnx")

    with pytest.raises(VerificationError, match=r"m.onnx is not valid ONNX: .*sorted"):
        check_file(tmp_path / "m.onnx")


def test_an_operator_without_kernel_is_refused(parse, tmp_path) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = com.microsoft.Nonsense(x) }")
    onnx.save(model, tmp_path / "m.onnx")

    with pytest.raises(VerificationError, match=r"cannot load .*Nonsense"):
        check_file(tmp_path / "m.onnx")
