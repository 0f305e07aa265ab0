"""Load test: clients that send streamed chat requests one after another for some seconds, within capacity or beyond it.

    python load.py steady http://127.0.0.1:8000 SECONDS CLIENTS
    python load.py overload http://127.0.0.1:8000 SECONDS CLIENTS

`steady`: every request must succeed. `overload`, for servers with little capacity and a short queue: every refusal must
be a 429 with Retry-After within 50 ms (99th percentile), and every accepted request must succeed. Prints failures, the
figures after `= `, then a last line `passed failed`.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter

import aiohttp

KIND, BASE, SECONDS, CLIENTS = sys.argv[1], sys.argv[2].rstrip("/"), float(sys.argv[3]), int(sys.argv[4])
REFUSAL_MS = 50
TOKENS = 32


class Tally:
    def __init__(self):
        self.errors = Counter()
        self.done = self.tokens = 0
        self.first, self.refused, self.whole = [], [], []


def share(values, of):
    return sorted(values)[min(len(values) - 1, int(len(values) * of))] if values else float("nan")


def body(client, turn):
    said = f"Client {client} says hello for the {turn}. time."
    return {
        "messages": [{"role": "system", "content": "You are kind."}, {"role": "user", "content": said}],
        "max_tokens": TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def read(answer, begin, tally):
    """Reads an accepted request to its end. An error in its stream, or an early end, is a failure."""
    first = reason = usage = None
    async for line in answer.content:
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            assert reason in ("stop", "length") and usage, (reason, usage)
            tally.done += 1
            tally.tokens += usage["completion_tokens"]
            tally.whole.append(time.perf_counter() - begin)
            # An answer may have no text.
            tally.first += [] if first is None else [first - begin]
            return
        chunk = json.loads(line[6:])
        assert "error" not in chunk, chunk
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            reason = choice["finish_reason"] or reason
            if first is None and choice["delta"].get("content"):
                first = time.perf_counter()
    raise AssertionError("the stream ended without [DONE]")


async def refusal(answer, begin, tally):
    text = await answer.text()
    tally.refused.append(time.perf_counter() - begin)
    assert KIND == "overload" and answer.status == 429, (answer.status, text)
    assert int(answer.headers["Retry-After"]) >= 1, answer.headers
    assert json.loads(text)["error"]["message"], text


async def client(session, number, end, tally):
    turn = 0
    # Clients start at different times; otherwise this program would be measured rather than the server.
    await asyncio.sleep(random.random() * min(1, SECONDS / 10))
    while time.perf_counter() < end:
        turn += 1
        begin = time.perf_counter()
        refused = len(tally.refused)
        try:
            async with session.post(f"{BASE}/v1/chat/completions", json=body(number, turn)) as answer:
                await (read if answer.status == 200 else refusal)(answer, begin, tally)
        except Exception as error:
            tally.errors[f"{type(error).__name__}: {error}"[:300]] += 1
            await asyncio.sleep(0.1)
        if len(tally.refused) > refused:
            # Retries sooner than Retry-After says, but not so soon that this program is measured.
            await asyncio.sleep(0.2 + 0.2 * random.random())


async def main():
    tally = Tally()
    begin = time.perf_counter()
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session, number, begin + SECONDS, tally) for number in range(CLIENTS)))
    took = time.perf_counter() - begin
    for error, count in tally.errors.most_common(10):
        print(f"{count} times: {error}")
    figures = [f"{tally.done} requests of {CLIENTS} clients in {took:.0f} s", f"{tally.tokens / took:.0f} tokens/s"]
    figures += [f"TTFT p50 {1e3 * share(tally.first, 0.5):.0f} ms, p99 {1e3 * share(tally.first, 0.99):.0f} ms"]
    wrong = sum(tally.errors.values())
    if KIND == "overload":
        late = 1e3 * share(tally.refused, 0.99)
        figures += [f"{len(tally.refused)} refused, p50 {1e3 * share(tally.refused, 0.5):.1f} ms, p99 {late:.1f} ms"]
        if not tally.refused:
            print("nothing was refused: the server was not overloaded")
            wrong += 1
        elif late > REFUSAL_MS:
            print(f"refusals came too late: {late:.1f} ms")
            wrong += 1
    print("= " + ", ".join(figures))
    print(tally.done + len(tally.refused), wrong)


asyncio.run(main())
