"""The packages of the extra `capture`, asked for where they are imported.

What enters: names of packages. What leaves: nothing. It promises that a package which is not
installed is told with the command that installs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ExtraMissing(ValueError):
    """A package of an extra is not installed; the message says how to get it."""


@contextmanager
def needed(*packages: str) -> Iterator[None]:
    """Around imports of `packages`. Raises ExtraMissing when one of them is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise  # a fault inside a package that is there
        raise ExtraMissing(
            f"capturing needs the package {error.name}: pip install '.[capture]' in the checkout"
        ) from None
