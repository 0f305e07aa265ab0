"""What the other APIs cost against chat completions: the server's processor time per generated token, with 64 streams.

    python translation.py http://127.0.0.1:8000 PID

The device is paced, so that every token is an event of its own. Rounds of the four APIs alternate, and the median of
the rounds' ratios counts. Linux only: PID's time is read from /proc. Prints the figures after `= `, then a last line
`passed failed`.
"""

import json
import re
import socket
import statistics
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

ADDRESS, PID = urlsplit(sys.argv[1]), int(sys.argv[2])
STREAMS, TOKENS, ROUNDS = 64, 200, 9
# At most 3 % more.
MOST = 1.03
ALWAYS = {"temperature": 1, "stream": True}


def chat(said, seed):
    options = {"max_tokens": TOKENS, "ignore_eos": True, "stream_options": {"include_usage": True}}
    return "/v1/chat/completions", {**ALWAYS, **options, "seed": seed, "messages": said}


def responses(said, seed):
    options = {"max_output_tokens": TOKENS, "ignore_eos": True, "store": False}
    return "/v1/responses", {**ALWAYS, **options, "seed": seed, "input": said}


def messages(said, seed):
    options = {"max_tokens": TOKENS, "ignore_eos": True}
    return "/v1/messages", {**ALWAYS, **options, "seed": seed, "messages": said}


def ollama(said, seed):
    options = {"num_predict": TOKENS, "temperature": 1, "seed": seed}
    return "/api/chat", {"messages": said, "options": options}


def exchange(api, number, tokens):
    """Streams one answer; appends the tokens that its last event counts."""
    path, body = api([{"role": "user", "content": f"Hello {number}!"}], number)
    body = json.dumps({"model": "folio-tiny", **body}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    with socket.create_connection((ADDRESS.hostname, ADDRESS.port)) as stream:
        stream.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        end = b""
        while more := stream.recv(1 << 16):
            end = (end + more)[-8192:]
    counts = re.findall(rb'"(?:completion_tokens|output_tokens|eval_count)": ?(\d+)', end)
    tokens.append(int(counts[-1]))


def seconds():
    """Processor time of the server so far."""
    times = [(task / "schedstat").read_text().split()[0] for task in Path(f"/proc/{PID}/task").iterdir()]
    return sum(map(int, times)) / 1e9


def microseconds_per_token(api, turn):
    tokens = []
    threads = [threading.Thread(target=exchange, args=(api, turn * STREAMS + one, tokens)) for one in range(STREAMS)]
    begin = seconds()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens) == STREAMS, f"{STREAMS - len(tokens)} streams of {api.__name__} failed"
    return 1e6 * (seconds() - begin) / sum(tokens)


OTHERS = responses, messages, ollama
APIS = chat, *OTHERS
times = {api: [] for api in APIS}
for turn in range(ROUNDS + 1):
    for api in APIS if turn % 2 else APIS[::-1]:
        took = microseconds_per_token(api, turn)
        # The first round warms up.
        times[api] += [took] if turn else []
ratios = {api: statistics.median(a / b for a, b in zip(times[api], times[chat], strict=True)) for api in OTHERS}
shown = ", ".join(f"{api.__name__} {ratio:.2f}" for api, ratio in ratios.items())
print(f"= {statistics.median(times[chat]):.1f} µs of processor time per token of chat completions; ratios: {shown}")
wrong = sum(ratio > MOST for ratio in ratios.values())
print(len(OTHERS) - wrong, wrong)
