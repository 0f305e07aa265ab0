"""DSPy: its language model in Responses mode and on chat completions.

python dspy_lm.py http://127.0.0.1:8000
"""

import json
import os
import tempfile

os.environ["DSPY_CACHEDIR"] = tempfile.mkdtemp()

import dspy  # noqa: E402
from common import BASE, HELLO, HI, MODEL, WEATHER, run  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402

SETTINGS = {"api_base": BASE, "api_key": "none", "temperature": 0, "max_tokens": 300, "cache": False, "num_retries": 0}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
DESCRIPTION = "Get the weather in a city."


class Count(BaseModel):
    count: int = Field(ge=0, le=9)


def models(**more):
    for kind in ("responses", "chat"):
        yield kind, dspy.LM(f"openai/{MODEL}", model_type=kind, **SETTINGS, **more)


def text(answer):
    return answer["text"] if isinstance(answer, dict) else answer


def says_hello():
    for kind, model in models():
        assert text(model(HELLO)[0]) == HI, kind
        assert text(model(messages=[{"role": "user", "content": HELLO}])[0]) == HI, kind
        assert model.history[-1]["usage"], kind


def calls_a_tool():
    function = {"name": "get_weather", "description": DESCRIPTION, "parameters": CITY}
    for kind, model in models():
        tool = {"type": "function", **function} if kind == "responses" else {"type": "function", "function": function}
        answer = model(WEATHER, tools=[tool], tool_choice="required")[0]
        call = json.loads(json.dumps(answer["tool_calls"][0], default=lambda one: one.model_dump()))
        function_of = call.get("function", call)
        assert function_of["name"] == "get_weather", (kind, answer)
        assert json.loads(function_of["arguments"]) == {"city": "Paris"}, (kind, answer)


def follows_a_schema():
    for kind, model in models():
        answer = text(model("How many?", response_format=Count)[0])
        assert 0 <= Count.model_validate_json(answer).count <= 9, (kind, answer)


run(says_hello, calls_a_tool, follows_a_schema)
