// The list of conversations: search, open, rename, export, import, delete.

import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { Download, Ellipsis, Search, SquarePen, Trash2, Upload } from "lucide";
import { download, fromJson, toJson, toMarkdown } from "../data/files.js";
import type { Summary } from "../data/database.js";
import type { Store } from "../data/store.js";
import { Icon, IconButton } from "./icons.js";
import { Menu } from "./menu.js";

const SEARCH_MS = 150;
const DAY_MS = 86_400_000;

interface SidebarProps {
  store: Store;
  /** Whether the list lies over the conversation. */
  isDrawer: boolean;
  /** Called after a choice. */
  close: () => void;
}

export function Sidebar({ store, isDrawer, close }: SidebarProps) {
  const search = useSignal("");
  const found = useSignal<Set<string> | null>(null);
  useEffect(() => {
    const text = search.value.trim();
    if (!text) return void (found.value = null);
    const timer = setTimeout(() => void store.find(text).then((ids) => (found.value = ids)), SEARCH_MS);
    return () => clearTimeout(timer);
  }, [search.value, store.list.value]);
  const first = useRef<HTMLButtonElement>(null);
  useLayoutEffect(() => {
    if (isDrawer) first.current?.focus();
  }, [isDrawer]);
  const list = store.list.value.filter(({ id }) => !found.value || found.value.has(id));
  return (
    <nav class="sidebar" id="sidebar" aria-label="Conversations">
      <div class="sidebar-head">
        <button
          type="button"
          class="new"
          ref={first}
          title="New chat (Ctrl+Shift+O)"
          onClick={() => {
            store.open();
            close();
          }}
        >
          <Icon of={SquarePen} /> New chat
        </button>
        <label class="search">
          <Icon of={Search} />
          <input
            id="search"
            type="search"
            placeholder="Search"
            aria-label="Search conversations"
            title="Search (Ctrl+K)"
            value={search.value}
            onInput={({ currentTarget }) => (search.value = currentTarget.value)}
          />
        </label>
      </div>
      <div class="list">
        {groups(list).map(([title, summaries]) => (
          <section key={title}>
            <h2>{title}</h2>
            <ul>
              {summaries.map((summary) => (
                <Row key={summary.id} store={store} summary={summary} close={close} />
              ))}
            </ul>
          </section>
        ))}
        {list.length === 0 && <p class="faint">{search.value.trim() ? "Nothing found." : "No conversations yet."}</p>}
      </div>
      <Footer store={store} />
    </nav>
  );
}

/** Conversations by age. */
function groups(list: Summary[]): [string, Summary[]][] {
  const today = new Date().setHours(0, 0, 0, 0);
  const limits: [string, number][] = [
    ["Today", today],
    ["Yesterday", today - DAY_MS],
    ["Last seven days", today - 7 * DAY_MS],
    ["Last thirty days", today - 30 * DAY_MS],
    ["Older", -Infinity],
  ];
  const byAge = limits.map(([title, from], at): [string, Summary[]] => {
    const before = at === 0 ? Infinity : limits[at - 1]![1];
    return [title, list.filter(({ updated }) => updated >= from && updated < before)];
  });
  return byAge.filter(([, summaries]) => summaries.length > 0);
}

function Row({ store, summary, close }: { store: Store; summary: Summary; close: () => void }) {
  const { id, title } = summary;
  const renaming = useSignal(false);
  const isShown = store.panes.value.includes(id);
  const busy = store.busy.value.has(id);
  const save = async (kind: "json" | "md") => {
    const conversation = await store.kept(id);
    if (!conversation) return;
    if (kind === "json") download(`${title}.json`, "application/json", toJson([conversation]));
    else download(`${title}.md`, "text/markdown", toMarkdown(conversation));
  };
  if (renaming.value) {
    return (
      <li>
        <Rename
          title={title}
          done={(text) => {
            renaming.value = false;
            if (text !== null) void store.rename(id, text);
          }}
        />
      </li>
    );
  }
  return (
    <li class={isShown ? "shown" : ""}>
      <button
        type="button"
        class="open"
        dir="auto"
        aria-current={isShown ? "page" : undefined}
        onClick={() => {
          void store.openKept(id);
          close();
        }}
        onDblClick={() => (renaming.value = true)}
      >
        {title}
      </button>
      {busy && <span class="spinner" role="img" aria-label="answering" />}
      <Menu
        icon={Ellipsis}
        name={`More about ${title}`}
        items={[
          ["Rename", () => (renaming.value = true)],
          ["Export as JSON", () => void save("json")],
          ["Export as Markdown", () => void save("md")],
          ["Delete", () => void store.delete(id)],
        ]}
      />
    </li>
  );
}

function Rename({ title, done }: { title: string; done: (text: string | null) => void }) {
  const input = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => input.current!.select(), []);
  return (
    <input
      ref={input}
      class="rename"
      dir="auto"
      aria-label="New title"
      defaultValue={title}
      onBlur={({ currentTarget }) => done(currentTarget.value)}
      onKeyDown={(event) => {
        if (event.key === "Enter") done(event.currentTarget.value);
        if (event.key !== "Escape") return;
        event.stopPropagation();
        done(null);
      }}
    />
  );
}

function Footer({ store }: { store: Store }) {
  const picker = useRef<HTMLInputElement>(null);
  const saveAll = async () => {
    download("folio-conversations.json", "application/json", toJson(await store.conversations()));
  };
  const read = async (file: File | undefined) => {
    if (!file) return;
    try {
      const conversations = fromJson(await file.text());
      await store.import(conversations);
      store.notice.value = { text: `Imported ${conversations.length}` };
    } catch (error) {
      store.notice.value = { text: `Not imported. ${(error as Error).message}` };
    }
  };
  const isEmpty = store.list.value.length === 0;
  return (
    <div class="sidebar-foot">
      <IconButton icon={Upload} name="Import conversations" onClick={() => picker.current!.click()} />
      <input
        ref={picker}
        type="file"
        accept=".json,application/json"
        hidden
        onChange={({ currentTarget }) => {
          void read(currentTarget.files?.[0]).then(() => (currentTarget.value = ""));
        }}
      />
      <IconButton icon={Download} name="Export all conversations" disabled={isEmpty} onClick={() => void saveAll()} />
      <IconButton
        icon={Trash2}
        name="Delete all conversations"
        disabled={isEmpty}
        onClick={() => {
          if (confirm("Delete all conversations? This cannot be undone.")) void store.deleteAll();
        }}
      />
    </div>
  );
}
