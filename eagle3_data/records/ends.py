"""Finish reasons: the one table of what servers and trainers write for how an answer ended.

What enters: nothing. What leaves: tuples of words that do not overlap. It promises that records,
grades, rules, diagnoses and exports read a finish reason alike. Sources: the protocols of vLLM,
SGLang, llama.cpp, TGI (`eos_token`), OpenAI (chat and Responses), Mistral (`model_length`) and
Anthropic.
"""

from __future__ import annotations

STOPPED = ("stop", "eos", "eos_token", "end_turn")
"""The model ended its turn. OpenAI's `stop` also stands for a stop string: `stop_reason` tells."""
CALLED = ("tool_calls", "function_call", "tool_use")
"""The model ended its turn after tool calls."""
FINISHED = (*STOPPED, *CALLED)
"""The model ended its turn itself."""
STOP_STRING = ("stop_sequence",)
"""A stop string of the request ended it: no end of turn was sampled."""
CUT_BY_LENGTH = ("length", "max_tokens", "max_output_tokens", "model_length")
"""The token limit, or the end of the context, ended it."""
MODERATED = ("content_filter", "sensitive", "moderation", "safety", "SAFETY", "PROHIBITED_CONTENT")
"""A filter of the provider ended it."""
BROKEN_OFF = ("abort", "error", "repetition", "timeout")
"""The engine or the connection ended it."""
