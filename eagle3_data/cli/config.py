"""Settings of a project: `[tool.eagle3-data]` in pyproject.toml, or a file `eagle3-data.toml`.

What enters: a working directory or a named file. What leaves: frozen `Settings`, paths made
absolute. It promises strictness (an unknown key is an error that names file and key), that a path
in the file is relative to the file, and that the command line beats the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

if TYPE_CHECKING:
    from eagle3_data.audit.thresholds import Thresholds

OWN_FILE = "eagle3-data.toml"
SHARED_FILE = "pyproject.toml"
TABLE = "eagle3-data"


class ConfigError(ValueError):
    """A configuration file that can not be used; the message names file, key and next step."""


def _dashed(name: str) -> str:
    return name.replace("_", "-")


class Settings(BaseModel):
    """What a project can fix for everyone. Keys are the long options of `check` without `--`."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=_dashed)

    profile: str | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    holdout: tuple[str, ...] = ()
    turns: Literal["last", "all"] | None = None
    workers: int | None = Field(default=None, ge=1)
    show: int | None = Field(default=None, ge=0)
    severity: dict[str, Literal["error", "warn", "ignore"]] = Field(default_factory=dict)
    """Rule code, family or readable name -> severity."""
    thresholds: dict[str, Any] = Field(default_factory=dict)
    """Checked against `Thresholds` when the file is read."""

    def limits(self) -> Thresholds | None:
        """The thresholds as the road takes them; None when the file sets none."""
        from eagle3_data.audit.thresholds import Thresholds

        return Thresholds.model_validate(self.thresholds) if self.thresholds else None


def find(start: Path) -> Path | None:
    """The nearest file with settings, upward from `start`; `eagle3-data.toml` comes first."""
    for folder in (start, *start.parents):
        own = folder / OWN_FILE
        if own.is_file():
            return own
        shared = folder / SHARED_FILE
        if shared.is_file() and TABLE in _tables(_parse(shared), shared):
            return shared
    return None


def read(path: Path) -> Settings:
    """Settings of one file. Raises ConfigError with the file and the first wrong key."""
    document = _parse(path)
    table: Any = document
    if path.name == SHARED_FILE:
        table = _tables(document, path).get(TABLE)
        if table is None:
            raise ConfigError(
                f"{path}: no table [tool.{TABLE}]: add one, or name another file with --config"
            )
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: tool.{TABLE} is not a table")
    try:
        settings = Settings.model_validate(table)
    except ValidationError as error:
        raise ConfigError(_first_wrong(path, error)) from None
    _check_thresholds(path, settings.thresholds)
    return settings.model_copy(update=_anchored(settings, path.parent))


def located(config: Path | None) -> Path | None:
    """The file in force: the named one, else the nearest one; None when there is none."""
    if config is None:
        return find(Path.cwd())
    if not config.is_file():
        raise ConfigError(f"{config}: no such file (named by --config)")
    return config


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def _tables(document: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    tool = document.get("tool", {})
    if not isinstance(tool, dict):
        raise ConfigError(f"{path}: tool is not a table")
    return tool


def _check_thresholds(path: Path, values: Mapping[str, Any]) -> None:
    if not values:
        return
    from eagle3_data.audit.thresholds import Thresholds

    try:
        Thresholds.model_validate(values)
    except ValidationError as error:
        raise ConfigError(
            _first_wrong(path, error, "thresholds", list(Thresholds.model_fields))
        ) from None


def _first_wrong(
    path: Path, error: ValidationError, table: str = "", known: list[str] | None = None
) -> str:
    from difflib import get_close_matches

    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join([table] * bool(table) + [str(part) for part in first["loc"]])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] != "extra_forbidden":
        return f"{path}: {place}: {first['msg']}{more}"
    names = known if known is not None else [_dashed(name) for name in Settings.model_fields]
    near = get_close_matches(str(first["loc"][-1]), names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(names)}"
    return f"{path}: unknown key {place}{more}: {hint}"


def _anchored(settings: Settings, folder: Path) -> dict[str, Any]:
    """The settings that are paths, relative to the folder of the file that names them."""

    def anchor(value: str) -> str:
        return value if value == "-" else str(folder / Path(value).expanduser())

    update: dict[str, Any] = {"holdout": tuple(anchor(value) for value in settings.holdout)}
    for key in ("tokenizer", "chat_template"):
        value = getattr(settings, key)
        if value is not None:
            update[key] = anchor(value)
    if settings.profile is not None and settings.profile.endswith(".toml"):
        update["profile"] = anchor(settings.profile)
    return update
