"""The README's command for what was made for Ollama, with a name as its users have it.

    python ollama_line.py FOLIO

Prints failures, then a last line `passed failed`.
"""

import re
import shlex
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

import ollama

README = (Path(__file__).parents[2] / "README.md").read_text()
NAME, HELLO = "llama3.2:3b", [{"role": "user", "content": "Hello!"}]
PORT = "11434"


def command(port):
    """The command that the README gives, on another port and device."""
    words = shlex.split(re.search(f"`folio (serve --port {PORT} [^`]*)`", README)[1])
    return [sys.argv[1], *(port if word == PORT else word for word in words), "--device", "cpu"]


def ready(port):
    for _ in range(300):
        try:
            return socket.create_connection(("127.0.0.1", int(port))).close()
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the server did not start")


def calls(client):
    options = {"temperature": 0, "num_predict": 16, "num_ctx": 8192, "repeat_last_n": 64, "mirostat": 0}
    whole = client.chat(NAME, HELLO, options=options, keep_alive="5m")
    assert whole.model == NAME and whole.message.content, whole
    parts = list(client.chat(NAME, HELLO, options=options, stream=True))
    assert parts[-1].done and "".join(part.message.content for part in parts) == whole.message.content
    assert client.generate(NAME, "Hello!", options=options).response == whole.message.content
    assert len(client.embed(NAME, ["a", "b"]).embeddings) == 2
    assert client.show(NAME).capabilities


with socket.socket() as one:
    one.bind(("127.0.0.1", 0))
    free = str(one.getsockname()[1])
server = subprocess.Popen(command(free), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
failed = 0
try:
    ready(free)
    calls(ollama.Client(host=f"http://127.0.0.1:{free}"))
except Exception:
    failed = 1
    traceback.print_exc(file=sys.stdout)
finally:
    server.terminate()
    server.wait()
print(1 - failed, failed)
