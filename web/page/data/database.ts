// Conversations in the browser's IndexedDB. Where that is missing or full, the page works on and says that nothing is
// kept.

import { openDB, type DBSchema, type IDBPDatabase } from "idb";
import { merged, type Conversation, type Settings } from "./conversation.js";

/** A line of the list of conversations. */
export interface Summary {
  id: string;
  title: string;
  updated: number;
}

/** A saved system prompt. */
export interface SavedPrompt {
  name: string;
  text: string;
}

interface Schema extends DBSchema {
  conversations: { key: string; value: Conversation };
  summaries: { key: string; value: Summary };
  values: { key: string; value: unknown };
}

/** Values that are kept beside the conversations. */
export interface Values {
  prompts: SavedPrompt[];
  settings: Settings;
}

export class Database {
  private constructor(private readonly db: IDBPDatabase<Schema>) {}

  /** Opens the database of one page: `scope` tells apart several servers behind one origin. */
  static async open(scope: string): Promise<Database> {
    return new Database(
      await openDB<Schema>(`folio ${scope}`, 1, {
        upgrade(db) {
          db.createObjectStore("conversations", { keyPath: "id" });
          db.createObjectStore("summaries", { keyPath: "id" });
          db.createObjectStore("values");
        },
      }),
    );
  }

  /** All conversations, newest first. */
  async list(): Promise<Summary[]> {
    return (await this.db.getAll("summaries")).sort((a, b) => b.updated - a.updated);
  }

  get(id: string): Promise<Conversation | undefined> {
    return this.db.get("conversations", id);
  }

  all(): Promise<Conversation[]> {
    return this.db.getAll("conversations");
  }

  /** Ids of the conversations whose title or messages contain a text in any case. */
  async find(text: string): Promise<Set<string>> {
    const wanted = text.toLowerCase();
    const found = new Set<string>();
    let cursor = await this.db.transaction("conversations").store.openCursor();
    for (; cursor; cursor = await cursor.continue()) {
      const { id, title, messages } = cursor.value;
      const texts = [title, ...Object.values(messages).map((message) => message.text)];
      if (texts.some((text) => text.toLowerCase().includes(wanted))) found.add(id);
    }
    return found;
  }

  /** Keeps a conversation, with the messages that other tabs have added to it. Returns it with these. */
  async put(conversation: Conversation): Promise<Conversation> {
    const change = this.db.transaction(["conversations", "summaries"], "readwrite");
    const conversations = change.objectStore("conversations");
    const there = await conversations.get(conversation.id);
    const whole = there ? merged(conversation, there) : conversation;
    const { id, title, updated } = whole;
    await Promise.all([
      conversations.put(whole),
      change.objectStore("summaries").put({ id, title, updated }),
      change.done,
    ]);
    return whole;
  }

  async delete(id: string): Promise<void> {
    const change = this.db.transaction(["conversations", "summaries"], "readwrite");
    await Promise.all([
      change.objectStore("conversations").delete(id),
      change.objectStore("summaries").delete(id),
      change.done,
    ]);
  }

  async deleteAll(): Promise<void> {
    const change = this.db.transaction(["conversations", "summaries"], "readwrite");
    await Promise.all([
      change.objectStore("conversations").clear(),
      change.objectStore("summaries").clear(),
      change.done,
    ]);
  }

  async value<K extends keyof Values>(name: K): Promise<Values[K] | undefined> {
    return (await this.db.get("values", name)) as Values[K] | undefined;
  }

  async setValue<K extends keyof Values>(name: K, value: Values[K]): Promise<void> {
    await this.db.put("values", value, name);
  }
}
