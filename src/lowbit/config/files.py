"""Configuration files: strict JSON or TOML, where a misspelt field is an error."""

from __future__ import annotations

import os
import pathlib

import msgspec

from lowbit.config.config import QuantConfig
from lowbit.config.extensible import convert, decode_errors, find_not_finite
from lowbit.config.presets import find_preset
from lowbit.errors import ConfigError, did_you_mean


def read_config(path: str | os.PathLike[str], preset: str | None = None) -> QuantConfig:
    """Return the configuration in a file.

    A file may hold only what differs from a preset: name it in the file (``"preset": "A8W8"``) or
    give it as ``preset``.
    """
    path = pathlib.Path(path)
    fields = _parse(path)
    base = str(fields.pop("preset", preset or ""))
    if preset is not None and base.upper() != preset.upper():
        raise ConfigError(
            f"{path} starts from preset {base!r}, but {preset!r} is asked for; give only one of them"
        )
    if base:
        start = msgspec.to_builtins(find_preset(base))
        fields = {**start, **fields}
    unknown = [name for name in fields if name not in QuantConfig.__struct_fields__]
    if unknown:
        near = did_you_mean(unknown[0], QuantConfig.__struct_fields__)
        raise ConfigError(f"{path}: unknown option {unknown[0]!r}{near}")
    try:
        with decode_errors():
            config = convert(fields, QuantConfig)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{path}: {error}; `lowbit presets --json` prints whole configurations"
        ) from error
    wrong = find_not_finite(config)
    if wrong is not None:
        raise ConfigError(f"{path}: {wrong}; expected a finite number")
    return config


def config_json(config: QuantConfig) -> str:
    """Return the configuration as one line of JSON."""
    return msgspec.json.encode(config).decode()


def _parse(path: pathlib.Path) -> dict[str, object]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    try:
        decode = msgspec.toml.decode if path.suffix == ".toml" else msgspec.json.decode
        with decode_errors():
            parsed = decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"configuration {path} cannot be parsed: {error}") from error
    if not isinstance(parsed, dict):
        raise ConfigError(f"configuration {path} holds {type(parsed).__name__}, not options")
    return parsed
