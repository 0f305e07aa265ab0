//! Models whose layers keep a state of fixed size per sequence: what an engine has for them, and what it does not do.
//!
//! A running sequence owns one state slot. Its state is that of its last computed token, and cannot be cut back to
//! fewer tokens or rebuilt from keys and values. So it starts at zero with the sequence and again after a preemption,
//! and everything that needs the state of an earlier token, or that of another sequence, is off or refused here:
//! sharing prefixes and their colder tiers, verifying drafts, and forks.

use super::request::{Request, SubmitError};
use crate::config::{Config, ConfigError, Speculation};
use crate::plan::Plan;

/// Said at start if [`adapted`] turns something off.
pub(super) const NOTICE: &str =
    "the model keeps a recurrent state per sequence: prefix caching and speculation are off, and `n` must be 1";

/// State slots of an engine: one per running sequence, or none.
pub(super) fn slots(config: &Config, plan: &Plan) -> u32 {
    if plan.state_layers.is_empty() { 0 } else { config.max_num_seqs }
}

/// The settings that hold for this model: what is on by default and needs earlier states is off.
pub(super) fn adapted(config: &Config, plan: &Plan) -> Config {
    let mut config = config.clone();
    if !plan.state_layers.is_empty() {
        config.prefix_caching = false;
        config.speculation = None;
    }
    config
}

/// Refuses settings that ask for what [`adapted`] would turn off.
pub(super) fn check(config: &Config, plan: &Plan) -> Result<(), ConfigError> {
    let usual = [None, Some(Speculation::SINGLE_SEQUENCE)];
    let asked = [
        ("speculative-config", !usual.contains(&config.speculation)),
        ("kv-host-bytes", config.kv_host_bytes > 0),
        ("kv-disk", config.kv_disk.is_some()),
    ];
    match asked.into_iter().find(|(_, is_asked)| *is_asked && !plan.state_layers.is_empty()) {
        Some((option, _)) => {
            let message = "is not supported for a model with a recurrent state; leave it out";
            Err(ConfigError { option, message: message.into() })
        }
        None => Ok(()),
    }
}

/// Refuses a request whose choices would fork, on an engine whose sequences keep a state.
pub(super) fn check_request(request: &Request, keeps_states: bool) -> Result<(), SubmitError> {
    let field = match (request.params.beams.is_some(), request.params.n) {
        (true, _) => "best_of",
        (false, 2..) => "n",
        _ => return Ok(()),
    };
    if !keeps_states {
        return Ok(());
    }
    let message = "must be 1: this model keeps a recurrent state, which choices cannot share".into();
    Err(SubmitError::Invalid { field, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DiskConfig;
    use crate::engine::request::SamplingParams;
    use crate::plan::StateLayer;

    fn plan() -> Plan {
        Plan { state_layers: vec![StateLayer { elements: 8 }], ..Plan::default() }
    }

    #[test]
    fn defaults_are_turned_off_and_wishes_refused() {
        let usual = Config::default();
        assert_eq!(adapted(&usual, &Plan::default()), usual, "without states, nothing changes");
        let off = adapted(&usual, &plan());
        assert_eq!((off.prefix_caching, off.speculation), (false, None));
        assert_eq!((check(&usual, &plan()), slots(&usual, &plan())), (Ok(()), usual.max_num_seqs));
        assert_eq!(slots(&usual, &Plan::default()), 0);
        let disk = DiskConfig { folder: "cache".into(), bytes: 1 };
        let wishes = [
            ("speculative-config", Config { speculation: Some(Speculation::DEFAULT), ..usual.clone() }),
            ("kv-host-bytes", Config { kv_host_bytes: 1, ..usual.clone() }),
            ("kv-disk", Config { kv_disk: Some(disk), ..usual.clone() }),
        ];
        for (option, wish) in wishes {
            assert_eq!(check(&wish, &plan()).expect_err("refused").option, option);
            assert_eq!(check(&wish, &Plan::default()), Ok(()), "{option}");
        }
    }

    #[test]
    fn choices_of_a_prompt_cannot_share_a_state() {
        let request = |n| {
            let params = SamplingParams { n, ..SamplingParams::default() };
            Request { params, ..Request::default() }
        };
        assert_eq!(check_request(&request(1), true), Ok(()));
        assert_eq!(check_request(&request(2), false), Ok(()));
        let refused = check_request(&request(2), true);
        assert!(matches!(refused, Err(SubmitError::Invalid { field: "n", .. })), "{refused:?}");
    }
}
