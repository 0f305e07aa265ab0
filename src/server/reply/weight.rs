//! What a reply may weigh, which is known before anything is computed.

use crate::engine::request::{SamplingParams, SubmitError};
use std::sync::Arc;

/// Bytes of a token with its logprob in a reply: its text, its bytes and twelve digits, with their names.
const LOGPROB_BYTES: u64 = 128;
/// Bytes of the text of a token.
const TOKEN_BYTES: u64 = 8;

/// The most bytes that a reply may have, by what its request asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weight {
    of_prompts: u64,
    of_answers: u64,
    has_logprobs: bool,
}

impl Weight {
    /// That of the reply to prompts. `context` is the model's, in tokens.
    pub(crate) fn new(prompts: &[Arc<[u32]>], params: &SamplingParams, context: u32) -> Self {
        let of_prompts = prompts
            .iter()
            .map(|prompt| prompt_bytes(prompt.len(), params));
        let of_answers = prompts
            .iter()
            .map(|prompt| answer_bytes(prompt.len(), params, context));
        Self {
            of_prompts: of_prompts.fold(0, u64::saturating_add),
            of_answers: of_answers.fold(0, u64::saturating_add),
            has_logprobs: params.logprobs.is_some(),
        }
    }

    /// That of a reply with the answers of both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            of_prompts: self.of_prompts.saturating_add(other.of_prompts),
            of_answers: self.of_answers.saturating_add(other.of_answers),
            has_logprobs: self.has_logprobs || other.has_logprobs,
        }
    }

    /// Refuses a reply that may have more than `bytes_max` bytes.
    pub(crate) fn check(self, bytes_max: u64) -> Result<(), SubmitError> {
        let bytes = self.of_prompts.saturating_add(self.of_answers);
        if bytes <= bytes_max {
            return Ok(());
        }
        let field = match () {
            () if self.of_prompts > self.of_answers => "prompt_logprobs",
            () if self.has_logprobs => "logprobs",
            () => "max_tokens",
        };
        let message = format!(
            "asks for a reply of up to {bytes} bytes; this server's are at most {bytes_max}"
        );
        Err(SubmitError::Invalid { field, message })
    }
}

/// Bytes of a prompt's logprobs, which every choice repeats.
fn prompt_bytes(prompt_tokens: usize, params: &SamplingParams) -> u64 {
    let per_token = params.prompt_logprobs.map_or(0, logprobs_bytes);
    (prompt_tokens as u64)
        .saturating_mul(per_token)
        .saturating_mul(params.n.into())
}

fn answer_bytes(prompt_tokens: usize, params: &SamplingParams, context: u32) -> u64 {
    let room = u64::from(context).saturating_sub(prompt_tokens as u64);
    let tokens = params.max_tokens.map_or(room, |most| room.min(most.into()));
    let per_token = TOKEN_BYTES + params.logprobs.map_or(0, logprobs_bytes);
    tokens
        .saturating_mul(per_token)
        .saturating_mul(params.n.into())
}

/// Bytes of a token's own logprob and of its alternatives.
fn logprobs_bytes(alternatives: u32) -> u64 {
    LOGPROB_BYTES.saturating_mul(u64::from(alternatives) + 1)
}

#[cfg(test)]
mod tests;
