//! Samplers of llama.cpp and Ollama that do not exist here. Their clients send them turned off, which is accepted; a
//! value that would change the answer is refused by name.

use crate::server::parameters::fields::fields;
use crate::server::parameters::kind::{Bounds, Kind, Most, wrong};
use crate::server::parameters::kinds::{Integer, Optional};
use crate::server::wire::error::ApiError;
use serde_json::{Value, json};

fields! {
    /// Samplers of llama.cpp and Ollama.
    OtherSamplers {
        /// How many of the last tokens penalties count; -1 is all. Another number is refused beside a penalty.
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
        /// Not supported; 0 and -1 are off.
        #[expect(dead_code)]
        t_max_predict_ms: Option<()> = Optional(Off { from: -1, to: 0, instead: "limit the tokens" }),
    }
    refuses {
        min_keep: "use a larger `top_p`",
        n_indent: "write white space into the prompt",
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
        xtc_threshold: "it says more about `xtc_probability`, which is off",
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
