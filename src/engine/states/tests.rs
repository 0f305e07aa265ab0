//! State slots, and settings that a model with states does not have.

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
