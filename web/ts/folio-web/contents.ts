// What a server sends in place of a model's file: its own page, an error's document, a pointer to a large file.

const HEAD_BYTES = 1024;
const PAGE = /^[\s\uFEFF]*(<!--[\s\S]*?-->\s*)*<(!doctype|html|head|body|title|script)[\s>]/i;
const DOCUMENT = /^[\s\uFEFF]*<(\?xml\s|error>|error\s)/i;
const POINTER = "version https://git-lfs.github.com/spec/";

/** What these first bytes of a response are instead of `file`; `null` if they may be the file. */
export function strangeContents(file: string, response: Response, bytes: Uint8Array): string | null {
  const text = new TextDecoder("latin1").decode(bytes.subarray(0, HEAD_BYTES)).replace(/^ï»¿/, "");
  if (text.startsWith(POINTER)) return "a Git LFS pointer";
  if (PAGE.test(text)) return "an HTML page";
  if (DOCUMENT.test(text)) return "an XML document";
  return isPage(response) && bytes.length > 0 && !hasFormatOf(file, text) ? "an HTML page" : null;
}

/** Whether a response has the content type of a page. */
export function isPage(response: Response): boolean {
  return /^\s*text\/html\b/i.test(response.headers.get("content-type") ?? "");
}

/** Whether a file begins as its name promises. Scripts often send files with the content type of a page. */
function hasFormatOf(file: string, text: string): boolean {
  if (text.startsWith("GGUF")) return true;
  if (/\.json$/i.test(file)) return /^\s*[{[]/.test(text);
  // The length of the header, and the header, which is JSON.
  return /\.safetensors$/i.test(file) && text[7] === "\0" && text[8] === "{";
}
