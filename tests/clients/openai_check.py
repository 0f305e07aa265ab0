"""Tests a running `folio serve` with the official OpenAI client.

    pip install openai
    folio serve &
    python tests/clients/openai_check.py [http://127.0.0.1:8000/v1] [API_KEY]

Exits with 0 if all checks pass. Works with any model; for the demo model, its known answers are also checked.
"""

import sys

import openai

BASE = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
KEY = sys.argv[2] if len(sys.argv) > 2 else "none"
HELLO = [{"role": "user", "content": "Hello!"}]

client = openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0, timeout=120)
model = client.models.list().data[0].id
is_demo = "demo" in model or "folio-tiny" in model


def chat():
    answer = client.chat.completions.create(model=model, messages=HELLO, temperature=0, max_tokens=32)
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens is not None
    if is_demo:
        assert choice.message.content == "Hi! What can I do for you?", choice.message.content
    return choice.message.content


def streaming(whole):
    text, reasons, roles, usage, ids = "", [], 0, None, set()
    stream = client.chat.completions.create(
        model=model, messages=HELLO, temperature=0, max_tokens=32, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        ids.add(chunk.id)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            roles += choice.delta.role == "assistant"
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert text == whole and roles == 1 and len(reasons) == 1 and len(ids) == 1
    assert usage.completion_tokens > 0

    with client.chat.completions.stream(model=model, messages=HELLO, temperature=0, max_tokens=32) as stream:
        assert stream.get_final_completion().choices[0].message.content == whole


def leaving_early():
    stream = client.chat.completions.create(model=model, messages=HELLO, max_tokens=500, stream=True)
    next(iter(stream))
    stream.close()


def completions():
    prompts = ["Once upon a time", "The capital of France", "1 + 1 =", "Hello"]
    request = dict(model=model, max_tokens=8, seed=7, temperature=0.8, n=2)
    answer = client.completions.create(prompt=prompts, **request)
    assert [choice.index for choice in answer.choices] == list(range(8))
    equal = 0
    for index, prompt in enumerate(prompts):
        alone = client.completions.create(prompt=prompt, **request)
        equal += sum(answer.choices[2 * index + at].text == alone.choices[at].text for at in range(2))
    # On a GPU a batch may use different kernels, whose rounding can change the sampling of nearly equal tokens.
    assert equal >= 6, f"only {equal} of 8 choices equal those of their prompt alone"
    texts = [""] * 8
    for chunk in client.completions.create(prompt=prompts, stream=True, **request):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert sum(text == choice.text for text, choice in zip(texts, answer.choices)) >= 6
    ids = client.completions.create(model=model, prompt=[[5, 6, 7], [8, 9]], max_tokens=2)
    assert len(ids.choices) == 2 and ids.usage.prompt_tokens == 5


def seeds():
    def say(seed):
        answer = client.chat.completions.create(
            model=model, messages=HELLO, seed=seed, temperature=1.5, max_tokens=24, extra_body={"top_k": 0}
        )
        return answer.choices[0].message.content

    assert say(1) == say(1)
    assert len({say(seed) for seed in range(6)}) > 1


def stop_strings(whole):
    stop = whole[4:7]
    for stop in (stop, [stop, "never said"]):
        answer = client.chat.completions.create(
            model=model, messages=HELLO, temperature=0, max_tokens=32, stop=stop
        )
        assert answer.choices[0].message.content == whole[: whole.index(whole[4:7])]
        assert answer.choices[0].finish_reason == "stop"


def logprobs():
    answer = client.chat.completions.create(
        model=model, messages=HELLO, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for token in content:
        assert len(token.top_logprobs) == 3 and token.logprob <= 0
        assert token.top_logprobs[0].token == token.token and bytes(token.bytes)
    answer = client.completions.create(model=model, prompt="Hello", temperature=0, max_tokens=5, logprobs=2)
    found = answer.choices[0].logprobs
    lengths = {len(found.tokens), len(found.token_logprobs), len(found.top_logprobs), len(found.text_offset)}
    assert lengths == {answer.usage.completion_tokens}


def prompts():
    whole = client.completions.create(model=model, prompt="Hello there", max_tokens=2, echo=True, logprobs=1)
    found = whole.choices[0].logprobs
    assert whole.choices[0].text.startswith("Hello there") and found.token_logprobs[0] is None
    assert "".join(found.tokens) == whole.choices[0].text
    best = client.completions.create(model=model, prompt="Hello", max_tokens=4, n=2, best_of=4, seed=1)
    assert [choice.index for choice in best.choices] == [0, 1]


def embeddings():
    # The client requests base64 and decodes it.
    answer = client.embeddings.create(model=model, input=["Hello", "Goodbye"])
    assert [entry.index for entry in answer.data] == [0, 1] and answer.usage.total_tokens > 1
    for entry in answer.data:
        assert abs(sum(value * value for value in entry.embedding) - 1) < 1e-3
    floats = client.embeddings.create(model=model, input="Hello", encoding_format="float")
    difference = max(abs(a - b) for a, b in zip(floats.data[0].embedding, answer.data[0].embedding))
    assert difference < 1e-2, difference
    assert len(client.embeddings.create(model=model, input=[[5, 6]], dimensions=8).data[0].embedding) == 8


def refusals():
    def refused(kind, code, param, call):
        try:
            call()
        except kind as error:
            assert (error.code, error.param) == (code, param), (error.code, error.param)
            return
        raise AssertionError(f"{code} was expected")

    create = client.chat.completions.create
    unknown = dict(model="nobody", messages=HELLO)
    refused(openai.NotFoundError, "model_not_found", "model", lambda: create(**unknown))
    hot = dict(model=model, messages=HELLO, temperature=3)
    refused(openai.BadRequestError, "invalid_value", "temperature", lambda: create(**hot))
    long = dict(model=model, prompt=[5] * 200_000)
    code = "context_length_exceeded"
    refused(openai.BadRequestError, code, "prompt", lambda: client.completions.create(**long))
    if KEY != "none":
        other = openai.OpenAI(base_url=BASE, api_key="wrong", max_retries=0)
        refused(openai.AuthenticationError, "invalid_api_key", None, lambda: other.models.list())


said = chat()
streaming(said)
leaving_early()
completions()
seeds()
stop_strings(said)
logprobs()
prompts()
embeddings()
refusals()
assert client.models.retrieve(model).id == model
print(f"{model}: chat, streaming, completions, seeds, stop strings, logprobs, embeddings and refusals hold")
