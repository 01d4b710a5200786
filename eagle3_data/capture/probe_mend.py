"""What mends a finding: the option of the server or of the capture, by kind of server.

What enters: the kind of a server and a profile. What leaves: one sentence, "" where nothing is
known. It promises flags as the named servers spell them.
"""

from __future__ import annotations

from eagle3_data.capture.server import Kind
from eagle3_data.profiles.profile import Profile, Switch


def parser(kind: Kind, profile: Profile) -> str:
    """Split thought and answer as the family writes them."""
    match kind:
        case Kind.VLLM:
            name = profile.vllm_reasoning_parser
            return f"start vLLM with --reasoning-parser {name or _listed('vLLM')}"
        case Kind.SGLANG:
            name = profile.sglang_reasoning_parser
            return f"start SGLang with --reasoning-parser {name or _listed('SGLang')}"
        case Kind.LLAMACPP:
            return (
                "start llama-server with --jinja --reasoning-format deepseek, or send"
                ' --extra-body \'{"reasoning_format": "deepseek"}\''
            )
        case Kind.TRANSFORMERS:
            return (
                "transformers serve splits by the `response_template` of tokenizer_config.json"
                " (some model types have one built in): add one, or serve with vLLM"
            )
        case Kind.UNKNOWN:
            return "turn the reasoning parser of this model family on at the server"


def _listed(server: str) -> str:
    return f"NAME (the profile names none: take the family's from {server}'s list)"


def thinking_on(kind: Kind, switch: Switch | None) -> str:
    """Let every request think."""
    if switch is None:
        return "look for the model's own switch in its chat template"
    pair = f'{{"{switch.key}": {_json(switch.on)}}}'
    asked = "generate with --thinking on"
    match kind:
        case Kind.VLLM:
            return f"{asked}, or start vLLM with --default-chat-template-kwargs '{pair}'"
        case Kind.LLAMACPP:
            return f"{asked}, or start llama-server with --chat-template-kwargs '{pair}'"
        case Kind.TRANSFORMERS:
            return f"{asked}, or start transformers serve with --reasoning on"
        case _:
            return asked


def unswitched(kind: Kind) -> str:
    """A parser that takes answers for thoughts when thinking is off."""
    if kind in (Kind.VLLM, Kind.SGLANG):
        return (
            "capture with thinking on; rows with thinking off need a server without"
            " --reasoning-parser, or a parser that reads the switch"
        )
    return "capture with thinking on, or without a reasoning parser"


def history(kind: Kind) -> str:
    """Let earlier thoughts reach the model."""
    if kind is Kind.TRANSFORMERS:
        return (
            "transformers serve hands only role, content and tool calls to the template: capture"
            " single turns, or serve with vLLM"
        )
    return "give the server the model's own chat template, or capture single turns"


def ids(kind: Kind) -> str:
    """Make ids arrive."""
    match kind:
        case Kind.VLLM:
            return "vLLM gives ids from 0.11 on: update it, and send no include_reasoning=false"
        case Kind.SGLANG:
            return "SGLang gives ids of chat answers from 0.5.19 on: update it"
        case Kind.LLAMACPP:
            return "update llama-server: b11434 gives ids in chat answers (verbose, return_tokens)"
        case _:
            return "capture with vLLM, SGLang or llama.cpp where exact ids matter"


def speculation(kind: Kind) -> str:
    """Turn speculative decoding off."""
    match kind:
        case Kind.VLLM:
            return "start vLLM without --speculative-config"
        case Kind.SGLANG:
            return "start SGLang without --speculative-algorithm"
        case Kind.LLAMACPP:
            return "start llama-server without a draft model"
        case _:
            return "turn speculative decoding off at the server"


def _json(value: bool | int | str) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f'"{value}"'
        if isinstance(value, str)
        else str(value)
    )
