"""smg takes two of our servers for vLLM workers, and answers through them.

    python router.py FOLIO SMG

Prints failures, then a last line `passed failed`.
"""

import json
import re
import socket
import subprocess
import sys
import time
import traceback
import urllib.error
import urllib.request

FOLIO, SMG = sys.argv[1:3]
PATIENCE_SECONDS = 60


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ask(url, body=None):
    data = body and json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"content-type": "application/json"})) as answer:
        return json.load(answer)


def until(found):
    """Waits for a true result."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        try:
            if result := found():
                return result
        except (OSError, ValueError):
            pass
        time.sleep(0.2)
    raise AssertionError(f"in vain: {found.__name__}")


def routes():
    processes = []
    try:
        urls = []
        for _ in range(2):
            command = [FOLIO, "serve", "--port", "0", "--device", "fake"]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
            lines = processes[-1].stdout
            urls.append(next(found[1] for found in (re.search(r"ready on (http://\S+)", line) for line in lines) if found))
        port = free_port()
        ports = ["--port", str(port), "--prometheus-port", str(free_port())]
        command = [SMG, "launch", "--host", "127.0.0.1", *ports, "--worker-urls", *urls]
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        root = f"http://127.0.0.1:{port}"

        def two_workers():
            workers = ask(f"{root}/workers")["workers"]
            return workers if len(workers) == 2 and all(one["is_healthy"] for one in workers) else None

        workers = until(two_workers)
        assert {one["runtime_type"] for one in workers} == {"vllm"}, workers
        for index in range(10):
            messages = [{"role": "user", "content": f"Hello {index}!"}]
            body = {"model": workers[0]["model_id"], "messages": messages, "max_tokens": 4}
            answer = ask(f"{root}/v1/chat/completions", body)
            assert answer["usage"]["completion_tokens"] > 0, answer
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


passed = failed = 0
for check in (routes,):
    try:
        check()
        passed += 1
    except Exception:
        failed += 1
        traceback.print_exc(limit=-2, file=sys.stdout)
print(passed, failed)
