"""Tensors on disk, without torch: names, types and shapes of safetensors, small tensors as arrays.

What enters: a file or a folder of a checkpoint. What leaves: `Tensor` entries in the order of the
files, and integer or Boolean tensors when asked for. It promises to read safetensors and `.npy`
only (never a pickle), to stay inside the folder whatever an index says, and an error with a next
step for any bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
LARGEST = 64_000_000
"""Bytes of a tensor or `.npy` that is read whole; mappings take 8 bytes a draft token."""


class TensorError(ValueError):
    """A file of tensors that can not be read; the message names the file and the next step."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file. `dtype` as safetensors writes it: BF16, F32, I64, BOOL, …"""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path

    @property
    def told(self) -> str:
        """Type and shape for people."""
        return f"{self.dtype} {list(self.shape)}"


def tensors(path: Path) -> dict[str, Tensor]:
    """Name → tensor of a safetensors file or of a checkpoint's folder. Raises TensorError."""
    found: dict[str, Tensor] = {}
    for file in _files(path):
        for tensor in _listed(file):
            if tensor.name in found:
                raise TensorError(
                    f"{file} and {found[tensor.name].file} both hold {tensor.name!r}: one of the"
                    " files is left over; remove it"
                )
            found[tensor.name] = tensor
    return found


def load(tensor: Tensor) -> NDArray[Any]:
    """The values of an integer or Boolean tensor. Raises TensorError."""
    if tensor.dtype not in ("I64", "I32", "I16", "I8", "U8", "U16", "U32", "U64", "BOOL"):
        raise TensorError(f"{tensor.file}: {tensor.name!r} is {tensor.dtype}, not whole numbers")
    if int(np.prod(tensor.shape, dtype=np.float64)) * 8 > LARGEST:
        raise TensorError(
            f"{tensor.file}: {tensor.name!r} is too large for a mapping {list(tensor.shape)}"
        )
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(tensor.file), framework="np") as opened:
            values: NDArray[Any] = opened.get_tensor(tensor.name)
            return values
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise TensorError(f"{tensor.file} can not be read ({_reason(error)})") from None


def load_npy(path: Path) -> NDArray[Any]:
    """The array of an `.npy` file, pickles refused. Raises TensorError."""
    try:
        if not path.is_file():  # a pipe would wait for ever
            raise TensorError(f"{path} is no regular file: name d2t.npy or t2d.npy")
        if path.stat().st_size > LARGEST:
            raise TensorError(f"{path} is too large for a mapping ({path.stat().st_size:,} bytes)")
        # mapped first: a header may claim more than the file holds
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(mapped, np.ndarray):
            raise TensorError(f"{path} is no .npy file: name d2t.npy or t2d.npy")
        return np.array(mapped)
    except OSError as error:
        raise TensorError(f"{path} can not be read ({error.strerror or error})") from None
    except (ValueError, EOFError, SyntaxError, MemoryError, OverflowError, TypeError) as error:
        raise TensorError(
            f"{path} is no plain .npy file ({_reason(error)}): write it with numpy.save"
            " (allow_pickle=False)"
        ) from None


def _files(path: Path) -> list[Path]:
    """The safetensors files of a checkpoint, in the order of the index or of their names."""
    if path.is_file():
        if path.suffix in PICKLES:
            raise _pickle(path)
        return [path]
    if not path.is_dir():
        raise TensorError(f"{path} is not there: name a checkpoint's folder or a safetensors file")
    index = path / INDEX
    if index.is_file():
        return [path / name for name in _indexed(index)]
    files = sorted(file for file in path.glob("*.safetensors") if file.is_file())
    if files:
        return files
    pickles = sorted(entry for entry in path.iterdir() if entry.suffix in PICKLES)
    if pickles:
        raise _pickle(pickles[0])
    raise TensorError(f"{path} holds no .safetensors file: name the folder of a checkpoint")


def _indexed(index: Path) -> list[str]:
    try:
        body = orjson.loads(index.read_bytes())
        names = {str(name): None for name in body["weight_map"].values()}
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise TensorError(f"{index} can not be read ({_reason(error)}): copy it again") from None
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise TensorError(
                f"{index} names {name!r}, which is no safetensors file of this folder:"
                " do not use a checkpoint that points elsewhere"
            )
        if not (index.parent / name).is_file():
            raise TensorError(f"{index} names {name!r}, which is not there: copy the whole folder")
    return list(names)


def _listed(file: Path) -> list[Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="np") as opened:
            out = []
            for name in opened.keys():  # noqa: SIM118 (no mapping)
                entry = opened.get_slice(name)
                out.append(Tensor(name, str(entry.get_dtype()), tuple(entry.get_shape()), file))
            return out
    except (SafetensorError, OSError, ValueError) as error:
        raise TensorError(
            f"{file} is no sound safetensors file ({_reason(error)}): copy it again"
        ) from None


def _pickle(path: Path) -> TensorError:
    return TensorError(
        f"{path} is a torch file, and a torch file is a pickle, which runs code when it is opened:"
        " convert it to safetensors where you trust it"
    )


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
