//! Models whose layers keep a state of fixed size per sequence: what an engine has for them, and what it does not do.
//!
//! A state is that of the last computed token; it cannot be cut back to fewer tokens or rebuilt from keys and values.
//! So what a state slot holds is a *version*, which is never changed while anybody may need it: a row reads one slot
//! and writes another, and writes in place only what nobody else holds. `scheduler::states` has the rules.
//!
use crate::backend::Caps;
use crate::config::{Config, ConfigError, Speculation};
use crate::plan::{Plan, StateLayer};

/// Said at start if [`adapted`] turns something off.
pub(super) const NOTICE: &str = "the model keeps a recurrent state per sequence: drafts are verified only if \
                                 --speculative-config asks for it without `disable_by_batch_size`";

/// Share of the memory that snapshots may take, as a divisor, unless their number is set.
const SNAPSHOTS_SHARE: u64 = 16;
/// Number of snapshots for each sequence that may run, unless set, however small a state is.
const SNAPSHOTS_PER_SEQUENCE: u32 = 2;
/// Number of snapshots, unless set, however large a state is.
const SNAPSHOTS_LEAST: u64 = 4;

/// State slots of an engine: one per running sequence and one per snapshot; none if the model keeps no state. `memory`
/// is the bytes of which snapshots take a share.
pub(super) fn slots(config: &Config, plan: &Plan, caps: &Caps, memory: u64) -> u32 {
    if plan.state_layers.is_empty() {
        return 0;
    }
    let drafting = config
        .speculation
        .map_or(0, |settings| settings.sequences_max(config.max_num_seqs));
    config.max_num_seqs + snapshots(config, plan, caps, memory).max(drafting)
}

/// Number of snapshots: as set, or a share of the memory, as far as a layer's states fit one binding.
fn snapshots(config: &Config, plan: &Plan, caps: &Caps, memory: u64) -> u32 {
    if !config.prefix_caching {
        return 0;
    }
    let share = memory / SNAPSHOTS_SHARE / plan.state_bytes().max(1);
    let usual = share.clamp(
        SNAPSHOTS_LEAST,
        u64::from(SNAPSHOTS_PER_SEQUENCE * config.max_num_seqs).max(SNAPSHOTS_LEAST),
    );
    let largest = plan
        .state_layers
        .iter()
        .map(StateLayer::bytes)
        .max()
        .unwrap_or(1)
        .max(1);
    let bound = (caps.binding_bytes_max / largest).saturating_sub(config.max_num_seqs.into());
    let count = config.state_snapshots.map_or(usual, u64::from).min(bound);
    u32::try_from(count).unwrap_or(u32::MAX - config.max_num_seqs)
}

/// The settings that hold for this model. The usual drafts are off: rows that verify drafts are computed together, so
/// that they may round differently from rows alone, and that should be asked for.
pub(super) fn adapted(config: &Config, plan: &Plan) -> Config {
    let mut config = config.clone();
    if !plan.state_layers.is_empty() {
        config
            .speculation
            .take_if(|settings| *settings == Speculation::SINGLE_SEQUENCE);
    }
    config
}

/// Refuses settings that a model with states does not have.
pub(super) fn check(config: &Config, plan: &Plan) -> Result<(), ConfigError> {
    if plan.state_layers.is_empty() {
        return Ok(());
    }
    let usual = [None, Some(Speculation::SINGLE_SEQUENCE)];
    let rounds = "verifies the drafts of a model with a recurrent state in rows of other numerics than --deterministic \
                  promises; leave one of them out";
    if config.deterministic && !usual.contains(&config.speculation) {
        return Err(ConfigError {
            option: "speculative-config",
            message: rounds.into(),
        });
    }
    let (host, state) = (config.kv_host_bytes, plan.state_bytes());
    if config.prefix_caching && (1..state).contains(&host) {
        let message = format!(
            "{host} bytes hold no recurrent state of this model, which takes {state}, and blocks without states are of \
             no use to it"
        );
        return Err(ConfigError {
            option: "kv-host-bytes",
            message,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
