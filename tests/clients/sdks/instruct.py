"""instructor: pydantic models from each of its modes."""

import instructor
import openai
from common import BASE, MODEL, run
from pydantic import BaseModel, Field

client = openai.OpenAI(base_url=BASE, api_key="none", max_retries=0)
SAID = [{"role": "user", "content": "Tell me of a person, as JSON."}]


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)


def created(mode, **more):
    made = instructor.from_openai(client, mode=mode)
    return made.chat.completions.create(
        model=MODEL, messages=SAID, response_model=Person, temperature=0, max_tokens=150, max_retries=0, **more
    )


def tools():
    assert created(instructor.Mode.TOOLS).name


def tools_strict():
    assert created(instructor.Mode.TOOLS_STRICT).name


def json_schema():
    assert created(instructor.Mode.JSON_SCHEMA).name


def partial():
    made = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
    found = list(
        made.chat.completions.create_partial(
            model=MODEL, messages=SAID, response_model=Person, temperature=0, max_tokens=150, max_retries=0
        )
    )
    assert len(found) > 1 and found[-1].name and found[-1].age is not None


run(tools, tools_strict, json_schema, partial)
