"""Prompt ids of a batch: captured, else rendered by the chat template, else laid out by the
profile, else none.

What enters: the request columns of a record frame. What leaves: `Prompts`, one entry a row.
It promises that a control marker quoted in a request text never becomes a control id silently (it
is told in `quotes`, and only the server's own prompt count can decide for the server's reading),
and that a template which fails on a request costs one record its prompt and a reason, never the
run. A template that does not compile is refused before the first record.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from eagle3_data.records.table import Note
from eagle3_data.tokens.markers import Markers
from eagle3_data.tokens.ragged import Ragged
from eagle3_data.tokens.render import TemplateFault, clock, compile_template, render
from eagle3_data.tokens.request import Quotes, Request, RequestFault, request
from eagle3_data.tokens.samples import NO_REQUEST, PromptSource

if TYPE_CHECKING:
    from eagle3_data.profiles.profile import Profile
    from eagle3_data.tokens.tokenizer import Tokenizer

Ids = NDArray[np.int32]

NON_TEXT = int(Note.CONTENT_NON_TEXT)
COLUMNS = (
    "messages_json", "prompt_text", "system_text", "tools_json", "template_kwargs_json",
    "settings_json", "created", "prompt_tokens", "notes",
)  # fmt: skip


@dataclass(slots=True)
class Prompt:
    """The prompt of one row. `rendered`: tokens of our own rendering, None when there is none
    (`reason` says why).
    """

    source: PromptSource = PromptSource.NONE
    ids: Ids | None = None
    rendered: int | None = None
    match: bool | None = None
    quotes: bool = False
    reason: str | None = None


@dataclass(slots=True)
class _Job:
    """A rendered text on its way to ids. `pieces`: the quoted reading, (text, special parsing)
    in order.
    """

    prompts: list[Prompt]
    text: str
    source: PromptSource
    expected: list[int | None]
    pieces: list[tuple[str, bool]] | None = None


class PromptBuilder:
    """Builds the prompts of one profile, one tokenizer, one chat template (None: the profile's
    own layout). Raises TemplateFault when the template does not compile.
    """

    def __init__(
        self, profile: Profile, tokenizer: Tokenizer, markers: Markers, chat_template: str | None
    ) -> None:
        self._layout = profile.prompt
        self._message = re.split(r"(\{role\}|\{content\})", profile.prompt.message or "")
        self._tokenizer = tokenizer
        self._source = chat_template or ""
        self._template = None if chat_template is None else compile_template(chat_template)
        self._clock = "strftime_now" in self._source
        self._reads_parts = " is string" in self._source or " is not string" in self._source
        named = (text for text in tokenizer.template_globals.values() if text)
        controls = dict.fromkeys(
            [*markers.ids, *(t for t in named if tokenizer.token_id(t) is not None)]
        )
        self._quotes = Quotes(list(controls))
        self._seams = (
            re.compile("(" + "|".join(map(re.escape, self._quotes.controls)) + ")")
            if controls
            else None
        )

    def texts(self, records: pl.DataFrame) -> list[str]:
        """The prompts of `records` as text, thinking on; those that can not be built are left out.
        `records` needs the request columns only.
        """
        out: list[str] = []
        for *texts, created in records.select(*COLUMNS[:-3], "created").iter_rows():
            try:
                out.append(
                    self._written(request(*texts, parts=self._reads_parts), created, True)[0]
                )
            except (TemplateFault, RequestFault, RecursionError):
                continue
        return out

    def build(
        self, records: pl.DataFrame, thinking: Sequence[bool], captured: Sequence[Ids | None]
    ) -> list[Prompt]:
        """One `Prompt` a row of `records`. `captured`: the server's own prompt ids of each row,
        None without.
        """
        prompts = [Prompt() for _ in range(records.height)]
        jobs: dict[object, _Job] = {}
        columns = [records.get_column(name).to_list() for name in COLUMNS]
        suspects = self._suspects(records)
        for i, row in enumerate(zip(*columns, strict=True)):
            *texts, created, expected, notes = row
            prompt = prompts[i]
            if texts[0] is None and texts[1] is None:
                prompt.reason = NO_REQUEST
                continue
            key = (*texts, thinking[i], created if self._clock else None)
            job = jobs.get(key)
            if job is not None:
                first = job.prompts[0]
                prompt.quotes, prompt.reason = first.quotes, first.reason
                job.prompts.append(prompt)
                job.expected.append(expected)
                continue
            try:
                if notes & NON_TEXT and texts[0] is not None and "_url" in texts[0]:
                    raise RequestFault("a message holds parts that are no text (image, audio)")
                jobs[key] = self._job(prompt, texts, suspects[i], created, expected, thinking[i])
            except (TemplateFault, RequestFault, RecursionError) as fault:
                prompt.reason = " ".join(str(fault).split())[:240]
        self._encode(list(jobs.values()))
        for prompt, own in zip(prompts, captured, strict=True):
            if own is not None:
                prompt.match = None if prompt.ids is None else np.array_equal(prompt.ids, own)
                prompt.source, prompt.ids = PromptSource.CAPTURED, own
        return prompts

    def _suspects(self, records: pl.DataFrame) -> list[bool]:
        """Rows whose request may spell a marker. JSON text may hide one behind an escape, so
        escapes are suspect too.
        """
        if not self._quotes.controls:
            return [False] * records.height
        wanted = [*self._quotes.controls, "\\u"]
        names = ("messages_json", "prompt_text", "system_text", "tools_json")
        hits = [pl.col(n).str.contains_any(wanted).fill_null(False) for n in names]
        return records.select(pl.any_horizontal(hits)).to_series().to_list()

    def _job(
        self,
        prompt: Prompt,
        texts: list[Any],
        suspect: bool,
        created: int | None,
        expected: int | None,
        thinking: bool,
    ) -> _Job:
        asked = request(*texts, parts=self._reads_parts)
        text, source = self._written(asked, created, thinking)
        job = _Job([prompt], text, source, [expected])
        if suspect and self._quotes.spelled(asked):
            prompt.quotes = True
            hidden, back = self._quotes.hidden(asked)
            job.pieces = self._pieces(self._written(hidden, created, thinking)[0], back)
        return job

    def _written(
        self, asked: Request, created: int | None, thinking: bool
    ) -> tuple[str, PromptSource]:
        if self._template is None:
            return self._laid_out(asked, thinking), PromptSource.LAYOUT
        variables: dict[str, object] = {
            "documents": None, **self._tokenizer.template_globals, **asked.kwargs,
            "messages": asked.messages, "tools": asked.tools, "add_generation_prompt": True,
        }  # fmt: skip
        if self._clock:
            variables["strftime_now"] = clock(created)
        try:
            return render(self._template, variables), PromptSource.TEMPLATE
        except TemplateFault as fault:
            raise TemplateFault(f"template: {fault}") from fault

    def _laid_out(self, asked: Request, thinking: bool) -> str:
        layout = self._layout
        tail = layout.thinking_on if thinking else layout.thinking_off
        if layout.message is None or tail is None:
            raise RequestFault("no chat template, and the profile has no layout for this mode")
        if asked.tools is not None:
            raise RequestFault("no chat template, and a layout can not declare tools")
        messages = asked.messages
        if layout.default_system and (not messages or messages[0].get("role") != "system"):
            messages = [{"role": "system", "content": layout.default_system}, *messages]
        out = [layout.bos]
        for message in messages:
            role, content = message.get("role"), message["content"]
            if role not in ("system", "user", "assistant") or not isinstance(content, str):
                raise RequestFault(
                    f"no chat template, and a layout has no place for the role {str(role)[:40]!r}"
                )
            if message.get("tool_calls"):
                raise RequestFault("no chat template, and a layout can not write tool calls")
            out += [
                role if p == "{role}" else content if p == "{content}" else p for p in self._message
            ]
        return "".join([*out, tail])

    def _pieces(self, rendered: str, back: dict[str, str]) -> list[tuple[str, bool]]:
        """Split at the template's own markers; a piece with a sentinel gets its text back and is
        encoded as plain text.
        """
        pieces = [rendered] if self._seams is None else self._seams.split(rendered)
        table = {ord(char): control for char, control in back.items()}
        out: list[tuple[str, bool]] = []
        for piece in pieces:
            if piece:
                text = piece.translate(table)
                out.append((text, text == piece))
        return out

    def _encode(self, jobs: list[_Job]) -> None:
        whole = self._tokenizer.encode_marked([job.text for job in jobs]) if jobs else None
        if whole is None:
            return
        quoted = [job for job in jobs if job.pieces is not None]
        plain = self._pool(
            [t for job in quoted for t, special in job.pieces or () if not special], marked=False
        )
        marked = self._pool(
            [t for job in quoted for t, special in job.pieces or () if special], marked=True
        )
        for i, job in enumerate(jobs):
            served = whole[i]
            own = served
            if job.pieces is not None:
                own = np.concatenate(
                    [(marked if special else plain)[text] for text, special in job.pieces]
                )
            for prompt, expected in zip(job.prompts, job.expected, strict=True):
                # The server's reading is taken only where its own count fits it and not ours.
                as_served = expected is not None and len(served) == expected != len(own)
                prompt.ids = served if as_served else own
                prompt.rendered, prompt.source = len(prompt.ids), job.source

    def _pool(self, texts: list[str], *, marked: bool) -> dict[str, Ids]:
        distinct = list(dict.fromkeys(texts))
        encode = self._tokenizer.encode_marked if marked else self._tokenizer.encode
        ragged: Ragged = (
            encode(distinct) if distinct else Ragged(np.empty(0, np.int32), np.zeros(1, np.int64))
        )
        return {text: ragged[i] for i, text in enumerate(distinct)}
