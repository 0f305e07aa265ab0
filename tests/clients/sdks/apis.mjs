// The other APIs through their own clients for JavaScript. `node apis.mjs URL` prints `passed failed`.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { Ollama } from "ollama";
import OpenAI from "openai";

const root = process.argv[2].replace(/\/$/, "");
const claude = new Anthropic({ baseURL: root, apiKey: "none", maxRetries: 0 });
const gpt = new OpenAI({ baseURL: `${root}/v1`, apiKey: "none", maxRetries: 0 });
const llama = new Ollama({ host: root });
const model = "folio-tiny";
const hi = "Hi! What can I do for you?";
const hello = [{ role: "user", content: "Hello!" }];
const weather = [{ role: "user", content: "What is the weather in Paris?" }];
const city = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const described = { name: "get_weather", description: "Get the weather in a city." };

const checks = {
    async messages() {
        const ask = { model, max_tokens: 100, temperature: 0, messages: hello };
        const answer = await claude.messages.create(ask);
        assert.equal(answer.content[0].text, hi);
        const stream = claude.messages.stream(ask);
        assert.equal(await stream.finalText(), hi);
        const tools = [{ ...described, input_schema: city }];
        const called = await claude.messages
            .stream({ ...ask, messages: weather, tools, tool_choice: { type: "any" } })
            .finalMessage();
        assert.deepEqual(called.content.at(-1).input, { city: "Paris" });
    },
    async responses() {
        const ask = { model, max_output_tokens: 100, temperature: 0, input: "Hello!" };
        assert.equal((await gpt.responses.create(ask)).output_text, hi);
        const stream = gpt.responses.stream(ask);
        assert.equal((await stream.finalResponse()).output_text, hi);
        const tools = [{ type: "function", ...described, parameters: city, strict: true }];
        const called = gpt.responses.stream({ ...ask, input: weather, tools, tool_choice: "required" });
        assert.equal((await called.finalResponse()).output.at(-1).arguments, '{"city": "Paris"}');
    },
    async ollama() {
        const options = { temperature: 0, num_predict: 100 };
        assert.equal((await llama.chat({ model, messages: hello, options })).message.content, hi);
        let text = "";
        for await (const part of await llama.chat({ model, messages: hello, options, stream: true }))
            text += part.message.content;
        assert.equal(text, hi);
        const tools = [{ type: "function", function: { ...described, parameters: city } }];
        const called = await llama.chat({ model, messages: weather, options, tools });
        assert.deepEqual(called.message.tool_calls[0].function.arguments, { city: "Paris" });
        assert.equal((await llama.list()).models[0].name, `${model}:latest`);
        assert.equal((await llama.embed({ model, input: ["a", "b"] })).embeddings.length, 2);
    },
};

let passed = 0;
let failed = 0;
for (const [name, check] of Object.entries(checks)) {
    try {
        await check();
        passed += 1;
    } catch (error) {
        failed += 1;
        console.log(`apis.mjs: ${name}\n${error.stack}`);
    }
}
console.log(passed, failed);
