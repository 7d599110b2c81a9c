from __future__ import annotations

import onnx
from small_models import small_cnn

from lowbit.cli import main


def test_a_file_is_converted_and_its_size_said(tmp_path, capsys) -> None:
    source, target = tmp_path / "model.onnx", tmp_path / "bf16.onnx"
    onnx.save(small_cnn(), source)

    code = main(["convert", str(source), str(target), "--to", "bf16", "--operators"])

    assert code == 0
    assert "in bf16" in capsys.readouterr().out
    domains = {node.domain for node in onnx.load(target).graph.node}
    assert domains == {"", "com.amd.quark"}


def test_a_wrong_format_is_named(tmp_path, capsys) -> None:
    code = main(["convert", "m.onnx", str(tmp_path / "o.onnx"), "--to", "bf17"])

    assert code == 2
    assert "did you mean 'bf16'" in capsys.readouterr().err


def test_the_source_is_not_overwritten(tmp_path, capsys) -> None:
    source = tmp_path / "model.onnx"
    onnx.save(small_cnn(), source)

    assert main(["convert", str(source), str(source), "--to", "fp16"]) == 2
    assert "would overwrite" in capsys.readouterr().err
