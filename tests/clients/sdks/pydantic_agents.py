"""pydantic-ai: agents with tools and with an output type."""

import asyncio

from common import BASE, HELLO, HI, IT_IS_SUNNY, MODEL, SUNNY, WEATHER, run
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE, api_key="none"))
settings = ModelSettings(temperature=0, max_tokens=150)


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)


def weather():
    """Returns an agent with a weather tool, and the list of the tool's arguments."""
    agent, asked = Agent(model, model_settings=settings), []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Get the weather in a city."""
        asked.append(city)
        return SUNNY

    return agent, asked


def chat():
    answer = Agent(model, model_settings=settings).run_sync(HELLO)
    assert answer.output == HI and answer.usage.output_tokens > 0


def streaming():
    async def ask():
        async with Agent(model, model_settings=settings).run_stream(HELLO) as answer:
            return [text async for text in answer.stream_text(delta=True, debounce_by=None)]

    parts = asyncio.run(ask())
    assert len(parts) > 1 and "".join(parts) == HI, parts


def tools():
    agent, asked = weather()
    answer = agent.run_sync(WEATHER)
    assert asked == ["Paris"] and answer.output == IT_IS_SUNNY, (asked, answer.output)


def streamed_tools():
    async def ask():
        agent, asked = weather()
        async with agent.run_stream(WEATHER) as answer:
            return asked, await answer.get_output()

    asked, output = asyncio.run(ask())
    assert asked == ["Paris"] and output == IT_IS_SUNNY, (asked, output)


def output_types():
    for output in (ToolOutput(Person), NativeOutput(Person)):
        answer = Agent(model, output_type=output, model_settings=settings).run_sync("Tell me of a person, as JSON.")
        assert isinstance(answer.output, Person), answer.output


run(chat, streaming, tools, streamed_tools, output_types)
