"""Made-up prompts of a wanted length in tokens, cold or warm, and what a target's tokenizer makes of them.

In: a length in tokens and a `TokenScale` that has learned from the counts that the target reported. Out: a text. No user's data is ever
read. Called by `probing/run.py` in the daemon and by `probing/ladder.py` for the command line.
"""

from __future__ import annotations

import random
import secrets
from collections import deque

from llm_exporter.probing.words import UNSPACED, WORDS

# Before anything is learned: characters per token of common tokenizers on our words.
_FIRST_GUESS = {"zh": 1.6}
_DEFAULT_GUESS = 4.5
_MEMORY = 16
# What a tokenizer can make of words: a count outside of this was made up, and would make prompts of any size.
_MOST_CHARACTERS_PER_TOKEN = 16.0
_MOST_TOKENS_PER_CHARACTER = 4.0
_LONGEST_TEMPLATE = 65536  # tokens that a server may put around a prompt
# A reading whose prompt was this much off the length asked for does not belong to that length, unless it is few tokens.
_OFF_RATIO, _OFF_TOKENS = 0.1, 16
MOST_LESSONS = 3
# What surely fits into a context: beside the answer, this many tokens and this share are left free for the chat template and our error.
_MARGIN_TOKENS, _MARGIN_RATIO = 48, 0.03
_OPENING_CHARACTERS = 16


def longest_prompt(context_tokens: int, max_tokens: int) -> int:
    """The longest prompt that surely fits into the context beside so many tokens of output; below 1 where none does."""
    return int((context_tokens - max_tokens - _MARGIN_TOKENS) * (1 - _MARGIN_RATIO))


def is_possible(characters: int, tokens: int) -> bool:
    """Can a tokenizer, and a template around it, make so many tokens of so many characters?"""
    fewest = characters / _MOST_CHARACTERS_PER_TOKEN
    return characters > 0 and fewest <= tokens <= characters * _MOST_TOKENS_PER_CHARACTER + _LONGEST_TEMPLATE


class TokenScale:
    """Tokens as a function of characters, learned per target: tokens ≈ fixed (chat template) + characters ÷ characters-per-token.

    A line through the last observations where their lengths differ enough, else a plain ratio. The true count is always the server's.
    """

    def __init__(self, language: str = "en") -> None:
        self._guess = _FIRST_GUESS.get(language, _DEFAULT_GUESS)
        self._seen: deque[tuple[int, int]] = deque(maxlen=_MEMORY)
        self._lessons = 0  # prompts in a row that missed their length

    def learn(self, characters: int, tokens: int) -> None:
        """One prompt of so many characters was so many tokens to the server. A count that no tokenizer can come to is ignored."""
        if is_possible(characters, tokens):
            self._seen.append((characters, tokens))

    def missed(self, wanted: int, counted: int | None) -> bool:
        """Was the last prompt so far off its length that the request is to be made again, now that its count has been learned?

        The request was a lesson then, and no reading of that length. Not where the next prompt would be about the same, as under a chat
        template that is longer than the length asked for, and never more than three times in a row.
        """
        if counted is None or abs(counted - wanted) <= max(_OFF_TOKENS, _OFF_RATIO * wanted):
            self._lessons = 0
            return False
        sent = self._seen[-1][0] if self._seen else 0
        again = max(_OPENING_CHARACTERS, self.characters(wanted))
        self._lessons += 1
        return self._lessons <= MOST_LESSONS and abs(again - sent) > _OFF_RATIO / 2 * sent

    @property
    def learned(self) -> bool:
        """At least one count of the server is known."""
        return bool(self._seen)

    def line(self) -> tuple[float, float]:
        """(fixed tokens, tokens per character), the second within what tokenizers do."""
        fixed, slope = self._fitted()
        return fixed, min(_MOST_TOKENS_PER_CHARACTER, max(1 / _MOST_CHARACTERS_PER_TOKEN, slope))

    def _fitted(self) -> tuple[float, float]:
        if not self._seen:
            return 0.0, 1 / self._guess
        shortest, longest = min(self._seen), max(self._seen)
        if longest[0] >= 2 * shortest[0]:
            slope = (longest[1] - shortest[1]) / (longest[0] - shortest[0])
            fixed = shortest[1] - slope * shortest[0]
            if slope > 0 and fixed >= 0:
                return fixed, slope
        return 0.0, longest[1] / longest[0]

    def tokens(self, characters: int) -> int:
        """How many tokens a text of so many characters will be."""
        fixed, slope = self.line()
        return round(fixed + slope * characters)

    def characters(self, tokens: int) -> int:
        """How long a text must be to have so many tokens."""
        fixed, slope = self.line()
        return max(1, round((tokens - fixed) / slope))


class PromptMaker:
    """Builds prompts in one language.

    Args:
        language: one of `words.LANGUAGES`.
    """

    def __init__(self, language: str = "en") -> None:
        if language not in WORDS:
            raise ValueError(f"no words for language {language!r}; there are {', '.join(WORDS)}")
        self.language = language

    def cold(self, characters: int, seed: str | None = None) -> str:
        """A text whose very first token is unique, so that no prefix cache can hold any of it.

        With a seed the words after the opening are the same each time: `compare` asks two servers the same question.
        """
        nonce = secrets.token_hex(_OPENING_CHARACTERS // 2)
        return self._text(nonce, seed or nonce, characters)

    def warm(self, characters: int, key: str) -> str:
        """The same text for the same key and length, so that the second time it is in the prefix cache."""
        opening = random.Random(f"opening {key} {characters}").randbytes(_OPENING_CHARACTERS // 2).hex()  # noqa: S311  # no secret: a stable opening
        return self._text(opening, f"{key} {characters}", characters)

    def _text(self, opening: str, seed: str, characters: int) -> str:
        words = WORDS[self.language]
        space = "" if self.language in UNSPACED else " "
        chance = random.Random(seed)  # noqa: S311  # no secret: reproducible words
        parts, length = [opening], len(opening)
        while length < characters:
            word = chance.choice(words)
            parts.append(word)
            length += len(word) + len(space)
        return space.join(parts)[: max(characters, len(opening))]
