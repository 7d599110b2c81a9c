"""Configuration values that others can add kinds of, and reading them back from files.

A method, a transform or a refinement is a value of a class. Whoever needs another kind derives a
class from the same base, gives it a tag, and uses its values like any other; the class says what does
the work. To be read back from a file, its module must be imported, or named by an entry point of
the group ``lowbit.extensions``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_GROUP = "lowbit.extensions"


class Extensible:
    """Base of values whose kinds are not all known here; each kind is a tagged ``msgspec.Struct``."""

    __slots__ = ()


def tag_of(kind: type[Any]) -> str:
    """Return the word that a kind of value has in files."""
    return str(kind.__struct_config__.tag)


def convert(fields: object, kind: type[T]) -> T:
    """Return parsed JSON or TOML as a value; raises ``msgspec.ValidationError``."""
    return msgspec.convert(fields, kind, dec_hook=_convert_extensible)


def decode_json(text: bytes | str, kind: type[T]) -> T:
    """Return JSON as a value; raises ``msgspec.DecodeError``, whatever is wrong with the text."""
    with decode_errors():
        return msgspec.json.decode(text, type=kind, dec_hook=_convert_extensible)


@contextlib.contextmanager
def decode_errors() -> Iterator[None]:
    """Raise ``msgspec.DecodeError`` also for bytes that are no text, and for endless nesting."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"it is not UTF-8 (byte {error.start})") from error
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error


def find_not_finite(value: object, where: str = "") -> str | None:
    """Return which number in a value is NaN or infinite, and what it is; nothing if all are finite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{where} is {value}"
    items: Iterable[tuple[str, object]] = ()
    if isinstance(value, msgspec.Struct):
        items = (
            (f"{where}.{n}" if where else n, getattr(value, n)) for n in value.__struct_fields__
        )
    elif isinstance(value, Mapping):
        items = ((f"{where}[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, (tuple, list)):
        items = ((f"{where}[{index}]", item) for index, item in enumerate(value))
    found = (find_not_finite(item, name) for name, item in items)
    return next((words for words in found if words is not None), None)


def _convert_extensible(base: type[Any], fields: object) -> object:
    """Return fields as a value; msgspec adds to these errors where in the file it is."""
    if isinstance(fields, base):
        return fields
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        raise TypeError(f"Expected an object with a `type`, got {fields!r}")
    kinds = {tag_of(kind): kind for kind in _kinds(base)}
    if fields["type"] not in kinds:
        _load_extensions()
        kinds = {tag_of(kind): kind for kind in _kinds(base)}
    if fields["type"] not in kinds:
        known = ", ".join(sorted(kinds))
        raise ValueError(f"Invalid type {fields['type']!r} (known: {known})")
    try:
        return convert(fields, kinds[fields["type"]])
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def _kinds(base: type[Any]) -> Iterator[type[Any]]:
    for kind in base.__subclasses__():
        if issubclass(kind, msgspec.Struct) and kind.__struct_config__.tag is not None:
            yield kind
        yield from _kinds(kind)


@functools.cache
def _load_extensions() -> None:
    for entry in importlib.metadata.entry_points(group=_GROUP):
        entry.load()
