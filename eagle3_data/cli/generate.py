"""`generate`: prompts are asked of one or more servers, and every answer is stored whole.

What enters: prompts, addresses, options. What leaves: the rows in the file, a display on stderr, an
exit code: 0 every row is stored, 1 some failed or the run was stopped, 2 the call can not work, 130
interrupted. It promises that the same command with --resume goes on wherever a run ended.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3_data.cli import console, options
from eagle3_data.cli.faults import Exit, UsageFault

if TYPE_CHECKING:
    from eagle3_data.capture.generate import Outcome, Plan
    from eagle3_data.capture.journal import Journal
    from eagle3_data.capture.manifest import Facts
    from eagle3_data.capture.pool import Lane
    from eagle3_data.capture.prompts import Prompts
    from eagle3_data.capture.request import Settings
    from eagle3_data.capture.session import Way
    from eagle3_data.capture.stop import StopOn


class Switch(StrEnum):
    """Thinking on or off."""

    ON = "on"
    OFF = "off"


def generate(
    prompts: Annotated[
        str,
        typer.Argument(
            metavar="PROMPTS",
            help="JSONL of any shape that check knows, .parquet, .txt (a prompt a line), - for"
            " standard input, or owner/name[:split] of a dataset.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="Where the rows go (.jsonl).")
    ],
    base_url: Annotated[
        list[str],
        typer.Option(metavar="URL", help="A server, http://host:port/v1 (repeatable)."),
    ],
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model to ask; the served one unless set.")
    ] = None,
    profile: options.Profile = None,
    tokenizer: options.Tokenizer = None,
    thinking: Annotated[
        Switch | None, typer.Option(help="Turn thinking on or off by the profile's own switch.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Sampling temperature.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Nucleus sampling.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k likeliest tokens.")] = None,
    min_p: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Least share of the likeliest token.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; sample k is drawn with seed + k.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Most tokens of an answer.")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Stop string (repeatable).")
    ] = None,
    extra_body: Annotated[
        str | None, typer.Option(metavar="JSON", help="Further keys of every request, one object.")
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, metavar="N", help="Answers for each prompt, each a row.")
    ] = 1,
    retry_cut: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Ask once more with N tokens when an answer was cut."
        ),
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream/--no-stream", help="Receive answers as they are made.")
    ] = False,
    ids: Annotated[
        bool, typer.Option("--ids/--no-ids", help="Ask for token ids where a server has them.")
    ] = True,
    concurrency: Annotated[
        str, typer.Option(metavar="N|auto", help="Requests in flight at each server.")
    ] = "auto",
    attempts: Annotated[
        int, typer.Option(min=1, metavar="N", help="Attempts at a row before it has failed.")
    ] = 5,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="S", help="Seconds without a byte end an attempt.")
    ] = 600.0,
    max_failures: Annotated[
        int, typer.Option(min=1, metavar="N", help="Failures in a row that drop a server.")
    ] = 16,
    grace: Annotated[
        float, typer.Option(min=0.0, metavar="S", help="Seconds to finish after Ctrl-C.")
    ] = 30.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an output; failed rows are asked again.")
    ] = False,
    probe: Annotated[
        bool, typer.Option("--probe/--no-probe", help="Probe the servers before the first prompt.")
    ] = True,
    stop_on: options.StopOn = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N prompts.")
    ] = None,
    accept_model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Model name that answers may carry too (repeatable)."),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Variable with the key (EAGLE3_API_KEY, OPENAI_API_KEY)."
        ),
    ] = None,
    json: options.Json = False,
    config: options.Config = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Ask a served model and store what it says: request, whole response, ids, server, per row.

    \b
    Examples:
      eagle3-data generate prompts.jsonl -o raw_responses.jsonl --base-url http://127.0.0.1:8000/v1
      eagle3-data generate prompts.jsonl -o raw.jsonl --base-url http://a:8000 --base-url http://b:8000
      eagle3-data generate prompts.jsonl -o raw_responses.jsonl --base-url … --resume
    """
    from eagle3_data.capture.missing import needed

    with needed("tenacity", "openai", "httpx2"):
        from eagle3_data.capture.generate import Plan
    from eagle3_data.capture.prompts import open_prompts
    from eagle3_data.capture.request import parse_extra
    from eagle3_data.capture.server import key_from
    from eagle3_data.capture.session import Way
    from eagle3_data.capture.stop import StopOn
    from eagle3_data.cli.config import Settings, located, read

    file = located(config)
    fixed = read(file) if file else Settings()
    sampling = {
        "temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p, "seed": seed,
        "max_tokens": max_tokens, "stop": stop or None,
    }  # fmt: skip
    if retry_cut is not None and max_tokens is not None and retry_cut <= max_tokens:
        raise UsageFault(f"--retry-cut {retry_cut} is not more than --max-tokens {max_tokens}")
    way = Way(
        base_url, model, key_from(api_key_env), timeout, stream, _concurrency(concurrency), ids,
        tuple(accept_model or ()),
    )  # fmt: skip
    if verbose:
        console.note(f"settings: {file or 'none, defaults in force'}")
    call = Call(
        prompts=open_prompts(prompts),
        out=out,
        way=way,
        plan=Plan(attempts, max_failures, grace, retry_cut, stream),
        options={name: value for name, value in sampling.items() if value is not None},
        extra=parse_extra(extra_body) if extra_body is not None else {},
        thinking=None if thinking is None else thinking is Switch.ON,
        profile=profile or fixed.profile,
        tokenizer=tokenizer or fixed.tokenizer,
        samples=samples,
        limit=limit,
        resume=resume,
        probe=probe,
        stops=[StopOn.parse(text) for text in stop_on or ()],
        json=json,
        quiet=quiet,
    )
    raise typer.Exit(asyncio.run(call.run()))


