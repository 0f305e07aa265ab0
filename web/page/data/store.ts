// The state of the page and what changes it. Components read the signals; nothing here knows them.

import { batch, computed, signal, type Signal } from "@preact/signals";
import { Api } from "./api.js";
import {
  add,
  change,
  choose,
  merged,
  newConversation,
  newId,
  noSettings,
  remove,
  shown,
  siblings,
  type Attachment,
  type Call,
  type Conversation,
  type Figures,
  type Message,
  type Settings,
} from "./conversation.js";
import { Database, type SavedPrompt, type Summary } from "./database.js";
import { requestBody } from "./request.js";
import type { ChatCompletionChunk, Usage } from "../../ts/types.js";

const SAVE_MS = 1000;

/** A conversation that is open, with the answer that is being generated. */
export interface Session {
  readonly id: string;
  conversation: Signal<Conversation>;
  /** Stops the running answer, if there is one. */
  running: Signal<AbortController | null>;
  /** The question that is being written. */
  draft: Signal<string>;
  attachments: Signal<Attachment[]>;
  /** Whether the conversation is kept; a new one is kept from its first message on. */
  kept: boolean;
}

/** The state of the model: `ready`, or why it does not answer. */
export type ModelState = { ready: true } | { ready: false; why: string };

export class Store {
  readonly list = signal<Summary[]>([]);
  readonly prompts = signal<SavedPrompt[]>([]);
  /** Ids of the open conversations, side by side. */
  readonly panes = signal<string[]>([]);
  readonly focused = signal(0);
  /** Whether a question goes to all open conversations. */
  readonly toAll = signal(false);
  /** Ids of the conversations with a running answer. */
  readonly busy = signal<ReadonlySet<string>>(new Set());
  /** Why conversations are not kept, if they are not. */
  readonly notKept = signal<string | null>(null);
  /** What a screen reader should say. */
  readonly announcement = signal("");
  /** A message to the user that goes away, such as `Copied`. */
  readonly notice = signal<{ text: string; undo?: () => void } | null>(null);
  readonly model = signal<string | null>(null);
  readonly current = computed(() => this.session(this.panes.value[this.focused.value] ?? this.panes.value[0]!));

  private readonly sessions = new Map<string, Session>();
  private settings = noSettings();
  private db: Database | null = null;
  private channel: BroadcastChannel | null = null;

  constructor(readonly api: Api) {}

  /** Opens the database and shows the kept conversation `id`, or else new ones. */
  async start(scope: string, panes: number, id = ""): Promise<void> {
    try {
      this.db = await Database.open(scope);
      const [prompts, settings] = await Promise.all([this.db.value("prompts"), this.db.value("settings")]);
      this.prompts.value = prompts ?? [];
      this.settings = { ...noSettings(), ...settings };
      await this.refresh();
      this.channel = new BroadcastChannel(`folio ${scope}`);
      this.channel.onmessage = ({ data }: MessageEvent<string>) => void this.changedElsewhere(data);
    } catch (error) {
      this.lost(error);
    }
    const kept = await this.db?.get(id).catch(() => undefined);
    if (kept) this.hold(kept, true);
    this.panes.value = kept ? [kept.id] : Array.from({ length: panes }, () => this.create().id);
  }

  session(id: string): Session {
    return this.sessions.get(id)!;
  }

  /** A new conversation with the settings that were used last; it is not shown yet. */
  private create(): Session {
    return this.hold(newConversation(structuredClone(this.settings)), false);
  }

  private hold(conversation: Conversation, kept: boolean): Session {
    const session: Session = {
      id: conversation.id,
      conversation: signal(conversation),
      running: signal(null),
      draft: signal(""),
      attachments: signal([]),
      kept,
    };
    this.sessions.set(session.id, session);
    return session;
  }

  /** Shows a new conversation, unless the shown one is empty. */
  open(): void {
    const session = this.current.value;
    if (shown(session.conversation.value).length > 0) this.show(this.create().id);
  }

  async openKept(id: string): Promise<void> {
    if (!this.sessions.has(id)) {
      const conversation = await this.db?.get(id);
      if (!conversation) return;
      if (!this.sessions.has(id)) this.hold(conversation, true);
    }
    const at = this.panes.value.indexOf(id);
    if (at >= 0) this.focused.value = at;
    else this.show(id);
  }

  private show(id: string): void {
    const at = Math.min(this.focused.value, this.panes.value.length - 1);
    this.panes.value = this.panes.value.with(at, id);
  }

  /** Shows a second conversation beside the first, or only the focused one. */
  split(): void {
    batch(() => {
      if (this.panes.value.length === 1) {
        this.panes.value = [...this.panes.value, this.create().id];
        this.focused.value = 1;
      } else {
        this.panes.value = [this.current.value.id];
        this.focused.value = 0;
      }
    });
  }

