"""LangChain, through langchain-openai."""

from common import BASE, HELLO, HI, IT_IS_SUNNY, MODEL, SUNNY, WEATHER, run
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

model = ChatOpenAI(model=MODEL, base_url=BASE, api_key="none", temperature=0, max_tokens=100, max_retries=0)


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)


@tool
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return SUNNY


def chat():
    answer = model.invoke([SystemMessage("You are kind."), HumanMessage(HELLO)])
    assert answer.content and answer.response_metadata["finish_reason"] == "stop"
    assert model.invoke(HELLO).content == HI
    assert answer.usage_metadata["total_tokens"] > answer.usage_metadata["input_tokens"] > 0


def streaming():
    chunks = list(model.stream(HELLO, stream_usage=True))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert len(chunks) > 3 and whole.content == HI, whole
    assert whole.usage_metadata["output_tokens"] > 0 and whole.response_metadata["finish_reason"] == "stop"


def batches():
    assert [answer.content for answer in model.batch([HELLO] * 4)] == [HI] * 4


def structured_output():
    for method in ("json_schema", "function_calling", "json_mode"):
        asked = "Tell me of a person, as JSON."
        found = model.with_structured_output(Person, method=method, include_raw=True).invoke(asked)
        assert found["raw"].content or found["raw"].tool_calls
        # JSON mode does not constrain the contents.
        assert method == "json_mode" or isinstance(found["parsed"], Person), (method, found)


def structured_stream():
    found = list(model.with_structured_output(Person, method="json_schema").stream("Tell me of a person, as JSON."))
    assert isinstance(found[-1], Person), found


def tools():
    bound = model.bind_tools([get_weather])
    messages = [HumanMessage(WEATHER)]
    asked = bound.invoke(messages)
    (call,) = asked.tool_calls
    assert call["name"] == "get_weather" and call["args"] == {"city": "Paris"}, call
    messages += [asked, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
    assert bound.invoke(messages).content == IT_IS_SUNNY
    forced = model.bind_tools([get_weather], tool_choice="get_weather").invoke(HELLO)
    assert forced.tool_calls[0]["name"] == "get_weather"
    none = model.bind_tools([get_weather], tool_choice="none").invoke(HELLO)
    assert not none.tool_calls and none.content


def streamed_tools():
    whole = None
    for chunk in model.bind_tools([get_weather]).stream(WEATHER):
        whole = chunk if whole is None else whole + chunk
    assert [(call["name"], call["args"]) for call in whole.tool_calls] == [("get_weather", {"city": "Paris"})]


def logprobs():
    answer = model.bind(logprobs=True, top_logprobs=2).invoke(HELLO)
    content = answer.response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in content).startswith(HI) and len(content[0]["top_logprobs"]) == 2


def completions():
    answer = OpenAI(model=MODEL, base_url=BASE, api_key="none", temperature=0, max_tokens=8, max_retries=0)
    assert answer.invoke("Once upon a time")


def embeddings():
    made = OpenAIEmbeddings(model=MODEL, base_url=BASE, api_key="none", check_embedding_ctx_length=False, max_retries=0)
    one, two = made.embed_documents([HELLO, "Goodbye"])
    assert len(one) == len(two) > 8 and one != two
    assert max(abs(a - b) for a, b in zip(made.embed_query(HELLO), one)) < 1e-3


texts = (chat, streaming, batches, logprobs, completions, embeddings)
run(*texts, structured_output, structured_stream, tools, streamed_tools)
