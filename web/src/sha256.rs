//! SHA-256 of a file that is read piece by piece; the browser's own digest wants all of it at once.

use sha2::Digest;
use std::fmt::Write as _;
use wasm_bindgen::prelude::*;

/// A digest in progress.
#[wasm_bindgen]
#[derive(Default)]
pub struct Sha256(sha2::Sha256);

#[wasm_bindgen]
impl Sha256 {
    /// Of nothing yet.
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
        self.0.finalize().iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a string takes text");
            text
        })
    }
}
