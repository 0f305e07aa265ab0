// Where a model is computed: on the GPU by WebGPU, or on the processor.

import { NoAdapterError } from "../errors.js";
import type { ModelPlace } from "../protocol.js";

/** Software that computes on the processor behind an interface for GPUs. */
const SOFTWARE = /swiftshader|llvmpipe|lavapipe|softpipe|basic render|software/i;

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

/** Chooses a device. `auto` takes the processor itself rather than a GPU that is emulated on it, which is far slower. */
export async function chooseDevice(wanted: ModelPlace["device"]): Promise<Chosen> {
  if (wanted === "cpu") return CPU;
  try {
    const adapter = await findAdapter();
    if (wanted === "webgpu" || !(await isSoftware(adapter))) return chosen(adapter);
    const notice = `this browser's WebGPU runs on the processor (${nameOf(adapter)}), where the engine's own kernels are`;
    return { ...CPU, notice: `${notice} faster, so these are used; device: "webgpu" takes it all the same` };
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
  return SOFTWARE.test(names);
}
