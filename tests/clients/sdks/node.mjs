// openai-node: chat, streams, tools, structured output, embeddings, errors. `node node.mjs URL` prints `passed failed`.

import assert from "node:assert/strict";
import OpenAI from "openai";

const baseURL = `${process.argv[2].replace(/\/$/, "")}/v1`;
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const model = "folio-tiny";
const hi = "Hi! What can I do for you?";
const ask = { model, temperature: 0, max_tokens: 100 };
const messages = [{ role: "user", content: "Hello!" }];
const weather = [{ role: "user", content: "What is the weather in Paris?" }];
const sunny = '{"temperature": 21, "condition": "sunny"}';
const city = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tool = { name: "get_weather", description: "Get the weather in a city.", parameters: city };
const person = {
    type: "object",
    properties: { name: { type: "string", maxLength: 12 }, age: { type: "integer", minimum: 0, maximum: 120 } },
    required: ["name", "age"],
    additionalProperties: false,
};
const response_format = { type: "json_schema", json_schema: { name: "person", strict: true, schema: person } };

const checks = {
    async models() {
        const found = [];
        for await (const one of client.models.list()) found.push(one.id);
        assert.deepEqual(found, [model]);
        assert.equal((await client.models.retrieve(model)).object, "model");
    },
    async chat() {
        const answer = await client.chat.completions.create({ ...ask, messages });
        assert.equal(answer.choices[0].message.content, hi);
        assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
        assert.ok(answer._request_id);
    },
    async streaming() {
        let text = "";
        let usage;
        const options = { ...ask, messages, stream: true, stream_options: { include_usage: true } };
        for await (const chunk of await client.chat.completions.create(options)) {
            text += chunk.choices[0]?.delta.content ?? "";
            usage ??= chunk.usage;
        }
        assert.equal(text, hi);
        assert.ok(usage.completion_tokens > 0);
        const runner = client.chat.completions.stream({ ...ask, messages });
        const deltas = [];
        runner.on("content", (delta) => deltas.push(delta));
        assert.equal(await runner.finalContent(), hi);
        assert.equal(deltas.join(""), hi);
        assert.equal(await runner.totalUsage().then((total) => typeof total.total_tokens), "number");
    },
    async leaving() {
        const stream = await client.chat.completions.create({ ...ask, messages, stream: true, max_tokens: 500 });
        for await (const chunk of stream) {
            assert.ok(chunk.id);
            stream.controller.abort();
            break;
        }
    },
    async toolRunner() {
        const asked = [];
        const get_weather = ({ city }) => asked.push(city) && sunny;
        const known = [{ type: "function", function: { ...tool, function: get_weather, parse: JSON.parse } }];
        for (const stream of [false, true]) {
            const runner = client.chat.completions.runTools({ ...ask, messages: weather, tools: known, stream });
            assert.equal(await runner.finalContent(), "It is 21 degrees and sunny in Paris.");
        }
        assert.deepEqual(asked, ["Paris", "Paris"]);
    },
    async structuredOutput() {
        const said = [{ role: "user", content: "Tell me of a person, as JSON." }];
        const answer = await client.chat.completions.parse({ ...ask, messages: said, response_format });
        const found = JSON.parse(answer.choices[0].message.content);
        assert.deepEqual(Object.keys(found), ["name", "age"]);
        const runner = client.chat.completions.stream({ ...ask, messages: said, response_format });
        assert.deepEqual(JSON.parse(await runner.finalContent()), found);
    },
    async completions() {
        const answer = await client.completions.create({ model, prompt: ["Hello", "Once"], max_tokens: 4 });
        assert.equal(answer.choices.length, 2);
        let chunks = 0;
        const options = { model, prompt: "Once upon a time", max_tokens: 4, stream: true };
        for await (const chunk of await client.completions.create(options)) chunks += chunk.choices.length;
        assert.ok(chunks > 0);
    },
    async embeddings() {
        // The client requests base64 and decodes it.
        const answer = await client.embeddings.create({ model, input: ["Hello", "Goodbye"] });
        const [one] = answer.data.map((entry) => entry.embedding);
        assert.ok(Math.abs(one.reduce((sum, value) => sum + value * value, 0) - 1) < 1e-3);
        const plain = await client.embeddings.create({ model, input: "Hello", encoding_format: "float" });
        assert.ok(Math.abs(plain.data[0].embedding[0] - one[0]) < 1e-3);
    },
    async errors() {
        const create = (more) => client.chat.completions.create({ ...ask, messages, ...more });
        await assert.rejects(create({ model: "nobody" }), (error) => {
            assert.ok(error instanceof OpenAI.NotFoundError);
            return error.code === "model_not_found" && Boolean(error.requestID);
        });
        await assert.rejects(create({ temperature: 3 }), (error) => {
            return error instanceof OpenAI.BadRequestError && error.param === "temperature";
        });
    },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
    try {
        await check();
    } catch (error) {
        failed += 1;
        console.log(`node.mjs: ${name}`, error);
    }
}
console.log(Object.keys(checks).length - failed, failed);
