"""Several files appear together, complete, or not at all."""

from __future__ import annotations

import pytest

from lowbit.cli.saving import writing
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
