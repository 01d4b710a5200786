"""Every number that a signal or a rule compares with, in one place, each with its unit and its
reason.

What enters: the `[thresholds]` table of the configuration. What leaves: a frozen `Thresholds`. It
promises that a number which no limit can be (below zero, a share above one, NaN) is refused.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST = 1_000_000_000
Count = Annotated[int, Field(ge=0, le=MOST)]
Some = Annotated[int, Field(ge=1, le=MOST)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Thresholds(BaseModel):
    """Settable limits. An unknown name is an error: a typo never leaves a default in force."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # --- records, capture, wrapping ---
    copied_equal_chars: Count = 32
    """Characters from which equal reasoning and content are one text stored twice; "42" and "42"
    may be honest."""
    copied_prefix_chars: Count = 80
    """Characters from which one field that begins the other is a copy."""
    tool_call_tokens: Count = 64
    """Tokens that a call may have besides its stored text (markers, indices, XML tags around each
    argument)."""
    unseen_tokens: Count = 32
    """Tokens that any answer may have besides its stored text (markers, end of turn, stripped
    whitespace)."""
    lost_tokens: Count = 16
    """Tokens that the server counted beyond the rebuilt stream before the record counts as
    incomplete."""
    lost_share: Share = 0.05
    """The same as a share of `completion_tokens`: another tokenization of the same text differs by
    1 to 2 %."""

    # --- generation, chat, tokens, corpus ---
    loop_cut_repeats: Count = 4
    """Times a unit must stand at the end of a text that was cut; a list of three alike is no
    loop."""
    loop_cut_bytes: Count = 160
    """Bytes such a loop must cover (up to four times as many in a long text): 40 tokens of 256 in
    the real captures."""
    loop_stop_repeats: Count = 12
    """Times, when the model stopped by itself: refrains and repeated code lines stay below."""
    loop_stop_bytes: Count = 400
    """Bytes, when the model stopped by itself."""
    loop_stop_share: Share = 0.5
    """Share of the text, when the model stopped by itself."""
    loop_bare_bytes: Count = 400
    """Bytes of a loop without words (rules, digits, brackets, blanks); a Markdown table rule is
    shorter."""
    loop_counter_words: Count = 4
    """Words a unit needs when only its numbers change; a row of a multiplication table has
    fewer."""
    loop_sentences: Some = 10
    """Sentences or lines in the second half of a cut text before their variety is judged."""
    loop_distinct_share: Share = 0.25
    """Distinct ones among them, at most, for a loop that shuffles a few sentences."""
    one_char_chars: Count = 16
    """Characters of an answer of one distinct character; "42" and "A" are answers, sixteen `!` are
    NaN logits."""
    script_chars: Count = 60
    """Characters a text needs before its script is compared with the prompt's."""
    hidden_prompt_tokens: Count = 4
    """Prompt tokens that the server counts and the request does not explain; a BOS or a newline is
    less."""
    cut_share: Share = 0.1
    """Share of answers cut by length that makes the token limit a fault of the run (35 % in a
    published one)."""
    same_answer_prompts: Count = 5
    """Different prompts with one answer; "yes" twice is chance."""
    same_answer_chars: Count = 24
    """Characters of such an answer, at least."""
    same_opening_rows: Count = 20
    """Answers with one opening, at least, before it counts as forced text."""
    same_opening_share: Share = 0.05
    """Share of the answers that begin with it, at least."""
    latency_rows: Count = 10
    """Rows of a latency spike, at least."""
    latency_share: Share = 0.03
    """Share of the rows inside one tenth of a second at the top of the latencies."""
    thought_share: Share = 0.5
    """Share of thinking rows with a thought from which the rows without one are the odd ones."""
    shift_rows: Count = 6
    """Rows of a block of 16 whose answer fits the neighbouring prompt better, at least."""
    shift_ratio: Ratio = 3.0
    """How many times more such rows than rows that fit their own prompt."""
    format_share: Share = 0.9
    """Share of the answers that show a closing tag from which the others deviate."""
    format_rows: Count = 20
    """Answers that show the tag, at least, before it counts as the format."""
    holdout_words: Some = 13
    """Words of the n-grams by which a held-out prompt is found inside a longer one (the usual
    contamination length)."""
    holdout_short_words: Some = 8
    """Words from which a shorter held-out prompt is searched inside others; below it must be the
    whole prompt."""
    holdout_share: Share = 0.6
    """Share of the distinctive n-grams of a held-out prompt that must be found."""
