// The HTML that answers may have: a few tags without attributes. Everything else is shown as it is written.

import type MarkdownIt from "markdown-it";

const TAG = /^<(\/?)(br|sub|sup|kbd)\s*(\/?)>/i;
const DETAILS = /^<details(\s+open)?\s*>/i;
const SUMMARY = /^\s*<summary\s*>(.*?)<\/summary>\s*/i;
const DETAILS_END = /<\/details\s*>\s*$/i;

/** Lets `<br>`, `<sub>`, `<sup>`, `<kbd>` and `<details>` with a `<summary>` be what they are in HTML. */
export function html(markdown: MarkdownIt): void {
  markdown.inline.ruler.before("autolink", "tags", (state, silent) => {
    const found = TAG.exec(state.src.slice(state.pos, state.posMax));
    if (!found) return false;
    const name = found[2]!.toLowerCase();
    if (!silent) {
      const token = state.push("tag", name, 0);
      token.content = name === "br" ? "<br>" : `<${found[1]}${name}>`;
    }
    state.pos += found[0].length;
    return true;
  });
  markdown.renderer.rules.tag = (tokens, at) => tokens[at]!.content;
  markdown.block.ruler.before("fence", "details", details, { alt: ["paragraph", "reference", "blockquote", "list"] });
}

/** A block from `<details>` to its `</details>`, or to the end of a text that still arrives. */
const details: Parameters<MarkdownIt["block"]["ruler"]["before"]>[2] = (state, start, end, silent) => {
  const line = (at: number) => state.src.slice(state.bMarks[at]! + state.tShift[at]!, state.eMarks[at]);
  const opening = DETAILS.exec(line(start));
  if (!opening || state.sCount[start]! - state.blkIndent >= 4) return false;
  if (silent) return true;
  let depth = 0;
  let last = start;
  for (; last < end; last++) {
    depth += (line(last).match(/<details[\s>]/gi) ?? []).length - (line(last).match(/<\/details\s*>/gi) ?? []).length;
    if (depth <= 0) break;
  }
  const stop = Math.min(last + 1, end);
  const whole = state.getLines(start, stop, state.blkIndent, false).trimStart();
  const inner = whole.slice(opening[0].length).replace(DETAILS_END, "");
  const summary = SUMMARY.exec(inner);
  const open = state.push("details_open", "details", 1);
  open.map = [start, stop];
  if (opening[1]) open.attrSet("open", "");
  state.push("summary_open", "summary", 1);
  const title = state.push("inline", "", 0);
  title.content = summary?.[1]?.trim() || "Details";
  title.children = [];
  state.push("summary_close", "summary", -1);
  const tokens: typeof state.tokens = [];
  state.md.block.parse(inner.slice(summary?.[0].length ?? 0), state.md, state.env, tokens);
  for (const token of tokens) token.level += state.level;
  state.tokens.push(...tokens);
  state.push("details_close", "details", -1);
  state.line = stop;
  return true;
};
