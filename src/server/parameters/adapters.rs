//! The adapters that a request asks for: by the name of its model, or by their numbers.

use crate::server::parameters::table::{AdapterPart, Target};
use crate::server::state::{AdapterEntry, AskedAdapters, ModelState};
use crate::server::wire::error::ApiError;

/// The served name that a request asks for, with the adapters that its answer takes.
pub(crate) fn asked(
    state: &ModelState,
    target: Target,
) -> Result<(String, Option<AskedAdapters>), ApiError> {
    let name = state.model(target.model)?;
    let parts = parts(state, &name, target.lora)?;
    Ok((name, state.combine(parts)?))
}

/// The adapters that an answer takes, with their factors.
fn parts(
    state: &ModelState,
    name: &str,
    lora: Option<Vec<AdapterPart>>,
) -> Result<Vec<(AdapterEntry, f32)>, ApiError> {
    match (state.adapters.named(name), lora) {
        (Some(_), Some(lora)) if !lora.is_empty() => {
            let message = format!("`lora`: {name} is an adapter already; name its base as `model`");
            Err(ApiError::invalid("lora", message))
        }
        (Some(entry), _) => Ok(vec![(entry, 1.0)]),
        (None, Some(lora)) => state.adapters.numbered(&numbers(&lora), "lora"),
        (None, None) => {
            let entries = state.adapters.entries().into_iter();
            let parts = entries.map(|entry| (entry.clone(), entry.served.scale));
            Ok(parts.collect())
        }
    }
}

/// The numbers of adapters, each with its factor.
pub(crate) fn numbers(parts: &[AdapterPart]) -> Vec<(u32, f32)> {
    let numbers = parts.iter().map(|part| {
        let id = u32::try_from(part.id).expect("the table has this range");
        (id, part.scale.unwrap_or(1.0))
    });
    numbers.collect()
}

/// The served name that a request asks for, where adapters change nothing and are refused.
pub(crate) fn base(state: &ModelState, target: &Target) -> Result<String, ApiError> {
    let name = state.model(target.model.clone())?;
    if state.adapters.named(&name).is_some() {
        let message =
            format!("`model`: {name} is an adapter, which changes answers only; use its base");
        return Err(ApiError::invalid("model", message));
    }
    match &target.lora {
        Some(lora) if !lora.is_empty() => {
            let message = "`lora`: adapters change answers only";
            Err(ApiError::unsupported("lora", message))
        }
        _ => Ok(name),
    }
}
