"""Where files may be written, and temporary folders that never stay."""

from __future__ import annotations

import gc
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from lowbit import files
from lowbit.errors import OutputError
from lowbit.files import (
    TemporaryFolder,
    check_outputs,
    check_writable,
    remove_abandoned,
    sibling,
    temporary_folder,
    writing,
)


@pytest.fixture(autouse=True)
def _swept_anew():
    """Forget which places were swept already."""
    remove_abandoned.cache_clear()


def names(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_temporary_folder_is_there_only_meanwhile(tmp_path) -> None:
    with temporary_folder(tmp_path) as folder:
        (folder / "file").write_text("x")
        assert folder.parent == tmp_path

    assert names(tmp_path) == []


def test_a_temporary_folder_goes_with_its_owner(tmp_path) -> None:
    made = TemporaryFolder(tmp_path)
    (made.path / "file").write_text("x")

    del made
    gc.collect()

    assert names(tmp_path) == []


def _left_by_a_killed_process(place: pathlib.Path) -> pathlib.Path:
    script = (
        "import os, signal, sys; from lowbit.files import TemporaryFolder\n"
        "made = TemporaryFolder(sys.argv[1]); (made.path / 'file').write_text('x')\n"
        "print(made.path, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(place)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    return pathlib.Path(ran.stdout.strip())


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path) -> None:
    left = _left_by_a_killed_process(tmp_path)
    assert (left / "file").exists()

    with temporary_folder(tmp_path) as folder:
        assert names(tmp_path) == [folder.name]


def test_folders_in_use_of_other_machines_and_of_others_are_left_alone(tmp_path) -> None:
    used = TemporaryFolder(tmp_path)
    left = _left_by_a_killed_process(tmp_path)
    elsewhere = left.rename(tmp_path / ".lowbit-0badcafe-abcdefgh")
    foreign = tmp_path / ".lowbit-notes"
    foreign.mkdir()
    link = tmp_path / f".{files._prefix()}abcdefgh"
    link.symlink_to(foreign)

    with temporary_folder(tmp_path):
        pass

    assert names(tmp_path) == sorted([used.path.name, elsewhere.name, foreign.name, link.name])
    used.remove()


def test_the_folder_of_another_user_is_left_alone(tmp_path, monkeypatch) -> None:
    others = tmp_path / f".{files._prefix()}abcdefgh"
    others.mkdir()
    whole = os.open

    def refused(path, *args, **kwargs):
        if pathlib.Path(path) == others:
            raise PermissionError(13, "Permission denied", str(path))
        return whole(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refused)

    with temporary_folder(tmp_path) as folder:
        assert names(tmp_path) == sorted([others.name, folder.name])
    assert names(tmp_path) == [others.name]


def test_without_locks_a_folder_is_made_and_those_of_others_are_left(tmp_path, monkeypatch) -> None:
    left = _left_by_a_killed_process(tmp_path)

    def no_locks(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", no_locks)

    with temporary_folder(tmp_path) as folder:
        assert names(tmp_path) == sorted([left.name, folder.name])
    assert names(tmp_path) == [left.name]


def test_a_folder_that_is_being_removed_is_waited_for(tmp_path, monkeypatch) -> None:
    whole, tries = files._lock, []

    def lock(folder, locks):
        tries.append(folder)
        if len(tries) == 1:
            return False  # the process that removes it has the lock
        if len(tries) == 2:
            folder.rmdir()
        return whole(folder, locks)

    monkeypatch.setattr(files, "_lock", lock)
    # It is gone between what mkdir finds and what pathlib looks at next.
    monkeypatch.setattr(pathlib.Path, "is_dir", lambda _: False)

    folder = TemporaryFolder(tmp_path)

    assert names(tmp_path) == [folder.path.name]
    assert len(tries) == 3
    folder.remove()


def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(tmp_path, monkeypatch) -> None:
    whole, taken = files._lock, []

    def lock(folder, locks):
        if not taken:
            taken.append(folder)
            folder.rmdir()
        return whole(folder, locks)

    monkeypatch.setattr(files, "_lock", lock)

    with temporary_folder(tmp_path) as folder:
        assert taken == [folder]
        assert names(tmp_path) == [folder.name]
        remove_abandoned.cache_clear()
        remove_abandoned(tmp_path)
        assert names(tmp_path) == [folder.name]


def test_an_interruption_at_any_moment_leaves_no_folder(tmp_path, monkeypatch) -> None:
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    for owner, name in ((files, "_lock"), (files.fcntl, "flock")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                TemporaryFolder(tmp_path)
        gc.collect()
        assert names(tmp_path) == []


def test_an_interrupted_removal_is_finished(tmp_path, monkeypatch) -> None:
    whole, made = files.shutil.rmtree, TemporaryFolder(tmp_path)

    def interrupted(*_, **__):
        monkeypatch.setattr(files.shutil, "rmtree", whole)
        raise KeyboardInterrupt

    monkeypatch.setattr(files.shutil, "rmtree", interrupted)

    with pytest.raises(KeyboardInterrupt):
        made.remove()

    assert names(tmp_path) == []


def test_no_room_for_a_temporary_folder_is_explained(tmp_path, monkeypatch) -> None:
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "mkdir", full)

    with pytest.raises(OutputError, match="No space left on device; set TMPDIR to a folder"):
        TemporaryFolder()
    with pytest.raises(OutputError, match=r"cannot write into .*: No space left on device$"):
        TemporaryFolder(tmp_path)


def test_a_missing_output_folder_is_found_before_any_work(tmp_path) -> None:
    with pytest.raises(OutputError, match=r"the folder .*nowhere of the output m.onnx does not"):
        check_writable(tmp_path / "nowhere" / "m.onnx")


def test_a_folder_as_output_is_refused(tmp_path) -> None:
    with pytest.raises(OutputError, match="is a folder; give the name of a file in it"):
        check_writable(tmp_path)


def test_an_unwritable_file_is_found_before_any_work(tmp_path, monkeypatch) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"")
    monkeypatch.setattr(os, "access", lambda *_: False)

    with pytest.raises(OutputError, match="exists and may not be overwritten"):
        check_writable(path)


def test_a_device_and_a_pipe_are_refused_and_stay(tmp_path) -> None:
    pipe = tmp_path / "pipe.onnx"
    os.mkfifo(pipe)
    link = tmp_path / "null.onnx"
    link.symlink_to(os.devnull)

    for path in (pipe, link, pathlib.Path(os.devnull)):
        with pytest.raises(OutputError, match="a device, a pipe or a socket"):
            check_writable(path)

    assert pipe.is_fifo()
    assert link.is_symlink()


@pytest.mark.parametrize("length", [256, 5000])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, length) -> None:
    with pytest.raises(OutputError, match=r"cannot write .*: File name too long"):
        check_writable(tmp_path / ("n" * length))


