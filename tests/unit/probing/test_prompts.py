from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.probing import shared
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
