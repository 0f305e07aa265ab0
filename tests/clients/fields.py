"""Sends each field that OpenAI's client knows, one at a time, with each kind of value that it may have.

    python fields.py http://127.0.0.1:8000 LOG_OF_THE_SERVER

A field must be accepted, or refused by its name (`unsupported_parameter`); the log must not call it unknown. A field of
the client that is not listed below fails, so that new fields of a newer client are noticed. Uses only the standard
library, and the client for its types. Prints failures, then a last line `passed failed`.
"""

import json
import sys
import typing
import urllib.error
import urllib.request

from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params

BASE, LOG = sys.argv[1].rstrip("/"), sys.argv[2]
USER = {"role": "user", "content": "Hello"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "name", "description": "d", "parameters": SCHEMA, "strict": True}}
BARE = {"type": "function", "function": {"name": "bare"}}
CUSTOM = {"type": "custom", "custom": {"name": "custom", "format": {"type": "text"}}}
NAMED = {"type": "function", "function": {"name": "name"}}
TEXT = {"type": "text", "text": "Hello"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "name", "arguments": "{}"}}


class With(dict):
    """A value that needs other fields in the same request."""


def beside(value, **others):
    return With(value=value, others=others)


SAMPLING = {
    "frequency_penalty": [-2, 0, 2, None],
    "presence_penalty": [-2, 0, 2, None],
    "logit_bias": [{}, {"5": 0, "6": -100, "7": 100}, None],
    "n": [1, 2, None],
    "seed": [0, -9007199254740991, 9007199254740991, None],
    "stop": ["\n", ["\n", "a", "b", "c"], [], None],
    "stream": [False, True],
    "stream_options": [
        beside({"include_usage": True}, stream=True),
        beside({"include_obfuscation": True}, stream=True),
        beside(None, stream=False),
    ],
    "temperature": [0, 1, 2, None],
    "top_p": [1, 0.5, None],
    "user": ["user-1234"],
}
CHAT = SAMPLING | {
    "audio": [{"format": "wav", "voice": "alloy"}, None],
    "function_call": ["none", "auto", beside({"name": "name"}, functions=[{"name": "name"}])],
    "functions": [[{"name": "name", "description": "d", "parameters": SCHEMA}]],
    "logprobs": [True, False, None],
    "max_completion_tokens": [1, 8, None],
    "max_tokens": [1, 8, None],
    "messages": [
        [{"role": "developer", "content": "string", "name": "name"}],
        [{"role": "system", "content": [TEXT]}, {"role": "user", "content": [TEXT, TEXT], "name": "name"}],
        [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]},
         {"role": "tool", "tool_call_id": "call_1", "content": [TEXT]}],
        [USER, {"role": "assistant", "content": [TEXT], "refusal": None}, USER],
        [USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, USER],
        [USER, {"role": "assistant", "refusal": "No."}, USER],
        [USER, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call_1", "content": "1"}],
        [{"role": "user", "content": [TEXT | {"prompt_cache_breakpoint": {"mode": "explicit"}}]}],
    ],
    "metadata": [{"foo": "string"}, {}, None],
    "modalities": [["text"], ["text", "audio"], None],
    "model": [],
    "moderation": [{"model": "omni-moderation-latest"}, None],
    "parallel_tool_calls": [True, False, beside(False, tools=[TOOL])],
    "prediction": [{"type": "content", "content": "string"}, None],
    "prompt_cache_key": ["key", None],
    "prompt_cache_options": [{"mode": "implicit", "ttl": "30m"}],
    "prompt_cache_retention": ["in_memory", "24h", None],
    "reasoning_effort": ["none", "minimal", "low", "medium", "high", "xhigh", "max", None],
    "response_format": [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "name", "schema": SCHEMA, "strict": True, "description": "d"}},
        {"type": "json_schema", "json_schema": {"name": "name", "schema": SCHEMA}},
    ],
    "safety_identifier": ["id", None],
    "service_tier": ["auto", "default", "flex", "scale", "priority", "fast", None],
    "store": [True, False, None],
    "tool_choice": [
        "none",
        "auto",
        beside("none", tools=[TOOL]),
        beside("auto", tools=[TOOL]),
        beside("required", tools=[TOOL]),
        beside(NAMED, tools=[TOOL]),
        beside({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}, tools=[TOOL, BARE]),
        beside({"type": "custom", "custom": {"name": "custom"}}, tools=[CUSTOM]),
    ],
    "tools": [[TOOL], [BARE], [TOOL, BARE], [CUSTOM], []],
    "top_logprobs": [beside(0, logprobs=True), beside(20, logprobs=True), None],
    "verbosity": ["low", "medium", "high", None],
    "web_search_options": [{"search_context_size": "low"}],
}
COMPLETIONS = SAMPLING | {
    "best_of": [1, 2, None],
    "echo": [True, False, None],
    "logprobs": [0, 5, None],
    # Zero tokens are allowed only with `echo`.
    "max_tokens": [beside(0, echo=True), 1, 16, None],
    "model": [],
    "prompt": ["Hello", ["Hello", "Goodbye"], [5, 6, 7], [[5, 6], [7]]],
    "suffix": ["test.", None],
}
EMBEDDINGS = {
    "dimensions": [1],
    "encoding_format": ["float", "base64"],
    "input": ["Hello", ["Hello", "Goodbye"], [5, 6, 7], [[5, 6], [7]]],
    "model": [],
    "user": ["user-1234"],
}
ROUTES = [
    ("/v1/chat/completions", {"messages": [USER], "max_tokens": 4}, CHAT, [
        chat_create_params.CompletionCreateParamsNonStreaming, chat_create_params.CompletionCreateParamsStreaming]),
    ("/v1/completions", {"prompt": "Hello", "max_tokens": 4}, COMPLETIONS, [
        completion_create_params.CompletionCreateParamsNonStreaming,
        completion_create_params.CompletionCreateParamsStreaming]),
    ("/v1/embeddings", {"input": "Hello"}, EMBEDDINGS, [embedding_create_params.EmbeddingCreateParams]),
]


def post(path, body):
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(BASE + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def unknown():
    """Log lines about unknown fields so far; the server logs each field once."""
    with open(LOG, encoding="utf-8", errors="replace") as log:
        return [line for line in log if "unknown request field is ignored" in line]


def judged(path, fields, body):
    before = len(unknown())
    status, text = post(path, body)
    if status == 200:
        new = unknown()[before:]
        return "accepted, but the log calls it unknown" if new else None
    error = json.loads(text).get("error", {})
    if status == 400 and error.get("code") == "unsupported_parameter" and (error.get("param") or "").startswith(fields):
        return None
    return f"{status} {text[:300]}"


counts = [0, 0]
for path, least, values, kinds in ROUTES:
    known = set().union(*(typing.get_type_hints(kind) for kind in kinds))
    for field in sorted(known | set(values)):
        if (field in known) != (field in values):
            counts[1] += 1
            print(f"{path} {field}: {'no value is listed for it' if field in known else 'the client does not know it'}")
            continue
        for value in values[field]:
            others = value["others"] if isinstance(value, With) else {}
            value = value["value"] if isinstance(value, With) else value
            body = least | others
            if field == "max_completion_tokens":
                # Both names set the same limit.
                del body["max_tokens"]
            finding = judged(path, (field, *others), body | {field: value})
            counts[finding is not None] += 1
            if finding:
                print(f"{path} {field} = {json.dumps(value)}: {finding}")
print(*counts)
