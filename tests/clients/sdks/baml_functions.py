"""BAML: functions of a generated client on the Responses API, chat completions and Anthropic's Messages.

python baml_functions.py http://127.0.0.1:8000
"""

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from common import BASE, HELLO, HI, MODEL, run

ROOT = BASE.removesuffix("/v1")
SOURCE = """
generator target {
  output_type "python/pydantic"
  output_dir "../"
  version "VERSION"
  default_client_mode sync
}
client<llm> Responses {
  provider openai-responses
  options {
    base_url "BASE"
    api_key "none"
    model "MODEL"
    temperature 0
    max_output_tokens 100
  }
}
client<llm> Chat {
  provider openai-generic
  options {
    base_url "BASE"
    api_key "none"
    model "MODEL"
    temperature 0
    max_tokens 100
  }
}
client<llm> Messages {
  provider anthropic
  options {
    base_url "ROOT"
    api_key "none"
    model "MODEL"
    temperature 0
    max_tokens 100
  }
}
client<llm> Formed {
  provider openai-responses
  options {
    base_url "BASE"
    api_key "none"
    model "MODEL"
    temperature 0
    max_output_tokens 300
    text {
      format {
        type "json_schema"
        name "person"
        schema {
          type "object"
          properties {
            age {
              type "integer"
              minimum 0
              maximum 120
            }
          }
          required ["age"]
        }
      }
    }
  }
}
class Person {
  age int
}
function Say(text: string) -> string {
  client Responses
  prompt #"{{ _.role("user") }}{{ text }}"#
}
function Describe(text: string) -> Person {
  client Formed
  prompt #"{{ _.role("user") }}{{ text }} {{ ctx.output_format }}"#
}
"""


def generated():
    """The client that BAML generates for these functions."""
    folder = Path(tempfile.mkdtemp())
    (folder / "baml_src").mkdir()
    source = SOURCE
    for name, value in {"VERSION": version("baml-py"), "BASE": BASE, "ROOT": ROOT, "MODEL": MODEL}.items():
        source = source.replace(f'"{name}"', f'"{value}"')
    (folder / "baml_src" / "main.baml").write_text(source)
    baml = Path(sys.executable).parent / "baml-cli"
    subprocess.run([baml, "generate", "--from", folder / "baml_src"], check=True, capture_output=True)
    sys.path.insert(0, str(folder))
    from baml_client import b

    return b


CLIENT = generated()


def says_hello():
    for client in ("Responses", "Chat", "Messages"):
        assert CLIENT.with_options(client=client).Say(HELLO) == HI, client


def streams():
    for client in ("Responses", "Chat", "Messages"):
        stream = CLIENT.with_options(client=client).stream.Say(HELLO)
        parts = list(stream)
        assert stream.get_final_response() == HI == parts[-1], (client, parts)


def follows_a_schema():
    assert 0 <= CLIENT.Describe("Who are you?").age <= 120


run(says_hello, streams, follows_a_schema)
