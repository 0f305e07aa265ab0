// One message: its text, what came with it, and what can be done with it.

import { useSignal } from "@preact/signals";
import { memo } from "preact/compat";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import {
  ArrowRight,
  Brain,
  Check,
  ChevronLeft,
  ChevronRight,
  CircleAlert,
  Copy,
  FileText,
  Pencil,
  RefreshCw,
  Trash2,
  Wrench,
} from "lucide";
import type { Attachment, Call, Message } from "../data/conversation.js";
import type { Session, Store } from "../data/store.js";
import { Icon, IconButton } from "./icons.js";
import { copy, Markdown } from "./markdown.js";

export interface MessageProps {
  store: Store;
  session: Session;
  message: Message;
  /** Place among the branches, from 0, and their number. */
  branch: number;
  branches: number;
  /** Whether this answer is being generated. */
  live: boolean;
  /** Whether any answer of the conversation is. */
  busy: boolean;
  isLast: boolean;
  /** Results of this message's calls that are known already. */
  answered: string;
}

export const MessageView = memo((props: MessageProps) => {
  const { message, live } = props;
  const [editing, setEditing] = useState(false);
  const names = { user: "You", assistant: "Answer", tool: "Result of a call" };
  return (
    <article class={`message ${message.role}`} aria-label={names[message.role]} aria-busy={live} data-id={message.id}>
      {editing ? (
        <Editor {...props} close={() => setEditing(false)} />
      ) : message.role === "assistant" ? (
        <AnswerBody {...props} />
      ) : (
        <QuestionBody message={message} />
      )}
      {!editing && !live && <Actions {...props} edit={() => setEditing(true)} />}
    </article>
  );
});

function QuestionBody({ message }: { message: Message }) {
  return (
    <>
      {message.attachments?.map((file) => <AttachmentView file={file} />)}
      {message.text && (
        <div class="bubble" dir="auto">
          {message.text}
        </div>
      )}
    </>
  );
}

function AttachmentView({ file }: { file: Attachment }) {
  return (
    <details class="attachment">
      <summary>
        <Icon of={FileText} /> <span dir="auto">{file.name}</span> <small>{size(file.text)}</small>
      </summary>
      <pre tabIndex={0} dir="auto">
        {file.text}
      </pre>
    </details>
  );
}