  find(text: string): Promise<Set<string>> {
    return this.db?.find(text) ?? Promise.resolve(new Set());
  }

  async conversations(): Promise<Conversation[]> {
    return (await this.db?.all()) ?? [];
  }

  async kept(id: string): Promise<Conversation | undefined> {
    return this.sessions.get(id)?.conversation.value ?? (await this.db?.get(id));
  }

  async rename(id: string, title: string): Promise<void> {
    const conversation = await this.kept(id);
    if (!conversation || !title.trim()) return;
    await this.write({ ...conversation, title: title.trim(), named: true });
  }

  async delete(id: string): Promise<void> {
    const conversation = await this.kept(id);
    this.sessions.get(id)?.running.value?.abort();
    this.forget(id);
    await this.guarded(async (db) => db.delete(id));
    await this.refresh();
    this.channel?.postMessage(id);
    if (!conversation) return;
    this.notice.value = { text: `Deleted “${conversation.title}”`, undo: () => void this.write(conversation) };
  }

  async deleteAll(): Promise<void> {
    for (const session of this.sessions.values()) session.running.value?.abort();
    await this.guarded((db) => db.deleteAll());
    await this.refresh();
    this.forgetDeleted();
    this.channel?.postMessage("");
  }

  private forgetDeleted(): void {
    const left = new Set(this.list.value.map(({ id }) => id));
    for (const { id, kept } of [...this.sessions.values()]) if (kept && !left.has(id)) this.forget(id);
  }

  /** Replaces a conversation that is gone by a new one, where it is shown. */
  private forget(id: string): void {
    const at = this.panes.value.indexOf(id);
    this.sessions.delete(id);
    if (at >= 0) this.panes.value = this.panes.value.with(at, this.create().id);
  }

  async import(conversations: Conversation[]): Promise<void> {
    for (const conversation of conversations) {
      if (this.sessions.get(conversation.id)?.running.value) throw new Error(`“${conversation.title}” is in use.`);
      const kept = await this.kept(conversation.id);
      const [newer, older] = kept && kept.updated > conversation.updated ? [kept, conversation] : [conversation, kept];
      // What a file has comes back, also if it was removed here.
      await this.write(older ? merged({ ...newer, removed: [] }, older) : newer);
    }
  }

  /** Keeps a conversation that may be open. */
  private async write(conversation: Conversation): Promise<void> {
    const session = this.sessions.get(conversation.id);
    if (session) session.conversation.value = conversation;
    await this.put(conversation);
    await this.refresh();
    this.channel?.postMessage(conversation.id);
  }

  async savePrompts(prompts: SavedPrompt[]): Promise<void> {
    this.prompts.value = prompts;
    await this.guarded((db) => db.setValue("prompts", prompts));
  }

  /** Changes a conversation's settings, which new conversations then have too. */
  configure(session: Session, changes: Partial<Settings>): void {
    const { value } = session.conversation;
    const settings = { ...value.settings, ...changes };
    session.conversation.value = { ...value, settings };
    this.settings = settings;
    void this.guarded((db) => db.setValue("settings", settings));
    if (session.kept) void this.keep(session);
  }

  private async keep(session: Session): Promise<void> {
    // A conversation may have been deleted while its answer ran.
    if (this.sessions.get(session.id) !== session) return;
    session.kept = true;
    await this.put(session.conversation.value);
    await this.refresh();
    this.channel?.postMessage(session.id);
  }

  /** Keeps a conversation. Where it is open, messages of other tabs appear in it. */
  private async put(conversation: Conversation): Promise<void> {
    await this.guarded(async (db) => {
      const whole = await db.put(conversation);
      const session = this.sessions.get(conversation.id);
      const added = Object.keys(whole.messages).some((id) => !conversation.messages[id]);
      // It may have changed meanwhile.
      if (session && added) session.conversation.value = merged(session.conversation.value, whole);
    });
  }

  private async guarded(write: (db: Database) => Promise<void>): Promise<void> {
    if (!this.db) return;
    try {
      await write(this.db);
      this.notKept.value = null;
    } catch (error) {
      this.lost(error);
    }
  }

  private lost(error: unknown): void {
    this.notKept.value = `This browser keeps no conversations now: ${(error as Error).message}`;
  }

  private async refresh(): Promise<void> {
    if (this.db) this.list.value = await this.db.list();
  }

