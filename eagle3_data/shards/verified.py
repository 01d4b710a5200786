"""What `verify` found, in the two frames of the audit, so that one report serves both.

What enters: findings and light rows of a verification. What leaves: a findings frame, one light row
a sample, a `Report`. A sample's `line` is its row in the shard, from 1; a finding on a whole file
has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from eagle3_data.audit.columns import DETAIL_CHARS, FINDINGS_SCHEMA
from eagle3_data.audit.rules.registry import Rule, Severity
from eagle3_data.shards.rules import SHARD_RULES

if TYPE_CHECKING:
    from eagle3_data.audit.report import Report
    from eagle3_data.shards.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that fired on a file (`row` None) or on a sample (its light row)."""

    code: str
    file_no: int
    detail: str
    row: Mapping[str, Any] | None = None


@dataclass(slots=True, eq=False, repr=False)
class Verification:
    """What `verify` found; as text it is the report.

    `paths`: shards in the order of the manifest, the manifest, entries that have no business there;
    `file_no` is the place in it. `light`: light rows, one frame a row group. `manifest`: None when
    it could not be read.
    """

    directory: Path
    paths: list[Path]
    manifest: Manifest | None
    findings: list[Finding] = field(default_factory=list)
    light: list[pl.DataFrame] = field(default_factory=list)
    texts_compared: bool = False

    @property
    def sound(self) -> bool:
        """Nothing of error level was found."""
        return all(SHARD_RULES[f.code].severity is not Severity.ERROR for f in self.findings)

    @property
    def exit_code(self) -> int:
        """That of the report: 0 sound, 1 errors found. What is 2 on the command line, a call that
        can not be answered, is an exception here.
        """
        return 0 if self.sound else 1

    @property
    def codes(self) -> list[str]:
        """Codes that fired, sorted, each once."""
        return sorted({finding.code for finding in self.findings})

    def rows(self) -> pl.DataFrame:
        """One light row a sample that could be read, in order."""
        schema = {
            "file_no": pl.Int32,
            "line": pl.Int64,
            "record_id": pl.String,
            "split": pl.String,
            "conversation_id": pl.String,
            "status": pl.String,
        }
        return pl.concat(self.light) if self.light else pl.DataFrame(schema=schema)

    def frame(self) -> pl.DataFrame:
        """The findings with the columns of `FINDINGS_SCHEMA`."""
        rows = [_entry(finding) for finding in self.findings]
        return pl.DataFrame(rows, schema=FINDINGS_SCHEMA, orient="row")

    def report(
        self,
        *,
        seconds: float = 0.0,
        versions: Mapping[str, str] | None = None,
    ) -> Report:
        """The report of the audit over these findings: the same formats, the same exit codes."""
        from eagle3_data.audit.judge import Judged, finish, light
        from eagle3_data.audit.report import (
            ProfileFacts,
            RuleNotRun,
            TokenizerFacts,
            write_up,
        )

        outcome = finish(Judged(self.frame(), light(self.rows())))
        facts = self.manifest.facts if self.manifest else None
        return write_up(
            outcome,
            paths=[str(path) for path in self.paths],
            sizes=[path.stat().st_size if path.is_file() else 0 for path in self.paths],
            profile=ProfileFacts(facts.profile, "named in the shards", facts.profile_hash)
            if facts
            else ProfileFacts("unknown", "the manifest can not be read", ""),
            tokenizer=TokenizerFacts(facts.tokenizer, "", "", facts.tokenizer_hash)
            if facts
            else None,
            rules_run=tuple(self._ran()),
            rules_not_run=[
                RuleNotRun(rule.code, rule.name, "needs a tokenizer")
                for rule in SHARD_RULES.values()
                if rule.needs_tokens and not self.texts_compared
            ],
            seconds=seconds,
            versions=versions,
        )

    def __str__(self) -> str:
        return str(self.report())

    def __repr__(self) -> str:
        shards = len(self.manifest.shards) if self.manifest else "unknown"
        samples = sum(frame.height for frame in self.light)
        return (
            f"<Verification of {self.directory}: shards {shards}, samples read {samples},"
            f" exit {self.exit_code}{''.join(f', {code}' for code in self.codes)}>"
        )

    def _ran(self) -> Iterable[Rule]:
        return (r for r in SHARD_RULES.values() if self.texts_compared or not r.needs_tokens)


def _entry(finding: Finding) -> tuple[Any, ...]:
    rule, row = SHARD_RULES[finding.code], finding.row or {}
    return (
        rule.code,
        rule.name,
        rule.severity.value,
        finding.file_no,
        row.get("line"),
        None,
        row.get("choice"),
        row.get("turn"),
        row.get("record_id"),
        rule.at,
        finding.detail[:DETAIL_CHARS],
        row.get("supervised_tokens"),
    )
