// The package's types against those of OpenAI's client: whatever compiles here can be handed from one to the other.

import OpenAI from "openai";
import type * as folio from "../dist/index.js";

// What OpenAI's client may send in the fields that both have may be sent here. Left out are those with forms that are
// not supported: images, sound, custom tools, no prompt.
type Shared<T> = Omit<T, "messages" | "modalities" | "prompt" | "tool_choice">;
type Message = Exclude<OpenAI.ChatCompletionMessageParam, { role: "user" | "assistant" | "function" }>;

export const chatParams = (
  params: Shared<OpenAI.ChatCompletionCreateParamsNonStreaming>,
): Shared<folio.ChatParamsWhole> => params;
export const chatStreamParams = (
  params: Shared<OpenAI.ChatCompletionCreateParamsStreaming>,
): Shared<folio.ChatParamsStreaming> => params;
export const textParams = (params: OpenAI.CompletionCreateParamsNonStreaming): Shared<folio.TextParamsWhole> => params;
export const textStreamParams = (
  params: OpenAI.CompletionCreateParamsStreaming,
): Shared<folio.TextParamsStreaming> => params;
export const message = (message: Message): folio.Message => message;

// One request for both.
const weather = {
  model: "folio-tiny",
  messages: [
    { role: "system" as const, content: "Be brief." },
    { role: "user" as const, content: [{ type: "text" as const, text: "How is the weather?" }] },
    {
      role: "assistant" as const,
      content: null,
      tool_calls: [{ id: "1", type: "function" as const, function: { name: "weather", arguments: "{}" } }],
    },
    { role: "tool" as const, tool_call_id: "1", content: "rain" },
  ],
  tools: [{ type: "function" as const, function: { name: "weather", parameters: { type: "object" }, strict: true } }],
  tool_choice: { type: "function" as const, function: { name: "weather" } },
  response_format: { type: "json_schema" as const, json_schema: { name: "answer", schema: {}, strict: true } },
  reasoning_effort: "low" as const,
  stop: ["\n"],
};
export const here: folio.ChatParamsWhole = weather;
export const there: OpenAI.ChatCompletionCreateParamsNonStreaming = weather;
// @ts-expect-error: a field's type is checked
export const wrongField: folio.ChatParamsWhole = { messages: [], temperature: "1" };

export const chat = (answer: folio.ChatCompletion): OpenAI.ChatCompletion => answer;
export const chunk = (answer: folio.ChatCompletionChunk): OpenAI.ChatCompletionChunk => answer;
export const text = (answer: folio.Completion): OpenAI.Completion => answer;
export const model = (answer: folio.Model): OpenAI.Model => answer;
export const stream = (
  engine: folio.Engine,
  params: folio.ChatParamsStreaming,
): Promise<AsyncIterable<OpenAI.ChatCompletionChunk>> => engine.chat.completions.create(params);

export const client = (engine: folio.Engine): OpenAI =>
  new OpenAI({ baseURL: "http://folio/v1", apiKey: "x", fetch: engine.fetch, dangerouslyAllowBrowser: true });

// @ts-expect-error: these types can fail
export const wrong = (answer: folio.Completion): OpenAI.ChatCompletion => answer;
