// Where a model is computed: on the GPU by WebGPU, or on the processor.

import { NoAdapterError } from "../errors.js";
import type { ModelPlace } from "../protocol.js";

/** Software that computes on the processor behind an interface for GPUs. */
const SOFTWARE = /swiftshader|llvmpipe|lavapipe|softpipe|basic render|software/i;

/**
 * Multiply-adds of 32 bits per second, in billions, below which a GPU of unknown name is taken for software: the
 * weakest GPUs have several times as many, and software on the processor of a laptop fewer.
 */
const GPU_RATE_MIN = 16;
const THREADS = 1 << 14;
const ROUNDS = 1 << 11;
/** Computes chains of products: four in each thread, so that no thread waits for one. */
const PRODUCTS = `
  @group(0) @binding(0) var<storage, read_write> sums: array<vec4f>;
  @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3u) {
    var sum = vec4f(f32(id.x));
    for (var round = 0u; round < ${ROUNDS}u; round++) { sum = fma(sum, vec4f(0.5), vec4f(1.0)); }
    sums[id.x] = sum;
  }`;

/** A device to compute on. */
export interface Chosen {
  device: "webgpu" | "cpu";
  /** Its name. */
  adapter: string;
  /** Whether it has WebGPU's feature `subgroups`. */
  subgroups: boolean;
  /** What the user should know about the choice. */
  notice: string | null;
}

const CPU: Chosen = { device: "cpu", adapter: "CPU", subgroups: false, notice: null };

/** Chooses a device. `auto` takes the processor itself rather than a GPU that is emulated on it, far more slowly. */
export async function chooseDevice(wanted: ModelPlace["device"]): Promise<Chosen> {
  if (wanted === "cpu") return CPU;
  try {
    const adapter = await findAdapter();
    if (wanted === "webgpu" || !(await isSoftware(adapter))) return chosen(adapter);
    const emulated = `this browser's WebGPU runs on the processor (${nameOf(adapter) || "an adapter without a name"})`;
    const instead = 'where the engine itself is faster; device: "webgpu" takes it all the same';
    return { ...CPU, notice: `${emulated}, ${instead}` };
  } catch (error) {
    if (wanted === "webgpu") throw error;
    return CPU;
  }
}

async function findAdapter(): Promise<GPUAdapter> {
  const { gpu } = navigator;
  if (!gpu) {
    const secure = isSecureContext ? "" : " on a page that was not loaded over https or from localhost";
    throw new NoAdapterError(`this browser has no WebGPU${secure}; recent versions of Chrome, Edge and Safari have it`);
  }
  const adapter = await gpu.requestAdapter();
  if (adapter) return adapter;
  throw new NoAdapterError("this browser has WebGPU, but it offers no adapter: the GPU or its driver may be blocked");
}

function chosen(adapter: GPUAdapter): Chosen {
  const subgroups = adapter.features.has("subgroups");
  return { device: "webgpu", adapter: nameOf(adapter) || "unknown adapter", subgroups, notice: null };
}

function nameOf({ info: { description, vendor, architecture, device } }: GPUAdapter): string {
  return description || [vendor, architecture || device].filter(Boolean).join(" ");
}

async function isSoftware(adapter: GPUAdapter): Promise<boolean> {
  const { info } = adapter;
  // Browsers before 2025 have the mark on the adapter.
  const old = adapter as { isFallbackAdapter?: boolean };
  if (info.isFallbackAdapter || old.isFallbackAdapter) return true;
  const names = [info.description, info.vendor, info.architecture, info.device].join(" ");
  // Firefox tells no names, but it cannot hide the time.
  return names.trim() === "" ? (await rateOf(adapter)) < GPU_RATE_MIN : SOFTWARE.test(names);
}

/** Multiply-adds per second, in billions. */
async function rateOf(adapter: GPUAdapter): Promise<number> {
  const device = await adapter.requestDevice();
  try {
    const module = device.createShaderModule({ code: PRODUCTS });
    const pipeline = await device.createComputePipelineAsync({ layout: "auto", compute: { module } });
    const buffer = device.createBuffer({ size: THREADS * 16, usage: GPUBufferUsage.STORAGE });
    const entries = [{ binding: 0, resource: { buffer } }];
    const group = device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries });
    const run = async () => {
      const encoder = device.createCommandEncoder();
      const pass = encoder.beginComputePass();
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(THREADS / 64);
      pass.end();
      const begun = performance.now();
      device.queue.submit([encoder.finish()]);
      await device.queue.onSubmittedWorkDone();
      return performance.now() - begun;
    };
    // The first run compiles, and a GPU that rests is slow.
    const times = [await run(), await run(), await run()];
    return (THREADS * ROUNDS * 4) / (Math.min(...times) * 1e6);
  } finally {
    device.destroy();
  }
}
