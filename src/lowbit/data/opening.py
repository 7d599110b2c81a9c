"""From what a user gives as data to feeds: which kind of source it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lowbit.data.arrays import RowSource, Table, at_url, read_npy, read_npz, take_array
from lowbit.data.dataset import Data, Source
from lowbit.data.inputs import InputInfo, separated
from lowbit.data.npz_folder import NpzFolderSource
from lowbit.data.padding import UnpaddedSource, find_mask
from lowbit.data.preprocessing import Preprocessing, find_preprocessing
from lowbit.data.random_source import RandomSource
from lowbit.data.records import SHARDS
from lowbit.data.remote import list_files, local_path, relative_name
from lowbit.data.shard_sources import FactorySource, UrlRecord, open_records, open_shards
from lowbit.data.sources import (
    NpyFolderSource,
    RewindableReader,
    RewindingSource,
    SequenceSource,
    SpoolingSource,
    can_iterate,
)
from lowbit.data.text import SUFFIXES, TextSource, Tokenization
from lowbit.errors import ConfigError, DataError, did_you_mean
from lowbit.store import is_url

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp"})

RANDOM = "random"
"""The word that asks for made-up data."""

KINDS = (
    "a folder of images, .npy or .npz files, a .npz, a .npy, a .txt or .jsonl of texts, .tar or .parquet shards, a URL of these, "
    "'random', an iterable of dicts or arrays, a function that returns one, or an object with get_next()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    inputs: tuple[InputInfo, ...]
    preprocessing: Preprocessing | None
    tokenization: Tokenization | None
    limit: int | None
    seed: int


def open_data(
    source: object,
    inputs: Sequence[InputInfo],
    *,
    preprocessing: Preprocessing | Tokenization | str | None = None,
    limit: int | None = None,
    seed: int = 0,
    padding: bool = True,
) -> Data:
    """Return the feeds of a source, checked against the inputs they are for.

    Args:
        source: A folder of images, ``.npy`` or ``.npz`` files, a ``.npz``, a ``.npy``, a ``.txt`` or ``.jsonl``
            of texts, WebDataset (``.tar``) or Parquet shards, a URL of any of these that fsspec knows, ``"random"``, an
            array of samples, an iterable of dicts or arrays, a function without arguments that returns one, or an
            object with ``get_next()``.
        inputs: What the model wants.
        preprocessing: What is done to images, or its name; how text becomes tokens.
        limit: Take at most so many feeds; of a folder of images, evenly spaced ones.
        seed: For random data.
        padding: Whether batches stay as they are; otherwise sequences of a padded batch come one by one,
            without their padding, where the model takes any length.
    """
    if isinstance(preprocessing, str):
        preprocessing = find_preprocessing(preprocessing)
    tokenization = preprocessing if isinstance(preprocessing, Tokenization) else None
    request = _Request(
        inputs=tuple(inputs),
        preprocessing=None if isinstance(preprocessing, Tokenization) else preprocessing,
        tokenization=tokenization,
        limit=limit,
        seed=seed,
    )
    _check(request)
    if isinstance(source, Data):
        return _reopen(source, request)
    if tokenization is not None and not _is_text(source):
        raise ConfigError(
            f"a tokenizer is given, but the data is no text: it applies to {' and '.join(SUFFIXES)}"
        )
    # A reader of random numbers says so itself.
    is_random = getattr(source, "is_random", isinstance(source, str) and source == RANDOM)
    found = _find_source(source, request)
    if not padding and not is_random and find_mask(request.inputs):
        found = UnpaddedSource(found, request.inputs, limit)
    return Data(found, request.inputs, is_random=is_random)


def _check(request: _Request) -> None:
    if request.limit is not None and request.limit < 1:
        raise DataError(f"limit is {request.limit}, expected at least 1 sample, or none for all")
    if not request.inputs:
        raise DataError("the model has no input, so there is nothing to calibrate on data")


def _reopen(data: Data, request: _Request) -> Data:
    if request.limit is not None or request.preprocessing is not None:
        raise DataError(
            f"data is open already ({data.description}): give limit and preprocessing when it is "
            "opened first"
        )
    return data


def _find_source(source: object, request: _Request) -> Source:
    if isinstance(source, str) and source == RANDOM:
        _refuse_preprocessing(request, "random data")
        return RandomSource(request.inputs, limit=request.limit, seed=request.seed)
    if isinstance(source, str | os.PathLike):
        if not os.fspath(source):
            raise DataError(f"data is an empty name; expected {KINDS}")
        if _is_shard(source) or is_url(os.fsdecode(source)):
            return _find_described_source(os.fsdecode(source), request)
        path = Path(os.fsdecode(source)).expanduser()
        try:
            return _find_path_source(path, request)
        except OSError as error:  # such as a name that no file can have
            raise DataError(f"data {path} cannot be read: {error.strerror or error}") from error
    if isinstance(source, np.ndarray):
        return _find_row_source(take_array(source, request.inputs), request)
    return _find_python_source(source, request)


def _is_shard(source: object) -> bool:
    return isinstance(source, str | os.PathLike) and _suffix(os.fsdecode(source)) in SHARDS


def _open_shards(names: Sequence[str], request: _Request) -> Source:
    return open_shards(names, request.inputs, request.preprocessing, request.limit)


def _find_described_source(name: str, request: _Request) -> Source:
    """Return the samples of shards, or of what lies at a URL."""
    if _is_shard(name):
        return _open_shards([name], request)
    files = list_files(name)
    shards = [url for url in files if _suffix(url) in SHARDS]
    if shards:
        return _open_shards(shards, request)
    if files == [name] or (len(files) == 1 and _suffix(files[0]) in (".npz", ".npy", *SUFFIXES)):
        return _find_remote_file(files[0], request)
    kept = [url for url in files if _suffix(url) in (*IMAGE_SUFFIXES, ".npy")]
    if not kept:
        raise DataError(f"{name} holds no data: found {len(files)} files; expected {KINDS}")
    records = [UrlRecord(url, relative_name(url, name)) for url in kept]
    return open_records(records, request.inputs, request.preprocessing, request.limit, name)


def _find_remote_file(url: str, request: _Request) -> Source:
    path = local_path(url)
    if _suffix(url) == ".npz":
        images = request.preprocessing is not None
        table = read_npz(path, request.inputs, request.limit, images=images)
        return _find_row_source(at_url(table, url), request)
    if _suffix(url) == ".npy":
        return _find_row_source(at_url(read_npy(path, request.inputs), url), request)
    return _find_path_source(path, request)


def _suffix(name: str) -> str:
    return os.path.splitext(name.partition("::")[0])[1].lower()  # noqa: PTH122 - of a URL


def _find_path_source(path: Path, request: _Request) -> Source:
    if path.is_dir():
        return _find_folder_source(path, request)
    if not path.exists():
        raise DataError(f"data {str(path)!r} does not exist{_near_path(path)}; expected {KINDS}")
    if path.suffix.lower() == ".npz":
        images = request.preprocessing is not None
        table = read_npz(path, request.inputs, request.limit, images=images)
        return _find_row_source(table, request)
    if path.suffix.lower() == ".npy":
        return _find_row_source(read_npy(path, request.inputs), request)
    if path.suffix.lower() in SUFFIXES:
        return _find_text_source(path, request)
    hint = " (give its folder)" if path.suffix.lower() in IMAGE_SUFFIXES else ""
    raise DataError(f"data file {path} is of unknown kind {path.suffix!r}{hint}; expected {KINDS}")


def _is_text(source: object) -> bool:
    is_path = isinstance(source, str | os.PathLike)
    return is_path and Path(os.fsdecode(source)).suffix.lower() in SUFFIXES  # type: ignore[arg-type]


def _find_text_source(path: Path, request: _Request) -> Source:
    _refuse_preprocessing(request, "texts")
    if request.tokenization is None:
        raise DataError(
            f"{path} holds text, which a tokenizer turns into inputs: give --tokenizer "
            "tokenizer.json (in Python preprocessing=lowbit.Tokenization(tokenizer=...))"
        )
    return TextSource(path, request.tokenization, request.inputs, request.limit)


def _near_path(path: Path) -> str:
    """Return the nearest existing name for the first part of a path that does not exist."""
    while not path.parent.exists():
        path = path.parent
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = did_you_mean(path.name, [*names, RANDOM])
    return near and f"{near[:-1]} in {path.parent}?"


def _find_folder_source(folder: Path, request: _Request) -> Source:
    files = sorted(_files_in(folder), key=lambda path: path.relative_to(folder).as_posix())
    images = [path for path in files if path.suffix.lower() in IMAGE_SUFFIXES]
    if images:
        # Pillow is heavy, and most who import this package have no images.
        from lowbit.data.image_sources import open_image_folder
        from lowbit.data.images import plan_images

        plan = plan_images(request.inputs, request.preprocessing or Preprocessing())
        arrays = sum(path.suffix == ".npy" for path in files)
        return open_image_folder(folder, images, plan, request.limit, not_read=arrays)
    if any(path.suffix == ".npy" for path in files):
        _refuse_preprocessing(request, ".npy files")
        return NpyFolderSource(folder, request.inputs, request.limit)
    archives = [path for path in files if path.suffix == ".npz"]
    if archives:
        _refuse_preprocessing(request, ".npz files")
        return NpzFolderSource(folder, archives, request.inputs, request.limit)
    shards = [str(path) for path in files if _is_shard(path)]
    if shards:
        return _open_shards(shards, request)
    kinds = sorted({path.suffix or path.name for path in files})
    found = f"only {', '.join(kinds[:5])}" if kinds else "nothing"
    expected = ", ".join(sorted(IMAGE_SUFFIXES))
    raise DataError(
        f"folder {folder} holds no data: expected images ({expected}), .npy or .npz files, found {found}"
    )


def _files_in(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder, onerror=_refuse_unreadable, followlinks=True):
        # Systems leave hidden files such as ._photo.jpg that are no images.
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def _refuse_unreadable(error: OSError) -> None:
    raise DataError(
        f"folder {error.filename} cannot be read ({error.strerror}): make it readable, or move it away"
    ) from error


def _find_row_source(table: Table, request: _Request) -> Source:
    rows = next(iter(table.arrays.values()))
    if request.preprocessing is None:
        return RowSource(table, request.inputs, request.limit)
    if rows.dtype != np.uint8:
        _refuse_preprocessing(request, f"{rows.dtype} values of {table.origin}")
    from lowbit.data.image_sources import open_pixel_rows
    from lowbit.data.images import plan_images

    plan = plan_images(request.inputs, request.preprocessing)
    return open_pixel_rows(table, plan, request.limit)


def _find_python_source(source: object, request: _Request) -> Source:
    if isinstance(source, Mapping):
        raise DataError(
            f"data is one {type(source).__name__}: give a list of dicts, one for each sample, or save the "
            "arrays with numpy.savez and give the path, which makes each row a sample"
        )
    if isinstance(source, list | tuple) and source and all(map(_is_shard, source)):
        return _open_shards([os.fsdecode(name) for name in source], request)
    if callable(source) and (isinstance(source, type) or not can_iterate(source)):
        return _find_made_source(source, request)
    if isinstance(source, bytes | bytearray) or not can_iterate(source):
        raise DataError(f"data is of type {type(source).__name__}; expected {KINDS}")
    _refuse_preprocessing(request, f"samples from a Python {type(source).__name__}")
    if isinstance(source, list | tuple) and not _has_batches(source, request):
        return SequenceSource(source, request.limit)
    if isinstance(source, RewindableReader):
        return RewindingSource(source, request.limit)
    return SpoolingSource(source, request.inputs, request.limit)


def _find_made_source(factory: Callable[[], object], request: _Request) -> Source:
    _refuse_preprocessing(request, "samples that a function makes")
    try:
        is_data = can_iterate(factory())
    except TypeError:  # it takes arguments
        is_data = False
    if not is_data:
        name = getattr(factory, "__name__", type(factory).__name__)
        raise DataError(
            f"data is of type {type(factory).__name__}, and {name}() gives no samples; expected {KINDS}"
        )
    return FactorySource(factory, request.inputs, request.limit)


def _has_batches(source: Sequence[object], request: _Request) -> bool:
    """Whether the first feed is more than the model takes at a time."""
    parts = separated(source[0], request.inputs) if source else iter(())
    return next(parts, None) is not None and next(parts, None) is not None


def _refuse_preprocessing(request: _Request, what: str) -> None:
    if request.preprocessing is not None:
        raise ConfigError(
            f"a preprocessing is given, but {what} are fed as they are: it applies to images and "
            "uint8 rows of pixels; do not give it"
        )
