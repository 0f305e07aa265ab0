// The panel of a conversation's settings. Fields of a request, with their ranges and sentences, come from the server's
// own OpenAPI document.

import { useSignal } from "@preact/signals";
import { useEffect, useId, useState } from "preact/hooks";
import { Save, Trash2 } from "lucide";
import type { Api, FieldSchema } from "../data/api.js";
import type { Format, Settings } from "../data/conversation.js";
import { format, tools } from "../data/request.js";
import type { Session, Store } from "../data/store.js";
import { IconButton } from "./icons.js";

type Fields = Record<string, FieldSchema>;

/** Order and grouping of the fields that matter most; others follow under `More`. */
const GROUPS: [string, string[]][] = [
  ["Sampling", ["temperature", "top_p", "top_k", "min_p", "seed", "max_completion_tokens"]],
  ["Repetition", ["repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"]],
  ["Thinking", ["reasoning_effort", "chat_template_kwargs"]],
  ["End", ["stop", "stop_token_ids", "include_stop_str_in_output", "min_tokens", "ignore_eos"]],
  ["Several answers", ["n", "best_of", "use_beam_search", "length_penalty", "early_stopping"]],
];
/** Fields that the page sets itself, other names of the same, and reports that it does not show. */
const LEFT_OUT = new Set([
  ...["model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stream", "stream_options", "max_tokens"],
  ...["repeat_penalty", "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice"],
  ...["guided_grammar", "regex", "json_schema", "add_generation_prompt", "continue_final_message", "modalities"],
  ...["prompt_logprobs", "logprobs", "top_logprobs", "return_token_ids", "return_tokens_as_token_ids", "debug"],
  ...["metadata", "user", "n_predict", "n_cmpl", "n_probs", "return_tokens", "timings_per_token", "return_progress"],
]);
const FORMATS: [Format["kind"], string, string][] = [
  ["text", "Text", ""],
  ["json_object", "JSON", ""],
  ["json_schema", "JSON schema", '{"type": "object", "properties": {"name": {"type": "string"}}}'],
  ["regex", "Regular expression", "\\d{4}-\\d{2}-\\d{2}"],
  ["choice", "One of these lines", "yes\nno"],
  ["grammar", "Grammar (Lark)", 'start: "yes" | "no"'],
];
/** llama.cpp's names of defaults, where they differ. */
const DEFAULT_NAMES: Record<string, string> = {
  repetition_penalty: "repeat_penalty",
  max_completion_tokens: "n_predict",
};

export function SettingsPanel({ store, session }: { store: Store; session: Session }) {
  const { settings } = session.conversation.value;
  const set = (changes: Partial<Settings>) => store.configure(session, changes);
  return (
    <div class="settings" key={session.id}>
      <SystemPrompt store={store} settings={settings} set={set} />
      <AnswerFormat settings={settings} set={set} />
      <RequestFields api={store.api} model={store.model.value} settings={settings} set={set} />
    </div>
  );
}

interface PartProps {
  settings: Settings;
  set: (changes: Partial<Settings>) => void;
}

function SystemPrompt({ store, settings, set }: PartProps & { store: Store }) {
  const [name, setName] = useState<string | null>(null);
  const prompts = store.prompts.value;
  const current = prompts.find(({ text }) => text === settings.system);
  const id = useId();
  const save = (event: Event) => {
    event.preventDefault();
    const title = name?.trim();
    if (!title) return;
    const others = prompts.filter((prompt) => prompt.name !== title);
    const all = [...others, { name: title, text: settings.system }].sort((a, b) => a.name.localeCompare(b.name));
    void store.savePrompts(all);
    setName(null);
  };
  return (
    <section>
      <h3>
        <label for={id}>System prompt</label>
      </h3>
      {prompts.length > 0 && (
        <select
          aria-label="Saved system prompts"
          value={current?.name ?? ""}
          onChange={({ currentTarget: { value } }) => {
            set({ system: prompts.find((prompt) => prompt.name === value)?.text ?? "" });
          }}
        >
          <option value="">{settings.system && !current ? "Not saved" : "None"}</option>
          {prompts.map((prompt) => (
            <option value={prompt.name}>{prompt.name}</option>
          ))}
        </select>
      )}
      <textarea
        id={id}
        rows={4}
        dir="auto"
        placeholder="Who the assistant is and how it answers"
        value={settings.system}
        onInput={({ currentTarget }) => set({ system: currentTarget.value })}
      />
      {name !== null ? (
        <form class="row" onSubmit={save}>
          <input
            aria-label="Name of the system prompt"
            placeholder="Name"
            value={name}
            ref={(input) => input?.focus()}
            onInput={({ currentTarget }) => setName(currentTarget.value)}
          />
          <button type="submit" class="primary">
            Save
          </button>
        </form>
      ) : (
        <div class="row end">
          {current && (
            <IconButton
              icon={Trash2}
              name={`Delete the saved prompt ${current.name}`}
              onClick={() => void store.savePrompts(prompts.filter((prompt) => prompt !== current))}
            />
          )}
          {settings.system.trim() && !current && (
            <IconButton icon={Save} name="Save this system prompt" onClick={() => setName("")} />
          )}
        </div>
      )}
    </section>
  );
}

