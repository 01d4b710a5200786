"""The formats that shards can be exported to, and what each of them can not hold.

What enters: nothing. What leaves: one `Format` a target: its files, its mask, its losses in words.
It promises that what is said here is what `export` writes into the note beside the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

NOTE = "NOTE.md"
"""Not JSON: readers that take every .json file of a folder would read the note as data."""

HEADING = "# Export of eagle3-data"
"""How the note begins: by it `import` knows a folder of ours."""


class Target(StrEnum):
    """What an export is for."""

    SPECULATORS = "speculators"
    SPECFORGE = "specforge"
    MESSAGES = "messages"
    OPENAI = "openai"


@dataclass(frozen=True, slots=True)
class Format:
    """One target. `files`: what is written, the note aside. `mask`: what its trainer does with a
    mask. `lost`: what the format can not hold. `use`: how its trainer reads it.
    """

    title: str
    files: tuple[str, ...]
    mask: str
    lost: tuple[str, ...]
    use: str


ARROW = "data-00000-of-00001.arrow"
STATE, INFO, TOKEN_FREQ = "state.json", "dataset_info.json", "token_freq.pt"
TOKENISED, CONVERSATIONS, MESSAGES = "tokenised.jsonl", "conversations.jsonl", "messages.jsonl"

_OURS = "loss_mask[i] = 1 iff the model sampled token i, a sampled stop token included"
_IDS_ONLY = (
    "the grade: ids that were captured and ids that were rebuilt look alike",
    "spans, texts, request, counts, and the place in the capture",
    "profile, tokenizer and template: nothing refuses them beside another model",
    "conversations: which samples are turns of one",
)
_TEXT_ONLY = (
    "the ids: a trainer renders and encodes the text again, and a text does not always encode to"
    " the tokens that were sampled (24 of 300 samples of a real vLLM capture)",
    "the whitespace that the server stripped around thought and answer",
    "the loss mask: which tokens are supervised is up to the trainer's template",
    "the grade, usage, sampling settings, and the place in the capture",
    "what a message, a part or a call holds beside role, content, thought, name and arguments of"
    f" calls, `tool_call_id` and `name`: {NOTE} counts the messages that had more",
    "tail cuts: a sample cut to a length in tokens is here with its whole text",
    "splits and conversations: which sample is of which",
)

FORMATS: dict[Target, Format] = {
    Target.SPECULATORS: Format(
        title="speculators 0.9, prepared data (`save_to_disk` of Hugging Face datasets)",
        files=(ARROW, INFO, STATE),
        mask=f"{_OURS}. speculators shifts ids and mask together, so it is written as it is.",
        lost=(
            *_IDS_ONLY,
            f"splits: which row is of which; {STATE} names the split when all samples are of one",
        ),
        use="Name this folder as the data path of the trainer. `prepare-data` is not needed.",
    ),
    Target.SPECFORGE: Format(
        title="SpecForge, pre-tokenised rows and conversations",
        files=(TOKENISED, CONVERSATIONS),
        mask=f"{_OURS}. SpecForge takes a mask over generated tokens; it shifts ids and targets but"
        " not the mask (its issue 885), which no mask in this file can mend without being wrong"
        " once it is.",
        lost=(
            *(f"{TOKENISED}: {text}" for text in _IDS_ONLY),
            f"{TOKENISED}: splits: no row says which: `import` takes it for train unless the file"
            " is named after its split (val.jsonl)",
            *(f"{CONVERSATIONS}: {text}" for text in _TEXT_ONLY),
            f"{CONVERSATIONS}: which turn the sample is about: earlier assistant turns may be"
            " supervised too",
        ),
        use=f"Give `data.prompts_path` the file {TOKENISED}: exact ids, no template. Use"
        f" {CONVERSATIONS} only where a conversation is asked for.",
    ),
    Target.MESSAGES: Format(
        title="chat fine-tuning, `messages` with `reasoning_content`",
        files=(MESSAGES,),
        mask="none in the file: supervise the last assistant message only.",
        lost=(
            *_TEXT_ONLY,
            "`arguments` of tool calls are JSON text: some templates want a mapping",
        ),
        use="One sample a line: id, messages, and tools and chat_template_kwargs where the request"
        " had them.",
    ),
    Target.OPENAI: Format(
        title="OpenAI fine-tuning, `messages`",
        files=(MESSAGES,),
        mask="earlier assistant messages carry `weight` 0, so only the last one is supervised.",
        lost=(
            "thoughts: the format has no place for them, they are left out",
            *_TEXT_ONLY,
            "tool calls without an id get that of their answer, or `call_0`, `call_1`, … where it"
            " has none either; a dialogue with an answer that belongs to no call is left out",
        ),
        use="One sample a line: messages, and tools where the request had them.",
    ),
}
