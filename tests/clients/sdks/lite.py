"""LiteLLM."""

import asyncio

import litellm
from common import BASE, HELLO, HI, IT_IS_SUNNY, MODEL, SUNNY, WEATHER, run
from pydantic import BaseModel, Field

litellm.suppress_debug_info = True
NAMES = {"api_base": BASE, "api_key": "none", "num_retries": 0}
ASK = NAMES | {"model": f"openai/{MODEL}", "temperature": 0, "max_tokens": 100}
SAID = [{"role": "user", "content": HELLO}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Get the weather in a city.", "parameters": CITY}
TOOL = {"type": "function", "function": FUNCTION}


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)


def chat():
    answer = litellm.completion(messages=SAID, **ASK)
    assert answer.choices[0].message.content == HI and answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def other_providers():
    """LiteLLM's provider names for servers of this kind."""
    for name in ("hosted_vllm", "custom_openai"):
        answer = litellm.completion(messages=SAID, **(ASK | {"model": f"{name}/{MODEL}"}))
        assert answer.choices[0].message.content == HI, name


def streaming():
    text, usage = "", None
    for chunk in litellm.completion(messages=SAID, stream=True, stream_options={"include_usage": True}, **ASK):
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = getattr(chunk, "usage", None) or usage
    assert text == HI and usage.completion_tokens > 0


def asynchronous():
    async def ask():
        answers = await asyncio.gather(*(litellm.acompletion(messages=SAID, **ASK) for _ in range(4)))
        return [answer.choices[0].message.content for answer in answers]

    assert asyncio.run(ask()) == [HI] * 4


def structured_output():
    said = [{"role": "user", "content": "Tell me of a person, as JSON."}]
    answer = litellm.completion(messages=said, response_format=Person, **ASK)
    Person.model_validate_json(answer.choices[0].message.content)


def tools():
    messages = [{"role": "user", "content": WEATHER}]
    answer = litellm.completion(messages=messages, tools=[TOOL], tool_choice="auto", **ASK)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather" and "Paris" in call.function.arguments
    messages += [answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": SUNNY}]
    answer = litellm.completion(messages=messages, tools=[TOOL], **ASK)
    assert answer.choices[0].message.content == IT_IS_SUNNY


def completions():
    asked = NAMES | {"model": f"text-completion-openai/{MODEL}", "max_tokens": 8}
    assert litellm.text_completion(prompt="Once upon a time", **asked).choices[0].text


def embedding():
    answer = litellm.embedding(model=f"openai/{MODEL}", input=[HELLO, "Goodbye"], **NAMES)
    assert len(answer.data) == 2 and len(answer.data[0]["embedding"]) > 8


def errors():
    for asked, kind in (
        (ASK | {"model": "openai/nobody"}, litellm.NotFoundError),
        (ASK | {"temperature": 3}, litellm.BadRequestError),
    ):
        try:
            litellm.completion(messages=SAID, **asked)
        except kind:
            continue
        raise AssertionError(f"{kind} was expected")


def overflow():
    """Callers shorten the prompt when they see this error, so it must not be another one."""
    said = [{"role": "user", "content": "a " * 4000}]
    for name in ("openai", "hosted_vllm"):
        try:
            litellm.completion(messages=said, **(ASK | {"model": f"{name}/{MODEL}"}))
        except litellm.ContextWindowExceededError:
            continue
        raise AssertionError(f"{name}: an error was expected")


run(chat, other_providers, streaming, asynchronous, structured_output, tools, completions, embedding, errors, overflow)
