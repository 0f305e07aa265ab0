// Markdown as the page shows it. A text is cut into its top-level blocks, and only blocks whose source changed are
// rendered again, so that a long answer stays fast while it grows.

import { footnote } from "@mdit/plugin-footnote";
import { tasklist } from "@mdit/plugin-tasklist";
import { tex } from "@mdit/plugin-tex";
import DOMPurify from "dompurify";
import MarkdownIt from "markdown-it";
import cjkFriendly from "markdown-it-cjk-friendly";
import { memo } from "preact/compat";
import { useId, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import temml from "temml";
import { highlighted } from "./highlight.js";
import { html } from "./html.js";

type Token = ReturnType<MarkdownIt["parse"]>[number];

// Models break lines where they mean it, as in addresses and verses.
const markdown = new MarkdownIt({ html: false, linkify: true, breaks: true });
markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
const { escapeHtml } = markdown.utils;
markdown.use(tex, {
  delimiters: "all",
  mathFence: true,
  render: (formula: string, display: boolean) => rendered(formula, display ? "div" : ""),
});

/** A formula; one of its own is in an element. */
function rendered(formula: string, element: "div" | "span" | ""): string {
  let math: string;
  try {
    math = temml.renderToString(formula, { displayMode: element !== "", throwOnError: false, wrap: "none" });
  } catch {
    // Temml fails on some formulas that end early, as all do while they arrive.
    return `<code>${escapeHtml(formula)}</code>`;
  }
  // Styles in HTML are against the server's policy; they are set after the formula was inserted.
  const shown = math.replaceAll(' style="', ' data-style="');
  return element ? `<${element} class="formula" tabindex="0">${shown}</${element}>` : shown;
}

markdown.use(html).use(cjkFriendly).use(footnote).use(tasklist, { label: false });
// Formulas of their own, within a line.
markdown.inline.ruler.before("escape", "display", (state, silent) => {
  if (!state.src.startsWith("\\[", state.pos)) return false;
  const end = state.src.indexOf("\\]", state.pos);
  if (end < 0 || end > state.posMax) return false;
  if (!silent) state.push("display", "math", 0).content = state.src.slice(state.pos + 2, end).trim();
  state.pos = end + 2;
  return true;
});
markdown.renderer.rules.display = (tokens, at) => rendered(tokens[at]!.content, "span");
markdown.renderer.rules.fence = (tokens, at) => code(tokens[at]!.content, tokens[at]!.info.trim().split(/\s+/)[0]!);
markdown.renderer.rules.code_block = (tokens, at) => code(tokens[at]!.content, "");
markdown.renderer.rules.table_open = () => `<div class="table" tabindex="0"><table>`;
markdown.renderer.rules.table_close = () => `</table></div>`;
for (const name of ["th_open", "td_open"]) {
  markdown.renderer.rules[name] = (tokens, at) => {
    const token = tokens[at]!;
    const side = /text-align:(\w+)/.exec(String(token.attrGet("style") ?? ""))?.[1];
    return side ? `<${token.tag} class="${side}">` : `<${token.tag}>`;
  };
}
// The page loads nothing from other servers, so a picture is a link.
markdown.renderer.rules.image = (tokens, at) => {
  const address = escapeHtml(String(tokens[at]!.attrGet("src") ?? ""));
  return `<a href="${address}">${escapeHtml(tokens[at]!.content) || address}</a>`;
};

function code(text: string, language: string): string {
  const body = highlighted(text, language.toLowerCase()) ?? escapeHtml(text);
  const button = `<button type="button" data-copy>Copy</button>`;
  const head = `<div class="code-head"><span>${escapeHtml(language)}</span>${button}</div>`;
  return `<div class="code" dir="ltr">${head}<pre tabindex="0"><code>${body}</code></pre></div>`;
}

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "INPUT") {
    // Boxes of a list of tasks. Several answers may number them alike.
    node.setAttribute("aria-label", node.hasAttribute("checked") ? "Done" : "Not done");
    node.removeAttribute("id");
  }
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer");
});

/** Rendered HTML is the only HTML that the page inserts; it is cleaned although the renderer escapes all text. */
function clean(html: string): string {
  const options = { USE_PROFILES: { html: true, mathMl: true }, FORBID_ATTR: ["style"], RETURN_TRUSTED_TYPE: true };
  return DOMPurify.sanitize(html, options) as unknown as string;
}

interface Block {
  source: string;
  tokens: Token[];
  env: object;
}

/** The top-level blocks of a text, each with its lines. */
function blocks(text: string, id: string): Block[] {
  // Footnotes of several answers have different addresses.
  const env = { docId: id };
  const tokens = markdown.parse(text, env);
  const lines = text.split("\n");
  // A block may refer to definitions in others.
  const references = JSON.stringify(env);
  const found: Block[] = [];
  let start = 0;
  tokens.forEach((token, at) => {
    if (token.level !== 0 || token.nesting > 0) return;
    const [from, to] = tokens[start]!.map ?? [0, lines.length];
    found.push({ source: lines.slice(from, to).join("\n") + references, tokens: tokens.slice(start, at + 1), env });
    start = at + 1;
  });
  return found;
}

/** Gives formulas their styles, which are of these properties. */
const STYLES = /^(color|background-color|text-align|(padding|margin|border)(-\w+)*|(min-)?width|math-\w+|font-\w+)$/;

function style(block: HTMLElement): void {
  for (const element of block.querySelectorAll<HTMLElement>("math [data-style]")) {
    for (const rule of element.dataset.style!.split(";")) {
      const [name, value] = rule.split(":").map((part) => part.trim());
      if (value && STYLES.test(name!)) element.style.setProperty(name!, value);
    }
  }
}

const Part = memo(
  ({ block }: { block: Block }) => {
    const root = useRef<HTMLDivElement>(null);
    const html = clean(markdown.renderer.render(block.tokens, markdown.options, block.env));
    useLayoutEffect(() => style(root.current!), [block.source]);
    return <div class="block" dir="auto" ref={root} dangerouslySetInnerHTML={{ __html: html }} />;
  },
  (before, after) => before.block.source === after.block.source,
);

export function Markdown({ text }: { text: string }) {
  const id = useId();
  const parts = useMemo(() => blocks(text, id), [text]);
  return (
    <div class="markdown" onClick={copyCode}>
      {parts.map((block, at) => (
        <Part key={at} block={block} />
      ))}
    </div>
  );
}

function copyCode({ target }: MouseEvent) {
  const button = (target as Element).closest<HTMLButtonElement>("[data-copy]");
  const text = button?.closest(".code")?.querySelector("code")?.textContent;
  if (button && text != null) void copy(text).then((done) => flash(button, done ? "Copied" : "Not copied"));
}

function flash(button: HTMLButtonElement, text: string) {
  button.textContent = text;
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

/** Copies a text; false if the browser does not allow it. */
export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without https there is no clipboard, but this works.
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "unseen";
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
