"""The call of `generate` with its options in place, from the first connection to the manifest.

What enters: prompts, a way to ask, a plan. What leaves: rows, errors, the manifest, an exit code.
It promises that nothing is sent before output, prompts, servers and model family are known to be
right, and, unless told otherwise, the probe has found the servers sound.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3_data.cli import console
from eagle3_data.cli.faults import Exit

if TYPE_CHECKING:
    from eagle3_data.capture.generate import Outcome, Plan
    from eagle3_data.capture.journal import Journal
    from eagle3_data.capture.manifest import Facts
    from eagle3_data.capture.pool import Lane
    from eagle3_data.capture.prompts import Prompts
    from eagle3_data.capture.request import Settings
    from eagle3_data.capture.session import Way
    from eagle3_data.capture.stop import StopOn
    from eagle3_data.profiles.profile import Profile
    from eagle3_data.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the command, options in place."""

    prompts: Prompts
    out: Path
    way: Way
    plan: Plan
    options: dict[str, Any]
    extra: dict[str, Any]
    thinking: bool | None
    profile: str | None
    tokenizer: str | None
    chat_template: str | None
    samples: int
    limit: int | None
    resume: bool
    probe: bool
    stops: list[StopOn]
    json: bool
    quiet: bool

    async def run(self) -> int:
        """Everything from the first connection to the manifest; the exit code."""
        from eagle3_data import plan
        from eagle3_data.capture.jobs import survey
        from eagle3_data.capture.journal import open_journal
        from eagle3_data.capture.manifest import Facts
        from eagle3_data.capture.request import Settings
        from eagle3_data.capture.session import open_lanes, refuse_foreign
        from eagle3_data.capture.thinking import switch
        from eagle3_data.profiles.choose import choose

        started = datetime.now(UTC)
        encoder = plan.tokenizer(self.tokenizer)  # a wrong folder is told before anything is sent
        journal = open_journal(self.out, resume=self.resume, secret=self.way.secret)
        lanes: list[Lane] = []
        try:
            for note in journal.notes:
                console.note(note)
            lanes = await open_lanes(self.way)
            chosen = plan.fitting(
                choose(self.profile, [lanes[0].server.model]), encoder, self.profile
            )
            if chosen.note:
                console.note(chosen.note)
            settings = Settings(
                lanes[0].server.model,
                self.options,
                switch(chosen.profile, self.thinking),
                self.extra,
            )
            seen = None
            if self.prompts.files:  # a dataset is not streamed twice
                seen = survey(
                    self.prompts, settings, samples=self.samples, limit=self.limit,
                    stored=journal.stored,
                )  # fmt: skip
                refuse_foreign(journal, seen, settings.common())
                self._tell_survey(seen.repeated, seen.first_repeated, dict(seen.own))
            facts = Facts(self.prompts, settings.common(), self._told(), seen, started)
            open_end = seen is None or seen.stored < seen.jobs
            if self.probe and open_end and await self._faulty(lanes, chosen.profile, encoder):
                return Exit.FINDINGS
            return await self._ask(journal, lanes, settings, facts, encoder)
        finally:
            journal.close()
            for lane in lanes:
                await lane.sender.client.close()

    async def _ask(
        self,
        journal: Journal,
        lanes: list[Lane],
        settings: Settings,
        facts: Facts,
        encoder: Tokenizer | None,
    ) -> int:
        """Run over the jobs under the eyes of the live check, then settle the files."""
        from eagle3_data.capture import manifest
        from eagle3_data.capture.generate import Ended, Run, Watch
        from eagle3_data.capture.jobs import jobs
        from eagle3_data.capture.journal import JournalError
        from eagle3_data.capture.live import Live
        from eagle3_data.capture.pool import Pool
        from eagle3_data.cli.live_display import display

        total, done = (
            (None, 0) if facts.survey is None else (facts.survey.jobs, facts.survey.stored)
        )
        with ExitStack() as stack:
            stack.enter_context(_few_collections())
            live = stack.enter_context(
                Live(
                    self.profile,
                    encoder,
                    chat_template=self.chat_template,
                    stop_on=self.stops,
                )
            )
            shown = stack.enter_context(
                display(total, done=done, tally=lambda: live.tally, quiet=self.quiet)
            )

            def stored(line: bytes, tokens: int) -> None:
                live.feed(line)
                shown.row(tokens)

            def given_up() -> None:
                shown.given_up += 1

            watch = Watch(stored, shown.error, given_up, live.tripped, console.note)
            run = Run(Pool(lanes, self.plan.most, console.note), journal, self.plan, watch)
            wanted = jobs(self.prompts, settings, samples=self.samples, limit=self.limit)
            try:
                outcome = await run.go(wanted)
                live.close()  # judges the last rows too, before the display's last line
                if outcome.ended is Ended.DONE and (passed := live.tripped()) is not None:
                    outcome.ended, outcome.reason = Ended.STOPPED, passed
            finally:
                try:
                    journal.settle()
                    journal.flush()
                    found = manifest.made(facts, journal, lanes, run.outcome)
                    manifest.write(found, self.out)
                except OSError as error:
                    raise JournalError(
                        f"{self.out.parent}: the disk does not take the files beside"
                        f" {self.out.name} ({error.strerror or error}): make room and run the same"
                        " command with --resume; the rows that were stored are whole"
                    ) from None
        if live.fault is not None:
            console.note(f"the live check gave up, the rows are not touched by it: {live.fault}")
        if self.json:
            console.data(found)
        return self._end(outcome, journal)

    def _told(self) -> dict[str, Any]:
        """Settings beside the body, for the manifest."""
        return {
            "profile": self.profile, "thinking": self.thinking, "samples": self.samples,
            "stream": self.way.stream, "retry_cut": self.plan.cut, "limit": self.limit,
            "concurrency": self.way.concurrency or "auto", "attempts": self.plan.attempts,
            "timeout": self.way.timeout, "probed": self.probe,
            "stop_on": [stop.text for stop in self.stops],
        }  # fmt: skip

    def _tell_survey(self, repeated: int, first: str | None, own: dict[str, int]) -> None:
        if repeated:
            console.note(
                f"{repeated} prompts stand in the file before (the first is {first}): asked once;"
                " for several answers to a prompt pass --samples"
            )
        if own and not self.quiet:
            console.note(
                f"the prompts carry settings of their own ({', '.join(sorted(own))}): not used, the"
                " options of this command decide"
            )

    async def _faulty(self, lanes: list[Lane], profile: Profile, encoder: Tokenizer | None) -> bool:
        """Probe each server, and take the way to ask for ids that it proves. True when a capture
        would be faulty.
        """
        from eagle3_data import plan
        from eagle3_data.capture.probe import probe
        from eagle3_data.capture.session import proven
        from eagle3_data.cli.probe import table

        template = plan.template_text(self.chat_template)
        asked = [
            probe(
                lane.sender.client,
                lane.server,
                profile=profile,
                tokenizer=encoder,
                chat_template=template,
                thinking=self.thinking,
            )
            for lane in lanes
        ]
        faulty = False
        for lane, found in zip(lanes, await asyncio.gather(*asked), strict=True):
            url = lane.server.base_url
            if self.way.ids:
                lane.ids = proven(found.ids_body, stream=self.way.stream)
                if found.ids_body and not lane.ids:
                    console.note(f"{url}: gives token ids without --stream only")
            if found.faulty:
                faulty = True
                console.note(f"{url}:\n{table(found)}")
            elif not self.quiet:
                ids = "token ids arrive" if found.ids_body else "no token ids"
                console.note(
                    f"{url}: probe sound, thought in {found.thought_field or 'no field'}, {ids}"
                )
        if faulty:
            console.note(
                "no prompt was sent, a capture would be faulty: mend it as the table says, or pass"
                " --no-probe to capture all the same"
            )
        return faulty

    def _end(self, outcome: Outcome, journal: Journal) -> int:
        """Say how it ended, even when quiet, unless all is well."""
        from eagle3_data.capture.generate import Ended

        again = "the same command with --resume goes on"
        if outcome.ended is Ended.INTERRUPTED:
            console.note(f"{self.out}: interrupted with {len(journal.stored)} rows stored; {again}")
            return Exit.INTERRUPTED
        if outcome.ended is Ended.STOPPED and outcome.whole:
            console.note(f"{self.out}: {len(journal.stored)} rows, but {outcome.reason}")
            return Exit.FINDINGS
        if outcome.ended is Ended.STOPPED:
            console.note(
                f"stopped: {outcome.reason}. {len(journal.stored)} rows are stored; {again}"
            )
            return Exit.FINDINGS
        if journal.failed:
            console.note(
                f"{len(journal.failed)} rows failed, see {journal.errors_path}; --resume asks for"
                " them again"
            )
            return Exit.FINDINGS
        if not self.quiet:
            console.note(f"{self.out}: {len(journal.stored)} rows")
        return Exit.CLEAN


@contextmanager
def _few_collections() -> Iterator[None]:
    """The collector leaves out what the imports made, and looks less often: a sixth of the
    processor time of a row went into walking the same modules again and again.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
