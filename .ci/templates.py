"""Compares chat templates as rendered by Jinja2 and by folio: see .ci/templates."""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from datetime import datetime, timezone

from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

# The differences that are meant. Where Jinja2 fails, folio may render.
NO_TOOLS = "the template shows no tools, so folio describes them in a message"
NO_PARTS = "the template shows no parts, so folio joins them"
ONLY_PARTS = "the template shows parts only, so folio makes a text one"
ONE_CALL = "the template shows one call of a message, so folio writes a message for each"
NO_THOUGHT = "the template reads thoughts as parts, which folio makes of them"
TOOL_WORDS, OTHER_CITY, THOUGHT_WORDS = "get_weather", "Rome", "Hm, a"

TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather <of> a \"city\" é",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "The city"},
        "step": {"type": "number", "default": 1e-05},
        "unit": {"type": "string", "enum": ["c", "f"]}}}}}
CALL = {"id": "callAbc01", "type": "function", "function": {
    "name": "get_weather", "arguments": {"city": "Paris", "step": 1e16, "none": None, "yes": True}}}
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Hi  there, it's\nme"}
ANSWER = {"role": "assistant", "content": "Hello!"}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "callAbc01", "content": "{\"t\": 21}"}
# folio gives a thought every name by which templates ask for it.
THOUGHT = {name: "Hm, a\nquestion." for name in ("reasoning_content", "reasoning", "thinking")}
OTHER_CALL = {"id": "callAbc02", "type": "function", "function": {"name": "get_weather", "arguments": {"city": OTHER_CITY}}}
OTHER_RESULT = {**RESULT, "tool_call_id": "callAbc02", "content": "22"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "First"}, {"type": "text", "text": " second"}]}
CONVERSATIONS = {
    "user": ([USER], None),
    "system": ([SYSTEM, USER], None),
    "several turns": ([SYSTEM, USER, ANSWER, USER], None),
    "tools": ([USER], [TOOL]),
    "a call": ([USER, CALLING, RESULT], [TOOL]),
    "turns after a call": ([SYSTEM, USER, CALLING, RESULT, ANSWER, USER], [TOOL]),
    "a thought": ([USER, {**ANSWER, **THOUGHT}, USER], None),
    "a thought before a call": ([USER, {**CALLING, **THOUGHT}, RESULT], [TOOL]),
    "two calls": ([USER, {**CALLING, "tool_calls": [CALL, OTHER_CALL]}, RESULT, OTHER_RESULT], [TOOL]),
    "parts": ([SYSTEM, PARTS, ANSWER, USER], None),
}


def reason_for(conversation, tools, expected):
    """Why folio's text may differ from Jinja2's; `None` if it may not."""
    if tools and TOOL_WORDS not in expected:
        return NO_TOOLS
    if USER["content"] not in expected:
        return ONLY_PARTS
    if conversation == "parts" and not re.search(r"First\s*second", expected):
        return NO_PARTS
    if conversation == "two calls" and OTHER_CITY not in expected:
        return ONE_CALL
    if conversation.startswith("a thought") and THOUGHT_WORDS not in expected:
        return NO_THOUGHT
    return None


class Generation(Extension):
    """transformers' {% generation %}, which renders its content."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def environment():
    """Jinja2 as transformers sets it up."""
    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise TemplateError(message)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda pattern: datetime.now(timezone.utc).strftime(pattern)
    return made


def templates(place):
    """The templates by name."""
    found = {}
    for path in sorted(place.glob("llama_cpp_python-*.tar.gz")):
        with tarfile.open(path) as archive:
            for name in archive.getnames():
                if "/models/templates/" in name and name.endswith(".jinja"):
                    found[name.rsplit("/", 1)[1]] = archive.extractfile(name).read()
    for path in sorted(place.glob("trl-*.whl")):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".jinja"):
                    found["trl-" + name.rsplit("/", 1)[1]] = archive.read(name)
    return found


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def post(port, body):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/apply-template", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["prompt"], None
    except urllib.error.HTTPError as error:
        return None, error.read().decode()[:200]


def by_folio(template):
    """folio's text and error for every conversation; the tokens of a tokenizer are those of the demo model."""
    with tempfile.NamedTemporaryFile(suffix=".jinja") as file:
        file.write(template)
        file.flush()
        port = free_port()
        server = subprocess.Popen(
            [os.environ["FOLIO"], "serve", "--device", "fake", "--port", str(port), "--chat-template", file.name],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for _ in range(300):
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                        break
                except OSError:
                    if server.poll() is not None:
                        return {name: (None, "the server did not start") for name in CONVERSATIONS}
                    time.sleep(0.05)
            return {name: post(port, {"messages": messages, **({"tools": tools} if tools else {})})
                    for name, (messages, tools) in CONVERSATIONS.items()}
        finally:
            server.terminate()
            server.wait()


def check_list(jinja):
    """Whether tests/data/jinja2.json, which folio's unit tests read, has what Jinja2 renders; null is an error."""
    file = json.loads(pathlib.Path("tests/data/jinja2.json").read_text())
    jinja.globals["strftime_now"] = lambda pattern: datetime.fromtimestamp(1753522876, timezone.utc).replace(
        tzinfo=None).strftime(pattern)
    wrong = 0
    for template, expected in file["templates"]:
        try:
            text = jinja.from_string(template).render(**file["values"])
        except Exception:  # Any error of the template's code.
            text = None
        if text != expected:
            wrong += 1
            print(f"tests/data/jinja2.json: {template}\n  Jinja2  {text!r}\n  file    {expected!r}")
    return wrong


def main():
    place, jinja = pathlib.Path(sys.argv[1]), environment()
    if check_list(environment()):
        sys.exit(1)
    failed, compared, lenient = 0, 0, 0
    for name, source in templates(place).items():
        found = by_folio(source)
        for conversation, (messages, tools) in CONVERSATIONS.items():
            compared += 1
            values = {"messages": messages, "tools": tools, "eos_token": "<|im_end|>", "add_generation_prompt": True}
            try:
                expected = jinja.from_string(source.decode()).render(**values)
            except Exception as error:  # Any error of the template's code.
                lenient += found[conversation][0] is not None
                continue
            text, error = found[conversation]
            if text == expected:
                continue
            reason = reason_for(conversation, tools, expected)
            failed += reason is None
            print(f"{name}, {conversation}: {reason or 'DIFFERENT'}")
            if reason is None:
                print(f"  Jinja2  {expected!r}\n  folio   {text if error is None else error!r}")
    print(f"{compared} renderings compared, {failed} differ, {lenient} where only Jinja2 fails")
    sys.exit(1 if failed or not compared else 0)


main()
