"""What `vocab check` and `lint` found, for people, as JSON, and in the formats of the audit.

What enters: findings on files. What leaves: an `Inspection`, its JSON form, a `Report`. It promises
one behaviour with `check` and `verify`: the same codes in every format, the same exit codes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3_data.audit.rules.registry import Rule, Severity
from eagle3_data.draft.checkpoint_rules import CHECKPOINT_RULES
from eagle3_data.draft.state_rules import STATE_RULES
from eagle3_data.draft.vocab_rules import VOCAB_RULES

if TYPE_CHECKING:
    from eagle3_data.audit.report import Report

DRAFT_RULES: Mapping[str, Rule] = VOCAB_RULES | STATE_RULES | CHECKPOINT_RULES


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that fired. `place`: the file it is about; `at`: a tensor or a key of the config.
    `mend`: "" or what `--fix` does about it; `engines`: those that refuse it or draft wrong.
    """

    code: str
    place: Path
    detail: str
    at: str = ""
    mend: str = ""
    engines: tuple[str, ...] = ()

    @property
    def rule(self) -> Rule:
        """Its documentation."""
        return DRAFT_RULES[self.code]

    @property
    def error(self) -> bool:
        """Whether it makes the exit code 1."""
        return self.rule.severity is Severity.ERROR

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "code": self.code,
            "name": self.rule.name,
            "severity": self.rule.severity.value,
            "file": str(self.place),
            "at": self.at or self.rule.at,
            "detail": self.detail,
            "mend": self.mend or None,
            "engines": list(self.engines),
        }


@dataclass(frozen=True, slots=True)
class EngineLine:
    """One engine's verdict. `loads`, `right`: yes, no, or unknown; `why` says it in words,
    `change` what to do. `read_at`: the version whose source the verdict rests on.
    """

    engine: str
    loads: str
    right: str
    why: str
    change: str
    read_at: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """Findings on one checkpoint or mapping, and what was looked at."""

    subject: Path
    facts: Mapping[str, Any]
    findings: tuple[Finding, ...]
    ran: tuple[Rule, ...]
    engines: tuple[EngineLine, ...] = ()
    notes: tuple[str, ...] = ()
    layers: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False
    """Engines were named: one of them that can not be right is an error too."""

    @property
    def sound(self) -> bool:
        """Nothing of error level was found."""
        failing = self.strict and any("no" in (e.loads, e.right) for e in self.engines)
        return not failing and not any(finding.error for finding in self.findings)

    @property
    def codes(self) -> list[str]:
        """Codes that fired, sorted, each once."""
        return sorted({finding.code for finding in self.findings})

    def serving(self, engines: Collection[str]) -> Inspection:
        """The same for these engines only: findings that strike others alone are left out."""
        return replace(
            self,
            engines=tuple(line for line in self.engines if line.engine in engines),
            findings=tuple(
                f for f in self.findings if not f.engines or set(f.engines) & set(engines)
            ),
            strict=True,
        )

    def without(self, codes: Iterable[str]) -> Inspection:
        """The same without the findings of these codes or prefixes."""
        left_out = tuple(code.strip().upper() for code in codes)
        if not left_out:
            return self
        return replace(
            self,
            findings=tuple(f for f in self.findings if not f.code.startswith(left_out)),
            ran=tuple(rule for rule in self.ran if not rule.code.startswith(left_out)),
        )

    def to_dict(self) -> dict[str, Any]:
        """The stable JSON form."""
        from dataclasses import asdict

        return {
            "subject": str(self.subject),
            "sound": self.sound,
            "facts": dict(self.facts),
            "layers": dict(self.layers),
            "engines": [asdict(line) for line in self.engines],
            "findings": [finding.to_dict() for finding in self.findings],
            "rules_run": [rule.code for rule in self.ran],
            "notes": list(self.notes),
        }

    def report(self, *, seconds: float = 0.0, versions: Mapping[str, str] | None = None) -> Report:
        """The report of the audit over these findings, for its machine formats."""
        import polars as pl

        from eagle3_data.audit.columns import DETAIL_CHARS, FINDINGS_SCHEMA, LIGHT_SCHEMA
        from eagle3_data.audit.judge import Judged, finish
        from eagle3_data.audit.report import ProfileFacts, write_up

        files = list(dict.fromkeys([self.subject, *(f.place for f in self.findings)]))
        rows = [
            (
                f.code, f.rule.name, f.rule.severity.value, files.index(f.place),
                None, None, None, None, None, f.at or f.rule.at, f.detail[:DETAIL_CHARS], None,
            )
            for f in self.findings
        ]  # fmt: skip
        frame = pl.DataFrame(rows, schema=FINDINGS_SCHEMA, orient="row")
        outcome = finish(Judged(frame, pl.DataFrame(schema=LIGHT_SCHEMA)))
        lines = [
            f"{e.engine}: loads {e.loads}, right {e.right}: {e.why}"
            + (f"; {e.change}" if e.change else "")
            for e in self.engines
        ]
        return write_up(
            outcome,
            paths=[str(path) for path in files],
            sizes=[path.stat().st_size if path.is_file() else 0 for path in files],
            profile=ProfileFacts("none", "a drafter is not judged by a profile", ""),
            tokenizer=None,
            rules_run=self.ran,
            notes=[*lines, *self.notes],
            seconds=seconds,
            versions=versions,
        )


def rules_of(families: Collection[str]) -> tuple[Rule, ...]:
    """The rules of these families, by code."""
    return tuple(rule for rule in DRAFT_RULES.values() if rule.family in families)
