"""Codex and Claude Code edit a file: their command lines against a scripted model (`--device fake:say=…`), with the
settings that the README gives for them.

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


def readme(agent, language, url):
    """The settings of an agent in the README, for this server."""
    text = (Path(__file__).parents[2] / "README.md").read_text()
    text = text.split("## Agents and apps", 1)[1].split(f"{agent}", 1)[1]
    block = re.search(f"```{language}\n(.*?)```", text, re.S)[1]
    assert "http://127.0.0.1:8000" in block and "Qwen/Qwen3-0.6B" in block, block
    return block.replace("http://127.0.0.1:8000", url).replace("Qwen/Qwen3-0.6B", "demo")


def codex():
    def settings(url, home):
        folder = home / ".codex"
        folder.mkdir()
        (folder / "config.toml").write_text(readme("Codex", "toml", url))
        return {}

    options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    command = [NPM / "node_modules/.bin/codex", "exec", *options, "Edit note.txt."]
    edits({"name": "exec_command", "arguments": {"cmd": COMMAND}}, command, settings)


def claude_code():
    def settings(url, _):
        lines = readme("Claude Code", "sh", url).splitlines()
        assert lines[-1] == "claude" and len(lines) == 3, lines
        exports = (line.removeprefix("export ").split() for line in lines[:-1])
        return dict(pair.split("=", 1) for line in exports for pair in line)

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
