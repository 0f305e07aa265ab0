/* tslint:disable */
/* eslint-disable */

/**
 * Answers `message` greedily with at most `max_tokens` tokens. Yields JSON: `device`, `token_ids`, `error`.
 */
export function probe(message: string, max_tokens: number): Promise<string>;

/**
 * Every shader variant as the text that the browser's compiler gets. JSON: a list of `name`, `text`, `subgroups`,
 * `texels`.
 */
export function shader_variants(): string;

export type InitInput = RequestInfo | URL | Response | BufferSource | WebAssembly.Module;

export interface InitOutput {
    readonly memory: WebAssembly.Memory;
    readonly probe: (a: number, b: number, c: number) => any;
    readonly shader_variants: (a: number) => void;
    readonly __wasm_bindgen_func_elem_2627: (a: number, b: number, c: number, d: any) => void;
    readonly __wasm_bindgen_func_elem_2627_7: (a: number, b: number, c: number, d: any) => void;
    readonly __wasm_bindgen_func_elem_2627_8: (a: number, b: number, c: number, d: any) => void;
    readonly __wasm_bindgen_func_elem_8353: (a: number, b: number, c: any, d: any) => void;
    readonly __wasm_bindgen_func_elem_8381: (a: number, b: number, c: number, d: any) => void;
    readonly __wasm_bindgen_func_elem_2629: (a: number, b: number, c: any) => void;
    readonly __wasm_bindgen_func_elem_2629_6: (a: number, b: number, c: any) => void;
    readonly __wbindgen_export: (a: number, b: number) => number;
    readonly __wbindgen_export2: (a: number, b: number, c: number, d: number) => number;
    readonly __wbindgen_export3: (a: number, b: number, c: number) => void;
    readonly __wbindgen_export4: (a: number) => void;
    readonly __wbindgen_export5: () => number;
    readonly __wbindgen_externrefs: WebAssembly.Table;
    readonly __wbindgen_export6: (a: number, b: number) => void;
    readonly __wbindgen_add_to_stack_pointer: (a: number) => number;
    readonly __wbindgen_export7: (a: number) => void;
    readonly __wbindgen_start: () => void;
}

export type SyncInitInput = BufferSource | WebAssembly.Module;

/**
 * Instantiates the given `module`, which can either be bytes or
 * a precompiled `WebAssembly.Module`.
 *
 * @param {{ module: SyncInitInput }} module - Passing `SyncInitInput` directly is deprecated.
 *
 * @returns {InitOutput}
 */
export function initSync(module: { module: SyncInitInput } | SyncInitInput): InitOutput;

/**
 * If `module_or_path` is {RequestInfo} or {URL}, makes a request and
 * for everything else, calls `WebAssembly.instantiate` directly.
 *
 * @param {{ module_or_path: InitInput | Promise<InitInput> }} module_or_path - Passing `InitInput` directly is deprecated.
 *
 * @returns {Promise<InitOutput>}
 */
export default function __wbg_init (module_or_path?: { module_or_path: InitInput | Promise<InitInput> } | InitInput | Promise<InitInput>): Promise<InitOutput>;
