"""Agents edit a file: their command lines against a scripted model (`--device fake:say=…`). Codex and Claude Code have
the settings that the README gives for them.

    python coding_agents.py FOLIO NPM AIDER

NPM is a folder with the packages `@openai/codex`, `@anthropic-ai/claude-code` and `opencode-ai`, AIDER the command of
aider. Prints failures, then a last line `passed failed`.
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

FOLIO, NPM, AIDER = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
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


def called(name, **arguments):
    """The model's answer that calls a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def edits(answers, command, settings, shown=DONE):
    """Runs an agent in a folder with a file. `settings` writes its configuration and returns its variables."""
    with server(scripted(*answers)) as url, tempfile.TemporaryDirectory() as home:
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
        assert shown in said, said


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
    edits([called("exec_command", cmd=COMMAND), DONE], command, settings)


def claude_code():
    def settings(url, _):
        lines = readme("Claude Code", "sh", url).splitlines()
        assert lines[-1] == "claude" and len(lines) == 3, lines
        exports = (line.removeprefix("export ").split() for line in lines[:-1])
        return dict(pair.split("=", 1) for line in exports for pair in line)

    command = [NPM / "node_modules/.bin/claude", "-p", "Edit note.txt.", "--allowedTools", "Bash"]
    edits([called("Bash", command=COMMAND, description="edit"), DONE], command, settings)


def opencode():
    def settings(url, home):
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
            "models": {"demo": {"tool_call": True, "limit": {"context": 65536, "output": 4096}}},
        }
        configuration = {"model": "folio/demo", "provider": {"folio": provider}, "autoupdate": False}
        (home / "work/opencode.json").write_text(json.dumps(configuration))
        return {"OPENCODE_DISABLE_MODELS_FETCH": "1"}

    command = [NPM / "node_modules/.bin/opencode", "run", "Edit note.txt."]
    edits([called("bash", command=COMMAND, description="edit"), DONE], command, settings)


def aider():
    def settings(url, _):
        return {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

    options = ["--yes-always", "--no-git", "--no-check-update", "--analytics-disable", "--no-show-model-warnings"]
    command = [AIDER, "--model", "openai/demo", "--edit-format", "whole", *options]
    # Its prompt has examples, whose answers count as turns.
    answers = ["note.txt\n```\nedited\n```\n"] * 8
    message = ["--message", "Edit note.txt.", "note.txt"]
    edits(answers, [*command, *message], settings, shown="Applied edit to note.txt")


passed = failed = 0
for check in (codex, claude_code, opencode, aider):
    try:
        check()
        passed += 1
    except Exception:
        failed += 1
        traceback.print_exc(limit=-2, file=sys.stdout)
print(passed, failed)