def test_two_outputs_of_one_name_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        OutputError, match=r"--b \./x would overwrite x \(--a\), which this run needs"
    ):
        check_outputs({"--a": "x", "--b": "./x", "--c": None})


def test_a_source_is_not_overwritten_under_another_name(tmp_path) -> None:
    (tmp_path / "model.onnx").write_text("model")
    link = tmp_path / "link.onnx"
    link.symlink_to(tmp_path / "model.onnx")

    with pytest.raises(OutputError, match=r"OUTPUT .*link\.onnx would overwrite .*model\.onnx"):
        check_outputs({"OUTPUT": link}, [tmp_path / "model.onnx"])


def test_a_file_in_a_folder_that_is_read_is_not_overwritten_but_new_ones_may_go_there(
    tmp_path,
) -> None:
    inner = tmp_path / "images" / "cats"
    inner.mkdir(parents=True)
    (inner / "1.png").write_text("a cat")

    with pytest.raises(OutputError, match=r"would overwrite .*images, which this run needs"):
        check_outputs({"--report": inner / "1.png"}, [tmp_path / "images"])
    check_outputs({"--report": inner / "report.json"}, [tmp_path / "images"])


def test_other_outputs_pass(tmp_path) -> None:
    (tmp_path / "before").write_text("an earlier result may be replaced")

    check_outputs({"--a": tmp_path / "before", "--b": tmp_path / "new"}, [tmp_path / "model.onnx"])


def test_what_goes_with_a_file_has_its_name_if_there_is_room() -> None:
    assert sibling("folder/m.onnx", ".data") == pathlib.Path("folder", "m.onnx.data")
    long, other = "ä" * 126, "ä" * 125 + "o"
    assert len(os.fsencode(sibling(long, ".data").name)) < 255
    assert sibling(long, ".data") == sibling(long, ".data") != sibling(other, ".data")


def test_a_source_that_is_a_link_to_itself_is_no_crash(tmp_path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)

    check_outputs({"OUTPUT": tmp_path / "q.onnx"}, [loop])


@pytest.fixture
def folder(tmp_path, monkeypatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