/** Length of a text for people. */
export function size(text: string): string {
  const bytes = new Blob([text]).size;
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${(bytes / 1000).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

function AnswerBody({ store, session, message, live, isLast, answered }: MessageProps) {
  const { text, reasoning, calls, error } = message;
  const isJson = session.conversation.value.settings.format.kind.startsWith("json") && /^\s*[{[]/.test(text);
  return (
    <>
      {reasoning && <Thoughts message={message} live={live && !text && !calls} />}
      {text && <Markdown text={isJson ? `\`\`\`json\n${text}\n\`\`\`` : text} />}
      {calls?.map((call) => (
        <CallView
          call={call}
          live={live}
          give={
            !live && isLast && !answered.includes(call.id)
              ? (result) => void store.giveResult(session, message.id, call.id, result)
              : null
          }
        />
      ))}
      {live && <Waiting started={Boolean(text || reasoning || calls)} />}
      {error && (
        <div class="failure">
          <Icon of={CircleAlert} />
          <p dir="auto">{error}</p>
          <button type="button" onClick={() => void store.again(session, message)}>
            Retry
          </button>
        </div>
      )}
    </>
  );
}

/** Shows that an answer is on its way; a long wait for the first word says for how long. */
function Waiting({ started }: { started: boolean }) {
  const seconds = useSignal(0);
  useEffect(() => {
    if (started) return;
    const timer = setInterval(() => seconds.value++, 1000);
    return () => clearInterval(timer);
  }, [started]);
  if (started) return <span class="caret" aria-hidden="true" />;
  return (
    <p class="waiting">
      <span class="dots" aria-hidden="true">
        <i />
        <i />
        <i />
      </span>
      {seconds.value > 2 && `Waiting for the first word, ${seconds.value} s`}
    </p>
  );
}

function Thoughts({ message, live }: { message: Message; live: boolean }) {
  const seconds = ((message.reasoningMs ?? 0) / 1000).toFixed(1);
  const [open, setOpen] = useState<boolean | null>(null);
  const isOpen = open ?? live;
  return (
    <details class="thoughts" open={isOpen}>
      <summary
        onClick={(event) => {
          event.preventDefault();
          setOpen(!isOpen);
        }}
      >
        <Icon of={Brain} /> {live ? "Thinking…" : message.reasoningMs ? `Thought for ${seconds} s` : "Thoughts"}
      </summary>
      {isOpen && (
        <div class="thought-text">
          <Markdown text={message.reasoning ?? ""} />
        </div>
      )}
    </details>
  );
}

function CallView({ call, live, give }: { call: Call; live: boolean; give: ((result: string) => void) | null }) {
  const [result, setResult] = useState("");
  let args = call.args;
  try {
    args = JSON.stringify(JSON.parse(call.args), null, 2);
  } catch {
    // Arguments that are still arriving are no JSON yet.
  }
  return (
    <section class="call" aria-label={`Call of ${call.name}`}>
      <p class="call-name">
        <Icon of={Wrench} /> <code>{call.name}</code>
      </p>
      <Markdown text={`\`\`\`json\n${args}\n\`\`\``} />
      {give && !live && (
        <form
          class="call-result"
          onSubmit={(event) => {
            event.preventDefault();
            give(result);
          }}
        >
          <textarea
            rows={2}
            dir="auto"
            aria-label={`Result of ${call.name}`}
            placeholder="What the function returns"
            value={result}
            onInput={(event) => setResult(event.currentTarget.value)}
          />
          <button type="submit">Give result</button>
        </form>
      )}
    </section>
  );
}

function Editor({ store, session, message, busy, close }: MessageProps & { close: () => void }) {
  const area = useRef<HTMLTextAreaElement>(null);
  const [text, setText] = useState(message.text);
  const [files, setFiles] = useState(message.attachments ?? []);
  const isQuestion = message.role === "user";
  // Before the first key can arrive, whose place in the text this would move.
  useLayoutEffect(() => {
    area.current!.focus();
    area.current!.setSelectionRange(text.length, text.length);
  }, []);
  const send = () => {
    if (isQuestion && busy) return;
    close();
    if (isQuestion) void store.ask(session, text.trim(), files, message.parent);
    else store.rewrite(session, message, text);
  };
  return (
    <form
      class="editor"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      {files.map((file) => (
        <button
          type="button"
          class="chip"
          title={`Remove ${file.name}`}
          onClick={() => setFiles(files.filter((other) => other !== file))}
        >
          {file.name} ×
        </button>
      ))}
      <textarea
        ref={area}
        dir="auto"
        aria-label={isQuestion ? "Edit the question" : "Edit the text"}
        rows={Math.min(16, text.split("\n").length + 1)}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape") {
            event.stopPropagation();
            close();
          } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
        }}
      />
      <div class="row">
        <button type="submit" class="primary" disabled={isQuestion && (busy || !(text.trim() || files.length))}>
          {isQuestion ? "Send" : "Save"}
        </button>
        <button type="button" onClick={close}>
          Cancel
        </button>
      </div>
    </form>
  );
}

function Actions(props: MessageProps & { edit: () => void }) {
  const { store, session, message, branch, branches, busy, isLast, edit } = props;
  const isAnswer = message.role === "assistant";
  const cut = !message.calls && (message.end === undefined || message.end === "stopped" || message.end === "length");
  return (
    <div class="under">
      <div class="actions">
        {branches > 1 && (
          <span class="branches">
            <IconButton
              icon={ChevronLeft}
              name="Previous branch"
              disabled={branch === 0 || busy}
              onClick={() => store.turn(session, message, -1)}
            />
            <span aria-label={`Branch ${branch + 1} of ${branches}`} role="img">
              {branch + 1}/{branches}
            </span>
            <IconButton
              icon={ChevronRight}
              name="Next branch"
              disabled={branch === branches - 1 || busy}
              onClick={() => store.turn(session, message, 1)}
            />
          </span>
        )}
        {message.text && <CopyButton text={message.text} />}
        <IconButton icon={Pencil} name="Edit" onClick={edit} disabled={busy} />
        {isAnswer && (
          <IconButton
            icon={RefreshCw}
            name="Answer again"
            disabled={busy}
            onClick={() => void store.again(session, message)}
          />
        )}
        {isAnswer && isLast && cut && message.text && (
          <IconButton
            icon={ArrowRight}
            name="Continue this answer"
            disabled={busy}
            onClick={() => void store.continue(session, message)}
          />
        )}
        <IconButton
          icon={Trash2}
          name="Delete from here"
          disabled={busy}
          onClick={() => store.remove(session, message)}
        />
      </div>
      {isAnswer && <Figures message={message} />}
    </div>
  );
}

function CopyButton({ text }: { text: string }) {
  const [done, setDone] = useState(false);
  const onClick = async () => {
    setDone(await copy(text));
    setTimeout(() => setDone(false), 1500);
  };
  return <IconButton icon={done ? Check : Copy} name={done ? "Copied" : "Copy"} onClick={() => void onClick()} />;
}

const ENDS = {
  stop: "finished",
  length: "reached the token limit",
  tool_calls: "calls a function",
  stopped: "stopped by you",
  failed: "failed",
};

function Figures({ message }: { message: Message }) {
  const { figures, end, model } = message;
  const parts = [end ? ENDS[end] : "interrupted"];
  let title = model ? `Model ${model}` : "";
  if (figures) {
    const { promptTokens, cachedTokens, tokens, rate, firstMs, totalMs } = figures;
    if (rate > 0) parts.unshift(`${rate.toFixed(1)} tokens/s`);
    parts.splice(-1, 0, `${tokens} tokens`, `prompt ${promptTokens}, ${cachedTokens} cached`);
    title += `\nFirst token after ${(firstMs / 1000).toFixed(2)} s, all after ${(totalMs / 1000).toFixed(1)} s`;
  }
  return (
    <p class="figures" title={title.trim()} data-end={end ?? "interrupted"}>
      {parts.map((part, at) => (
        <span key={at}>{part}</span>
      ))}
    </p>
  );
}
