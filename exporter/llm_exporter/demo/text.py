"""Text of the simulated servers: tokens of a prompt, which of its blocks could be shared, and what is answered."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

CHAT_TEMPLATE_TOKENS = 5  # what a chat template adds to the messages
_TOKEN = re.compile(r" ?[^\W_]{1,7}|[^\w\s]|_|\s")
_WORDS = (
    " the", " queue", " is", " short", " and", " every", " block", " of", " the", " cache", " holds", " sixteen", " tokens", ",",
    " so", " a", " prefix", " that", " is", " shared", " need", " not", " be", " computed", " twice", ".",
)  # fmt: skip


def tokens_of(text: str) -> list[str]:
    """The text in pieces of at most seven letters, a leading space included."""
    return _TOKEN.findall(text)


def block_keys(tokens: Sequence[str], block_tokens: int) -> list[int]:
    """Chained keys of the full blocks: equal keys mean an equal beginning."""
    keys = []
    before = 0
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        before = hash((before, *tokens[end - block_tokens : end]))
        keys.append(before)
    return keys


def word(identity: int, position: int) -> str:
    """The output token at that position of that request."""
    return _WORDS[(identity * 7 + position) % len(_WORDS)]


def prompt_tokens(body: dict[str, Any]) -> list[str]:
    """Tokens of the messages (chat), the prompt (completions) or the text (/generate) of a request."""
    if "messages" in body:
        parts = []
        for message in body["messages"]:
            content = message.get("content", "")
            if isinstance(content, list):
                content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
            parts.append(f"{message.get('role', 'user')}: {content}\n")
        return [*("",) * CHAT_TEMPLATE_TOKENS, *tokens_of("".join(parts))]
    prompt = body.get("prompt", body.get("text", body.get("input_ids", "")))
    if isinstance(prompt, list):
        if prompt and all(isinstance(item, int) for item in prompt):
            return [str(item) for item in prompt]
        prompt = prompt[0] if prompt else ""
        if isinstance(prompt, list):
            return [str(item) for item in prompt]
    return tokens_of(str(prompt))
