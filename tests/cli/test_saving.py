"""Several files appear together, complete, or not at all."""

from __future__ import annotations

import pytest

from lowbit.cli.saving import check_outputs, writing
from lowbit.errors import OutputError


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_appear_when_the_body_is_done(folder) -> None:
    (folder / "a").write_text("old")

    with writing(
        {"a": lambda path: path.write_text("new"), "b": lambda path: path.write_text("b")}
    ):
        assert (folder / "a").read_text() == "old"
        assert not (folder / "b").exists()

    assert ((folder / "a").read_text(), (folder / "b").read_text()) == ("new", "b")
    assert names(folder) == ["a", "b"]


def test_files_appear_together_or_not_at_all(folder) -> None:
    def fail() -> None:
        with writing({"a": lambda path: path.write_text("new"), "b": lambda _: None}):
            raise RuntimeError

    (folder / "a").write_text("old")

    with pytest.raises(RuntimeError):
        fail()

    assert (folder / "a").read_text() == "old"
    assert names(folder) == ["a"]


def test_a_file_that_cannot_be_written_is_named_and_the_body_not_entered(folder) -> None:
    def full(_) -> None:
        raise OSError(28, "No space left on device")

    with (
        pytest.raises(OutputError, match="cannot write b: No space left on device"),
        writing({"a": lambda path: path.write_text("new"), "b": full}),
    ):
        pytest.fail("the body was entered")

    assert names(folder) == []


def test_nothing_to_write_is_no_error(folder) -> None:
    with writing({}):
        pass

    assert names(folder) == []


def test_two_outputs_of_one_name_are_refused() -> None:
    with pytest.raises(
        OutputError, match=r"--b \./x would overwrite x \(--a\), which this run needs"
    ):
        check_outputs({"--a": "x", "--b": "./x", "--c": None})


def test_a_source_is_not_overwritten_under_another_name(folder) -> None:
    (folder / "model.onnx").write_text("model")
    (folder / "link.onnx").symlink_to(folder / "model.onnx")

    with pytest.raises(OutputError, match=r"OUTPUT link\.onnx would overwrite model\.onnx"):
        check_outputs({"OUTPUT": "link.onnx"}, ["model.onnx"])


def test_other_outputs_pass(folder) -> None:
    (folder / "before").write_text("an earlier result may be replaced")

    check_outputs({"--a": "before", "--b": "new", "--c": None}, ["model.onnx"])


def test_an_output_in_a_folder_that_does_not_exist_is_refused() -> None:
    with pytest.raises(OutputError, match="make it"):
        check_outputs({"--a": "no/file"})
