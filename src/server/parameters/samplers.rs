//! Fields of llama.cpp and Ollama beside the usual ones. Most are of samplers that do not exist here: clients send them
//! turned off, which is accepted; a value that would change the answer is refused by name.

use crate::server::parameters::fields::fields;
use crate::server::parameters::kind::{Bounds, Kind, Most, wrong};
use crate::server::parameters::kinds::{Count, Integer, Optional};
use crate::server::wire::error::ApiError;
use serde_json::{Value, json};

fields! {
    /// Samplers of llama.cpp and Ollama.
    OtherSamplers {
        /// How many of the last tokens of prompt and answer the penalties count; -1 is all, 0 turns them off.
        repeat_last_n: Option<i64> = Optional(Integer { min: -1, max: Most::Fixed(i32::MAX as i64) }),
        /// Not supported; 0 is off.
        #[expect(dead_code)]
        mirostat: Option<()> = Optional(Off { from: 0, to: 0, instead: "use `top_p` or `min_p`" }),
        /// Not supported; 1 is off.
        #[expect(dead_code)]
        typical_p: Option<()> = Optional(Off { from: 1, to: 1, instead: "use `top_p` or `min_p`" }),
        /// Not supported; 1 is off.
        #[expect(dead_code)]
        tfs_z: Option<()> = Optional(Off { from: 1, to: 1, instead: "use `top_p` or `min_p`" }),
        /// Not supported; 0 and -1 are off.
        #[expect(dead_code)]
        top_n_sigma: Option<()> = Optional(Off { from: -1, to: 0, instead: "use `min_p`" }),
        /// Not supported; 0 and -1 are off.
        #[expect(dead_code)]
        adaptive_target: Option<()> = Optional(Off { from: -1, to: 0, instead: "use `min_p`" }),
        /// Not supported; 0 is off.
        #[expect(dead_code)]
        dynatemp_range: Option<()> = Optional(Off { from: 0, to: 0, instead: "use `temperature`" }),
        /// Not supported; 0 is off.
        #[expect(dead_code)]
        dry_multiplier: Option<()> = Optional(Off { from: 0, to: 0, instead: "use `repetition_penalty`" }),
        /// Not supported; 0 is off.
        #[expect(dead_code)]
        xtc_probability: Option<()> = Optional(Off { from: 0, to: 0, instead: "use `temperature`" }),
        /// Not supported; -1 is off.
        #[expect(dead_code)]
        reasoning_budget_tokens: Option<()> = Optional(Off { from: -1, to: -1, instead: "use `reasoning_effort`" }),
        /// Not supported; -1 is off.
        #[expect(dead_code)]
        thinking_budget_tokens: Option<()> = Optional(Off { from: -1, to: -1, instead: "use `reasoning_effort`" }),
        /// End an answer at the first line break so many milliseconds after its first token; 0 and -1 are off.
        t_max_predict_ms: Option<i64> = Optional(Integer { min: -1, max: Most::Fixed(i32::MAX as i64) }),
        /// End an answer before a line, other than its first, that begins with fewer blanks.
        n_indent: Option<u32> = Optional(Count { min: 0, max: Most::Any }),
    }
    refuses {
        min_keep: "use a larger `top_p`",
        reasoning_control: "an answer cannot be changed while it is generated",
    }
    ignores {
        adaptive_decay: "it says more about `adaptive_target`, which is off",
        dry_allowed_length: "it says more about `dry_multiplier`, which is off",
        dry_base: "it says more about `dry_multiplier`, which is off",
        dry_penalty_last_n: "it says more about `dry_multiplier`, which is off",
        dry_sequence_breakers: "it says more about `dry_multiplier`, which is off",
        dynatemp_exponent: "it says more about `dynatemp_range`, which is off",
        mirostat_eta: "it says more about `mirostat`, which is off",
        mirostat_tau: "it says more about `mirostat`, which is off",
        n_discard: "contexts do not shift",
        n_keep: "contexts do not shift",
        samplers: "they have one order here: penalties, temperature, `min_p`, `top_k`, `top_p`",
        t_max_prompt_ms: "prompts are computed whatever time it takes, as in llama.cpp",
        xtc_threshold: "it says more about `xtc_probability`, which is off",
    }
}

/// Tokens that penalties count in llama.cpp and Ollama, unless a request says otherwise.
pub(crate) const PENALTY_WINDOW: u32 = 64;

impl OtherSamplers {
    /// With llama.cpp's default of `repeat_last_n`.
    pub(crate) fn with_window(self) -> Self {
        Self {
            repeat_last_n: self.repeat_last_n.or(Some(PENALTY_WINDOW.into())),
            ..self
        }
    }
}

/// A number that turns a sampler off: one of this range.
struct Off {
    from: i32,
    to: i32,
    instead: &'static str,
}

impl Kind for Off {
    type Value = ();

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<(), ApiError> {
        let number = value
            .as_f64()
            .ok_or_else(|| wrong(at, "a number", &value))?;
        if (f64::from(self.from)..=f64::from(self.to)).contains(&number) {
            return Ok(());
        }
        let off = if self.from == self.to {
            self.to.to_string()
        } else {
            format!("{} or {}", self.to, self.from)
        };
        let message = format!(
            "`{at}` is not supported, except for {off}, which is off: {}",
            self.instead
        );
        Err(ApiError::unsupported(at, message))
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"type": "number", "minimum": self.from, "maximum": self.to})
    }
}
