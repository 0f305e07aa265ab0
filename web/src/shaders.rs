//! What a browser's shader compiler has to accept.

use folio::backend::wgpu::{Variant, variants};
use wasm_bindgen::prelude::*;

/// Every shader variant as the text that the browser's compiler gets. JSON: a list of `name`, `text`, `subgroups`,
/// `texels`.
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
    Ok(serde_json::Value::Array(variants().into_iter().map(object).collect::<Result<_, JsError>>()?).to_string())
}
