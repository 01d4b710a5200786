"""eagle3-data: audit captured responses, rebuild their exact token stream, build datasets for
EAGLE-3 drafters.

`import eagle3_data` is cheap: a name loads its room when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagle3_data.audit.report import Report as Report
    from eagle3_data.audit.thresholds import Thresholds as Thresholds
    from eagle3_data.conversion import convert as convert
    from eagle3_data.pipeline import check as check
    from eagle3_data.profiles.profile import Profile as Profile
    from eagle3_data.shards.reader import open_shards as open_shards
    from eagle3_data.shards.verify import verify as verify

__version__ = "0.1.0"

_ROOMS = {
    "check": "eagle3_data.pipeline",
    "convert": "eagle3_data.conversion",
    "open_shards": "eagle3_data.shards.reader",
    "verify": "eagle3_data.shards.verify",
    "Profile": "eagle3_data.profiles.profile",
    "Report": "eagle3_data.audit.report",
    "Thresholds": "eagle3_data.audit.thresholds",
}

__all__ = [
    "Profile",
    "Report",
    "Thresholds",
    "__version__",
    "check",
    "convert",
    "open_shards",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return getattr(import_module(_ROOMS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
