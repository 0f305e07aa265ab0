//! folio in a browser tab.
//!
//! For now a probe: it opens the browser's WebGPU device, starts the one engine on the built-in demo model and answers
//! one chat message, so that the seam between engine and tab is exercised by real kernels. Nothing of the engine is
//! written twice for it.

#![cfg(target_arch = "wasm32")]

use folio::backend::wgpu::{Variant, WgpuBackend, WgpuOptions, variants};
use folio::config::Config;
use folio::engine::request::{Event, Request, SamplingParams};
use folio::engine::{Engine, handle};
use folio::model::{Model, demo};
use folio::text::{ChatInput, TextModel};
use futures_util::StreamExt;
use futures_util::future::join;
use wasm_bindgen::prelude::*;

/// Answers `message` greedily with at most `max_tokens` tokens. Yields JSON: `device`, `token_ids`, `error`.
#[wasm_bindgen]
pub async fn probe(message: &str, max_tokens: u32) -> Result<String, JsError> {
    console_error_panic_hook::set_once();
    let text = TextModel::from_parts(Some(demo::TOKENIZER_JSON), Some(demo::TOKENIZER_CONFIG_JSON), None)?;
    let messages = serde_json::json!([{ "role": "user", "content": message }]);
    let input = ChatInput {
        messages: &messages,
        tools: None,
        kwargs: None,
        add_generation_prompt: true,
        unix_time: 0,
        bytes_max: 1 << 20,
    };
    let prompt = text.chat_prompt(&input)?;

    // The browser offers one adapter; here even a software one is better than none.
    let backend = WgpuBackend::open(&WgpuOptions { adapter: Some(0), ..WgpuOptions::default() }).await?;
    let config = Config { max_num_seqs: 8, kv_cache_bytes: Some(16 << 20), ..Config::default() };
    let (engine_handle, inbox) = handle::channel(config.queue_requests_max);
    let engine = Engine::start(backend, Model::demo(), &config, inbox, |_| {}).await?;
    let device = engine_handle.info().map(|info| info.device.clone());

    let params = SamplingParams { max_tokens: Some(max_tokens), temperature: 0.0, ..SamplingParams::default() };
    let request = Request { prompt: prompt.into(), params, cache_salt: None, priority: 0 };
    let mut answer = engine_handle.submit(request)?.remove(0);
    engine_handle.drain();
    let collect = async {
        let (mut token_ids, mut error) = (Vec::new(), None);
        while let Some(event) = answer.next().await {
            match event {
                Event::Token(token) => token_ids.push(token.id),
                Event::Finished { .. } => {}
                Event::Failed(reason) => error = Some(reason.to_string()),
            }
        }
        (token_ids, error)
    };
    let (end, (token_ids, error)) = join(engine.run(), collect).await;
    end?;
    Ok(serde_json::json!({ "device": device, "token_ids": token_ids, "error": error }).to_string())
}

/// Every shader variant as the text that the browser's compiler gets. JSON: a list of `name`, `text`, `subgroups`,
/// `texels`.
#[wasm_bindgen]
pub fn shader_variants() -> Result<String, JsError> {
    let text = |variant: &Variant| variant.text().map_err(|error| JsError::new(&error));
    let object = |variant: Variant| {
        Ok(serde_json::json!({
            "name": variant.name(), "text": text(&variant)?, "subgroups": variant.subgroups(),
            "texels": variant.texels(),
        }))
    };
    Ok(serde_json::Value::Array(variants().into_iter().map(object).collect::<Result<_, JsError>>()?).to_string())
}
