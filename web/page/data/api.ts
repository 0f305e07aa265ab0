// The server's API as the page uses it: over the network, or in this tab.

import type { ChatCompletionChunk, ChatCompletion } from "../../ts/types.js";

/** Sends a request to a path of the API, such as `v1/models`. */
export type Send = (path: string, init?: RequestInit) => Promise<Response>;

/** The server's own words about a refused request. */
export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

/** A model that answers, as far as the API says. */
export interface Served {
  id: string;
  max_model_len: number | null;
  /** Whether it is loaded; a model that is not is loaded by the first question. */
  status?: { value: "loaded" | "loading" | "unloaded" | "unloading"; failed?: boolean; reason?: string };
}

/** The part of a JSON schema that a form needs. */
export interface FieldSchema {
  type?: string | string[];
  enum?: (string | null)[];
  anyOf?: FieldSchema[];
  items?: FieldSchema;
  description?: string;
  default?: unknown;
  minimum?: number;
  exclusiveMinimum?: number;
  maximum?: number;
  "x-group"?: string;
}

export class Api {
  constructor(private readonly send: Send) {}

  /** Sends a request; throws an {@link ApiError} unless it is answered with success. */
  async request(path: string, init?: RequestInit): Promise<Response> {
    const response = await this.send(path, init);
    if (response.ok) return response;
    const body = await response.json().catch(() => null);
    throw new ApiError(body?.error?.message ?? `The server answered ${response.status}.`, response.status);
  }

  async json<T>(path: string): Promise<T> {
    return await (await this.request(path)).json();
  }

  async models(): Promise<Served[]> {
    return (await this.json<{ data: Served[] }>("v1/models")).data;
  }

  /** The fields of a chat request with their ranges. */
  async fields(): Promise<Record<string, FieldSchema>> {
    const document = await this.json<{
      components: { schemas: { ChatRequest: { properties: Record<string, FieldSchema> } } };
    }>("openapi.json");
    return document.components.schemas.ChatRequest.properties;
  }

  /** A model's defaults of the fields of chats, under llama.cpp's names. A model that is not loaded is loaded. */
  async defaults(model: string | null): Promise<Record<string, unknown>> {
    const { chat_generation_settings } = await this.json<{
      chat_generation_settings: { params: Record<string, unknown> };
    }>(model === null ? "props" : `props?model=${encodeURIComponent(model)}`);
    return chat_generation_settings.params;
  }

  /** Answers a conversation, in pieces also if the answer is not streamed. */
  async *chat(body: Record<string, unknown>, signal: AbortSignal): AsyncGenerator<ChatCompletionChunk> {
    const init = { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
    const response = await this.request("v1/chat/completions", { ...init, signal });
    if (body.stream) yield* events(response);
    else yield asChunk(await response.json());
  }
}

function asChunk({ choices, ...rest }: ChatCompletion): ChatCompletionChunk {
  const parts = choices.map(({ index, message, finish_reason }) => {
    const { tool_calls, content, reasoning_content } = message;
    const calls = tool_calls?.map((call, index) => ({ ...call, index }));
    const delta = { content, ...(reasoning_content && { reasoning_content }), ...(calls && { tool_calls: calls }) };
    return { index, delta, finish_reason };
  });
  return { ...rest, object: "chat.completion.chunk", choices: parts };
}

/** The events of a stream, as objects, until `[DONE]`. */
async function* events(response: Response): AsyncGenerator<ChatCompletionChunk> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("The answer ended early: the connection to the server was lost.");
      text += value;
      const parts = text.split("\n\n");
      text = parts.pop()!;
      for (const part of parts) {
        if (!part.startsWith("data: ")) continue;
        const data = part.slice(6);
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new ApiError(event.error.message, 200);
        yield event;
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
