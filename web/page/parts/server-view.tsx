// The panel that shows what the server does now, as figures and small plots of the last two minutes.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Api } from "../data/api.js";
import { Sampler, SAMPLES_MAX, type Sample } from "../data/samples.js";

const INTERVAL_MS = 1000;
const [WIDTH, HEIGHT] = [240, 44];

export function ServerPanel({ api }: { api: Api }) {
  const samples = useSignal<Sample[]>([]);
  const failed = useSignal<string | null>(null);
  useEffect(() => {
    const sampler = new Sampler(api);
    let [open, timer] = [true, 0];
    const tick = async () => {
      try {
        const sample = await sampler.take();
        if (!open) return;
        samples.value = [...samples.value, sample].slice(-SAMPLES_MAX);
        failed.value = null;
      } catch (error) {
        failed.value = (error as Error).message;
      }
      if (open) timer = window.setTimeout(() => void tick(), INTERVAL_MS);
    };
    void tick();
    return () => {
      open = false;
      clearTimeout(timer);
    };
  }, [api]);
  const now = samples.value.at(-1);
  if (!now) return <p class="faint">{failed.value ?? "Reading the server's figures…"}</p>;
  const of = (read: (sample: Sample) => number) => samples.value.map(read);
  return (
    <div class="server">
      {failed.value && <p class="wrong">{failed.value}</p>}
      <Plot name="Generated" unit="tokens/s" values={of((sample) => sample.generated)} digits={1} />
      <Plot name="Prompts" unit="tokens/s" values={of((sample) => sample.prompted)} />
      <Plot name="Running" unit={`of ${now.runningMax}`} values={of((sample) => sample.running)} />
      <Plot name="Waiting" unit="in the queue" values={of((sample) => sample.waiting)} />
      <Plot name="KV pool" unit="%" values={of((sample) => 100 * sample.pool)} most={100} digits={0} />
      <dl>
        <Figure name="Tokens in the pool" value={`${count(now.poolTokens)} of ${count(now.poolTokensMax)}`} />
        <Figure name="KV blocks in host memory" value={bytes(now.hostBytes)} />
        <Figure name="KV blocks on disk" value={count(now.diskBlocks)} />
        <Figure name="Weights" value={bytes(now.weightBytes)} />
        {now.processBytes !== null && <Figure name="Memory of the process" value={bytes(now.processBytes)} />}
        <Figure name="Preemptions" value={count(now.preemptions)} />
      </dl>
      <Tiers sample={now} />
    </div>
  );
}

const count = (value: number) => value.toLocaleString("en");

function bytes(value: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  for (; value >= 1000 && at < units.length - 1; at++) value /= 1000;
  return `${at ? value.toFixed(1) : value} ${units[at]}`;
}

function Figure({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

/** Share of all prompt tokens that came from each tier of the cache. */
function Tiers({ sample: { hits, queries } }: { sample: Sample }) {
  const share = (tokens: number) => (queries ? (100 * tokens) / queries : 0);
  const tiers = Object.entries(hits);
  const rest = Math.max(0, queries - tiers.reduce((sum, [, tokens]) => sum + tokens, 0));
  const all: [string, number][] = [...tiers, ["computed", rest]];
  return (
    <section>
      <h3>Where prompt tokens came from</h3>
      <svg class="tiers" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">
        {all.map(([name, tokens], at) => {
          const before = all.slice(0, at).reduce((sum, [, tokens]) => sum + tokens, 0);
          return <rect class={`tier-${name}`} x={share(before)} width={share(tokens)} height="4" />;
        })}
      </svg>
      <dl>
        {all.map(([name, tokens]) => (
          <div>
            <dt>
              <span class={`key tier-${name}`} aria-hidden="true" /> {name === "computed" ? name : `cache on ${name}`}
            </dt>
            <dd>
              {count(tokens)} <small>{share(tokens).toFixed(0)} %</small>
            </dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

interface PlotProps {
  name: string;
  unit: string;
  values: number[];
  /** The top of the plot; by default the highest value. */
  most?: number;
  digits?: number;
}

function Plot({ name, unit, values, most, digits = 0 }: PlotProps) {
  const top = Math.max(most ?? 0, ...values, 1);
  const x = (at: number) => WIDTH - ((values.length - 1 - at) * WIDTH) / (SAMPLES_MAX - 1);
  const y = (value: number) => HEIGHT - 1 - ((HEIGHT - 2) * value) / top;
  const points = values.map((value, at) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const now = (values.at(-1) ?? 0).toFixed(digits);
  const highest = Math.max(...values).toFixed(digits);
  return (
    <figure class="plot">
      <figcaption>
        <span>{name}</span>
        <b>
          {now} <small>{unit}</small>
        </b>
      </figcaption>
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${name}: ${now} ${unit} now, at most ${highest} in the last two minutes`}
      >
        <polygon points={`${x(0)},${HEIGHT} ${points} ${WIDTH},${HEIGHT}`} />
        <polyline points={points} />
      </svg>
    </figure>
  );
}