  /** Another tab of this page changed a conversation, or all of them. */
  private async changedElsewhere(id: string): Promise<void> {
    await this.refresh();
    const session = this.sessions.get(id);
    if (session && !session.running.value) {
      const conversation = await this.db?.get(id);
      if (conversation) session.conversation.value = conversation;
    }
    this.forgetDeleted();
  }

  /** Asks the question that was written, here or in all open conversations. */
  send(session: Session): void {
    const [text, files] = [session.draft.value.trim(), session.attachments.value];
    if (session.running.value || !(text || files.length)) return;
    [session.draft.value, session.attachments.value] = ["", []];
    const all = this.toAll.value && this.panes.value.length > 1;
    for (const id of all ? this.panes.value : [session.id]) void this.ask(this.session(id), text, files);
  }

  /** Asks a question after the shown messages, or after `parent`, as another branch. */
  async ask(session: Session, text: string, attachments: Attachment[], parent?: string): Promise<void> {
    if (session.running.value) return;
    const { value } = session.conversation;
    const last = parent ?? shown(value).at(-1)?.id ?? "";
    const id = newId();
    const files = attachments.length > 0 ? { attachments } : {};
    const question: Message = { id, parent: last, role: "user", text, created: Date.now(), ...files };
    session.conversation.value = add(value, question);
    await this.answer(session, id);
  }

  /** Adds the result of a call; once every call has one, the model answers. */
  async giveResult(session: Session, after: string, callId: string, text: string): Promise<void> {
    const id = newId();
    const { value } = session.conversation;
    session.conversation.value = add(value, {
      ...{ id, parent: after, role: "tool", callId, text, created: Date.now() },
    });
    const path = shown(session.conversation.value);
    const caller = path.findLast((message) => message.calls?.length);
    const results = new Set(path.filter(({ role }) => role === "tool").map(({ callId }) => callId));
    if (caller?.calls?.every((call) => results.has(call.id))) await this.answer(session, id);
    else await this.keep(session);
  }

  /** Generates another answer in place of this one; the old one stays as a branch. */
  async again(session: Session, message: Message): Promise<void> {
    if (session.running.value) return;
    // An answer that failed before its first word is no branch worth keeping.
    if (message.end === "failed" && !message.text && !message.reasoning) {
      session.conversation.value = remove(session.conversation.value, message.id);
    }
    if (message.parent) await this.answer(session, message.parent);
  }

  /** Replaces the text of an answer. */
  rewrite(session: Session, message: Message, text: string): void {
    session.conversation.value = change(session.conversation.value, message.id, { text });
    void this.keep(session);
  }

  remove(session: Session, message: Message): void {
    const before = session.conversation.value;
    session.conversation.value = remove(before, message.id);
    void this.keep(session);
    const undo = () => {
      session.conversation.value = before;
      void this.keep(session);
    };
    this.notice.value = { text: "Deleted the message and what followed", undo };
  }

  /** Shows the branch that is `step` after the shown one. */
  turn(session: Session, message: Message, step: number): void {
    const { value } = session.conversation;
    const all = siblings(value, message.parent);
    const next = all[all.findIndex(({ id }) => id === message.id) + step];
    if (!next) return;
    session.conversation.value = choose(value, next);
    void this.keep(session);
  }

  stop(session: Session): void {
    session.running.value?.abort();
  }

  /** Goes on with an answer that was stopped or reached its limit. */
  async continue(session: Session, message: Message): Promise<void> {
    await this.run(session, message.id, [message.id], true);
  }

  /** Generates an answer to the message `last`. */
  private async answer(session: Session, last: string): Promise<void> {
    const { n } = session.conversation.value.settings.fields;
    const ids = Array.from({ length: typeof n === "number" ? n : 1 }, newId);
    const created = Date.now();
    const model = this.model.value;
    let { value } = session.conversation;
    for (const id of ids) {
      value = add(value, { id, parent: last, role: "assistant", text: "", created, ...(model && { model }) });
    }
    session.conversation.value = choose(value, value.messages[ids[0]!]!);
    await this.run(session, last, ids, false);
  }

  private async run(session: Session, last: string, ids: string[], continues: boolean): Promise<void> {
    const controller = new AbortController();
    this.setRunning(session, controller);
    this.announcement.value = "";
    const answers = ids.map((id) => new Answer(session, id, continues));
    const saving = setInterval(() => void this.keep(session), SAVE_MS);
    const frames = new Frames(() => answers.forEach((answer) => answer.show()));
    void this.keep(session);
    try {
      const body = requestBody(session.conversation.value, last, this.model.value, continues);
      for await (const chunk of this.api.chat(body, controller.signal)) {
        for (const answer of answers) answer.take(chunk, ids.indexOf(answer.id));
        frames.ask();
      }
      for (const answer of answers) answer.end(null);
    } catch (error) {
      const stopped = controller.signal.aborted;
      for (const answer of answers) answer.end(stopped ? "stopped" : (error as Error).message);
    } finally {
      frames.cancel();
      clearInterval(saving);
      for (const answer of answers) answer.show();
      this.setRunning(session, null);
      await this.keep(session);
      this.announce(session, ids[0]!);
    }
  }

