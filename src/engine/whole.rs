//! Models whose rows see those after them, so that a sequence is computed in one step and nothing is kept of it: what
//! an engine does not do for them.

use crate::config::{Config, ConfigError};
use crate::plan::Plan;

/// The settings that hold for this model. There are no blocks that sequences could share, and no tokens to guess.
pub(super) fn adapted(config: &Config, plan: &Plan) -> Config {
    let mut config = config.clone();
    if plan.computes_whole_sequences() {
        config.prefix_caching = false;
        config.speculation = None;
    }
    config
}

/// Refuses settings that mean nothing for such a model.
pub(super) fn check(config: &Config, has_draft: bool, plan: &Plan) -> Result<(), ConfigError> {
    if !plan.computes_whole_sequences() {
        return Ok(());
    }
    let refused = [
        (has_draft, "speculative-config"),
        (config.max_loras > 0, "max-loras"),
        (config.kv_disk.is_some(), "kv-disk"),
    ];
    let message = "is not for this model, an encoder: it gives vectors of whole texts, and keeps nothing of them";
    match refused.into_iter().find(|(is_set, _)| *is_set) {
        Some((_, option)) => Err(ConfigError {
            option,
            message: message.into(),
        }),
        None => Ok(()),
    }
}
