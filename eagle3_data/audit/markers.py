"""Control strings as they show up in text: think markers and turn markers of all known families.

What enters: a profile. What leaves: `Watched`, the strings to look for, those of the family itself
apart from the others.
It promises that a marker of the profile is always among its own, whatever the tables below say.
Sources: chat templates and server parsers listed in the profiles.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from eagle3_data.profiles.profile import Profile

THINK_PAIRS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
    ("<mm:think>", "</mm:think>"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<unused94>thought", "<unused95>"),
)
"""(opening, closing) marker of every known family."""

CONTROL = (
    "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>",
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|im_user|>",
    "<|im_assistant|>", "<|im_middle|>", "<|im_system|>", "<|user|>", "<|assistant|>", "<|system|>",
    "<|observation|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>",
    "<|call|>", "<|end_of_msg|>", "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", "<｜User｜>",
    "<｜Assistant｜>", "<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>", "[EOS]", "[BOS]",
    "[EOT]", "[INST]", "[/INST]", "[e~[", "]~b]", "<seed:eos>", "<seed:bos>", "<｜hy_eos｜>",
    "<|endofprompt|>", "<|fim_pad|>",
)  # fmt: skip
"""Turn markers and ends of text. Never legal inside free text unless it talks about them."""

CONTROL_AT_END = ("</s>", "<eos>")
"""Legal inside (`<s>` is a tag of HTML), suspect at the very end."""

QUOTED = r"(?s)```.*?```|`[^`\n]*`|[\"'“‘«„](?:{0})[\"'”’»“]"
"""Code and quotes: a marker in there is talked about, not meant. An open fence hides nothing."""

MAY_QUOTE = "|".join(["`", *(q + re.escape(first) for q in "\"'“‘«„" for first in "<[◁]")])
"""A regex that matches wherever QUOTED does, and seldom elsewhere."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What to look for. `opens`, `closes`: the family's own think markers; `strange`: opening
    markers of other families."""

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    strange: tuple[str, ...]
    control: tuple[str, ...]
    ends: tuple[str, ...]
    """Texts that a stop may cut in two: own think markers and ends of turn."""

    @property
    def everything(self) -> str:
        """A regex of all strings, and U+FFFD."""
        words = (*self.opens, *self.closes, *self.strange, *self.control, *CONTROL_AT_END)
        return one_of(*words, "\N{REPLACEMENT CHARACTER}")


def watched(profile: Profile) -> Watched:
    """The strings of `profile` and of the tables. A profile without think markers owns every known
    pair."""
    open_text = profile.think_open.text.strip() if profile.think_open else None
    close_text = profile.think_close.text.strip() if profile.think_close else None
    if open_text is None and close_text is None:
        pairs = [
            pair for pair in THINK_PAIRS if pair[1] != "<|end|>"
        ]  # also the end of turn of other families
        opens, closes = (tuple(side) for side in zip(*pairs, strict=True))
    else:
        opens = (open_text,) if open_text else ()
        closes = (close_text,) if close_text else ()
    strange = tuple(a for a, b in THINK_PAIRS if a not in opens and b not in closes)
    own_control = tuple(
        m.text.strip()
        for m in (*profile.end_of_turn, *profile.stop, *profile.control)
        if "tool" not in m.text.lower() and "DSML" not in m.text and len(m.text.strip()) > 2
    )  # calls written as text have a rule of their own
    taken = {*opens, *closes}
    control = tuple(c for c in dict.fromkeys((*own_control, *CONTROL)) if c not in taken)
    own_pair = (open_text, close_text) if taken == {open_text, close_text} else THINK_PAIRS[0]
    turns = tuple(m.text.strip() for m in profile.end_of_turn)
    ends = tuple(dict.fromkeys(text for text in (*own_pair, *turns) if text))
    return Watched(opens, closes, strange, control, ends)


def one_of(*words: str) -> str:
    """A regex that matches any of `words`, the longest first; it matches nothing when there is
    none."""
    ordered = sorted(set(words), key=lambda word: (-len(word), word))
    return "|".join(map(re.escape, ordered)) or r"[^\s\S]"


def cut_at_end(words: tuple[str, ...]) -> str:
    """A regex for the first part of a marker (5 characters or more) at the end of a text; `</th` is
    HTML, `</thi` is not."""
    parts = {w[:n] for w in words for n in range(5, len(w))}
    return f"({one_of(*parts)})$"


def cut_at_start(words: tuple[str, ...]) -> str:
    """A regex for the last part of a marker (4 characters or more) at the start of a text."""
    parts = {w[-n:] for w in words for n in range(4, len(w))}
    return f"^({one_of(*parts)})"
