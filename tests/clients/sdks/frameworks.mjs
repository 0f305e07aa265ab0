// Frameworks for JavaScript, which speak the Responses API by default or on request. `node frameworks.mjs URL` prints
// `passed failed`.

import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { tool as described } from "@langchain/core/tools";
import { ChatOpenAI, OpenAIEmbeddings } from "@langchain/openai";
import { generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const baseURL = `${process.argv[2].replace(/\/$/, "")}/v1`;
const model = "folio-tiny";
const hi = "Hi! What can I do for you?";
const weather = "What is the weather in Paris?";
const sunny = { temperature: 21, condition: "sunny" };
const itIsSunny = "It is 21 degrees and sunny in Paris.";
const description = "Get the weather in a city.";
const openai = createOpenAI({ baseURL, apiKey: "none" });
const person = z.object({ name: z.string().max(12), age: z.number().int().min(0).max(120) });
const settings = { temperature: 0, maxRetries: 0 };

/** LangChain's model in one of its two modes. */
const langchain = (useResponsesApi) =>
    new ChatOpenAI({ ...settings, model, apiKey: "none", configuration: { baseURL }, useResponsesApi, maxTokens: 100 });

async function langchainSays(useResponsesApi) {
    const llm = langchain(useResponsesApi);
    assert.equal((await llm.invoke("Hello!")).text, hi);
    let text = "";
    for await (const part of await llm.stream("Hello!")) text += part.text;
    assert.equal(text, hi);
    const getWeather = described(() => JSON.stringify(sunny), {
        name: "get_weather",
        description,
        schema: z.object({ city: z.string() }),
    });
    const called = await llm.bindTools([getWeather]).invoke(weather);
    assert.deepEqual(called.tool_calls[0].args, { city: "Paris" });
    const answered = await llm
        .bindTools([getWeather])
        .invoke([{ role: "user", content: weather }, called, await getWeather.invoke(called.tool_calls[0])]);
    assert.equal(answered.text, itIsSunny);
    const formed = llm.withStructuredOutput(person, { method: "jsonSchema" });
    person.parse(await formed.invoke("Who are you?"));
}

async function aiSays(of) {
    const ask = { model: of, ...settings, maxOutputTokens: 100 };
    assert.equal((await generateText({ ...ask, prompt: "Hello!" })).text, hi);
    let text = "";
    for await (const part of streamText({ ...ask, prompt: "Hello!" }).textStream) text += part;
    assert.equal(text, hi);
    const cities = [];
    const getWeather = tool({
        description,
        inputSchema: jsonSchema({ type: "object", properties: { city: { type: "string" } }, required: ["city"] }),
        execute: async ({ city }) => (cities.push(city), sunny),
    });
    const looped = { ...ask, prompt: weather, tools: { get_weather: getWeather }, stopWhen: stepCountIs(3) };
    const answer = await generateText(looped);
    assert.deepEqual([cities, answer.text], [["Paris"], itIsSunny]);
    const output = Output.object({ schema: person });
    person.parse((await generateText({ ...ask, maxOutputTokens: 300, prompt: "Who are you?", output })).output);
}

const checks = {
    langchainChat: () => langchainSays(false),
    langchainResponses: () => langchainSays(true),
    async langchainEmbeddings() {
        const embeddings = new OpenAIEmbeddings({ model, apiKey: "none", configuration: { baseURL } });
        assert.equal((await embeddings.embedDocuments(["a", "b"])).length, 2);
    },
    aiByDefault: () => aiSays(openai(model)),
    aiChat: () => aiSays(openai.chat(model)),
};

let passed = 0;
let failed = 0;
for (const [name, check] of Object.entries(checks)) {
    try {
        await check();
        passed += 1;
    } catch (error) {
        failed += 1;
        console.log(`frameworks.mjs: ${name}\n${error.stack}`);
    }
}
console.log(passed, failed);
