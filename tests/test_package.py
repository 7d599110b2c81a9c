"""The public names exist, are light to import, and every module has its tests."""

import ast
import functools
import pathlib
import re
import subprocess
import sys
import tokenize

import pytest

import lowbit

ROOT = pathlib.Path(__file__).parent.parent


def test_every_public_name_exists() -> None:
    assert sorted(lowbit.__all__) == lowbit.__all__
    assert len(set(lowbit.__all__)) == len(lowbit.__all__)
    assert dir(lowbit) == lowbit.__all__
    for name in lowbit.__all__:
        assert getattr(lowbit, name) is not None


def test_every_name_that_is_imported_late_is_public() -> None:
    assert set(lowbit._LAZY) < set(lowbit.__all__)


def test_a_name_that_does_not_exist_is_named() -> None:
    with pytest.raises(AttributeError, match="module 'lowbit' has no attribute 'quantise'"):
        lowbit.quantise  # noqa: B018


def test_importing_lowbit_imports_nothing_heavy() -> None:
    code = (
        "import sys, lowbit;"
        "print([m for m in ('onnx', 'onnxruntime', 'onnx_ir', 'torch', 'PIL', 'rich') if m in sys.modules])"
    )

    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert ran.stdout.strip() == "[]"


def test_quantizing_needs_neither_torch_nor_onnxscript() -> None:
    code = "import sys, lowbit.api.quantize, lowbit.api.compare; print('torch' in sys.modules, 'onnxscript' in sys.modules)"

    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert ran.stdout.split() == ["False", "False"]


def test_files_stay_small() -> None:
    long = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "src").rglob("*.py")
        if path.read_text().count("\n") > 400
    ]

    assert long == []


def test_every_module_has_its_tests() -> None:
    source, tests = ROOT / "src" / "lowbit", ROOT / "tests"
    modules = [
        path.relative_to(source)
        for path in source.rglob("*.py")
        # The mirror of AMD Quark's API is tested by what scripts do with it.
        if not path.name.startswith("__") and "quark" not in path.relative_to(source).parts
    ]

    missing = [str(m) for m in modules if not (tests / m.parent / f"test_{m.name}").exists()]

    assert len(modules) > 50
    assert missing == []


def _functions() -> list[tuple[int, str]]:
    found = []
    for path in (ROOT / "src" / "lowbit").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                where = f"{path.relative_to(ROOT)}:{node.name}"
                found.append(((node.end_lineno or 0) - node.lineno + 1, where))
    return sorted(found)


def test_functions_stay_short() -> None:
    lengths = _functions()

    assert lengths[int(len(lengths) * 0.95)][0] <= 25
    # One public function, most of which is its documentation, may be longer.
    assert [where for length, where in lengths if length > 60] in (
        [],
        ["src/lowbit/api/quantize.py:quantize"],
    )


# Words that were a private language once; the glossary of the field has others for each.
_PRIVATE = frozenset(
    "sight sights taker takers mend mends mended handover handovers mover movers walk judge judged "
    "closeness twin twins sixteen tally tallies snr meeting meetings aim aims behind "
    "stretch stretches unlike pictures picture felt feel feels loud louder loudest reckon reckons "
    "reckoned reckoning weigh weighs weighed wish wishes wished besides foretell foretells foretold "
    "bears spares spared".split()
)
_OF_OTHERS = frozenset({"walk"})  # os.walk


def _words(text: str) -> set[str]:
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text)
    return set(re.findall(r"[a-z]+", apart.lower()))


def test_the_words_are_the_fields() -> None:
    found = []
    words = functools.cache(_words)
    for path in sorted((ROOT / "src" / "lowbit").rglob("*.py")):
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type not in (tokenize.NAME, tokenize.STRING, tokenize.COMMENT):
                    continue
                private = words(token.string) & _PRIVATE - _OF_OTHERS
                found += [f"{path.relative_to(ROOT)}:{token.start[0]}: {w}" for w in private]

    assert found == []


def test_no_docstring_begins_with_what_or_let() -> None:
    """The first line says in the imperative what is returned or done, or names the thing."""
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "src" / "lowbit").rglob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if line.lstrip().startswith(('"""What ', '"""Let '))
    ]

    assert found == []


def test_the_core_does_not_know_quark() -> None:
    source = ROOT / "src" / "lowbit"
    knows = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in source.rglob("*.py")
        if "quark" not in path.relative_to(source).parts
        for line in path.read_text().splitlines()
        # The domain of operators that AMD's compilers know by name.
        if "quark" in line.lower().replace("com.amd.quark", "")
    ]

    assert knows == []


def test_packages_are_reachable_without_importing_them() -> None:
    code = "import lowbit; print(lowbit.data.open_data.__name__, lowbit.quark.__name__)"

    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert ran.stdout.split() == ["open_data", "lowbit.quark"]
