//! The golden folders, and which of them a run of the tests takes.

use super::golden;
use super::latents::LATENTS;
use super::newer::NEWER;
use super::today::TODAY;
use folio::model::Model;

/// Maximum |Δ logit| with f16 keys and values.
pub(super) const LOGITS_F16: f32 = 3e-2;

/// Golden folders, and maximum |Δ logit| with f16 keys and values.
pub(super) const FAMILIES: [(&str, f32); 13] = [
    ("llama", LOGITS_F16),
    ("llama3-rope", LOGITS_F16),
    ("mistral-window", LOGITS_F16),
    ("qwen2", LOGITS_F16),
    ("qwen3", LOGITS_F16),
    ("gemma2", 6e-2),
    ("gemma3", 6e-2),
    ("phi3", LOGITS_F16),
    ("smollm3", LOGITS_F16),
    ("olmo2", LOGITS_F16),
    ("granite", LOGITS_F16),
    ("qwen3-moe", LOGITS_F16),
    ("gpt-oss", LOGITS_F16),
];

/// Those of these families that `FOLIO_MODEL_FAMILIES` lists, separated by commas, if it is set: for work on a few.
pub(super) fn selected(
    families: impl IntoIterator<Item = (&'static str, f32)>,
) -> impl Iterator<Item = (&'static str, f32)> {
    let chosen = std::env::var("FOLIO_MODEL_FAMILIES").unwrap_or_default();
    let families = families.into_iter();
    families.filter(move |(family, _)| {
        chosen.is_empty() || chosen.split(',').any(|chosen| chosen == *family)
    })
}

/// All golden folders whose cases have one answer each, with the same tolerance.
pub(super) fn families() -> impl Iterator<Item = (&'static str, f32)> {
    selected(
        FAMILIES
            .into_iter()
            .chain(TODAY)
            .chain(LATENTS)
            .chain(NEWER),
    )
}

/// Golden models whose outputs are those of short contexts, and the longest such context: above it, the model would
/// have other rotary frequencies.
const SHORT: [(&str, u32); 1] = [("phimoe", 512)];

/// A golden model, for the contexts that its outputs are of.
pub(super) fn open_golden(family: &str) -> Model {
    let model = Model::open(&golden(family)).expect("the golden model loads");
    limited(family, model)
}

/// A golden model, as it is stored or quantized, for the contexts that its outputs are of.
pub(super) fn limited(family: &str, mut model: Model) -> Model {
    if let Some((_, tokens)) = SHORT.iter().find(|(short, _)| *short == family) {
        model.limit_context(*tokens);
    }
    model
}
