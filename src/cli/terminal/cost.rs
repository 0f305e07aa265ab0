//! What a streamed answer cost, for `--verbose`: tokens and times.

use serde_json::Value;
use std::time::Instant;

/// Watches the events of an answer that includes its usage.
pub(crate) struct Meter {
    started: Instant,
    first: Option<Instant>,
    usage: Option<(Value, Instant)>,
}

impl Meter {
    /// The request is made now.
    pub(crate) fn start() -> Self {
        Self {
            started: Instant::now(),
            first: None,
            usage: None,
        }
    }

    /// An event has come.
    pub(crate) fn see(&mut self, event: &Value) {
        let now = Instant::now();
        self.first.get_or_insert(now);
        if event["usage"].is_object() {
            self.usage = Some((event["usage"].clone(), now));
        }
    }

    /// The cost in words; `None` if the answer has not ended.
    pub(crate) fn in_words(&self) -> Option<String> {
        let ((usage, ended), first) = (self.usage.as_ref()?, self.first?);
        let count = |name: &str| usage[name].as_u64().unwrap_or(0);
        let cached = usage["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap_or(0);
        let (prompt, answer) = (count("prompt_tokens"), count("completion_tokens"));
        let (wait, rest) = (
            (first - self.started).as_secs_f64(),
            (*ended - first).as_secs_f64(),
        );
        // The first token's time is the prompt's.
        let speed = answer.saturating_sub(1) as f64 / rest.max(1e-6);
        Some(format!(
            "{prompt} tokens in ({cached} cached), {answer} out, first after {wait:.2} s, {speed:.1} tokens/s"
        ))
    }
}
