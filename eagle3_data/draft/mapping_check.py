"""Is a mapping sound? Every reading of `d2t` and `t2d` that goes wrong somewhere, by code.

What enters: raw tensors, and what is known of the target. What leaves: `Fault`s. It promises to
hold for any array: what can not be compared after one fault is left out, and never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping as Dict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eagle3_data.audit.rules.registry import Severity
from eagle3_data.draft import vocab_rules as rules
from eagle3_data.draft.mapping import Mapping, VocabError
from eagle3_data.draft.mapping_files import Raw

if TYPE_CHECKING:
    from eagle3_data.draft.findings import Inspection

SURE = 16
"""Entries from which values that all grow mean ids: offsets repeat wherever two chosen tokens are
neighbours."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule that fired, and on what evidence."""

    code: str
    detail: str

    @property
    def error(self) -> bool:
        """Whether the rule is of error level."""
        return rules.VOCAB_RULES[self.code].severity is Severity.ERROR


def examine(
    raw: Raw,
    vocab_size: int | None = None,
    *,
    control: Dict[str, int] | None = None,
    base: Mapping | None = None,
) -> list[Fault]:
    """Every fault of a mapping. `vocab_size`: rows of the target's head. `control`: ids that should
    be in. `base`: the mapping that it has to equal.
    """
    faults = [*_types(raw)]
    d2t = _row(raw.d2t)
    t2d = _mask(raw.t2d)
    if t2d is not None and vocab_size is not None and len(t2d) != vocab_size:
        faults.append(
            Fault(rules.SIZE_DIFFERS, f"{len(t2d):,} entries, the target has {vocab_size:,} tokens")
        )
    if d2t is None:
        return faults
    size = vocab_size if vocab_size is not None else None if t2d is None else len(t2d)
    targets = d2t + np.arange(len(d2t), dtype=np.int64)
    if holds_ids(d2t, size, t2d):
        faults.append(
            Fault(
                rules.HOLDS_IDS,
                f"values {_shown(d2t)} are target ids; as offsets they lead up to"
                f" {int(targets.max()):,}" + (f" of {size:,}" if size else ""),
            )
        )
        targets = d2t
    faults += _range(targets, size)
    if raw.t2d is None:
        faults.append(Fault(rules.T2D_MISSING, f"{len(d2t):,} draft tokens without a t2d"))
    elif t2d is not None:
        faults += _pair(targets, t2d)
    if len(targets) > 1 and not (np.diff(targets) > 0).all():
        at = int(np.argmin(np.diff(targets) > 0))
        faults.append(
            Fault(rules.UNSORTED, f"draft ids {at} and {at + 1} are {_shown(targets[at : at + 2])}")
        )
    missing = [name for name, token in (control or {}).items() if not (targets == token).any()]
    if missing:
        faults.append(
            Fault(
                rules.CONTROL_MISSING, f"{len(missing)} of {len(control or {})}: {_some(missing)}"
            )
        )
    if base is not None and not np.array_equal(base.targets, targets):
        faults.append(Fault(rules.NOT_THE_DRAFTERS, difference(base.targets, targets)))
    return faults


def holds_ids(
    d2t: NDArray[np.int64], vocab_size: int | None, t2d: NDArray[np.bool_] | None
) -> bool:
    """Whether `d2t` holds target ids instead of offsets. All zeros is the identity."""
    if not len(d2t) or int(d2t.min()) < 0 or len(np.unique(d2t)) != len(d2t) or len(d2t) == 1:
        return False
    as_offsets = d2t + np.arange(len(d2t), dtype=np.int64)
    if t2d is not None and _marks(t2d, d2t) != _marks(t2d, as_offsets):
        return _marks(t2d, d2t)
    if vocab_size is not None and int(d2t.max()) < vocab_size <= int(as_offsets.max()):
        return True
    return len(d2t) >= SURE and bool((np.diff(d2t) > 0).all())


def difference(base: NDArray[np.int64], other: NDArray[np.int64]) -> str:
    """How two lists of target ids differ, in words."""
    if len(base) != len(other):
        return f"{len(other):,} draft tokens, the drafter has {len(base):,}"
    moved = int((base != other).sum())
    common = len(np.intersect1d(base, other))
    return (
        f"{moved:,} of {len(base):,} draft ids lead elsewhere than in the drafter;"
        f" {common:,} tokens are in both"
    )


