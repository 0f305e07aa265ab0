/* tslint:disable */
/* eslint-disable */
export const memory: WebAssembly.Memory;
export const probe: (a: number, b: number, c: number) => any;
export const shader_variants: (a: number) => void;
export const __wasm_bindgen_func_elem_2627: (a: number, b: number, c: number, d: any) => void;
export const __wasm_bindgen_func_elem_2627_7: (a: number, b: number, c: number, d: any) => void;
export const __wasm_bindgen_func_elem_2627_8: (a: number, b: number, c: number, d: any) => void;
export const __wasm_bindgen_func_elem_8353: (a: number, b: number, c: any, d: any) => void;
export const __wasm_bindgen_func_elem_8381: (a: number, b: number, c: number, d: any) => void;
export const __wasm_bindgen_func_elem_2629: (a: number, b: number, c: any) => void;
export const __wasm_bindgen_func_elem_2629_6: (a: number, b: number, c: any) => void;
export const __wbindgen_export: (a: number, b: number) => number;
export const __wbindgen_export2: (a: number, b: number, c: number, d: number) => number;
export const __wbindgen_export3: (a: number, b: number, c: number) => void;
export const __wbindgen_export4: (a: number) => void;
export const __wbindgen_export5: () => number;
export const __wbindgen_externrefs: WebAssembly.Table;
export const __wbindgen_export6: (a: number, b: number) => void;
export const __wbindgen_add_to_stack_pointer: (a: number) => number;
export const __wbindgen_export7: (a: number) => void;
export const __wbindgen_start: () => void;
