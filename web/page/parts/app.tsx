// The whole page: conversations at the side, one or two of them in the middle, a panel that takes its own room.

import type { ComponentChildren } from "preact";
import { useSignalEffect } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { Activity, Columns2, Menu as MenuIcon, Monitor, Moon, SlidersHorizontal, Sun, X } from "lucide";
import type { Store } from "../data/store.js";
import { Chat } from "./chat.js";
import { IconButton } from "./icons.js";
import { ServerPanel } from "./server-view.js";
import { SettingsPanel } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import type { PanelName, Theme, View } from "./view.js";

const NOTICE_MS = 6000;
const THEMES: Record<Theme, [Theme, typeof Sun, string]> = {
  system: ["light", Monitor, "Colours: as the system"],
  light: ["dark", Sun, "Colours: light"],
  dark: ["system", Moon, "Colours: dark"],
};

interface AppProps {
  store: Store;
  view: View;
  /** Chooses the model and says how it is. */
  models: ComponentChildren;
  /** Stands before the conversations while there is no model. */
  gate?: ComponentChildren;
  /** Ends the panel of settings. */
  more?: ComponentChildren;
}

export function App({ store, view, models, gate, more }: AppProps) {
  useEffect(() => {
    const listen = (event: KeyboardEvent) => onKey(event, store, view);
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, []);
  useSignalEffect(() => {
    if (store.panes.value.length === 0) return;
    const { conversation, id } = store.current.value;
    const { title, chosen } = conversation.value;
    const isEmpty = chosen[""] === undefined;
    document.title = isEmpty ? "folio" : `${title} · folio`;
    // A reload shows the same conversation.
    history.replaceState(null, "", isEmpty ? location.pathname + location.search : `#${id}`);
  });
  const panes = store.panes.value;
  if (panes.length === 0) return null;
  const closeDrawer = () => {
    if (view.narrow.value) view.sidebar.value = false;
  };
  // Under the list, nothing takes part.
  const inert = view.narrow.value && view.sidebar.value;
  return (
    <div class={`app ${view.sidebar.value ? "with-sidebar" : ""} ${view.panel.value ? "with-panel" : ""}`}>
      {view.sidebar.value && (
        <>
          <div class="backdrop" onClick={closeDrawer} />
          <Sidebar store={store} isDrawer={inert} close={closeDrawer} />
        </>
      )}
      <Header store={store} view={view} models={models} inert={inert} />
      <main class={panes.length > 1 ? "split" : ""} inert={inert}>
        {store.notKept.value && <p class="banner">{store.notKept.value}</p>}
        {gate}
        <div class="panes">
          {panes.map((id) => (
            <Chat key={id} store={store} session={store.session(id)} view={view} />
          ))}
        </div>
      </main>
      {view.panel.value && (
        <Panel name={view.panel.value} inert={inert} close={() => (view.panel.value = null)}>
          {view.panel.value === "settings" ? (
            <>
              <SettingsPanel key={store.current.value.id} store={store} session={store.current.value} />
              {more}
            </>
          ) : (
            <ServerPanel api={store.api} />
          )}
        </Panel>
      )}
      <Notice store={store} />
      <p class="unseen" role="status">
        {store.announcement.value}
      </p>
    </div>
  );
}

function Header({ store, view, models, inert }: AppProps & { inert: boolean }) {
  const { panel, sidebar, theme } = view;
  const [next, icon, name] = THEMES[theme.value];
  return (
    <header inert={inert}>
      <IconButton
        icon={MenuIcon}
        name="Conversations"
        expanded={sidebar.value}
        controls="sidebar"
        onClick={() => (sidebar.value = !sidebar.value)}
      />
      <h1>folio</h1>
      {models}
      <div class="tools">
        <IconButton icon={icon} name={name} onClick={() => (theme.value = next)} />
        <IconButton
          icon={Columns2}
          class="wide-only"
          name="Two conversations side by side"
          pressed={store.panes.value.length > 1}
          onClick={() => store.split()}
        />
        <IconButton
          icon={Activity}
          name="What the server does"
          expanded={panel.value === "server"}
          onClick={() => view.toggle("server")}
        />
        <IconButton
          icon={SlidersHorizontal}
          name="Settings"
          expanded={panel.value === "settings"}
          onClick={() => view.toggle("settings")}
        />
      </div>
    </header>
  );
}

interface PanelProps {
  name: PanelName;
  inert: boolean;
  close: () => void;
  children: ComponentChildren;
}

function Panel({ name, inert, close, children }: PanelProps) {
  const head = useRef<HTMLHeadingElement>(null);
  const title = name === "settings" ? "Settings" : "Server";
  useLayoutEffect(() => head.current?.focus(), [name]);
  return (
    <aside class="panel" aria-label={title} inert={inert}>
      <div class="panel-head">
        <h2 ref={head} tabIndex={-1}>
          {title}
        </h2>
        <IconButton icon={X} name={`Close ${title.toLowerCase()}`} onClick={close} />
      </div>
      <div class="panel-body" tabIndex={0} role="group" aria-label={title}>
        {children}
      </div>
    </aside>
  );
}

function Notice({ store }: { store: Store }) {
  const { value } = store.notice;
  useEffect(() => {
    if (!value) return;
    const timer = setTimeout(() => (store.notice.value = null), NOTICE_MS);
    return () => clearTimeout(timer);
  }, [value]);
  return (
    <div class="notice" role="status">
      {value && (
        <p>
          {value.text}
          {value.undo && (
            <button
              type="button"
              onClick={() => {
                value.undo!();
                store.notice.value = null;
              }}
            >
              Undo
            </button>
          )}
        </p>
      )}
    </div>
  );
}

/** Shortcuts of the whole page. */
function onKey(event: KeyboardEvent, store: Store, view: View): void {
  const command = event.ctrlKey || event.metaKey;
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (view.narrow.value && view.sidebar.value) view.sidebar.value = false;
    else if (store.current.value.running.value) store.stop(store.current.value);
    else if (view.panel.value) view.panel.value = null;
    else return;
  } else if (command && event.key.toLowerCase() === "k") {
    view.sidebar.value = true;
    // After the list was rendered, which is a microtask too, and before the next key.
    queueMicrotask(() => document.getElementById("search")?.focus());
  } else if (command && event.shiftKey && event.key.toLowerCase() === "o") store.open();
  else return;
  event.preventDefault();
}
