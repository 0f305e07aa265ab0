"""Codex and Claude Code edit a file: their command lines against a scripted model (`--device fake:say=…`).

    python agents.py FOLIO NPM

NPM is a folder with the packages `@openai/codex` and `@anthropic-ai/claude-code`. Prints failures, then a last line
`passed failed`.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
import urllib.request
from contextlib import contextmanager
from pathlib import Path

FOLIO, NPM = sys.argv[1], Path(sys.argv[2])
END = "<|im_end|>"
DONE = "I have edited the file."
COMMAND = "echo edited > note.txt"
# What the agents send has up to 40,000 tokens of the demo model.
SERVE = [FOLIO, "serve", "--port", "0", "--served-model-name", "demo", "--kv-cache-bytes", "512MiB", "--device"]


@contextmanager
def server(device):
    process = subprocess.Popen([*SERVE, device], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield next(found[1] for found in (re.search(r"ready on (http://\S+)", line) for line in process.stdout) if found)
    finally:
        process.terminate()
        process.wait()


def scripted(*answers):
    """The device that gives these answers, one per turn."""
    with server("fake") as url:

        def ids(text):
            body = json.dumps({"prompt": text, "add_special_tokens": False}).encode()
            request = urllib.request.Request(f"{url}/tokenize", body, {"content-type": "application/json"})
            with urllib.request.urlopen(request) as answer:
                return ".".join(str(one) for one in json.load(answer)["tokens"])

        script = ">".join([ids("<|im_start|>assistant\n"), *(ids(answer + END) for answer in answers)])
    return f"fake:context=65536,say={script}"


def edits(call, command, settings):
    """Runs an agent in an empty folder. `settings` writes its configuration and returns its variables."""
    answer = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    with server(scripted(answer, DONE)) as url, tempfile.TemporaryDirectory() as home:
        work = Path(home) / "work"
        work.mkdir()
        note = work / "note.txt"
        note.write_text("new\n")
        environment = {"PATH": os.environ["PATH"], "HOME": home, **settings(url, Path(home))}
        ran = subprocess.run(
            command, cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )
        said = ran.stdout + ran.stderr
        assert note.read_text() == "edited\n", said
        assert DONE in said, said


def codex():
    def settings(url, home):
        folder = home / ".codex"
        folder.mkdir()
        provider = f'{{ name = "folio", base_url = "{url}/v1", wire_api = "responses" }}'
        lines = ['model = "demo"', 'model_provider = "folio"', f"model_providers.folio = {provider}"]
        (folder / "config.toml").write_text("\n".join(lines))
        return {}

    options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    command = [NPM / "node_modules/.bin/codex", "exec", *options, "Edit note.txt."]
    edits({"name": "exec_command", "arguments": {"cmd": COMMAND}}, command, settings)


def claude_code():
    def settings(url, _):
        quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
        return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none", "ANTHROPIC_MODEL": "demo", **quiet}

    command = [NPM / "node_modules/.bin/claude", "-p", "Edit note.txt.", "--allowedTools", "Bash"]
    call = {"name": "Bash", "arguments": {"command": COMMAND, "description": "edit"}}
    edits(call, command, settings)


passed = failed = 0
for check in (codex, claude_code):
    try:
        check()
        passed += 1
    except Exception:
        failed += 1
        traceback.print_exc(limit=-2, file=sys.stdout)
print(passed, failed)
