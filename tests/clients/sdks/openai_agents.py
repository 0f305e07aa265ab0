"""openai-agents: an agent on the Responses API, which is its default, and on chat completions.

python openai_agents.py http://127.0.0.1:8000
"""

import asyncio

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from common import BASE, HELLO, HI, IT_IS_SUNNY, MODEL, SUNNY, WEATHER, run
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

set_tracing_disabled(True)
KINDS = OpenAIResponsesModel, OpenAIChatCompletionsModel


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)


def agent(kind, **more):
    client = AsyncOpenAI(base_url=BASE, api_key="none", max_retries=0)
    settings = ModelSettings(temperature=0, max_tokens=300)
    return Agent(name="one", model=kind(MODEL, openai_client=client), model_settings=settings, **more)


def says_hello():
    for kind in KINDS:
        answer = Runner.run_sync(agent(kind), HELLO)
        assert answer.final_output == HI, (kind, answer)
        assert answer.context_wrapper.usage.output_tokens > 3


def streams():
    async def stream(kind):
        result = Runner.run_streamed(agent(kind), HELLO)
        kinds = [event.data.type async for event in result.stream_events() if event.type == "raw_response_event"]
        assert result.final_output == HI and "response.output_text.delta" in kinds, (kind, kinds)

    for kind in KINDS:
        asyncio.run(stream(kind))


def calls_a_tool():
    asked = []

    @function_tool
    def get_weather(city: str) -> str:
        """Get the weather in a city."""
        asked.append(city)
        return SUNNY

    for kind in KINDS:
        answer = Runner.run_sync(agent(kind, tools=[get_weather]), WEATHER)
        assert asked.pop() == "Paris" and answer.final_output == IT_IS_SUNNY, (kind, answer)


def has_an_output_type():
    for kind in KINDS:
        answer = Runner.run_sync(agent(kind, output_type=Person), "Who are you?")
        assert isinstance(answer.final_output, Person), (kind, answer)


run(says_hello, streams, calls_a_tool, has_an_output_type)
