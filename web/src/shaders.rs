//! All shaders, to test them with the browser's shader compiler.

use folio::backend::wgpu::{Variant, variants};
use wasm_bindgen::prelude::*;

/// Every shader variant with the text that the browser's compiler receives. JSON: a list of objects with `name`,
/// `text`, `subgroups`, `texels`.
#[wasm_bindgen]
pub fn shader_variants() -> Result<String, JsError> {
    let object = |variant: Variant| {
        Ok(serde_json::json!({
            "name": variant.name(),
            "text": variant.text().map_err(|error| JsError::new(&error))?,
            "subgroups": variant.subgroups(),
            "texels": variant.texels(),
        }))
    };
    Ok(serde_json::Value::Array(
        variants()
            .into_iter()
            .map(object)
            .collect::<Result<_, JsError>>()?,
    )
    .to_string())
}
