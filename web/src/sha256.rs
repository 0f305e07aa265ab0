//! Incremental SHA-256 of a file; the browser's own digest needs all bytes at once.

use sha2::Digest;
use std::fmt::Write as _;
use wasm_bindgen::prelude::*;

/// An incremental digest.
#[wasm_bindgen]
#[derive(Default)]
pub struct Sha256(sha2::Sha256);

#[wasm_bindgen]
impl Sha256 {
    /// A digest of no bytes yet.
    #[wasm_bindgen(constructor)]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest in lower-case hexadecimal digits.
    pub fn hex(self) -> String {
        self.0
            .finalize()
            .iter()
            .fold(String::new(), |mut text, byte| {
                write!(text, "{byte:02x}").expect("a string takes text");
                text
            })
    }
}
