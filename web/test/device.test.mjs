// Failures and lifecycles of devices, workers and pages: lost, crashed, unloaded, shared.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch } from "./support/browser.mjs";
import { serve } from "./support/server.mjs";

let server, browser;
before(async () => {
  server = await serve();
  browser = await launch();
});
after(async () => {
  await browser.close();
  await server.close();
});

/** A page with an engine whose worker watches the GPU; `tell` reaches that worker. */
async function watched(options = {}) {
  const { page, context, errors } = await browser.page(server.origin);
  await page.evaluate((options) => {
    const channel = new BroadcastChannel("folio-test");
    window.tell = (what) => channel.postMessage(what);
    window.count = () =>
      new Promise((resolve) => {
        channel.onmessage = ({ data }) => resolve(data);
        tell("count");
      });
    window.start = () =>
      folio.load({
        model: demo,
        device: "webgpu",
        worker: "/test/worker.js",
        limits: { maxNumSeqs: 2, maxModelLen: 256 },
        ...options,
      });
    window.story = { prompt: "Once upon a time", temperature: 0, max_tokens: 60, ignore_eos: true };
  }, options);
  return { page, context, errors };
}

test("a lost device costs a stream no token; a third loss ends it by type, and reload works", async () => {
  const { page, context } = await watched();
  const result = await page.evaluate(async () => {
    window.engine = await start();
    const whole = (await engine.completions.create(story)).choices[0].text;
    const interrupted = async () => {
      let [text, pieces] = ["", 0];
      for await (const chunk of await engine.completions.create({ ...story, stream: true })) {
        text += chunk.choices[0].text;
        if (++pieces === 5) tell("destroy");
      }
      return text;
    };
    const first = await interrupted();
    const second = await interrupted();
    const recoveries = (await engine.stats()).recoveries;
    const third = await outcome(interrupted);
    const later = await outcome(() => engine.completions.create(story));
    await engine.reload();
    const again = (await engine.completions.create(story)).choices[0].text;
    return { whole, first, second, recoveries, third, later, again };
  });
  assert.equal(result.first, result.whole);
  assert.equal(result.second, result.whole);
  assert.equal(result.recoveries, 2);
  assert.deepEqual([result.third.name, result.third.code], ["DeviceLostError", "device_lost"]);
  assert.equal(result.later.name, "DeviceLostError");
  assert.equal(result.again, result.whole);
  await context.close();
});

for (const shared of [false, true]) {
  test(`a crash of ${shared ? "a shared" : "the"} engine is an error by type, and reload works`, async () => {
    const { page, context } = await watched({ shared });
    const result = await page.evaluate(async () => {
      const engine = await start();
      const whole = (await engine.completions.create(story)).choices[0].text;
      const stream = await engine.completions.create({ ...story, stream: true });
      tell("crash");
      const crashed = await outcome(async () => {
        for await (const _ of stream);
      });
      const later = await outcome(() => engine.stats());
      await engine.reload();
      const again = (await engine.completions.create(story)).choices[0].text;
      return { whole, crashed, later, again };
    });
    assert.deepEqual([result.crashed.name, result.crashed.code], ["EngineCrashedError", "engine_crashed"]);
    assert.equal(result.later.name, "EngineCrashedError");
    assert.equal(result.again, result.whole);
    await context.close();
  });
}

test("unload gives every buffer back, five times over", async () => {
  const { page, context, errors } = await watched({ shared: true });
  const counts = await page.evaluate(async () => {
    const counts = [];
    // A second page keeps the shared worker alive, so that its buffer count can be read.
    for (let round = 0; round < 5; round++) {
      const engine = await start();
      const loaded = (await count()).live;
      const stream = await engine.completions.create({ ...story, stream: true });
      for await (const _ of stream) break;
      await engine.unload();
      const unloaded = await outcome(() => engine.stats());
      counts.push({ loaded, unloaded: unloaded.name, ...(await count()) });
    }
    return counts;
  });
  for (const { loaded, unloaded, live, devices } of counts) {
    assert.equal(loaded, counts[0].loaded, "each load makes as many buffers");
    assert.ok(loaded > 20);
    assert.equal(unloaded, "UnloadedError");
    assert.deepEqual([live, devices], [0, 0]);
  }
  assert.deepEqual(errors, []);
  await context.close();
});

