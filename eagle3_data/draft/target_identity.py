"""Which target it is: digests over its weight files and its tokenizer.

What enters: a model's folder. What leaves: hex digests, "" when the files are not at hand. It
promises to read a little of each weight file only: a fine-tuned model differs everywhere, and
hashing a terabyte takes a quarter of an hour.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from eagle3_data.tokens import model_files

SAMPLES, SAMPLE = 64, 4096
"""Pieces of a weight file that are read, evenly spread, and their bytes."""


def weights_digest(folder: Path) -> str:
    """BLAKE2b-128 (hex) over config.json and, of each safetensors file, name, size and pieces."""
    if not folder.is_dir():
        return ""
    digest = blake2b(digest_size=16)
    config = folder / "config.json"
    if config.is_file():
        digest.update(config.read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            for number in range(SAMPLES):
                file.seek(max(size - SAMPLE, 0) * number // (SAMPLES - 1))
                digest.update(file.read(SAMPLE))
    return digest.hexdigest()


def tokenizer_digest(folder: Path) -> str:
    """The fingerprint of the tokenizer in the folder, as the shards have it."""
    try:
        return model_files.find(folder).fingerprint if folder.is_dir() else ""
    except ValueError:
        return ""