def _concurrency(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UsageFault(f"--concurrency {text}: give a number from 1 on, or auto")
    return int(text)


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
    samples: int
    limit: int | None
    resume: bool
    probe: bool
    stops: list[StopOn]
    json: bool
    quiet: bool

    async def run(self) -> int:
        """Everything from the first connection to the manifest; the exit code."""
        from eagle3_data.capture.jobs import survey
        from eagle3_data.capture.journal import open_journal
        from eagle3_data.capture.manifest import Facts
        from eagle3_data.capture.session import open_lanes, refuse_foreign

        started = datetime.now(UTC)
        journal = open_journal(self.out, resume=self.resume, secret=self.way.secret)
        lanes: list[Lane] = []
        try:
            for note in journal.notes:
                console.note(note)
            lanes = await open_lanes(self.way)
            settings = self._settings(lanes[0].server.model)
            seen = None
            if self.prompts.files:  # a dataset is not streamed twice
                seen = survey(
                    self.prompts, settings, samples=self.samples, limit=self.limit,
                    stored=journal.stored,
                )  # fmt: skip
                refuse_foreign(journal, seen, settings.common())
                self._tell_survey(seen.repeated, seen.first_repeated, dict(seen.own))
            facts = Facts(self.prompts, settings.common(), self._told(), seen, started)
            if self.probe and (seen is None or seen.stored < seen.jobs):
                faulty = await self._probe(lanes)
                if faulty:
                    return Exit.FINDINGS
            return await self._ask(journal, lanes, settings, facts)
        finally:
            journal.close()
            for lane in lanes:
                await lane.sender.client.close()

    async def _ask(
        self, journal: Journal, lanes: list[Lane], settings: Settings, facts: Facts
    ) -> int:
        """Run over the jobs under the eyes of the live check, then settle the files."""
        from eagle3_data.capture import manifest
        from eagle3_data.capture.generate import Run, Watch
        from eagle3_data.capture.jobs import jobs
        from eagle3_data.capture.live import Live
        from eagle3_data.capture.pool import Pool
        from eagle3_data.cli.live_display import display

        total, done = (
            (None, 0) if facts.survey is None else (facts.survey.jobs, facts.survey.stored)
        )
        with ExitStack() as stack:
            live = stack.enter_context(Live(self.profile, self.tokenizer, stop_on=self.stops))
            shown = stack.enter_context(
                display(total, done=done, tally=lambda: live.tally, quiet=self.quiet)
            )

            def stored(line: bytes, tokens: int) -> None:
                live.feed(line)
                shown.row(tokens)

            watch = Watch(
                stored,
                lambda kind, final: shown.error(kind, final=final),
                live.tripped,
                console.note,
            )
            run = Run(Pool(lanes, self.plan.most, console.note), journal, self.plan, watch)
            wanted = jobs(self.prompts, settings, samples=self.samples, limit=self.limit)
            try:
                outcome = await run.go(wanted)
            finally:
                journal.settle()
                journal.flush()
                found = manifest.made(facts, journal, lanes, run.outcome)
                manifest.write(found, self.out)
        if live.fault is not None:
            console.note(f"the live check gave up, the rows are not touched by it: {live.fault}")
        if self.json:
            console.data(found)
        return self._end(outcome, journal)

    def _settings(self, model: str) -> Settings:
        from eagle3_data.capture.request import Settings
        from eagle3_data.capture.thinking import switch
        from eagle3_data.profiles.choose import choose

        chosen = choose(self.profile, [model])
        return Settings(model, self.options, switch(chosen.profile, self.thinking), self.extra)

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

    async def _probe(self, lanes: list[Lane]) -> bool:
        """Probe each server; True when a capture would be faulty."""
        return False

    def _end(self, outcome: Outcome, journal: Journal) -> int:
        """Say how it ended, even when quiet, unless all is well."""
        from eagle3_data.capture.generate import Ended

        again = "the same command with --resume goes on"
        if outcome.ended is Ended.INTERRUPTED:
            console.note(f"{self.out}: interrupted with {len(journal.stored)} rows stored; {again}")
            return Exit.INTERRUPTED
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
