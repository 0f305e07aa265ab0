"""outlines: its three remote backends (OpenAI, vLLM, SGLang), free and constrained.

python outline.py http://127.0.0.1:8000
"""

import re
from typing import Literal

import openai
import outlines
from common import BASE, HELLO, HI, MODEL, run
from outlines.types import CFG, Regex
from pydantic import BaseModel, Field

CLIENT = openai.OpenAI(base_url=BASE, api_key="none", max_retries=0)
VLLM, SGLANG = outlines.from_vllm(CLIENT, MODEL), outlines.from_sglang(CLIENT, MODEL)
GPT = outlines.from_openai(CLIENT, MODEL)
SETTINGS = {"temperature": 0, "max_tokens": 300}


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)


def says_hello():
    for model in (GPT, VLLM, SGLANG):
        assert model(HELLO, **SETTINGS) == HI, model
        assert "".join(model.stream(HELLO, **SETTINGS)) == HI, model


def follows_a_schema():
    for model in (GPT, VLLM, SGLANG):
        Person.model_validate_json(model("Who are you?", Person, **SETTINGS))


def follows_a_pattern():
    for model in (VLLM, SGLANG):
        date = model("When?", Regex("[0-9]{4}-[01][0-9]"), **SETTINGS)
        assert re.fullmatch("[0-9]{4}-[01][0-9]", date), (model, date)
        assert model("Which?", Literal["red", "green"], **SETTINGS) in ("red", "green"), model


def follows_a_grammar():
    lark = model_sum(VLLM, 'start: NUMBER "+" NUMBER\nNUMBER: /[1-9]/')
    ebnf = model_sum(SGLANG, 'root ::= digit "+" digit\ndigit ::= [1-9]')
    assert all(re.fullmatch(r"[1-9]\+[1-9]", text) for text in (lark, ebnf)), (lark, ebnf)


def model_sum(model, grammar):
    return model("What is the sum?", CFG(grammar), **SETTINGS)


run(says_hello, follows_a_schema, follows_a_pattern, follows_a_grammar)
