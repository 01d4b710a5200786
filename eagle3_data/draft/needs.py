"""What a command of this room needs besides the package itself, and what to say when it lacks.

What enters: nothing. What leaves: nothing, or an error that names the command to type.
"""

from __future__ import annotations

from importlib.util import find_spec


class TorchMissing(ValueError):
    """A command needs the extra `torch`; the message says how to install it."""


def need_torch(command: str) -> None:
    """Raise TorchMissing when torch, transformers or safetensors is not there; loads none."""
    missing = [name for name in ("torch", "transformers", "safetensors") if find_spec(name) is None]
    if missing:
        raise TorchMissing(
            f"{command} needs {', '.join(missing)}, which a plain install leaves out:"
            " pip install '.[torch]' in the checkout"
        )
