// Requests from conversations and their settings.

import { pathTo, type Conversation, type Format, type Message, type Settings } from "./conversation.js";
import { withAttachments } from "./files.js";

/** Error of a setting; the message names it. */
export class SettingError extends Error {}

/** The body of the request for an answer after the message `last`, or with `continues` for the rest of that answer. */
export function requestBody(
  conversation: Conversation,
  last: string,
  model: string | null,
  continues: boolean,
): Record<string, unknown> {
  const { settings } = conversation;
  const path = joined(pathTo(conversation, last)).map(wireMessage);
  const system = settings.system.trim();
  const messages = system ? [{ role: "system", content: system }, ...path] : path;
  const { fields } = settings;
  // Searches are not streamed.
  const stream = !fields.use_beam_search && fields.best_of === undefined;
  const options = { include_usage: true, continuous_usage_stats: true };
  return {
    ...(model !== null && { model }),
    messages,
    ...fields,
    ...format(settings.format),
    ...tools(settings),
    ...(continues && { continue_final_message: true, add_generation_prompt: false, n: 1 }),
    stream,
    ...(stream && { stream_options: options }),
  };
}

/** Without answers that have nothing in them, and with questions in a row as one: many templates want turns. */
function joined(path: Message[]): Message[] {
  const full: Message[] = [];
  for (const message of path) {
    const before = full.at(-1);
    if (message.role === "assistant" && !message.text && !message.calls) continue;
    if (message.role === "user" && before?.role === "user") {
      const [text, attachments] = [`${before.text}\n\n${message.text}`.trim(), message.attachments ?? []];
      full[full.length - 1] = { ...before, text, attachments: [...(before.attachments ?? []), ...attachments] };
    } else full.push(message);
  }
  return full;
}

function wireMessage(message: Message): Record<string, unknown> {
  if (message.role === "user") return { role: "user", content: withAttachments(message) };
  if (message.role === "tool") return { role: "tool", content: message.text, tool_call_id: message.callId };
  const calls = message.calls?.map(({ id, name, args }) => {
    return { id, type: "function", function: { name, arguments: args } };
  });
  return { role: "assistant", content: message.text, ...(calls?.length && { tool_calls: calls }) };
}

function parsed(text: string, what: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SettingError(`${what} is not JSON: ${(error as Error).message}`);
  }
}

/** The fields that constrain the answer; throws a {@link SettingError} if they cannot be read. */
export function format({ kind, text }: Format): Record<string, unknown> {
  if (kind === "text") return {};
  if (kind === "json_object") return { response_format: { type: "json_object" } };
  if (!text.trim()) return {};
  if (kind === "json_schema") {
    const schema = parsed(text, "The JSON schema of the answer");
    return { response_format: { type: "json_schema", json_schema: { name: "answer", schema } } };
  }
  if (kind === "choice") return { structured_outputs: { choice: text.split("\n").filter((line) => line.trim()) } };
  return { structured_outputs: { [kind]: text } };
}

/** The functions that the model may call; throws a {@link SettingError} if they cannot be read. */
export function tools({ tools }: Pick<Settings, "tools">): Record<string, unknown> {
  if (!tools.trim()) return {};
  const list = parsed(tools, "The list of tools");
  if (!Array.isArray(list)) throw new SettingError("The list of tools is no JSON array.");
  return { tools: list };
}
