// Server-sent events as an async iterable of parsed JSON.

import { fromApi } from "./errors.js";

/** A stream of chunks. Leaving the loop early, or `controller.abort()`, stops the generation. */
export class Stream<T> implements AsyncIterable<T> {
  /** Aborts the generation. */
  readonly controller = new AbortController();

  constructor(private readonly response: Response) {}

  async *[Symbol.asyncIterator](): AsyncIterator<T> {
    const reader = this.response.body!.getReader();
    const { signal } = this.controller;
    const abort = () => void reader.cancel().catch(() => {});
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort);
    try {
      const decoder = new TextDecoder();
      let text = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        text += decoder.decode(value, { stream: true });
        const events = text.split("\n\n");
        text = events.pop()!;
        for (const event of events) {
          // An event may have a name, which its data repeats, and a pause in the stream is a comment.
          const data = /^data: (.*)$/m.exec(event)?.[1];
          if (data === undefined) continue;
          if (data === "[DONE]") return;
          const chunk = JSON.parse(data);
          if (chunk.error) throw fromApi(500, chunk);
          yield chunk;
        }
      }
    } finally {
      signal.removeEventListener("abort", abort);
      abort();
    }
  }
}