def _types(raw: Raw) -> list[Fault]:
    out = []
    if raw.d2t is not None and (raw.d2t.ndim != 1 or raw.d2t.dtype != np.int64):
        out.append(Fault(rules.WRONG_TYPE, f"d2t is {raw.d2t.dtype} {list(raw.d2t.shape)}"))
    if raw.t2d is not None and (raw.t2d.ndim != 1 or raw.t2d.dtype != np.bool_):
        out.append(Fault(rules.WRONG_TYPE, f"t2d is {raw.t2d.dtype} {list(raw.t2d.shape)}"))
    return out


def _row(values: NDArray[Any] | None) -> NDArray[np.int64] | None:
    """One row of whole numbers as int64, None for anything else."""
    if values is None or values.ndim != 1 or values.dtype.kind not in "iu":
        return None
    return values.astype(np.int64)


def _mask(values: NDArray[Any] | None) -> NDArray[np.bool_] | None:
    """`t2d` as Booleans, None when it is no row of truths."""
    if values is None or values.ndim != 1 or values.dtype.kind not in "iub":
        return None
    return None if values.size and int(values.max()) > 1 else values.astype(np.bool_)


def _range(targets: NDArray[np.int64], size: int | None) -> list[Fault]:
    out = []
    wrong = targets < 0 if size is None else (targets < 0) | (targets >= size)
    if wrong.any():
        at = int(np.argmax(wrong))
        out.append(
            Fault(
                rules.OUT_OF_RANGE,
                f"{int(wrong.sum()):,} draft ids, for example {at} → {int(targets[at]):,}"
                + (f" of {size:,}" if size else ""),
            )
        )
    values, counts = np.unique(targets, return_counts=True)
    if len(values) != len(targets):
        twice = values[counts > 1]
        out.append(
            Fault(rules.REPEATED, f"{len(twice):,} target ids, for example {int(twice[0]):,}")
        )
    return out


def _pair(targets: NDArray[np.int64], t2d: NDArray[np.bool_]) -> list[Fault]:
    if _marks(t2d, targets):
        return []
    inside = targets[(targets >= 0) & (targets < len(t2d))]
    unmarked = int((~t2d[inside]).sum()) + len(targets) - len(inside)
    return [
        Fault(
            rules.T2D_DIFFERS,
            f"t2d marks {int(t2d.sum()):,} tokens, d2t leads to {len(np.unique(targets)):,};"
            f" {unmarked:,} of those are not marked",
        )
    ]


def _marks(t2d: NDArray[np.bool_], targets: NDArray[np.int64]) -> bool:
    """Whether `t2d` is true at exactly these ids."""
    if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < len(t2d):
        return False
    return bool(t2d[targets].all()) and int(t2d.sum()) == len(np.unique(targets))


def _shown(values: NDArray[np.int64]) -> str:
    head = ", ".join(f"{int(value)}" for value in values[:3])
    return f"{head}, …" if len(values) > 3 else head


def _some(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def checked(
    path: str | Path,
    *,
    vocab_size: int | None = None,
    control: Dict[str, int] | None = None,
    inherit: str | Path | None = None,
) -> Inspection:
    """The mapping at `path`, judged. Raises TensorError, VocabError when it can not be read."""
    from eagle3_data.draft.findings import Finding, Inspection, rules_of
    from eagle3_data.draft.mapping_files import inherited, read

    raw = read(path)
    size = vocab_size if vocab_size is not None or raw.t2d is None else raw.t2d.size
    base = None
    if inherit is not None:
        if size is None:
            raise VocabError(
                f"{raw.place} has no t2d that says how large the target's vocabulary is:"
                " pass --target or --vocab-size"
            )
        base = inherited(inherit, size)
    faults = examine(raw, vocab_size, control=control, base=base)
    notes = []
    if raw.unmapped:
        notes.append(
            f"there is no d2t: the head of {raw.head:,} rows must be the target's whole vocabulary;"
            " `lint` checks that"
        )
    if size is None:
        notes.append(
            "the size of the target's vocabulary is not known: pass --target or --vocab-size, then"
            " ids are checked against it"
        )
    facts = {
        "draft vocabulary": raw.head if raw.d2t is None else raw.d2t.size,
        "target vocabulary": size,
    }
    return Inspection(
        Path(path),
        facts,
        tuple(Finding(f.code, raw.place, f.detail) for f in faults),
        rules_of(("VOC",)),
        notes=tuple(notes),
    )
