"""The files of one tokenizer on disk: which vocabulary there is, its configuration, its chat
template, its fingerprint.

What enters: a path (a directory, a `tokenizer.json`, a `tiktoken.model` or a bare `.tiktoken`
file). What leaves: `ModelFiles`. It promises to read and never to run: code that lies in a model
directory is not imported, nothing is fetched. Every refusal is a `TokenizerError` that names the
file and the next step.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class TokenizerError(ValueError):
    """A tokenizer that cannot be opened. The message names the file and the next step."""


class Vocabulary(StrEnum):
    """The two vocabulary formats that are read."""

    JSON = "tokenizer.json"
    RANKS = "tiktoken"


TOKENIZER_JSON = "tokenizer.json"
TIKTOKEN_MODEL = "tiktoken.model"
CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """`vocabulary`: the file to open. `config`: tokenizer_config.json, empty when there is none.

    `named`: bos_token, eos_token, … as text, those that are set. `fingerprint`: sha256 over
    vocabulary and configuration.
    """

    path: str
    kind: Vocabulary
    vocabulary: Path
    config: Mapping[str, Any]
    named: Mapping[str, str]
    chat_template: str | None
    fingerprint: str

    @property
    def name(self) -> str:
        """The directory's name, or the file's stem when the file does not have a standard name."""
        standard = self.vocabulary.name in (TOKENIZER_JSON, TIKTOKEN_MODEL)
        return self.vocabulary.resolve().parent.name if standard else self.vocabulary.stem


class OfFiles:
    """What a reference tokenizer says of itself, read off its `files`."""

    files: ModelFiles

    def __reduce__(self) -> tuple[Callable[[str, str], object], tuple[str, str]]:
        """Travels to another process as its path; its vocabulary is read again there."""
        return _reopened, (self.path, self.fingerprint)

    @property
    def name(self) -> str:
        return self.files.name

    @property
    def path(self) -> str:
        return self.files.path

    @property
    def fingerprint(self) -> str:
        return self.files.fingerprint

    @property
    def chat_template(self) -> str | None:
        return self.files.chat_template

    @property
    def template_globals(self) -> Mapping[str, str]:
        return self.files.named


def _reopened(path: str, fingerprint: str) -> object:
    """The tokenizer at `path`, if its files are still those. Raises TokenizerError."""
    from eagle3_data.tokens.tokenizer import open_tokenizer

    again = open_tokenizer(path)
    if again.fingerprint != fingerprint:
        raise TokenizerError(f"{path}: the files of the tokenizer changed: run the command again")
    return again


def find(path: str | Path) -> ModelFiles:
    """Look for the tokenizer at `path`. Raises TokenizerError."""
    place = Path(path)
    if not place.exists():
        raise TokenizerError(_absent(str(path)))
    if place.is_dir():
        names = (TOKENIZER_JSON, TIKTOKEN_MODEL)
        vocabulary = next((place / n for n in names if (place / n).is_file()), None)
        if vocabulary is None:
            raise TokenizerError(_nothing_to_open(place))
    else:
        vocabulary = place
    kind = Vocabulary.RANKS if vocabulary.suffix in (".model", ".tiktoken") else Vocabulary.JSON
    body = _read(vocabulary)
    if body.startswith(LFS_POINTER):
        raise TokenizerError(
            f"{vocabulary}: this is a Git LFS pointer, not the file itself: "
            "run `git lfs pull` in that checkout"
        )
    config_file = vocabulary.parent / CONFIG
    config_body = _read(config_file) if config_file.is_file() else b""
    config = _object(config_file, config_body) if config_body else {}
    digest = hashlib.sha256()
    for name, data in ((vocabulary.name, body), (CONFIG, config_body)):
        # The length keeps the seam between two files from moving unseen.
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return ModelFiles(
        path=str(path),
        kind=kind,
        vocabulary=vocabulary,
        config=config,
        named=_named(config),
        chat_template=_template(vocabulary.parent, config),
        fingerprint=digest.hexdigest(),
    )


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise TokenizerError(
            f"{file}: cannot be read ({error.strerror}): check the path and its permissions"
        ) from error


def _object(file: Path, body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{file}: damaged JSON ({error}): fetch the file again") from error
    if not isinstance(found, dict):
        raise TokenizerError(
            f"{file}: holds {type(found).__name__}, not an object: fetch the file again"
        )
    return found


def text_of(value: object) -> str | None:
    """A token as transformers writes it: a string, or an object with `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _named(config: Mapping[str, Any]) -> dict[str, str]:
    found = {name: text_of(config.get(name)) for name in NAMED}
    return {name: text for name, text in found.items() if text is not None}


def _template(directory: Path, config: Mapping[str, Any]) -> str | None:
    """The file wins over the configuration, as in transformers 5; of several named templates,
    `default`.
    """
    file = directory / TEMPLATE
    if file.is_file():
        return _read(file).decode("utf-8", "replace")
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {t.get("name"): t.get("template") for t in found if isinstance(t, Mapping)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _absent(path: str) -> str:
    if re.fullmatch(r"[\w.\-]+/[\w.\-]+", path) and not path.startswith("."):
        return (
            f"{path}: there is no such path. If it is a model name, fetch its tokenizer first "
            f"(`hf download {path} --include 'token*' '*.jinja' '*.model' --local-dir DIR`) "
            "and give DIR"
        )
    return (
        f"{path}: there is no such file or directory: "
        f"give a directory that holds {TOKENIZER_JSON} or {TIKTOKEN_MODEL}"
    )


def _nothing_to_open(directory: Path) -> str:
    code = sorted(p.name for p in directory.glob("tokenization_*.py"))
    head = f"{directory}: no {TOKENIZER_JSON} and no {TIKTOKEN_MODEL} here"
    save = (
        "save it once in the fast format, with transformers: "
        "`AutoTokenizer.from_pretrained(DIR).save_pretrained(OUT)`, then give OUT"
    )
    if code:
        return (
            f"{head}, only code ({', '.join(code)}), and code of a model is never run by this "
            f"program: read it, then {save}"
        )
    if (directory / "tokenizer.model").is_file():
        return f"{head}, only a SentencePiece tokenizer.model: {save}"
    if (directory / "vocab.json").is_file():
        return f"{head}, only vocab.json: {save}"
    return f"{head}: give the directory that holds the tokenizer of the served model"
