"""Tests Instructor against the real binary, in its modes for OpenAI-compatible servers."""

from collections.abc import Iterable
from typing import Literal

import instructor
import openai
import pytest
from instructor import Mode
from pydantic import BaseModel, Field

ABOUT_PARIS = [{"role": "user", "content": "Paris is the capital of France. Give the city's name and country as JSON."}]


class City(BaseModel):
    name: str
    country: str


class Review(BaseModel):
    mood: Literal["good", "bad"]
    stars: int = Field(ge=1, le=5)


@pytest.fixture
def using(url, coder):
    def make(mode):
        client = instructor.from_openai(openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=90), mode=mode)
        return lambda kind, messages=ABOUT_PARIS, **fields: client.create(
            **{"model": coder, "messages": messages, "response_model": kind, "temperature": 0, "max_tokens": 120, "max_retries": 0} | fields
        )

    return make


@pytest.mark.real_models
@pytest.mark.parametrize("mode", [Mode.JSON_SCHEMA, Mode.JSON, Mode.MD_JSON, Mode.TOOLS, Mode.TOOLS_STRICT], ids=lambda mode: mode.name)
def test_each_mode_gives_an_object(using, mode):
    # The result's class is derived from City.
    assert using(mode)(City).model_dump() == {"name": "Paris", "country": "France"}


@pytest.mark.parametrize("mode", [Mode.JSON_SCHEMA, Mode.TOOLS], ids=lambda mode: mode.name)
def test_the_bounds_of_fields_hold(using, mode):
    messages = [{"role": "user", "content": "Rate this: the food was cold, I give one hundred stars."}]
    review = using(mode)(Review, messages)
    assert review.mood in ("good", "bad") and 1 <= review.stars <= 5


@pytest.mark.real_models
def test_a_partial_object_grows(using):
    pieces = list(using(Mode.JSON_SCHEMA)(instructor.Partial[City], stream=True))
    assert len(pieces) > 2 and pieces[-1].model_dump() == {"name": "Paris", "country": "France"}


@pytest.mark.real_models
def test_several_objects_are_read(using):
    messages = [{"role": "user", "content": "List two cities with their countries: Paris in France, Rome in Italy."}]
    cities = list(using(Mode.TOOLS)(Iterable[City], messages, max_tokens=200))
    assert {"name": "Paris", "country": "France"} in [city.model_dump() for city in cities]
