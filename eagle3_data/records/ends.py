"""Finish reasons: the one table of what servers and trainers write for how an answer ended.

What enters: nothing. What leaves: three tuples. It promises that grades, rules and diagnoses read a
finish reason alike. Sources: the protocols of vLLM, SGLang, llama.cpp, OpenAI (chat and Responses)
and Anthropic.
"""

from __future__ import annotations

FINISHED = (
    "stop", "tool_calls", "function_call", "eos", "end_turn", "stop_sequence", "tool_use",
)  # fmt: skip
"""The model ended its turn."""
CUT_BY_LENGTH = ("length", "max_tokens", "max_output_tokens")
"""The token limit ended it."""
BROKEN_OFF = ("abort", "error", "repetition", "content_filter", "timeout")
"""The engine, a filter or the connection ended it."""
