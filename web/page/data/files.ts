// Conversations as files: export to JSON and Markdown, import from JSON, and text files as attachments.

import { shown, type Attachment, type Conversation, type Message } from "./conversation.js";

const FORMAT = "folio-conversations";
const VERSION = 1;
/** Size limit of an attachment; more would not fit into a context. */
const ATTACHMENT_BYTES_MAX = 4 << 20;

export function toJson(conversations: Conversation[]): string {
  return `${JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 1)}\n`;
}

/** The shown messages of a conversation. */
export function toMarkdown(conversation: Conversation): string {
  const names = { user: "You", assistant: "Assistant", tool: "Result of a call" };
  const parts = shown(conversation).map((message) => {
    const calls = (message.calls ?? []).map(({ name, args }) => `\`${name}(${args})\``);
    return [`## ${names[message.role]}`, withAttachments(message), ...calls].filter(Boolean).join("\n\n");
  });
  const { system } = conversation.settings;
  const head = [`# ${conversation.title}`, ...(system ? ["## System prompt", system] : [])];
  return `${[...head, ...parts].join("\n\n")}\n`;
}

/** Reads an exported file; throws an error that names what is wrong. */
export function fromJson(text: string): Conversation[] {
  let file: { format?: unknown; version?: unknown; conversations?: unknown };
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
  if (file?.format !== FORMAT) throw new Error(`The file has no "format": "${FORMAT}".`);
  if (file.version !== VERSION) throw new Error(`The file has version ${file.version}; this page reads ${VERSION}.`);
  if (!Array.isArray(file.conversations)) throw new Error(`The file's "conversations" is not a list.`);
  return file.conversations.map(checked);
}

function checked(value: Conversation, index: number): Conversation {
  const fail = (what: string) => new Error(`conversations[${index}]: ${what}`);
  const isObject = (part: unknown) => typeof part === "object" && part !== null && !Array.isArray(part);
  if (!isObject(value)) throw fail("not an object");
  for (const name of ["id", "title"] as const) if (typeof value[name] !== "string") throw fail(`"${name}" is no text`);
  for (const name of ["created", "updated"] as const) {
    if (typeof value[name] !== "number") throw fail(`"${name}" is no number`);
  }
  for (const name of ["messages", "chosen", "settings"] as const) {
    if (!isObject(value[name])) throw fail(`"${name}" is not an object`);
  }
  const { settings } = value;
  if (typeof settings.system !== "string" || typeof settings.tools !== "string") throw fail(`"settings" has no texts`);
  if (!isObject(settings.fields) || !isObject(settings.format)) throw fail(`"settings" lacks "fields" or "format"`);
  for (const [id, message] of Object.entries(value.messages)) {
    const isText = [message?.text, message?.parent].every((part) => typeof part === "string");
    if (message?.id !== id || !isText) throw fail(`the message ${JSON.stringify(id)} lacks its id, parent or text`);
    if (!["user", "assistant", "tool"].includes(message.role)) throw fail(`the message ${id} has no known role`);
    if (message.parent !== "" && !value.messages[message.parent]) throw fail(`the parent of ${id} is missing`);
  }
  return value;
}

/** A question with its attachments, as the model gets it. */
export function withAttachments({ text, attachments }: Pick<Message, "text" | "attachments">): string {
  const files = (attachments ?? []).map(({ name, text }) => {
    const longest = Math.max(2, ...(text.match(/`{3,}/g) ?? []).map((ticks) => ticks.length));
    const fence = "`".repeat(longest + 1);
    return `File ${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...files, text].filter(Boolean).join("\n\n");
}

/** Reads a text file; throws an error that names it if it is too large or no text. */
export async function readAttachment(file: File): Promise<Attachment> {
  if (file.size > ATTACHMENT_BYTES_MAX) {
    throw new Error(`${file.name} has ${file.size} bytes; at most ${ATTACHMENT_BYTES_MAX} can be attached.`);
  }
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return { name: file.name, text };
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
  }
  throw new Error(`${file.name} is not a text file in UTF-8.`);
}

/** Offers a text as a download. */
export function download(name: string, type: string, text: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name.replace(/[^\p{L}\p{N} ._-]+/gu, "-").slice(0, 80);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