/** What is wrong with a part of the settings, in words. */
function complaint(check: () => unknown): string | null {
  try {
    check();
    return null;
  } catch (error) {
    return (error as Error).message;
  }
}

function AnswerFormat({ settings, set }: PartProps) {
  const { kind, text } = settings.format;
  const wrong = complaint(() => format(settings.format));
  const example = FORMATS.find(([name]) => name === kind)![2];
  const id = useId();
  return (
    <section>
      <h3>
        <label for={id}>Answer</label>
      </h3>
      <select
        id={id}
        value={kind}
        onChange={({ currentTarget }) => set({ format: { kind: currentTarget.value as Format["kind"], text } })}
      >
        {FORMATS.map(([kind, name]) => (
          <option value={kind}>{name}</option>
        ))}
      </select>
      {example && (
        <textarea
          class="mono"
          rows={5}
          spellcheck={false}
          aria-label="Form of the answer"
          aria-invalid={wrong !== null}
          placeholder={example}
          value={text}
          onInput={({ currentTarget }) => set({ format: { kind, text: currentTarget.value } })}
        />
      )}
      {wrong && <p class="wrong">{wrong}</p>}
    </section>
  );
}

function RequestFields({ api, model, settings, set }: PartProps & { api: Api; model: string | null }) {
  const fields = useSignal<Fields | null>(null);
  const defaults = useSignal<Record<string, unknown>>({});
  const failed = useSignal<string | null>(null);
  const read = async () => {
    try {
      failed.value = null;
      [fields.value, defaults.value] = await Promise.all([api.fields(), api.defaults(model)]);
    } catch (error) {
      failed.value = (error as Error).message;
    }
  };
  useEffect(() => void read(), [model]);
  const { fields: given } = settings;
  const change = (name: string, value: unknown) => {
    const { [name]: _, ...others } = given;
    set({ fields: value === undefined ? others : { ...others, [name]: value } });
  };
  if (failed.value) {
    return (
      <p class="wrong">
        {failed.value} <button onClick={() => void read()}>Retry</button>
      </p>
    );
  }
  if (!fields.value) return <p class="faint">Reading the server's fields…</p>;
  const all = fields.value;
  const listed = new Set(GROUPS.flatMap(([, names]) => names));
  const more = Object.keys(all).filter((name) => !listed.has(name) && !LEFT_OUT.has(name));
  const field = (name: string) =>
    all[name] && (
      <Field
        key={name}
        name={name}
        schema={all[name]}
        value={given[name]}
        usual={defaults.value[DEFAULT_NAMES[name] ?? name]}
        change={(value) => change(name, value)}
      />
    );
  const [first, ...others] = [...GROUPS, ["More", more] as [string, string[]]];
  return (
    <>
      <section>
        <h3>{first![0]}</h3>
        <div class="fields">{first![1].map(field)}</div>
      </section>
      {others.map(([title, names]) => (
        <details class="group" open={names.some((name) => given[name] !== undefined)}>
          <summary>{title}</summary>
          <div class="fields">{names.map(field)}</div>
        </details>
      ))}
      <ToolFields settings={settings} set={set} field={field} />
      {Object.keys(given).length > 0 && (
        <button type="button" onClick={() => set({ fields: {} })}>
          Back to the server's defaults
        </button>
      )}
    </>
  );
}

function ToolFields({ settings, set, field }: PartProps & { field: (name: string) => unknown }) {
  const wrong = complaint(() => tools(settings));
  const example = '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]';
  return (
    <details class="group" open={Boolean(settings.tools)}>
      <summary>Tools</summary>
      <textarea
        class="mono"
        rows={6}
        spellcheck={false}
        aria-label="Functions that the model may call, as JSON"
        aria-invalid={wrong !== null}
        placeholder={example}
        value={settings.tools}
        onInput={({ currentTarget }) => set({ tools: currentTarget.value })}
      />
      {wrong && <p class="wrong">{wrong}</p>}
      <div class="fields">{["tool_choice", "parallel_tool_calls"].map(field) as never}</div>
    </details>
  );
}

