"""Profiles: the facts about one model family that turn a response back into the tokens the model
sampled.

What enters: a TOML file of `schemas/profiles/` or of the user. What leaves: a frozen `Profile`. It
promises strictness (an unknown key is an error) and that an id is only stated where it was
verified: a marker without an id is resolved from the tokenizer at run time.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Thinking(StrEnum):
    """Whether the family thinks before it answers."""

    ALWAYS = "always"
    HYBRID = "hybrid"
    NEVER = "never"
    SHOWN = "shown"
    """Not known (generic profile): thinking is on where the file shows a thought."""


class HistoryMode(StrEnum):
    """What the chat template does with the reasoning of earlier assistant turns (facts §4)."""

    KEEP_ALL = "keep_all"
    DROP_ALL = "drop_all"
    TOOL_CYCLE = "tool_cycle"
    """Kept only inside the running tool loop."""
    UNKNOWN = "unknown"


class Marker(Strict):
    """A control string of the family. `id` is stated only where the facts mark it verified."""

    text: str = Field(min_length=1)
    id: int | None = Field(default=None, ge=0)
    special: bool | None = None


class Prompt(Strict):
    """The tail of the prompt, and the layout used when there is no chat template.

    `thinking_on` / `thinking_off`: the generation prompt as text (markers written out), null = not
    known / not possible. `message`: one message of history, with {role} and {content}. `bos`: text
    before the first message. `default_system`: a system message that the template adds when the
    request has none.
    """

    thinking_on: str | None = None
    thinking_off: str | None = None
    bos: str = ""
    message: str | None = None
    default_system: str | None = None


class Completion(Strict):
    """What the model samples, as a template over {reasoning} {content} {tools} and marker texts,
    end of turn included.

    `thinking_on` begins with the opening marker exactly when the model samples it; it is absent
    when the prompt holds it. Whitespace that the family's own template writes around markers is
    part of the template text.
    """

    thinking_on: str | None = None
    thinking_off: str


class ToolGrammar(Strict):
    """How tool calls are written. `call` is a template over {id} {name} {arguments} and marker
    texts.

    `exact` is true when the API's `arguments` text is what the model sampled up to edge whitespace
    (JSON-style tools); false when the server re-wrote it (XML-style tools): such rows can only be
    proven by captured ids.
    """

    call: str
    section_begin: str = ""
    section_end: str = ""
    separator: str = ""
    exact: bool


class Strip(Strict):
    """Whitespace that a named server removes from the text it returns. Each field: none, left,
    right or both.

    `versions` is a PEP 440 specifier set over the server version, empty = all.
    """

    server: str
    versions: str = ""
    reasoning: str = Field(default="none", pattern="^(none|left|right|both)$")
    content: str = Field(default="none", pattern="^(none|left|right|both)$")
    content_with_tools: str = Field(default="none", pattern="^(none|left|right|both)$")


class Switch(Strict):
    """The chat_template_kwargs key that turns thinking on or off, and the values that mean on and
    off; any other value says nothing.
    """

    key: str = Field(pattern=r"^\w+$")
    on: bool | int | str = True
    off: bool | int | str = False


class Profile(Strict):
    """One model family. See the TOML files in `schemas/profiles/` for worked examples."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$")
    title: str
    models: tuple[str, ...] = ()
    """Case-insensitive fnmatch patterns, tried against the whole model name and its last path part.
    """
    thinking: Thinking
    thinking_default: bool | None = None
    """Hybrid models: is thinking on when the request says nothing."""
    switch: Switch | None = None
    history: HistoryMode = HistoryMode.UNKNOWN
    think_open: Marker | None = None
    think_close: Marker | None = None
    open_in_prompt: bool | None = None
    """True: the generation prompt ends in the opening marker (never supervised). False: the model
    samples it.
    """
    end_of_turn: tuple[Marker, ...] = ()
    """Ids that the model samples to end its turn; the first is the usual one."""
    stop: tuple[Marker, ...] = ()
    """Other ids that stop generation."""
    control: tuple[Marker, ...] = ()
    """Further control strings of the family (roles, tools, media): never legal inside free text."""
    prompt: Prompt
    completion: Completion
    tools: ToolGrammar | None = None
    strips: tuple[Strip, ...] = ()
    vllm_reasoning_parser: str | None = None
    vllm_tool_parser: str | None = None
    sglang_reasoning_parser: str | None = None
    counts_stop_token: dict[str, bool] = Field(default_factory=dict)
    """Server → does `usage.completion_tokens` count the stop token. vLLM: verified true."""
    vocab_size: int | None = None
    notes: str = ""
    sources: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[Marker, ...]:
        """Every marker of the family, think markers first, each text once."""
        found: dict[str, Marker] = {}
        for marker in (
            self.think_open,
            self.think_close,
            *self.end_of_turn,
            *self.stop,
            *self.control,
        ):
            if marker is not None:
                found.setdefault(marker.text, marker)
        return tuple(found.values())
