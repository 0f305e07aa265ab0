// A conversation: a tree of messages. Editing a question or asking again adds a branch; `chosen` says which child of
// each message is shown. All functions return new values and change none.

/** A text file that was attached to a question. */
export interface Attachment {
  name: string;
  text: string;
}

/** A function call of the model; `args` is JSON as the model wrote it. */
export interface Call {
  id: string;
  name: string;
  args: string;
}

/** Measurements of an answer; times in milliseconds. */
export interface Figures {
  promptTokens: number;
  cachedTokens: number;
  tokens: number;
  /** Tokens per second after the first token; 0 if there was no second one. */
  rate: number;
  firstMs: number;
  totalMs: number;
}

/** Why an answer ended: the API's reason, or the page's. An answer without one runs, or its page was closed. */
export type End = "stop" | "length" | "tool_calls" | "stopped" | "failed";

export interface Message {
  id: string;
  /** `""` for the first message of a conversation. */
  parent: string;
  role: "user" | "assistant" | "tool";
  text: string;
  created: number;
  attachments?: Attachment[];
  /** Thoughts before the answer. */
  reasoning?: string;
  reasoningMs?: number;
  calls?: Call[];
  /** The call whose result a message of the role `tool` has. */
  callId?: string;
  model?: string;
  figures?: Figures;
  end?: End;
  /** Set with the end `failed`. */
  error?: string;
}

/** What the answer must look like. */
export interface Format {
  kind: "text" | "json_object" | "json_schema" | "regex" | "choice" | "grammar";
  /** The schema, expression or grammar, or the choices, one a line. */
  text: string;
}

/** Settings of a conversation. */
export interface Settings {
  system: string;
  /** Fields of the request, by their names in the API; an absent one has the server's default. */
  fields: Record<string, unknown>;
  format: Format;
  /** Functions that the model may call: a JSON array, or empty. */
  tools: string;
}

export interface Conversation {
  id: string;
  title: string;
  /** Whether the user chose the title. */
  named: boolean;
  created: number;
  updated: number;
  settings: Settings;
  messages: Record<string, Message>;
  /** The shown child of each message, and at `""` the shown first message. */
  chosen: Record<string, string>;
  /** Ids of messages that were removed, so that a tab that still has them does not bring them back. */
  removed?: string[];
}

const TITLE_CHARACTERS = 60;

export const noSettings = (): Settings => ({ system: "", fields: {}, format: { kind: "text", text: "" }, tools: "" });

export function newConversation(settings: Settings): Conversation {
  const now = Date.now();
  const rest = { title: "New chat", named: false, messages: {}, chosen: {} };
  return { id: newId(), created: now, updated: now, settings, ...rest };
}

/** `crypto.randomUUID` exists only on https and localhost. */
export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The shown messages, first to last. */
export function shown({ messages, chosen }: Conversation): Message[] {
  const path: Message[] = [];
  let parent = "";
  for (let next = chosen[parent]; next !== undefined; next = chosen[parent]) {
    const message = messages[next];
    // An imported conversation may be inconsistent.
    if (message?.parent !== parent) break;
    path.push(message);
    parent = next;
  }
  return path;
}

/** The messages from the first one to this one. */
export function pathTo({ messages }: Conversation, id: string): Message[] {
  const path: Message[] = [];
  for (let message = messages[id]; message; message = messages[message.parent]) path.unshift(message);
  return path;
}

/** Messages with the same parent, oldest first. */
export function siblings({ messages }: Conversation, parent: string): Message[] {
  return Object.values(messages).filter((message) => message.parent === parent);
}

/** The messages by their parents, oldest first. */
export function families({ messages }: Pick<Conversation, "messages">): Map<string, Message[]> {
  // Not by `Map.groupBy`, which Safari has from 17.4 on.
  const families = new Map<string, Message[]>();
  for (const message of Object.values(messages)) {
    const family = families.get(message.parent);
    if (family) family.push(message);
    else families.set(message.parent, [message]);
  }
  return families;
}

/** Adds a message and shows it. */
export function add(conversation: Conversation, message: Message): Conversation {
  const { messages, chosen, named, title } = conversation;
  const isFirst = message.parent === "" && message.role === "user" && !named;
  return {
    ...conversation,
    title: isFirst ? titleOf(message) : title,
    updated: Date.now(),
    messages: { ...messages, [message.id]: message },
    chosen: { ...chosen, [message.parent]: message.id },
  };
}

export function change(conversation: Conversation, id: string, changes: Partial<Message>): Conversation {
  const { messages } = conversation;
  const message = messages[id];
  if (!message) return conversation;
  return { ...conversation, updated: Date.now(), messages: { ...messages, [id]: { ...message, ...changes } } };
}

/** Shows another message with the same parent. */
export function choose(conversation: Conversation, message: Message): Conversation {
  return { ...conversation, chosen: { ...conversation.chosen, [message.parent]: message.id } };
}

/** Removes a message and all that follow it. */
export function remove(conversation: Conversation, id: string): Conversation {
  const parent = conversation.messages[id]?.parent;
  if (parent === undefined) return conversation;
  const messages = { ...conversation.messages };
  const chosen = { ...conversation.chosen };
  const gone = [id];
  for (let next = gone.pop(); next !== undefined; next = gone.pop()) {
    for (const { id: child } of siblings(conversation, next)) gone.push(child);
    delete messages[next];
    delete chosen[next];
  }
  const nowGone = Object.keys(conversation.messages).filter((id) => !messages[id]);
  const removed = [...(conversation.removed ?? []), ...nowGone];
  const left = siblings({ ...conversation, messages }, parent).at(-1);
  if (left) chosen[parent] = left.id;
  else delete chosen[parent];
  return { ...conversation, updated: Date.now(), messages, chosen, removed };
}

/**
 * A conversation with what another tab, or a file, has of it: no message of either is lost, except those that `ours`
 * removed. Of a message in both, the one that has ended counts, then ours; title, settings and shown branches are ours.
 */
export function merged(ours: Conversation, theirs: Conversation): Conversation {
  const gone = new Set((ours.removed ?? []).filter((id) => !ours.messages[id]));
  const all = new Map(Object.values(theirs.messages).map((message) => [message.id, message]));
  for (const id of gone) all.delete(id);
  for (const message of Object.values(ours.messages)) {
    const other = all.get(message.id);
    all.set(message.id, other?.end && !message.end ? other : message);
  }
  const inOrder = [...all.values()].sort((a, b) => a.created - b.created);
  const byParent = families({ messages: Object.fromEntries(inOrder.map((message) => [message.id, message])) });
  // What followed a removed message goes with it.
  const messages: Record<string, Message> = {};
  const parents = [""];
  for (const parent of parents) {
    for (const message of byParent.get(parent) ?? []) {
      messages[message.id] = message;
      parents.push(message.id);
    }
  }
  const named = !ours.named && theirs.named ? { named: true, title: theirs.title } : {};
  const removed = [...new Set([...(theirs.removed ?? []), ...gone])].filter((id) => !messages[id]);
  const rest = { messages, removed, chosen: { ...theirs.chosen, ...ours.chosen } };
  return { ...ours, ...named, ...rest, updated: Math.max(ours.updated, theirs.updated) };
}

function titleOf({ text, attachments }: Message): string {
  const words = (text || attachments?.[0]?.name || "New chat").trim().replace(/\s+/g, " ");
  return words.length > TITLE_CHARACTERS ? `${words.slice(0, TITLE_CHARACTERS - 1).trimEnd()}…` : words;
}
