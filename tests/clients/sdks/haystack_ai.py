"""Haystack: chat through its generators for chat completions and for Responses, tools, and embeddings.

python haystack_ai.py http://127.0.0.1:8000
"""

import os

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from common import BASE, HELLO, HI, IT_IS_SUNNY, MODEL, SUNNY, WEATHER, run  # noqa: E402
from haystack.components.embedders import OpenAITextEmbedder  # noqa: E402
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator  # noqa: E402
from haystack.dataclasses import ChatMessage  # noqa: E402
from haystack.tools import Tool  # noqa: E402
from haystack.utils import Secret  # noqa: E402

KEY = Secret.from_token("none")
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
GET_WEATHER = Tool("get_weather", "Get the weather in a city.", CITY, lambda city: SUNNY)
KINDS = (
    (OpenAIChatGenerator, {"temperature": 0, "max_completion_tokens": 100}),
    (OpenAIResponsesChatGenerator, {"temperature": 0, "max_output_tokens": 100}),
)


def generators(**more):
    for kind, settings in KINDS:
        yield kind(api_key=KEY, model=MODEL, api_base_url=BASE, generation_kwargs=settings, max_retries=0, **more)


def says_hello():
    for generator in generators():
        assert generator.run([ChatMessage.from_user(HELLO)])["replies"][0].text == HI, generator


def streams():
    parts = []
    for generator in generators(streaming_callback=lambda chunk: parts.append(chunk.content or "")):
        assert generator.run([ChatMessage.from_user(HELLO)])["replies"][0].text == HI, generator
        assert "".join(parts) == HI and len(parts) > 2, (generator, parts)
        parts.clear()


def calls_a_tool():
    for generator in generators(tools=[GET_WEATHER]):
        asked = [ChatMessage.from_user(WEATHER)]
        called = generator.run(asked)["replies"][0]
        assert called.tool_calls[0].arguments == {"city": "Paris"}, (generator, called)
        asked += [called, ChatMessage.from_tool(SUNNY, called.tool_calls[0])]
        assert generator.run(asked)["replies"][0].text == IT_IS_SUNNY, generator


def embeds():
    embedder = OpenAITextEmbedder(api_key=KEY, model=MODEL, api_base_url=BASE)
    assert len(embedder.run(HELLO)["embedding"]) > 10


run(says_hello, streams, calls_a_tool, embeds)
