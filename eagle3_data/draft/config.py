"""`config.json` of a target or of a drafter, as plain facts.

What enters: a model's folder, or the file. What leaves: a `Config` with the text model's values on
top. It promises never to load code or weights of the folder, and to tell a value of the wrong type
from one that is not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

CONFIG = "config.json"
LARGEST = 64_000_000
"""Bytes of a config.json that is read; real ones have some thousand."""


class ConfigError(ValueError):
    """A config.json that can not be read or lacks what is needed; the message names the file."""


@dataclass(frozen=True, slots=True)
class Config:
    """One config.json. `values`: as in the file, the entries of `text_config` on top (vision
    models keep the language model's there). `raw`: the file itself.
    """

    file: Path
    values: dict[str, Any]
    raw: dict[str, Any]

    def number(self, name: str) -> int | None:
        """A whole number, None when it is not there or null. Raises ConfigError for anything
        else.
        """
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{self.file}: {name} is {str(value)[:40]!r}, not a whole number")
        return value

    def needed(self, name: str) -> int:
        """A whole number that must be there."""
        value = self.number(name)
        if value is None:
            raise ConfigError(f"{self.file} has no {name}: is it the config.json of a model?")
        return value


def read(path: str | Path) -> Config:
    """The config of a folder or file. Raises ConfigError."""
    place = Path(path)
    file = place / CONFIG if place.is_dir() else place
    if file.suffix != ".json":
        raise ConfigError(f"{place}: name the model's folder, or its config.json")
    if file.exists() and not file.is_file():  # a pipe would wait for ever
        raise ConfigError(f"{file} is no regular file: name the model's folder")
    try:
        if file.stat().st_size > LARGEST:
            raise ConfigError(f"{file} is too large for a config.json: name the model's folder")
        found = orjson.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{file} can not be read ({error.strerror}): name the model's folder"
        ) from None
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{file} is no JSON ({error}): copy it again") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{file} is no JSON object: copy it again")
    text = found.get("text_config")
    return Config(file, {**found, **text} if isinstance(text, dict) else found, found)
