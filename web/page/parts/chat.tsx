// A conversation: its messages, and the form for the next question.

import { useComputed } from "@preact/signals";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { ArrowDown, ArrowUp, Paperclip, Square, X } from "lucide";
import { families, shown } from "../data/conversation.js";
import { readAttachment } from "../data/files.js";
import type { Session, Store } from "../data/store.js";
import { Icon, IconButton } from "./icons.js";
import { MessageView, size } from "./message.js";
import type { View } from "./view.js";

/** Distance from the end, in pixels, within which the view follows a growing answer. */
const NEAR_END = 80;
/** A pasted text of more characters becomes an attachment. */
const PASTE_CHARACTERS_MAX = 4000;

interface ChatProps {
  store: Store;
  session: Session;
  view: View;
}

export function Chat({ store, session, view }: ChatProps) {
  const panes = store.panes.value;
  const place = panes.length > 1 ? panes.indexOf(session.id) + 1 : 0;
  const conversation = session.conversation.value;
  const messages = shown(conversation);
  const branches = families(conversation);
  const busy = session.running.value !== null;
  const lastSaid = messages.findLastIndex(({ role }) => role !== "tool");
  const scroller = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const [away, setAway] = useState(false);
  const toEnd = () => {
    const { current } = scroller;
    if (current) current.scrollTop = current.scrollHeight;
  };
  useLayoutEffect(() => {
    follows.current = true;
    toEnd();
  }, [session.id, messages.length]);
  useLayoutEffect(() => {
    if (follows.current) toEnd();
  });
  const onScroll = ({ currentTarget: { scrollHeight, scrollTop, clientHeight } }: { currentTarget: HTMLElement }) => {
    follows.current = scrollHeight - scrollTop - clientHeight < NEAR_END;
    setAway(!follows.current);
  };
  return (
    <section
      class="chat"
      aria-label={place > 0 ? `${place}: ${conversation.title}` : conversation.title}
      onFocusCapture={() => (store.focused.value = Math.max(0, store.panes.value.indexOf(session.id)))}
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        void attach(store, session, event.dataTransfer?.files);
      }}
    >
      <div class="scroller" ref={scroller} onScroll={onScroll} tabIndex={-1}>
        <div class="messages">
          {messages.length === 0 && <Welcome view={view} />}
          {messages.map((message, at) => {
            const all = branches.get(message.parent) ?? [];
            const results = message.calls ? messages.slice(at).filter(({ role }) => role === "tool") : [];
            return (
              <MessageView
                key={message.id}
                store={store}
                session={session}
                message={message}
                branch={all.findIndex(({ id }) => id === message.id)}
                branches={all.length}
                live={busy && message.role === "assistant" && at === messages.length - 1}
                busy={busy}
                isLast={at >= lastSaid}
                answered={results.map(({ callId }) => callId).join(" ")}
              />
            );
          })}
        </div>
      </div>
      {away && (
        <button type="button" class="to-end" onClick={toEnd}>
          <Icon of={ArrowDown} /> Latest
        </button>
      )}
      <Composer store={store} session={session} view={view} />
    </section>
  );
}

function Welcome({ view }: { view: View }) {
  return (
    <div class="welcome">
      <p class="logo" aria-hidden="true">
        folio
      </p>
      <h2>What would you like to know?</h2>
      <p>{view.promise}</p>
    </div>
  );
}

async function attach(store: Store, session: Session, files: Iterable<File> | null | undefined): Promise<void> {
  for (const file of files ?? []) {
    try {
      session.attachments.value = [...session.attachments.value, await readAttachment(file)];
    } catch (error) {
      store.notice.value = { text: (error as Error).message };
    }
  }
}

