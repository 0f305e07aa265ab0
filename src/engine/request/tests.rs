//! What a request may ask for.

use super::*;

#[test]
fn limits_are_the_last_values_that_are_allowed() {
    let check = |params: SamplingParams| params.check(100, 50);
    let refused = |params| matches!(check(params), Err(SubmitError::Invalid { .. }));
    let usual = SamplingParams::default;
    assert_eq!(
        check(SamplingParams {
            min_tokens: 50,
            ..usual()
        }),
        Ok(())
    );
    assert!(refused(SamplingParams {
        min_tokens: 51,
        ..usual()
    }));
    assert!(refused(SamplingParams {
        min_tokens: 52,
        ..usual()
    }));
    for (count, is_refused) in [
        (LOGPROBS_MAX, false),
        (LOGPROBS_MAX + 1, true),
        (LOGPROBS_MAX + 2, true),
    ] {
        assert_eq!(
            refused(SamplingParams {
                logprobs: Some(count),
                ..usual()
            }),
            is_refused,
            "{count}"
        );
        assert_eq!(
            refused(SamplingParams {
                prompt_logprobs: Some(count),
                ..usual()
            }),
            is_refused,
            "{count}"
        );
    }
}

#[test]
fn a_models_defaults_are_taken_over() {
    let draw = DrawParams {
        temperature: 0.25,
        ..DrawParams::default()
    };
    let defaults = GenerationDefaults {
        max_new_tokens: Some(17),
        draw: DrawDefaults {
            temperature: Some(0.25),
            ..DrawDefaults::default()
        },
        ..GenerationDefaults::default()
    };
    let params = SamplingParams::from_defaults(&defaults);
    assert_eq!((params.max_tokens, params.draw), (Some(17), draw));
}

#[test]
fn the_pool_limits_the_length_of_beams_that_share_only_the_prompt() {
    let room = BeamRoom {
        block_size: 4,
        groups: vec![(20, u32::MAX)],
    };
    // Two full blocks are shared; 18 are left for 4 beams, 4 each.
    assert_eq!(room.tokens_max(10, 4), 24);
    assert_eq!(room.tokens_max(79, 4), 76, "no token fits");
    let windowed = BeamRoom {
        block_size: 4,
        groups: vec![(20, 5)],
    };
    assert_eq!(windowed.tokens_max(10, 4), u32::MAX);
}

#[test]
fn ranges_say_what_they_contain() {
    let cases = [
        (PENALTY, [-2.0, 2.0]),
        (LENGTH_PENALTY, [-10.0, 10.0]),
        (LOGIT_BIAS, [-100.0, 100.0]),
    ];
    for (range, bounds) in cases {
        assert!(bounds.iter().all(|&bound| range.contains(bound)), "{range}");
        assert!(
            bounds.iter().all(|&bound| !range.contains(bound * 1.01)),
            "{range}"
        );
    }
    assert_eq!(PENALTY.to_string(), "from -2 to 2");
    assert_eq!(TOP_P.to_string(), "above 0, at most 1");
    assert_eq!(
        [0.0, 1e-9, 1.0, 1.01, f32::NAN].map(|value| TOP_P.contains(value)),
        [false, true, true, false, false]
    );
}

#[test]
fn a_salt_is_any_text_that_is_not_too_long() {
    let longest = "é".repeat(CACHE_SALT_LEN_MAX / 2);
    for salt in [longest.as_str(), "a b", "Qm9+/w==", "a.b", "\0"] {
        assert_eq!(check_cache_salt(salt), Ok(()), "{salt:?}");
    }
    for wrong in [String::new(), format!("{longest}a")] {
        assert!(check_cache_salt(&wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn lists_may_be_as_long_as_they_are_documented() {
    let refused = |params: SamplingParams| params.check(2000, 50).is_err();
    for (more, is_refused) in [(0, false), (1, true)] {
        let stop_token_ids = vec![7; STOP_TOKEN_IDS_MAX + more];
        assert_eq!(
            refused(SamplingParams {
                stop_token_ids,
                ..SamplingParams::default()
            }),
            is_refused
        );
        let logit_bias = (0..(LOGIT_BIAS_MAX + more) as u32)
            .map(|id| (id, 1.0))
            .collect();
        assert_eq!(
            refused(SamplingParams {
                logit_bias,
                ..SamplingParams::default()
            }),
            is_refused
        );
    }
}

#[test]
fn only_values_that_would_overflow_are_replaced() {
    let normalized = |temperature| {
        let draw = DrawParams {
            temperature,
            ..DrawParams::default()
        };
        SamplingParams {
            draw,
            ..SamplingParams::default()
        }
        .normalized()
        .draw
        .temperature
    };
    let below = TEMPERATURE_MIN.next_down();
    assert_eq!(
        [0.0, below, TEMPERATURE_MIN, 0.5].map(normalized),
        [0.0, 0.0, TEMPERATURE_MIN, 0.5]
    );
}

#[test]
fn a_constraint_is_equal_only_to_itself() {
    #[derive(Debug)]
    struct Free;
    impl Constraint for Free {
        fn start(&self) -> Box<dyn ConstraintState> {
            unreachable!("nothing is generated")
        }
    }
    let own = SharedConstraint(Arc::new(Free));
    assert_eq!(own, own.clone());
    assert_ne!(own, SharedConstraint(Arc::new(Free)));
}
