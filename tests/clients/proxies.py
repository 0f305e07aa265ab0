"""Streams of all APIs through the proxies of docs/proxies.md, with the configurations that are written there.

    python proxies.py FOLIO

Needs nginx, haproxy and openssl. Prints failures, then a last line `passed failed`.
"""

import http.client
import json
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager
from pathlib import Path

FOLIO, NAME = sys.argv[1], "llm.example.org"
PAGE = (Path(__file__).parents[2] / "docs/proxies.md").read_text()
HELLO = [{"role": "user", "content": "Hello!"}]
TOKENS = 40
GREEDY = {"temperature": 0, "seed": 1}


def block(language):
    return re.search(f"```{language}\n(.*?)```", PAGE, re.S)[1]


def replaced(text, *pairs):
    """The text with these replacements, each of which must apply."""
    for old, new in pairs:
        assert old in text, f"docs/proxies.md no longer has {old}"
        text = text.replace(old, new)
    return text


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def running(command):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def server():
    # A token takes long enough to tell a stream from an answer that was collected first.
    options = ["--device", "fake:pause=20", "--allowed-host", NAME, "--port", "0", "--served-model-name", "demo"]
    with running([FOLIO, "serve", *options]) as process:
        yield next(found[1] for found in (re.search(r"ready on http://(\S+)", line) for line in process.stdout) if found)


def certificate(folder):
    key, certified, both = (folder / name for name in ("key.pem", "certificate.pem", "both.pem"))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={NAME}", "-days", "1"]
    subprocess.run([*command, "-keyout", key, "-out", certified], check=True, capture_output=True)
    both.write_text(certified.read_text() + key.read_text())
    return key, certified, both


@contextmanager
def nginx(folder, upstream):
    port, (key, certified, _) = free_port(), certificate(folder)
    listen = f"listen 127.0.0.1:{port} ssl;\n    ssl_certificate {certified};\n    ssl_certificate_key {key};"
    own = replaced(block("nginx"), ("127.0.0.1:8000", upstream), ("listen 443 ssl;", listen))
    places = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    file = folder / "nginx.conf"
    file.write_text(
        f"daemon off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{places}{own}\n}}\n"
    )
    with running(["nginx", "-p", folder, "-c", file]):
        yield port


@contextmanager
def haproxy(folder, upstream):
    port, (_, _, both) = free_port(), certificate(folder)
    places = (("127.0.0.1:8000", upstream), ("127.0.0.1:8001", upstream), ("/etc/haproxy/llm.example.org.pem", str(both)))
    file = folder / "haproxy.cfg"
    file.write_text(replaced(block("haproxy"), ("bind :443", f"bind 127.0.0.1:{port}"), *places))
    with running(["haproxy", "-f", file]):
        yield port


REQUESTS = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": TOKENS, "ignore_eos": True},
    "/v1/completions": {"prompt": "Hello", "max_tokens": TOKENS, "ignore_eos": True},
    "/v1/responses": {"input": "Hello!", "max_output_tokens": TOKENS, "ignore_eos": True},
    "/v1/messages": {"messages": HELLO, "max_tokens": TOKENS, "ignore_eos": True},
    "/api/chat": {"messages": HELLO, "options": {"num_predict": TOKENS, **GREEDY}},
    "/api/generate": {"prompt": "Hello!", "options": {"num_predict": TOKENS, **GREEDY}},
}


def text_of(line):
    """The text of one line of a stream, whichever API's it is."""
    line = line.removeprefix("data: ")
    if not line.startswith("{"):
        return ""
    event = json.loads(line)
    choice = (event.get("choices") or [{}])[0]
    delta = event.get("delta") if event.get("type") == "response.output_text.delta" else None
    found = [
        (choice.get("delta") or {}).get("content"),
        choice.get("text"),
        delta,
        (event.get("delta") or {}).get("text") if event.get("type") == "content_block_delta" else None,
        (event.get("message") or {}).get("content") if "done" in event else None,
        event.get("response") if "done" in event else None,
    ]
    return next((text for text in found if isinstance(text, str)), "")


def stream(connection, path):
    """The text of a stream, and the times of its first text and its end."""
    body = {"model": "demo", "stream": True, **GREEDY, **REQUESTS[path]}
    headers = {"content-type": "application/json", "host": NAME}
    began = time.monotonic()
    connection.request("POST", path, json.dumps(body), headers)
    answer = connection.getresponse()
    assert answer.status == 200, (answer.status, answer.read())
    text, first = "", None
    for line in answer:
        text += text_of(line.decode().strip())
        first = first or (text and time.monotonic() - began)
    return text, first, time.monotonic() - began


def streams_through(proxy):
    with server() as upstream, tempfile.TemporaryDirectory() as folder, proxy(Path(folder), upstream) as port:
        host, direct_port = upstream.split(":")
        trusting = ssl._create_unverified_context()
        deadline = time.monotonic() + 20
        while True:
            through = http.client.HTTPSConnection("127.0.0.1", port, context=trusting, timeout=60)
            try:
                through.request("GET", "/health", headers={"host": NAME})
                if through.getresponse().read() is not None:
                    break
            except OSError:
                assert time.monotonic() < deadline, "the proxy does not answer"
                time.sleep(0.1)
        direct = http.client.HTTPConnection(host, int(direct_port), timeout=60)
        for path in REQUESTS:
            expected, _, _ = stream(direct, path)
            text, first, whole = stream(through, path)
            assert text == expected and len(text) > 20, (path, text, expected)
            assert first < whole / 2, f"{path}: the first text came after {first:.2f} s of {whole:.2f} s"


passed = failed = 0
for proxy in (nginx, haproxy):
    try:
        streams_through(proxy)
        passed += len(REQUESTS)
    except Exception:
        failed += 1
        print(proxy.__name__)
        traceback.print_exc(limit=-3, file=sys.stdout)
print(passed, failed)
