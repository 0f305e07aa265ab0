"""The other APIs through their own clients: Anthropic's Messages, OpenAI's Responses, Ollama's.

python apis.py http://127.0.0.1:8000
"""

import anthropic
import ollama
import openai
from common import BASE, HELLO, HI, IT_IS_SUNNY, MODEL, SUNNY, WEATHER, run
from pydantic import BaseModel, Field

ROOT = BASE.removesuffix("/v1")
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
DESCRIPTION = "Get the weather in a city."
claude = anthropic.Anthropic(base_url=ROOT, api_key="none", max_retries=0)
gpt = openai.OpenAI(base_url=BASE, api_key="none", max_retries=0)
llama = ollama.Client(host=ROOT)

ASK = {"model": MODEL, "max_tokens": 100, "extra_body": {"temperature": 0}}
BLOCK_TOOL = {"name": "get_weather", "description": DESCRIPTION, "input_schema": CITY}
ITEM_TOOL = {"type": "function", "name": "get_weather", "description": DESCRIPTION, "parameters": CITY, "strict": True}
FUNCTION = {"name": "get_weather", "description": DESCRIPTION, "parameters": CITY}


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)


def user(text):
    return {"role": "user", "content": text}


def messages():
    answer = claude.messages.create(messages=[user(HELLO)], **ASK)
    assert answer.content[0].text == HI and answer.stop_reason == "end_turn", answer
    assert answer._request_id
    counted = claude.messages.count_tokens(model=MODEL, messages=[user(HELLO)])
    assert counted.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens


def messages_streamed():
    with claude.messages.stream(messages=[user(HELLO)], **ASK) as stream:
        assert "".join(stream.text_stream) == HI
        assert stream.get_final_message().usage.output_tokens > 3


def messages_with_tools():
    choice = {"type": "tool", "name": "get_weather"}
    asked = [user(WEATHER)]
    with claude.messages.stream(messages=asked, tools=[BLOCK_TOOL], tool_choice=choice, **ASK) as stream:
        first = stream.get_final_message()
    call = first.content[-1]
    assert call.type == "tool_use" and call.input == {"city": "Paris"}, first
    result = {"type": "tool_result", "tool_use_id": call.id, "content": SUNNY}
    asked += [{"role": "assistant", "content": first.content}, user([result])]
    last = claude.messages.create(messages=asked, tools=[BLOCK_TOOL], **ASK)
    assert last.content[0].text == IT_IS_SUNNY, last


def messages_with_every_field():
    cached = {"type": "ephemeral", "ttl": "5m"}
    tool = {**BLOCK_TOOL, "cache_control": cached, "strict": True, "defer_loading": False, "type": "custom"}
    settings = {
        "cache_control": cached,
        "diagnostics": {"previous_message_id": "id"},
        "inference_geo": "here",
        "metadata": {"user_id": "someone"},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": Person.model_json_schema()}},
        "service_tier": "auto",
        "speed": "standard",
        "stop_sequences": ["\n\n\n"],
        "system": [{"type": "text", "text": "Today's date is 2024-06-01.", "cache_control": cached}],
        "thinking": {"type": "adaptive", "display": "summarized"},
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "tools": [tool],
        "user_profile_id": "someone",
        "workspace_id": "one",
    }
    answer = claude.messages.create(messages=[user("Who are you?")], **{**ASK, "max_tokens": 300}, **settings)
    assert answer.stop_reason in ("end_turn", "tool_use"), answer


def messages_refused():
    try:
        claude.messages.create(messages=[user(HELLO)], model="no", max_tokens=1)
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error"
    else:
        raise AssertionError("an unknown model was served")
    assert claude.models.list().data[0].id == MODEL


def responses():
    ask = {"model": MODEL, "max_output_tokens": 100, "temperature": 0}
    answer = gpt.responses.create(input=HELLO, **ask)
    assert answer.output_text == HI and answer.status == "completed", answer
    assert gpt.responses.retrieve(answer.id).output_text == HI
    assert gpt.responses.input_items.list(answer.id).data[0].content[0].text == HELLO
    follow = gpt.responses.create(input=HELLO, previous_response_id=answer.id, **ask)
    assert follow.usage.input_tokens > answer.usage.input_tokens
    gpt.responses.delete(answer.id)
    try:
        gpt.responses.retrieve(answer.id)
    except openai.NotFoundError:
        return
    raise AssertionError("a deleted response is still there")


def responses_streamed():
    with gpt.responses.stream(model=MODEL, input=HELLO, temperature=0, max_output_tokens=100) as stream:
        events = list(stream)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert stream.get_final_response().output_text == HI
    parsed = gpt.responses.parse(model=MODEL, input=HELLO, text_format=Person, max_output_tokens=300)
    assert isinstance(parsed.output_parsed, Person), parsed


def responses_with_tools():
    ask = {"model": MODEL, "tools": [ITEM_TOOL], "temperature": 0, "max_output_tokens": 100}
    first = gpt.responses.create(input=WEATHER, tool_choice="required", **ask)
    call = first.output[-1]
    assert call.type == "function_call" and call.arguments, first
    result = {"type": "function_call_output", "call_id": call.call_id, "output": SUNNY}
    stateless = gpt.responses.create(input=[user(WEATHER), call.to_dict(), result], store=False, **ask)
    stored = gpt.responses.create(input=[result], previous_response_id=first.id, **ask)
    assert stateless.output_text == stored.output_text == IT_IS_SUNNY, stateless


def ollama_chat():
    options = {"temperature": 0, "num_predict": 100}
    whole = llama.chat(MODEL, [user(HELLO)], options=options)
    assert whole.message.content == HI and whole.done_reason == "stop" and whole.eval_count > 3, whole
    parts = list(llama.chat(f"{MODEL}:latest", [user(HELLO)], options=options, stream=True))
    assert "".join(part.message.content for part in parts) == HI and parts[-1].done
    tool = {"type": "function", "function": FUNCTION}
    first = llama.chat(MODEL, [user(WEATHER)], tools=[tool], options=options)
    assert first.message.tool_calls[0].function.arguments == {"city": "Paris"}, first
    answered = [user(WEATHER), first.message, {"role": "tool", "tool_name": "get_weather", "content": SUNNY}]
    assert llama.chat(MODEL, answered, tools=[tool], options=options).message.content == IT_IS_SUNNY


def ollama_others():
    assert llama.generate(MODEL, HELLO, options={"temperature": 0, "num_predict": 100}).response == HI
    formed = llama.generate(MODEL, HELLO, format=Person.model_json_schema(), options={"num_predict": 300})
    Person.model_validate_json(formed.response)
    vectors = llama.embed(MODEL, ["a", "b"]).embeddings
    assert len(vectors) == 2 and llama.embeddings(MODEL, "a").embedding == vectors[0]
    assert llama.list().models[0].model == f"{MODEL}:latest" and llama.ps().models[0].model == f"{MODEL}:latest"
    assert "tools" in llama.show(MODEL).capabilities
    try:
        llama.chat("no", [user(HELLO)])
    except ollama.ResponseError as error:
        assert error.status_code == 404
        return
    raise AssertionError("an unknown model was served")


run(
    messages,
    messages_streamed,
    messages_with_tools,
    messages_with_every_field,
    messages_refused,
    responses,
    responses_streamed,
    responses_with_tools,
    ollama_chat,
    ollama_others,
)