function Composer({ store, session, view }: ChatProps) {
  const area = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const { draft, attachments, running, conversation } = session;
  const busy = running.value !== null;
  const used = useComputed(() => {
    const last = shown(conversation.value).findLast(({ figures }) => figures)?.figures;
    return last ? last.promptTokens + last.tokens : 0;
  });
  useLayoutEffect(() => {
    const { current } = area;
    if (!current) return;
    current.style.height = "auto";
    current.style.height = `${current.scrollHeight + 2}px`;
  }, [draft.value, session.id]);
  useLayoutEffect(() => {
    // On a phone, focus would open the keyboard over the conversation.
    if (store.current.value === session && matchMedia("(hover: hover)").matches) area.current?.focus();
  }, [session.id]);
  const send = () => {
    if (view.ready.value) store.send(session);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "ArrowUp" && !draft.value && !busy) {
      const form = (event.currentTarget as HTMLElement).closest(".chat");
      const edit = form?.querySelectorAll<HTMLElement>("article.user [aria-label=Edit]");
      if (!edit?.length) return;
      event.preventDefault();
      return edit[edit.length - 1]!.click();
    }
    // Where there is no keyboard but on the screen, Enter begins a line.
    const hasKeys = matchMedia("(hover: hover)").matches;
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && (hasKeys || event.ctrlKey)) {
      event.preventDefault();
      send();
    }
  };
  const onPaste = (event: ClipboardEvent) => {
    const data = event.clipboardData;
    const text = data?.getData("text/plain") ?? "";
    if (data?.files.length) void attach(store, session, data.files);
    else if (text.length > PASTE_CHARACTERS_MAX) {
      const name = `pasted-${attachments.value.length + 1}.txt`;
      attachments.value = [...attachments.value, { name, text }];
    } else return;
    event.preventDefault();
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      {attachments.value.length > 0 && (
        <ul class="chips" aria-label="Attachments">
          {attachments.value.map((file) => (
            <li class="chip">
              <span dir="auto">{file.name}</span> <small>{size(file.text)}</small>
              <IconButton
                icon={X}
                name={`Remove ${file.name}`}
                onClick={() => (attachments.value = attachments.value.filter((other) => other !== file))}
              />
            </li>
          ))}
        </ul>
      )}
      <div class="box">
        <IconButton icon={Paperclip} name="Attach text files" onClick={() => picker.current!.click()} />
        <input
          ref={picker}
          type="file"
          multiple
          hidden
          onChange={(event) => {
            const { currentTarget } = event;
            void attach(store, session, currentTarget.files).then(() => (currentTarget.value = ""));
          }}
        />
        <textarea
          ref={area}
          rows={1}
          dir="auto"
          aria-label="Message"
          placeholder="Message"
          enterkeyhint="send"
          value={draft.value}
          onInput={(event) => (draft.value = event.currentTarget.value)}
          onKeyDown={onKeyDown}
          onPaste={onPaste}
        />
        {busy ? (
          <IconButton icon={Square} class="primary stop" name="Stop (Esc)" onClick={() => store.stop(session)} />
        ) : (
          <button
            type="submit"
            class="icon-button primary"
            aria-label="Send"
            title="Send (Enter)"
            disabled={!view.ready.value || !(draft.value.trim() || attachments.value.length)}
          >
            <Icon of={ArrowUp} />
          </button>
        )}
      </div>
      <Hints store={store} session={session} view={view} used={used.value} />
    </form>
  );
}

/** What shapes the next answer, and how full the context is. */
function Hints({ store, session, view, used }: ChatProps & { used: number }) {
  const { system, fields, format, tools } = session.conversation.value.settings;
  const count = Object.keys(fields).length;
  const parts = [
    system.trim() && "system prompt",
    count > 0 && `${count} ${count === 1 ? "setting" : "settings"}`,
    format.kind !== "text" && (format.kind.startsWith("json") ? "JSON" : format.kind),
    tools.trim() && "tools",
  ].filter(Boolean);
  const context = view.context.value;
  return (
    <p class="hints">
      {store.panes.value.length > 1 && (
        <label class="check">
          <input
            type="checkbox"
            checked={store.toAll.value}
            onChange={({ currentTarget }) => (store.toAll.value = currentTarget.checked)}
          />
          Ask both
        </label>
      )}
      {parts.length > 0 && (
        <button type="button" class="link" onClick={() => view.show("settings")}>
          With {parts.join(", ")}
        </button>
      )}
      {context !== null && used > 0 && (
        <span class={used > context * 0.9 ? "full" : ""}>
          {used.toLocaleString("en")} of {context.toLocaleString("en")} tokens
        </span>
      )}
    </p>
  );
}
