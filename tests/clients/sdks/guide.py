"""guidance: its clients for OpenAI, vLLM and SGLang, free and constrained.

python guide.py http://127.0.0.1:8000
"""

import json
import re

from common import BASE, HELLO, HI, MODEL, run
from guidance import assistant, gen, select, user
from guidance import json as follow
from guidance.models import OpenAI
from guidance.models.experimental import SglangModel, VLLMModel

AGE = {"type": "integer", "minimum": 0, "maximum": 120}
PERSON = {"type": "object", "properties": {"age": AGE}, "required": ["age"], "additionalProperties": False}


def asked(kind, question, answer):
    model = kind(MODEL, base_url=BASE, api_key="none", echo=False)
    with user():
        model += question
    with assistant():
        model += answer
    return model["it"]


def says_hello():
    for kind in (OpenAI, VLLMModel, SglangModel):
        answer = asked(kind, HELLO, gen("it", max_tokens=100, temperature=0.01))
        # The one for vLLM does not send the temperature.
        assert answer == HI or kind is VLLMModel and answer.strip(), (kind, answer)


def follows_a_schema():
    for kind in (OpenAI, VLLMModel, SglangModel):
        assert 0 <= json.loads(asked(kind, "Who are you?", follow("it", schema=PERSON)))["age"] <= 120, kind


def follows_a_pattern():
    for kind in (VLLMModel, SglangModel):
        assert re.fullmatch("[0-9]{4}-[01][0-9]", asked(kind, "When?", gen("it", regex="[0-9]{4}-[01][0-9]"))), kind
        assert asked(kind, "Which?", select(["red", "green"], name="it")) in ("red", "green"), kind


run(says_hello, follows_a_schema, follows_a_pattern)