test("pages share one engine, which outlives the first of them", async () => {
  const { page, context } = await watched({ shared: true });
  await page.evaluate(async () => (window.engine = await start()));
  const { page: other } = await browser.page(server.origin, context);
  const answer = await other.evaluate(async () => {
    const options = {
      model: demo,
      device: "webgpu",
      worker: "/test/worker.js",
      shared: true,
      limits: { maxNumSeqs: 2, maxModelLen: 256 },
    };
    window.engine = await folio.load(options);
    const system = { role: "system", content: "Be brief. ".repeat(30) };
    window.ask = async (content) => {
      const messages = [system, { role: "user", content }];
      return (await engine.chat.completions.create({ messages, max_tokens: 4 })).usage.prompt_tokens_details
        .cached_tokens;
    };
    return [await ask("one"), (await engine.stats()).promptTokens];
  });
  const cached = await page.evaluate(async () => {
    const messages = [
      { role: "system", content: "Be brief. ".repeat(30) },
      { role: "user", content: "two" },
    ];
    window.long = engine.completions.create({ prompt: "Once", max_tokens: 200, ignore_eos: true, stream: true });
    await long;
    return (await engine.chat.completions.create({ messages, max_tokens: 4 })).usage.prompt_tokens_details
      .cached_tokens;
  });
  assert.equal(answer[0], 0);
  assert.ok(cached >= 64, `what one page has computed, the other finds: ${cached}`);
  await page.close();
  const rest = await other.evaluate(async () => {
    for (let tries = 0; tries < 200 && (await engine.stats()).requestsRunning > 0; tries++) {
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    return { running: (await engine.stats()).requestsRunning, cached: await ask("three") };
  });
  assert.equal(rest.running, 0, "the closed page's stream has ended");
  assert.ok(rest.cached >= 64);
  await context.close();
});

/** A page whose `lacking` loads the demo with the package's worker in a browser that lacks what a script removes. */
async function poorer() {
  const { page, context } = await browser.page(server.origin);
  await page.evaluate((origin) => {
    window.lacking = (script, options) => {
      const packaged = `${origin}/folio-web/worker.js`;
      const source = `import "${origin}/test/hold.js"; ${script} await import("${packaged}"); release();`;
      const worker = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      return folio.load({ model: demo, worker, ...options });
    };
  }, server.origin);
  return { page, context };
}

test("no adapter is a reason that people understand", async () => {
  const { page, context } = await poorer();
  const results = await page.evaluate(async () => {
    const load = (script, device = "webgpu") => outcome(() => lacking(script, { device }));
    return [
      await load("navigator.gpu.requestAdapter = async () => null;"),
      await load(`Object.defineProperty(navigator, "gpu", { value: undefined });`),
      await outcome(() => folio.load({ model: demo, worker: "/no-such-worker.js" })),
      await load("", "quantum"),
    ];
  });
  assert.deepEqual(
    results.map(({ name }) => name),
    ["NoAdapterError", "NoAdapterError", "NetworkError", "FolioError"],
  );
  assert.match(results[0].message, /offers no adapter/);
  assert.match(results[1].message, /has no WebGPU/);
  assert.match(results[2].message, /worker could not be started: .*no-such-worker\.js: .* status 404/);
  assert.match(results[3].message, /quantum is not auto, webgpu or cpu/);
  await context.close();
});

test("a policy against WebAssembly, no SIMD, no SharedWorker: each is said with what to do", async () => {
  const { page, context } = await poorer();
  const results = await page.evaluate(async () => {
    // As Chrome and Safari say it; the module is compiled in one of two ways.
    const failing = (message) =>
      `WebAssembly.validate = () => false;
       WebAssembly.instantiate = WebAssembly.instantiateStreaming = async () => {
         throw new WebAssembly.CompileError(${JSON.stringify(message)});
       };`;
    const load = (message) => outcome(() => lacking(failing(message), { device: "cpu" }));
    const policy = "Refused to compile or instantiate WebAssembly module because 'unsafe-eval' is not allowed";
    const found = [await load(policy), await load("Compiling function #3 failed: Wasm SIMD unsupported")];
    const { SharedWorker } = window;
    delete window.SharedWorker;
    found.push(await outcome(() => folio.load({ model: demo, shared: true })));
    window.SharedWorker = SharedWorker;
    return found;
  });
  assert.deepEqual(
    results.map(({ name }) => name),
    ["BrowserError", "BrowserError", "BrowserError"],
  );
  assert.match(results[0].message, /Content-Security-Policy must allow 'wasm-unsafe-eval' in script-src/);
  assert.match(results[1].message, /needs WebAssembly with SIMD: Chrome and Edge 91, Firefox 89, Safari 16\.4/);
  assert.match(results[2].message, /lacks SharedWorker/);
  await context.close();
});

test("without storage for files a model loads all the same, and a notice says that it is not kept", async () => {
  const { page, context } = await poorer();
  const notices = await page.evaluate(async () => {
    const told = [];
    const scripts = [
      `navigator.storage.getDirectory = async () => { throw new DOMException("no", "SecurityError"); };`,
      "delete FileSystemFileHandle.prototype.createWritable;",
      "",
    ];
    for (const script of scripts) {
      const engine = await lacking(script, { device: "cpu", limits: { maxNumSeqs: 1, maxModelLen: 64 } });
      const { usage } = await engine.completions.create({ prompt: "Once", max_tokens: 1 });
      told.push([usage.completion_tokens, engine.info.notices.filter((text) => text.includes("keeps no files"))]);
      await engine.unload();
    }
    return told;
  });
  assert.deepEqual(
    notices.map(([tokens, said]) => [tokens, said.length]),
    [
      [1, 1],
      [1, 1],
      [1, 0],
    ],
  );
  assert.match(notices[0][1][0], /every load downloads the model/);
  await context.close();
});

test("`auto` takes the processor instead of an adapter of software, named or not", async () => {
  const { page, context } = await poorer();
  const results = await page.evaluate(async () => {
    const nameless = `Object.defineProperty(GPUAdapter.prototype, "info", { value: { vendor: "", architecture: "",
      device: "", description: "", isFallbackAdapter: false } });`;
    const named = nameless.replace('description: ""', 'description: "Great GPU"');
    const results = [];
    for (const [script, device] of [["", "auto"], [nameless, "auto"], [named, "auto"], ["", "webgpu"]]) {
      const result = await outcome(async () => {
        // Only WebGPU has bindings, and refuses this limit before anything is compiled.
        const limits = { maxNumSeqs: 1, maxModelLen: 64, bindingBytes: 1000 };
        const engine = await lacking(script, { device, limits });
        const { adapter, notices } = engine.info;
        await engine.unload();
        return [adapter, notices.filter((text) => text.includes("runs on the processor")).length];
      });
      results.push(result.value ?? result.name);
    }
    return results;
  });
  assert.deepEqual(results, [["CPU", 1], ["CPU", 1], "LimitError", "LimitError"]);
  await context.close();
});
