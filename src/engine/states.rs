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
mod tests {
    use super::*;
    use crate::backend::Backend;
    use crate::backend::fake::FakeBackend;

    fn plan(elements: u32) -> Plan {
        Plan {
            state_layers: vec![StateLayer { elements }],
            ..Plan::default()
        }
    }

    fn caps(script: &str) -> Caps {
        FakeBackend::new(script.parse().expect("a script of this test"))
            .caps()
            .clone()
    }

    #[test]
    fn the_usual_drafts_are_off_and_what_cannot_be_is_refused() {
        let usual = Config::default();
        assert_eq!(
            adapted(&usual, &Plan::default()),
            usual,
            "without states, nothing changes"
        );
        let off = adapted(&usual, &plan(8));
        assert_eq!((off.prefix_caching, off.speculation), (true, None));
        assert_eq!(check(&usual, &plan(8)), Ok(()));
        let speculation = Some(Speculation::DEFAULT);
        let asked = Config {
            speculation,
            ..usual.clone()
        };
        assert_eq!(
            (
                adapted(&asked, &plan(8)).speculation,
                check(&asked, &plan(8))
            ),
            (speculation, Ok(()))
        );
        let host = |kv_host_bytes| Config {
            kv_host_bytes,
            ..usual.clone()
        };
        let wishes = [
            (
                "speculative-config",
                Config {
                    deterministic: true,
                    ..asked
                },
            ),
            ("kv-host-bytes", host(1)),
            ("kv-host-bytes", host(31)),
        ];
        assert_eq!(check(&host(32), &plan(8)), Ok(()), "just one state");
        let off = Config {
            prefix_caching: false,
            ..host(1)
        };
        assert_eq!(check(&off, &plan(8)), Ok(()), "no memory is used");
        for (option, wish) in wishes {
            assert_eq!(check(&wish, &plan(8)).expect_err("refused").option, option);
            assert_eq!(check(&wish, &Plan::default()), Ok(()), "{option}");
        }
    }

    #[test]
    fn snapshots_have_slots_beside_those_of_running_sequences() {
        let config = |state_snapshots| Config {
            max_num_seqs: 8,
            state_snapshots,
            speculation: None,
            ..Config::default()
        };
        let most = caps("");
        let count =
            |config: &Config, elements, mib: u64| slots(config, &plan(elements), &most, mib << 20);
        assert_eq!(
            slots(&config(None), &Plan::default(), &most, 1 << 30),
            0,
            "without states"
        );
        assert_eq!(count(&config(Some(3)), 8, 512), 8 + 3, "as set");
        assert_eq!(
            count(&config(None), 8, 512),
            8 + 16,
            "no more than are of use"
        );
        assert_eq!(
            count(&config(None), 1 << 18, 160),
            8 + 10,
            "a sixteenth of the memory, in states of a MiB"
        );
        assert_eq!(count(&config(None), 1 << 20, 160), 8 + 4, "the least");
        let bound = slots(
            &config(None),
            &plan(1 << 18),
            &caps("binding=10485760"),
            160 << 20,
        );
        assert_eq!(bound, 8 + 2, "in one binding");
        let off = Config {
            prefix_caching: false,
            ..config(Some(3))
        };
        assert_eq!(count(&off, 8, 512), 8);
        let speculation = Some(Speculation {
            disable_by_batch_size: Some(2),
            ..Speculation::DEFAULT
        });
        assert_eq!(
            count(&Config { speculation, ..off }, 8, 512),
            8 + 2,
            "one to write while drafts are verified"
        );
    }
}
