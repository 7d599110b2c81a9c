"""The public names exist, are light to import, and every module has its test."""

import pathlib
import subprocess
import sys

import lowbit

ROOT = pathlib.Path(__file__).parent.parent


def test_every_public_name_exists() -> None:
    assert sorted(lowbit.__all__) == lowbit.__all__ or set(dir(lowbit)) == set(lowbit.__all__)
    for name in lowbit.__all__:
        assert getattr(lowbit, name) is not None


def test_importing_lowbit_imports_nothing_heavy() -> None:
    code = (
        "import sys, lowbit;"
        "print([m for m in ('onnx', 'onnxruntime', 'onnx_ir', 'torch', 'PIL', 'rich') if m in sys.modules])"
    )

    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert ran.stdout.strip() == "[]"


def test_quantizing_needs_neither_torch_nor_onnxscript() -> None:
    code = "import sys, lowbit.api; print('torch' in sys.modules, 'onnxscript' in sys.modules)"

    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert ran.stdout.split() == ["False", "False"]


def test_files_stay_small() -> None:
    long = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "src").rglob("*.py")
        if path.read_text().count("\n") > 400
    ]

    assert long == []