interface FieldProps {
  name: string;
  schema: FieldSchema;
  value: unknown;
  usual: unknown;
  /** Called with `undefined` when the field is empty. */
  change: (value: unknown) => void;
}

const words = (name: string) => (name[0]!.toUpperCase() + name.slice(1)).replaceAll("_", " ");

function Field({ name, schema, value, usual, change }: FieldProps) {
  const id = useId();
  const kind = kindOf(schema);
  const props = { id, schema, value, usual: usual ?? schema.default, change };
  return (
    <div class={`field ${kind}`}>
      <label for={id} title={name}>
        {words(name)}
      </label>
      {kind === "number" ? <NumberField {...props} /> : kind === "choice" ? <ChoiceField {...props} /> : null}
      {kind === "text" || kind === "json" || kind === "lines" ? <TextField {...props} kind={kind} /> : null}
      <p id={`${id}-hint`} class="hint">
        {schema.description}
      </p>
    </div>
  );
}

function kindOf(schema: FieldSchema): "number" | "choice" | "text" | "json" | "lines" {
  const forms = [schema, ...(schema.anyOf ?? [])];
  const has = (type: string) => forms.some((form) => [form.type].flat().includes(type));
  if (has("number") || has("integer")) return "number";
  if (has("boolean") || schema.enum) return "choice";
  if (has("array") && forms.some(({ items }) => items?.type === "string")) return "lines";
  if (has("string") && !has("object")) return "text";
  return "json";
}

type ControlProps = Omit<FieldProps, "name"> & { id: string };

function NumberField({ id, schema, value, usual, change }: ControlProps) {
  const whole = [schema.type].flat().includes("integer");
  const [wrong, setWrong] = useState("");
  const min = schema.minimum ?? schema.exclusiveMinimum;
  return (
    <>
      <input
        id={id}
        type="number"
        inputMode={whole ? "numeric" : "decimal"}
        step={whole ? 1 : "any"}
        min={min}
        max={schema.maximum}
        placeholder={typeof usual === "number" && !(whole && usual < 0) ? String(round(usual)) : "default"}
        value={value as number | undefined}
        aria-describedby={`${id}-hint`}
        aria-invalid={wrong !== ""}
        onInput={({ currentTarget: input }) => {
          setWrong(input.validationMessage);
          if (input.validity.valid) change(input.value === "" ? undefined : input.valueAsNumber);
        }}
      />
      {wrong && <p class="wrong">{wrong}</p>}
    </>
  );
}

/** Defaults are 32-bit numbers, whose digits after the sixth mean nothing. */
const round = (value: number) => Number(value.toPrecision(6));

function ChoiceField({ id, schema, value, usual, change }: ControlProps) {
  const choices = schema.enum?.filter((choice) => choice !== null) ?? [true, false];
  const name = (choice: unknown) => (choice === true ? "on" : choice === false ? "off" : String(choice));
  return (
    <select
      id={id}
      aria-describedby={`${id}-hint`}
      value={value === undefined ? "" : JSON.stringify(value)}
      onChange={({ currentTarget }) => change(currentTarget.value ? JSON.parse(currentTarget.value) : undefined)}
    >
      <option value="">{usual == null ? "default" : `default (${name(usual)})`}</option>
      {choices.map((choice) => (
        <option value={JSON.stringify(choice)}>{name(choice)}</option>
      ))}
    </select>
  );
}

function TextField({ id, value, change, kind }: ControlProps & { kind: "text" | "json" | "lines" }) {
  const write = () => {
    if (value === undefined) return "";
    return kind === "lines" ? (value as string[]).join("\n") : kind === "json" ? JSON.stringify(value) : String(value);
  };
  const [text, setText] = useState(write);
  const [wrong, setWrong] = useState("");
  useEffect(() => {
    if (value === undefined && !wrong) setText("");
  }, [value]);
  const take = (text: string) => {
    setText(text);
    setWrong("");
    if (!text.trim()) return change(undefined);
    if (kind === "text") return change(text);
    if (kind === "lines") return change(text.split("\n").filter(Boolean));
    const complaints = complaint(() => change(JSON.parse(text)));
    setWrong(complaints ? `This is not JSON: ${complaints}` : "");
  };
  const common = { id, spellcheck: false, "aria-describedby": `${id}-hint`, "aria-invalid": wrong !== "", value: text };
  return (
    <>
      {kind === "text" ? (
        <input {...common} onInput={({ currentTarget }) => take(currentTarget.value)} />
      ) : (
        <textarea
          {...common}
          class="mono"
          rows={2}
          placeholder={kind === "lines" ? "one a line" : "JSON"}
          onInput={({ currentTarget }) => take(currentTarget.value)}
        />
      )}
      {wrong && <p class="wrong">{wrong}</p>}
    </>
  );
}
