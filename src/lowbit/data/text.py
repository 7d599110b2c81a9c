"""Text as samples: each line, or each object of a ``.jsonl``, becomes the inputs of a transformer.

A sample is a single text, so that where the model takes any length nothing is
padded and no padding decides a range. Inputs are known by their names: tokens, mask, kinds of tokens,
positions, and caches of keys and values, which are empty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lowbit.data.dataset import IndexedSource
from lowbit.data.inputs import InputInfo
from lowbit.errors import ConfigError, DataError

SUFFIXES = (".txt", ".jsonl")
# Models with no fixed length and a tokenizer that does not truncate: most were trained on as many.
_LONGEST = 512
_FIELDS = ("text", "sentence", "content", "prompt", "question", "sentence1")

Role: TypeAlias = Literal["tokens", "mask", "kinds", "positions", "cache"]
_ROLES: tuple[tuple[Role, str], ...] = (
    ("cache", r"past|cache"),
    ("kinds", r"(token_?)?type_?ids?|segment"),
    ("positions", r"position"),
    ("mask", r"mask"),
    ("tokens", r"ids?$|tokens?$|input$"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenization:
    """How text becomes inputs.

    Attributes:
        tokenizer: Path of a ``tokenizer.json``, or of the folder it is in.
        max_length: How many tokens a sample has at most; the model's own length if it is fixed,
            else what the tokenizer says, else 512.
    """

    tokenizer: str
    max_length: int | None = None

    def __post_init__(self) -> None:
        if self.max_length is not None and self.max_length < 1:
            raise ConfigError(f"max_length is {self.max_length}; a sample has at least one token")


class TextSource(IndexedSource):
    """Feeds made of the texts of a file."""

    def __init__(
        self,
        path: Path,
        tokenization: Tokenization,
        inputs: Sequence[InputInfo],
        limit: int | None,
    ) -> None:
        """Read the texts; of more than ``limit``, evenly spaced ones."""
        self._path = path
        self._roles = {info.name: (info, role_of(info)) for info in inputs}
        self._fixed = _fixed_length(inputs)
        self._tokenizer = _load(tokenization.tokenizer)
        self._pad = self._prepare(tokenization)
        texts = _read(path)
        if limit is not None and limit < len(texts):
            texts = [texts[i] for i in np.linspace(0, len(texts) - 1, limit).round().astype(int)]
        self._texts = texts

    def _prepare(self, tokenization: Tokenization) -> int:
        """Set how many tokens a sample has, and return the number of the token that pads."""
        padding, truncation = self._tokenizer.padding, self._tokenizer.truncation
        own = truncation["max_length"] if truncation else _LONGEST
        longest = tokenization.max_length or self._fixed or own
        if self._fixed is not None and longest > self._fixed:
            raise ConfigError(
                f"max_length is {longest}, but the model takes {self._fixed} tokens; give no more"
            )
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(longest)
        if padding:
            return int(padding["pad_id"])
        words = ("[PAD]", "<pad>", "<|endoftext|>", "</s>")
        known = [self._tokenizer.token_to_id(word) for word in words]
        return next((number for number in known if number is not None), 0)

    def read(self, indices: Sequence[int]) -> Iterator[tuple[str, object]]:
        """Yield the feeds of these numbers."""
        for index in indices:
            number, text = self._texts[index]
            yield f"line {number} of {self._path}", self._feed(text, number)

    def count(self) -> int:
        """Return the number of texts."""
        return len(self._texts)

    def describe(self) -> str:
        """Return how many texts from where."""
        return f"{len(self._texts)} texts from {self._path}"

    def _feed(self, text: str, number: int) -> dict[str, NDArray[Any]]:
        encoding = self._tokenizer.encode(text)
        if not encoding.ids:
            raise DataError(f"line {number} of {self._path} gives no token: remove it")
        length = self._fixed or len(encoding.ids)
        made = {
            "tokens": _padded(encoding.ids, length, self._pad),
            "mask": _padded(encoding.attention_mask, length, 0),
            "kinds": _padded(encoding.type_ids, length, 0),
            "positions": np.arange(length)[None],
        }
        return {
            name: empty_cache(info) if role == "cache" else made[role].astype(info.dtype)
            for name, (info, role) in self._roles.items()
        }


def role_of(info: InputInfo) -> Role:
    """Return what an input of a transformer is for, by its name."""
    name = re.sub(r"[:.]\d+$", "", info.name.lower())
    for role, pattern in _ROLES:
        fits = role == "mask" or info.is_float == (role == "cache")
        if fits and re.search(pattern, name):
            return role
    raise DataError(
        f"input {info.name!r} ({info.dtype}, {info.shape_text}) is none that text fills: they are called "
        "input_ids, attention_mask, token_type_ids, position_ids or past_key_values; give a folder of "
        ".npy files, a subfolder for each input"
    )


def has_role(info: InputInfo, role: Role) -> bool:
    """Whether an input is for this, by its name."""
    try:
        return role_of(info) == role
    except DataError:
        return False


def _fixed_length(inputs: Sequence[InputInfo]) -> int | None:
    for info in inputs:
        if role_of(info) == "tokens" and info.shape is not None and len(info.shape) > 1:
            size = info.shape[-1]
            return size if isinstance(size, int) else None
    return None


def _padded(numbers: Sequence[int], length: int, fill: int) -> NDArray[np.int64]:
    row = np.full((1, length), fill, np.int64)
    row[0, : len(numbers)] = numbers
    return row


def empty_cache(info: InputInfo) -> NDArray[Any]:
    """Return a cache with nothing in it: one sequence, and no position where any number may be."""
    if info.shape is None:
        raise DataError(f"the shape of input {info.name!r}, a cache, is not known: give .npy files")
    sizes = [size if isinstance(size, int) else 0 for size in info.shape]
    return np.zeros([sizes[0] or 1, *sizes[1:]], info.dtype)


def _load(path: str) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise DataError("text needs the package tokenizers: pip install 'lowbit[text]'") from error
    file = Path(path).expanduser()
    file = file / "tokenizer.json" if file.is_dir() else file
    if not file.is_file():
        raise DataError(f"there is no tokenizer {file}: give the path of a tokenizer.json")
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises plain exceptions
        raise DataError(f"{file} is no tokenizer of the package tokenizers ({error})") from error


def _read(path: Path) -> list[tuple[int, str]]:
    """Return the texts of a file with the numbers of their lines."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text ({error})") from error
    found = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if path.suffix.lower() == ".jsonl":
        found = [(number, _text_of(line, number, path)) for number, line in found]
    if not found:
        raise DataError(f"{path} holds no text: give a sample a line")
    return found


def _text_of(line: str, number: int, path: Path) -> str:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"line {number} of {path} is not JSON ({error})") from error
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        words = [value[field] for field in _FIELDS if isinstance(value.get(field), str)]
        words += [each for each in value.values() if isinstance(each, str)]
        if words:
            return str(words[0])
    raise DataError(
        f"line {number} of {path} holds no text: give a string, or an object with 'text'"
    )
