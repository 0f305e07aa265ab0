//! Tests of `server/reply/weight.rs`.

use super::*;

fn field(prompts: &[usize], params: &SamplingParams) -> Option<&'static str> {
    let prompts: Vec<Arc<[u32]>> = prompts
        .iter()
        .map(|&length| vec![0; length].into())
        .collect();
    match Weight::new(&prompts, params, 100_000).check(10_000_000) {
        Err(SubmitError::Invalid { field, message }) => {
            assert!(message.contains(" 10000000"), "{message}");
            Some(field)
        }
        _ => None,
    }
}

#[test]
fn everything_that_a_reply_repeats_is_counted() {
    let of = |n, max_tokens, logprobs, prompt_logprobs| SamplingParams {
        n,
        max_tokens,
        logprobs,
        prompt_logprobs,
        ..SamplingParams::default()
    };
    assert_eq!(
        field(&[10], &of(8, None, None, None)),
        None,
        "plain text weighs little"
    );
    assert_eq!(field(&[10], &of(1, Some(5000), Some(10), None)), None);
    assert_eq!(
        field(&[10], &of(8, Some(5000), Some(10), None)),
        Some("logprobs"),
        "choices"
    );
    assert_eq!(
        field(&[10; 8], &of(1, Some(5000), Some(10), None)),
        Some("logprobs"),
        "prompts"
    );
    assert_eq!(
        field(&[10], &of(1, None, Some(20), None)),
        Some("logprobs"),
        "the context is all that limits it"
    );
    assert_eq!(field(&[5000], &of(1, Some(1), None, Some(10))), None);
    assert_eq!(
        field(&[50_000], &of(1, Some(1), None, Some(10))),
        Some("prompt_logprobs")
    );
    assert_eq!(
        field(&[5000], &of(8, Some(1), None, Some(10))),
        Some("prompt_logprobs"),
        "each choice repeats it"
    );
    assert_eq!(
        field(&[10; 64], &of(8, None, None, None)),
        Some("max_tokens")
    );
    assert_eq!(
        field(
            &[usize::MAX >> 40],
            &of(u32::MAX, Some(u32::MAX), Some(u32::MAX), Some(1))
        ),
        Some("prompt_logprobs")
    );
}
