"""Assembly: the record table of a batch → the sample table, row for row.

What enters: records, a profile, a tokenizer, a chat template or none. What leaves:
`SAMPLE_COLUMNS`.
It promises that captured ids are used as they are, that re-assembled ids carry a grade no better
than their proof, and that a record which can not be assembled costs a null row and never the batch.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from eagle3_data.records.table import ID_ROWS, Note, Status
from eagle3_data.tokens.answers import answers, thinks
from eagle3_data.tokens.candidates import Answer
from eagle3_data.tokens.columns import rows_of
from eagle3_data.tokens.decide import Decision, Pool, decide
from eagle3_data.tokens.frame import Sample, Samples
from eagle3_data.tokens.grammar import grammar
from eagle3_data.tokens.markers import resolve
from eagle3_data.tokens.prompt import PromptBuilder
from eagle3_data.tokens.render import TemplateFault
from eagle3_data.tokens.samples import IMPORTED, Grade
from eagle3_data.tokens.servers import counts_stop_token

if TYPE_CHECKING:
    from eagle3_data.profiles.profile import Profile
    from eagle3_data.tokens.tokenizer import Tokenizer

Ids = NDArray[np.int32]
ERROR_BODY, REDACTED = int(Note.ERROR_BODY), int(Note.REASONING_REDACTED)
FACTS = ("status", "notes", "server", "completion_tokens", "prompt_tokens", "shape")


class Assembler:
    """Turns record frames into sample frames for one profile, tokenizer and chat template.

    `chat_template`: overrides the tokenizer's own. `want_ids=False` leaves `input_ids`, `loss_mask`
    and `spans` null and fills everything else. Raises MarkerMismatch when the profile and the
    tokenizer do not belong together, TemplateFault when the chat template does not compile.
    `template_sha256`: of the template in force, None without one.
    """

    def __init__(
        self,
        profile: Profile,
        tokenizer: Tokenizer,
        *,
        chat_template: str | None = None,
        want_ids: bool = True,
    ) -> None:
        self._again = partial(Assembler, chat_template=chat_template, want_ids=want_ids)
        self._profile, self._tokenizer = profile, tokenizer
        self._markers = resolve(profile, tokenizer)
        self._grammar = grammar(profile, self._markers)
        template = chat_template if chat_template is not None else tokenizer.chat_template
        self.template_sha256 = None if template is None else sha256(template.encode()).hexdigest()
        try:
            self.prompts = PromptBuilder(profile, tokenizer, self._markers, template)
        except TemplateFault as fault:
            place = "" if chat_template is not None else f"{tokenizer.path}: "
            raise TemplateFault(
                f"{place}the chat template does not compile ({fault}): "
                "give the server's own with --chat-template FILE"
            ) from fault
        self._samples = Samples(self._grammar, tokenizer, want_ids=want_ids)

    def __reduce__(self) -> tuple[partial[Assembler], tuple[Profile, Tokenizer]]:
        """Travels to another process as what it was made of."""
        return self._again, (self._profile, self._tokenizer)

    def assemble(self, records: pl.DataFrame) -> pl.DataFrame:
        """The sample columns of `records`: same height, same order."""
        thinking = thinks(records, self._profile)
        found = answers(records, self._profile, self._markers, thinking)
        captured = rows_of(records.get_column("completion_ids"))
        facts = list(zip(*(records.get_column(name).to_list() for name in FACTS), strict=True))
        counts = [row[3] for row in facts]
        counted = [counts_stop_token(self._profile, row[2]) for row in facts]
        pool = Pool(self._tokenizer)
        decisions = decide(found, counts, counted, self._grammar, pool)
        asked = rows_of(records.get_column("prompt_ids"))
        prompts = self.prompts.build(records, thinking, asked)
        rows: list[Sample | None] = []
        for i, (status, notes, _, count, prompt_count, shape) in enumerate(facts):
            answer, decision, own = found[i], decisions[i], captured[i]
            stream = None if decision is None else decision.stream
            usable = status == Status.RECORD and not notes & ERROR_BODY
            if not usable or (own is None and stream is None):
                rows.append(None)
                continue
            inside = thinking[i]
            if own is not None:
                grade, reason = self._captured_grade(own, count, counted[i])
                if shape in ID_ROWS and grade is Grade.A:
                    grade, reason = Grade.D, IMPORTED
            else:
                assert decision is not None  # a stream has a decision
                grade, reason = decision.grade, decision.reason
                if notes & REDACTED:
                    grade, reason = Grade.E, "reasoning-redacted"
                inside = inside and not self._bare(answer, decision)
            prompt_ids = asked[i]
            other_prompt = prompt_ids is not None and prompt_count not in (None, len(prompt_ids))
            if other_prompt and grade is not Grade.E:
                grade, reason = Grade.E, "prompt-ids-contradict-count"
            tokens = None if decision is None or stream is None else decision.tokens
            rows.append(
                Sample(prompts[i], stream, tokens, count, own, inside, answer, grade, reason)
            )
        return self._samples.frame(rows, pool)

    def _captured_grade(
        self, ids: Ids, count: int | None, counted: bool | None
    ) -> tuple[Grade, str]:
        """Captured ids are exact, unless the server's own count contradicts them."""
        ended = int(ids[-1]) in self._markers.stops
        fits = count is None or (len(ids) == count and counted is not False)
        if not fits and counted is not True:
            fits = len(ids) - ended == count
        return (Grade.A, "captured") if fits else (Grade.E, "captured-contradicts-count")

    def _bare(self, answer: Answer | None, decision: Decision) -> bool:
        """An answer without a thought that was written without a closing marker: it is no
        thought.
        """
        stream = decision.stream or ()
        return answer is not None and not answer.reasoning and self._markers.close not in stream
