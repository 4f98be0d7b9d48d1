from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from fakes.probing import shared
from llm_exporter.config.model import Language, ProbeModule
from llm_exporter.probing.prompts import PromptMaker, TokenScale
from llm_exporter.probing.words import LANGUAGES

CASES = Path(__file__).parents[2] / "fixtures" / "cases"


@pytest.mark.parametrize("language", LANGUAGES)
def test_cold_prompts_share_less_than_64_leading_characters(language: str) -> None:
    limits = {check["signal"]: check for check in json.loads((CASES / "SSE-22" / "expect.json").read_text())["checks"]}
    maker = PromptMaker(language)
    prompts = [maker.cold(2000) for _ in range(30)]
    assert shared(prompts) <= limits["probe_prompt_common_prefix_chars"]["max"]
    assert max(shared([a, b]) for a in prompts for b in prompts if a is not b) < 16


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("characters", [16, 17, 100, 5000])
def test_a_prompt_has_the_length_asked_for(language: str, characters: int) -> None:
    maker = PromptMaker(language)
    assert len(maker.cold(characters)) == characters
    assert len(maker.warm(characters, "k")) == characters


def test_a_tiny_prompt_still_has_its_unique_opening() -> None:
    assert len({PromptMaker().cold(1) for _ in range(50)}) == 50


def test_a_warm_prompt_is_the_same_each_time_and_differs_by_key_and_from_other_makers_cold_ones() -> None:
    assert PromptMaker().warm(500, "a m") == PromptMaker().warm(500, "a m")
    assert shared([PromptMaker().warm(500, "a m"), PromptMaker().warm(500, "b m")]) < 16


def test_a_seed_gives_the_same_words_after_another_opening() -> None:
    first, second = PromptMaker().cold(500, "s"), PromptMaker().cold(500, "s")
    assert first[:16] != second[:16]
    assert first[16:] == second[16:]


def test_an_unknown_language_is_named() -> None:
    with pytest.raises(ValueError, match="'xx'"):
        PromptMaker("xx")


def test_the_configuration_admits_the_languages_that_there_are_words_for() -> None:
    assert get_args(Language) == LANGUAGES
    assert ProbeModule(interval=30.0, language="de").language == "de"
    assert ProbeModule(interval=30.0).language == "en"


def test_a_scale_learns_the_template_and_the_slope() -> None:
    scale = TokenScale()
    for characters in (100, 4000):
        scale.learn(characters, 23 + characters // 4)
    assert scale.line() == pytest.approx((23, 0.25))
    assert scale.characters(1023) == 4000


def test_one_length_gives_a_ratio() -> None:
    scale = TokenScale()
    scale.learn(400, 100)
    assert scale.characters(50) == 200


def test_a_scale_that_makes_no_sense_falls_back_to_a_ratio() -> None:
    scale = TokenScale()
    scale.learn(100, 100)
    scale.learn(400, 90)
    assert scale.line()[0] == 0.0
    assert scale.characters(90) == 400


def test_a_scale_forgets_old_prompts() -> None:
    scale = TokenScale()
    scale.learn(100, 100)
    for _ in range(16):
        scale.learn(400, 100)
    assert scale.characters(100) == 400


@pytest.mark.parametrize("tokens", [1, 10**309, 10**400])
def test_a_made_up_count_is_not_learned(tokens: int) -> None:
    """A server that calls every prompt one token long must not be sent ever longer ones."""
    scale = TokenScale()
    for _ in range(10):
        characters = scale.characters(64)
        assert characters == round(64 * 4.5)
        scale.learn(characters, tokens)
    assert not scale.learned


@pytest.mark.parametrize("counts", [((1600, 100), (3200, 101)), ((16, 1), (160000, 10000))])
def test_a_prompt_is_never_longer_than_any_tokenizer_would_need(counts: tuple[tuple[int, int], ...]) -> None:
    scale = TokenScale()
    for characters, tokens in counts:
        scale.learn(characters, tokens)
    assert 1 <= scale.characters(2048) <= 2048 * 16


def sent(scale: TokenScale, wanted: int, tokens_of: Callable[[int], int]) -> tuple[int, int]:
    """Asks as the runner does. (Requests, count of the last.)"""
    requests = 0
    while True:
        characters = max(16, scale.characters(wanted))
        counted = tokens_of(characters)
        scale.learn(characters, counted)
        requests += 1
        if not scale.missed(wanted, counted):
            return requests, counted


def test_the_first_reading_of_an_unknown_tokenizer_is_a_lesson() -> None:
    """A tokenizer with few words and a template made 166 tokens of a prompt of 64: that is no reading of 64."""
    scale = TokenScale()
    requests, counted = sent(scale, 64, lambda characters: 40 + round(0.4375 * characters))
    assert counted == pytest.approx(64, abs=16)
    assert 2 <= requests <= 3
    assert sent(scale, 64, lambda characters: 40 + round(0.4375 * characters))[0] == 1


def test_a_length_that_is_met_is_not_asked_again() -> None:
    assert sent(TokenScale(), 2048, lambda characters: round(characters / 4.5) + 20)[0] == 1
    assert not TokenScale().missed(64, None)


def test_lessons_end_where_a_length_cannot_be_met() -> None:
    long_template, random_counts = TokenScale(), TokenScale()
    first = sent(long_template, 64, lambda characters: 500 + characters // 4)[0]
    assert first <= 4
    assert [sent(long_template, 64, lambda characters: 500 + characters // 4)[0] for _ in range(5)] == [1] * 5
    chance = random.Random(3)
    assert sum(sent(random_counts, 64, lambda characters: chance.randint(characters // 8, characters))[0] for _ in range(100)) < 400
