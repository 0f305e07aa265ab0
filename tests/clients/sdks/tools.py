"""The loop from question to calls to answer through OpenAI's client, streamed and not: one call, and several.

    python tools.py http://127.0.0.1:8000 FOLIO

A fake device plays the model (`--device fake:say=…`, with token ids of the demo model's vocabulary, which the server at
the address encodes); the demo model itself, which runs there, makes calls on its own.
"""

import json
import re
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import openai
from common import BASE, IT_IS_SUNNY, MODEL, SUNNY, WEATHER, run
from pydantic import BaseModel

FOLIO = sys.argv[2]
END = "<|im_end|>"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
GET_WEATHER = {"name": "get_weather", "description": "Get the weather in a city.", "parameters": CITY}
TOOLS = [{"type": "function", "function": function} for function in (GET_WEATHER, {"name": "get_time"})]
ASKED = [{"role": "user", "content": WEATHER}]


def ids(text):
    body = json.dumps({"prompt": text, "add_special_tokens": False}).encode()
    request = urllib.request.Request(BASE.removesuffix("/v1") + "/tokenize", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return ".".join(str(one) for one in json.load(answer)["tokens"])


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


@contextmanager
def saying(*answers):
    """A client of a server that gives these answers, one per turn."""
    script = ">".join([ids("<|im_start|>assistant\n"), *(ids(answer + END) for answer in answers)])
    command = [FOLIO, "serve", "--port", "0", "--device", f"fake:say={script}"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        found = next(found for found in (re.search(r"ready on (http://\S+)", line) for line in server.stdout) if found)
        yield openai.OpenAI(base_url=f"{found[1]}/v1", api_key="none", max_retries=0)
    finally:
        server.terminate()
        server.wait()


def whole(client, messages, **more):
    answer = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, tools=TOOLS, **more)
    (choice,) = answer.choices
    calls = [(one.id, one.function.name, one.function.arguments) for one in choice.message.tool_calls or []]
    return choice.message.content, calls, choice.finish_reason


def streamed(client, messages, **more):
    """Assembles a stream by hand, as strictly as possible."""
    text, calls, reason = None, [], None
    for chunk in client.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, tools=TOOLS, stream=True, **more
    ):
        assert reason is None, "nothing follows the end"
        (choice,) = chunk.choices
        if choice.delta.content:
            text = (text or "") + choice.delta.content
        for one in choice.delta.tool_calls or []:
            if one.index == len(calls):
                assert one.id and one.type == "function" and one.function.name
                calls.append([one.id, one.function.name, ""])
            else:
                assert one.index == len(calls) - 1 and not one.id and not one.function.name
            calls[one.index][2] += one.function.arguments or ""
        reason = choice.finish_reason
    return text, [tuple(one) for one in calls], reason


def helped(client, messages, **more):
    """Lets the client assemble the stream."""
    with client.chat.completions.stream(model=MODEL, messages=messages, temperature=0, tools=TOOLS, **more) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        choice = stream.get_final_completion().choices[0]
    calls = [(one.id, one.function.name, one.function.arguments) for one in choice.message.tool_calls or []]
    assert [(event.name, event.arguments) for event in done] == [one[1:] for one in calls]
    return choice.message.content, calls, choice.finish_reason


def loop(client, results, **more):
    """Both turns, streamed and not; returns the calls and the final answer."""
    found = []
    for ask in (whole, streamed, helped):
        text, calls, reason = ask(client, ASKED, **more)
        assert reason == "tool_calls" and len({one[0] for one in calls}) == len(calls) == len(results), (ask, calls)
        shown = [
            {"id": one, "type": "function", "function": {"name": name, "arguments": said}} for one, name, said in calls
        ]
        messages = ASKED + [{"role": "assistant", "content": text, "tool_calls": shown}]
        for (one, *_), result in zip(calls, results):
            messages.append({"role": "tool", "tool_call_id": one, "content": result})
        said, again, reason = ask(client, messages)
        assert not again and reason == "stop", (ask, again, reason)
        found.append((text or None, [(name, json.loads(said)) for _, name, said in calls], said))
    assert found[0] == found[1] == found[2], found
    return found[0]


def one_call():
    with saying(call("get_weather", city="Paris"), "It is sunny in Paris.") as client:
        found = loop(client, ["sunny"])
    assert found == (None, [("get_weather", {"city": "Paris"})], "It is sunny in Paris.")


def several_calls():
    city = 'Saint-Étienne "{}" \\ \n 🤗'
    calls = [call("get_weather", city="Paris"), call("get_time"), call("get_weather", city=city)]
    with saying("\n".join(["Let me see.", *calls]), "Sunny.") as client:
        text, calls, end = loop(client, ["sunny", "12:00", "rainy"])
    assert text.strip() == "Let me see." and end == "Sunny."
    assert calls == [("get_weather", {"city": "Paris"}), ("get_time", {}), ("get_weather", {"city": city})]


def no_call():
    with saying("I do not know.") as client:
        for ask in (whole, streamed, helped):
            assert ask(client, ASKED) == ("I do not know.", [], "stop")


def demo():
    client = openai.OpenAI(base_url=BASE, api_key="none", max_retries=0)
    assert loop(client, [SUNNY]) == (None, [("get_weather", {"city": "Paris"})], IT_IS_SUNNY)


def forced():
    client = openai.OpenAI(base_url=BASE, api_key="none", max_retries=0)
    hello = [{"role": "user", "content": "Hello!"}]
    named = {"type": "function", "function": {"name": "get_weather"}}
    for ask in (whole, streamed, helped):
        for choice in ("required", named):
            text, calls, _ = ask(client, hello, tool_choice=choice, max_tokens=200, parallel_tool_calls=False)
            assert not text and len(calls) == 1, (ask, text, calls)
            assert choice == "required" or calls[0][1] == "get_weather"
            json.loads(calls[0][2])
        text, calls, _ = ask(client, ASKED, tool_choice="none", max_tokens=50)
        assert text and not calls


def parsed():
    class get_weather(BaseModel):
        """Get the weather in a city."""

        city: str

    client = openai.OpenAI(base_url=BASE, api_key="none", max_retries=0)
    tools = [openai.pydantic_function_tool(get_weather)]
    answer = client.chat.completions.parse(model=MODEL, messages=ASKED, tools=tools, temperature=0)
    assert answer.choices[0].message.tool_calls[0].function.parsed_arguments == get_weather(city="Paris")


run(one_call, several_calls, no_call, demo, forced, parsed)
