"""Results under a content hash: complete or not there, in folders and at URLs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lowbit.errors import ConfigError, OutputError
from lowbit.store import Store, content_key


@pytest.fixture(params=["folder", "url"])
def store(request, tmp_path: Path) -> Store:
    if request.param == "folder":
        return Store.open(tmp_path / "made" / "anew")
    return Store.open("memory://lowbit-test/" + tmp_path.name)


def test_what_was_put_is_found(store: Store) -> None:
    key = content_key("a", b"b")
    assert store.get(key) is None
    store.put(key, b"result")
    store.put(content_key("other"), b"")
    assert store.get(key) == b"result"
    assert store.get(content_key("other")) == b""


def test_keys_tell_parts_apart() -> None:
    keys = {
        content_key("ab", "c"),
        content_key("a", "bc"),
        content_key("abc"),
        content_key("abc", ""),
    }
    assert len(keys) == 4
    assert content_key("ab", b"c") == content_key(b"ab", "c")


@pytest.mark.parametrize("keep", [0, 10, 33])
def test_a_file_that_was_cut_off_counts_as_not_there(tmp_path: Path, keep: int) -> None:
    store, key = Store.open(tmp_path), content_key("x")
    store.put(key, b"a result of some length")
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    file.write_bytes(file.read_bytes()[:keep])
    assert store.get(key) is None
    store.put(key, b"again")
    assert store.get(key) == b"again"


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot keep results in .*file.*--state"):
        Store.open(tmp_path / "file" / "inside")
    with pytest.raises(ConfigError, match="cannot open nosuch://x"):
        Store.open("nosuch://x")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r"pip install 'lowbit\[fsspec\]'"):
        Store.open("s3://bucket/state")
