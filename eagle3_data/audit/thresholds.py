"""Every number that a signal or a rule compares with, in one place, each with its unit and its
reason.

What enters: the `[thresholds]` table of the configuration. What leaves: a frozen `Thresholds`.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Thresholds(BaseModel):
    """Settable limits. An unknown name is an error: a typo never leaves a default in force."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # --- records, capture, wrapping ---
    copied_equal_chars: int = 32
    """Characters from which equal reasoning and content are one text stored twice; "42" and "42"
    may be honest."""
    copied_prefix_chars: int = 80
    """Characters from which one field that begins the other is a copy."""
    tool_call_tokens: int = 64
    """Tokens that a call may have besides its stored text (markers, indices, XML tags around each
    argument)."""
    unseen_tokens: int = 32
    """Tokens that any answer may have besides its stored text (markers, end of turn, stripped
    whitespace)."""
    lost_tokens: int = 16
    """Tokens that the server counted beyond the rebuilt stream before the record counts as
    incomplete."""
    lost_share: float = 0.05
    """The same as a share of `completion_tokens`: another tokenization of the same text differs by
    1 to 2 %."""

    # --- generation, chat, tokens, corpus ---
    loop_cut_repeats: int = 4
    """Times a unit must stand at the end of a text that was cut; a list of three alike is no
    loop."""
    loop_cut_bytes: int = 160
    """Bytes such a loop must cover (up to four times as many in a long text): 40 tokens of 256 in
    the real captures."""
    loop_stop_repeats: int = 12
    """Times, when the model stopped by itself: refrains and repeated code lines stay below."""
    loop_stop_bytes: int = 400
    """Bytes, when the model stopped by itself."""
    loop_stop_share: float = 0.5
    """Share of the text, when the model stopped by itself."""
    loop_bare_bytes: int = 400
    """Bytes of a loop without words (rules, digits, brackets, blanks); a Markdown table rule is
    shorter."""
    loop_counter_words: int = 4
    """Words a unit needs when only its numbers change; a row of a multiplication table has
    fewer."""
    loop_sentences: int = 10
    """Sentences or lines in the second half of a cut text before their variety is judged."""
    loop_distinct_share: float = 0.25
    """Distinct ones among them, at most, for a loop that shuffles a few sentences."""
    one_char_chars: int = 16
    """Characters of an answer of one distinct character; "42" and "A" are answers, sixteen `!` are
    NaN logits."""
    script_chars: int = 60
    """Characters a text needs before its script is compared with the prompt's."""
    hidden_prompt_tokens: int = 4
    """Prompt tokens that the server counts and the request does not explain; a BOS or a newline is
    less."""
    cut_share: float = 0.1
    """Share of answers cut by length that makes the token limit a fault of the run (35 % in a
    published one)."""
    same_answer_prompts: int = 5
    """Different prompts with one answer; "yes" twice is chance."""
    same_answer_chars: int = 24
    """Characters of such an answer, at least."""
    same_opening_rows: int = 20
    """Answers with one opening, at least, before it counts as forced text."""
    same_opening_share: float = 0.05
    """Share of the answers that begin with it, at least."""
    latency_rows: int = 10
    """Rows of a latency spike, at least."""
    latency_share: float = 0.03
    """Share of the rows inside one tenth of a second at the top of the latencies."""
    thought_share: float = 0.5
    """Share of thinking rows with a thought from which the rows without one are the odd ones."""
    shift_rows: int = 6
    """Rows of a block of 16 whose answer fits the neighbouring prompt better, at least."""
    shift_ratio: float = 3.0
    """How many times more such rows than rows that fit their own prompt."""
    format_share: float = 0.9
    """Share of the answers that show a closing tag from which the others deviate."""
    format_rows: int = 20
    """Answers that show the tag, at least, before it counts as the format."""
    holdout_words: int = 13
    """Words of the n-grams by which a held-out prompt is found inside a longer one (the usual
    contamination length)."""
    holdout_short_words: int = 8
    """Words from which a shorter held-out prompt is searched inside others; below it must be the
    whole prompt."""
    holdout_share: float = 0.6
    """Share of the distinctive n-grams of a held-out prompt that must be found."""
