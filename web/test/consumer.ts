// What a page writes, compiled as strictly as TypeScript can: the package's types need nothing beside them.

import { load, type ChatCompletionChunk, type Engine, type LoadOptions, type Message } from "../dist/index.js";

const options: LoadOptions = { model: "org/name-GGUF:Q4_K_M", limits: { maxModelLen: 4096 } };
export const fromUser = (input: HTMLInputElement): Promise<Engine> => load({ model: input.files! });
export const fromUrls = (url: URL): Promise<Engine> => load({ ...options, model: { files: { "a.gguf": url } } });

const messages: Message[] = [
  { role: "system", content: "Be brief." },
  { role: "user", content: [{ type: "text", text: "How is the weather in Oslo?" }] },
  {
    role: "assistant",
    content: null,
    tool_calls: [{ id: "1", type: "function", function: { name: "weather", arguments: '{"city":"Oslo"}' } }],
  },
  { role: "tool", tool_call_id: "1", content: "rain" },
];

export async function chat(engine: Engine): Promise<string> {
  const answer = await engine.chat.completions.create({
    messages,
    tools: [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }],
    tool_choice: "auto",
    response_format: { type: "json_schema", json_schema: { name: "answer", schema: { type: "object" } } },
    temperature: 0,
  });
  const [choice] = answer.choices;
  const { content, reasoning_content, tool_calls } = choice!.message;
  return [reasoning_content, content, tool_calls?.[0]?.function.name].join();
}

/** `stream` may be known only when the page runs. */
export async function either(engine: Engine, stream: boolean): Promise<string> {
  const answer = await engine.chat.completions.create({ messages, stream });
  if ("choices" in answer) return answer.choices[0]?.message.content ?? "";
  let text = "";
  for await (const chunk of answer) text += piece(chunk);
  return text;
}

function piece({ choices: [choice] }: ChatCompletionChunk): string {
  return choice?.delta.reasoning_content ?? choice?.delta.content ?? "";
}

export async function vectors(engine: Engine): Promise<[number, string]> {
  const numbers = await engine.embeddings.create({ input: ["one", "two"] });
  const text = await engine.embeddings.create({ input: "one", encoding_format: "base64" });
  return [numbers.data[0]!.embedding[0]!, text.data[0]!.embedding];
}

export async function respond(engine: Engine): Promise<string> {
  const events = await engine.responses.create({ input: "Hello!", stream: true });
  let text = "";
  for await (const event of events) {
    if (event.type === "response.output_text.delta") text += event.delta;
    if (event.type === "response.completed") text += event.response.usage?.output_tokens;
  }
  const whole = await engine.responses.create({ input: [{ role: "user", content: "Hello!" }] });
  const [item] = whole.output;
  return item?.type === "message" ? text + item.content.map((part) => part.text).join("") : text;
}

// @ts-expect-error: a tool needs a function
export const wrongTool: Parameters<Engine["chat"]["completions"]["create"]>[0] = { messages, tools: [{ name: "x" }] };
// @ts-expect-error: a model is needed
export const wrongOptions: LoadOptions = {};
