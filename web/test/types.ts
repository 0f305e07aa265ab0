// The package's types against those of OpenAI's client: whatever compiles here can be handed from one to the other.

import OpenAI from "openai";
import type * as folio from "../dist/index.js";

const named = <T extends { model?: string }>(params: T) => ({ ...params, model: params.model ?? "folio-tiny" });

export const chatParams = (params: folio.ChatParamsWhole): OpenAI.ChatCompletionCreateParamsNonStreaming =>
  named(params);
export const chatStreamParams = (params: folio.ChatParamsStreaming): OpenAI.ChatCompletionCreateParamsStreaming =>
  named(params);
export const textParams = (params: folio.TextParamsWhole): OpenAI.CompletionCreateParamsNonStreaming => named(params);
export const textStreamParams = (params: folio.TextParamsStreaming): OpenAI.CompletionCreateParamsStreaming =>
  named(params);

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