  private setRunning(session: Session, controller: AbortController | null): void {
    session.running.value = controller;
    const busy = new Set(this.busy.value);
    if (controller) busy.add(session.id);
    else busy.delete(session.id);
    this.busy.value = busy;
  }

  private announce(session: Session, id: string): void {
    const message = session.conversation.value.messages[id];
    if (!message) return;
    const text = message.text.length > 300 ? `${message.text.slice(0, 300)}…` : message.text;
    const ends = { failed: `The answer failed: ${message.error}`, stopped: "The answer was stopped." };
    this.announcement.value = ends[message.end as keyof typeof ends] ?? `Answer: ${text}`;
  }
}

/** Calls a function at most once a frame. A hidden page has no frames; the end of an answer shows it anyway. */
class Frames {
  private id = 0;

  constructor(private readonly show: () => void) {}

  ask(): void {
    this.id ||= requestAnimationFrame(() => {
      this.id = 0;
      this.show();
    });
  }

  cancel(): void {
    cancelAnimationFrame(this.id);
  }
}

/** An answer while it is generated. */
class Answer {
  private text: string;
  private reasoning: string;
  private calls: Call[] = [];
  private readonly began = performance.now();
  private firstAt = 0;
  private thoughtUntil = 0;
  private firstTokens = 0;
  private usage: ChatCompletionChunk["usage"] = null;
  private ended: Partial<Message> = {};

  constructor(
    private readonly session: Session,
    readonly id: string,
    continues: boolean,
  ) {
    const message = session.conversation.value.messages[id]!;
    [this.text, this.reasoning] = continues ? [message.text, message.reasoning ?? ""] : ["", ""];
    if (continues) this.ended = { end: undefined!, error: undefined! };
  }

  /** Takes what a chunk holds for the choice `index`. */
  take({ choices, usage }: ChatCompletionChunk, index: number): void {
    if (usage) this.usage = usage;
    const choice = choices.find((choice) => choice.index === index);
    if (!choice) return;
    const { content, reasoning_content, tool_calls } = choice.delta;
    if (!this.firstAt && (content || reasoning_content || tool_calls)) {
      this.firstAt = performance.now();
      this.firstTokens = usage?.completion_tokens ?? 1;
    }
    if (reasoning_content) this.reasoning += reasoning_content;
    if (content) this.text += content;
    if (this.reasoning && !this.thoughtUntil && (content || tool_calls)) this.thoughtUntil = performance.now();
    for (const { index, id, function: part } of tool_calls ?? []) {
      const call = this.calls[index] ?? { id: id ?? "", name: "", args: "" };
      this.calls = this.calls.slice();
      this.calls[index] = {
        id: id ?? call.id,
        name: part?.name ?? call.name,
        args: call.args + (part?.arguments ?? ""),
      };
    }
    if (choice.finish_reason) this.ended = { end: choice.finish_reason };
  }

  /** The answer ended: by itself, by the user (`stopped`), or with an error. */
  end(why: string | null): void {
    if (why === "stopped") this.ended = { end: "stopped" };
    else if (why !== null) this.ended = { end: "failed", error: why };
  }

  /** Shows what has arrived so far. */
  show(): void {
    const { session, id, text, reasoning, calls } = this;
    const changes: Partial<Message> = { text, ...this.ended };
    if (reasoning) {
      changes.reasoning = reasoning;
      const until = this.thoughtUntil || performance.now();
      changes.reasoningMs = until - (this.firstAt || until);
    }
    if (calls.length > 0) changes.calls = calls;
    if (this.usage) changes.figures = this.figures(this.usage);
    session.conversation.value = change(session.conversation.value, id, changes);
  }

  private figures({ prompt_tokens, completion_tokens, prompt_tokens_details }: Usage): Figures {
    const now = performance.now();
    // The time to the first token is spent on the prompt.
    const seconds = (now - this.firstAt) / 1000;
    const counted = completion_tokens - this.firstTokens;
    return {
      promptTokens: prompt_tokens,
      cachedTokens: prompt_tokens_details?.cached_tokens ?? 0,
      tokens: completion_tokens,
      rate: this.firstAt && counted > 0 && seconds > 0 ? counted / seconds : 0,
      firstMs: this.firstAt ? this.firstAt - this.began : 0,
      totalMs: now - this.began,
    };
  }
}
