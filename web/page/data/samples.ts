// What the server does: samples of `/metrics` and `/v1/loads`, from which rates are computed.

import type { Api } from "./api.js";

/** Samples that are kept; one is taken each second. */
export const SAMPLES_MAX = 120;

/** A moment of the server. Rates are per second since the sample before. */
export interface Sample {
  running: number;
  waiting: number;
  runningMax: number;
  /** Share of the KV pool in use, 0 to 1. */
  pool: number;
  poolTokens: number;
  poolTokensMax: number;
  hostBytes: number;
  /** KV blocks that can be read from disk. */
  diskBlocks: number;
  /** Planned bytes of the weights of all loaded models. */
  weightBytes: number;
  /** Memory of the server's process; `null` where it is not known. */
  processBytes: number | null;
  generated: number;
  prompted: number;
  /** Prompt tokens found in each tier of the cache, since the server started. */
  hits: Record<string, number>;
  /** Prompt tokens that were looked for. */
  queries: number;
  preemptions: number;
}

interface Load {
  max_running_requests: number;
  num_used_tokens: number;
  max_total_num_tokens: number;
}

/** Values of a metric by the value of one label, or under `""`. */
type Metrics = Map<string, Map<string, number>>;

/** Parses Prometheus text; the label that matters is the last one. Metrics of the process have none. */
function parse(text: string): Metrics {
  const metrics: Metrics = new Map();
  for (const line of text.split("\n")) {
    const [, name, labels = "", value] = /^(?:vllm:)?(\w+)(?:\{(.*)\})? (\S+)$/.exec(line) ?? [];
    if (name === undefined || name.endsWith("_bucket")) continue;
    const label = /(\w+)="((?:[^"\\]|\\.)*)"$/.exec(labels);
    const key = label && label[1] !== "model_name" ? label[2]! : "";
    const values = metrics.get(name) ?? new Map<string, number>();
    values.set(key, (values.get(key) ?? 0) + Number(value));
    metrics.set(name, values);
  }
  return metrics;
}

/** Takes samples; each needs the one before for its rates. */
export class Sampler {
  private last: { at: number; generated: number; prompted: number } | null = null;

  constructor(private readonly api: Api) {}

  async take(): Promise<Sample> {
    const [text, { loads }] = await Promise.all([
      this.api.request("metrics").then((response) => response.text()),
      this.api.json<{ loads: Load[] }>("v1/loads"),
    ]);
    const metrics = parse(text);
    const one = (name: string) => metrics.get(name)?.get("") ?? 0;
    const [generated, prompted] = [one("generation_tokens_total"), one("prompt_tokens_total")];
    const now = { at: performance.now(), generated, prompted };
    const { last } = this;
    const rate = (name: "generated" | "prompted") =>
      last ? Math.max(0, (1000 * (now[name] - last[name])) / (now.at - last.at)) : 0;
    // Of all loaded models.
    const sum = (name: keyof Load) => loads.reduce((total, load) => total + load[name], 0);
    const sample: Sample = {
      running: one("num_requests_running"),
      waiting: one("num_requests_waiting"),
      runningMax: sum("max_running_requests"),
      pool: one("kv_cache_usage_perc") / Math.max(1, loads.length),
      poolTokens: sum("num_used_tokens"),
      poolTokensMax: sum("max_total_num_tokens"),
      hostBytes: one("kv_host_bytes"),
      diskBlocks: one("kv_disk_blocks"),
      weightBytes: one("weight_bytes"),
      processBytes: metrics.get("process_resident_memory_bytes")?.get("") ?? null,
      generated: rate("generated"),
      prompted: rate("prompted"),
      hits: Object.fromEntries(metrics.get("prefix_cache_tier_hits_total") ?? []),
      queries: one("prefix_cache_queries_total"),
      preemptions: one("num_preemptions_total"),
    };
    this.last = now;
    return sample;
  }
}
