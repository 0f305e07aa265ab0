//! `adapter_config.json`, as peft writes it.

use crate::model::config_reader::{self, ConfigReader};
use crate::model::error::LoadError;
use regex::Regex;

/// File name of an adapter's config.
pub(super) const CONFIG: &str = "adapter_config.json";

/// Methods of initialization that change the base's weights too: on the published base, such an adapter is wrong.
const CHANGED_BASE: [&str; 4] = ["pissa", "olora", "corda", "loftq"];
/// Fields that ask for other arithmetic if they are set.
const OTHER_ARITHMETIC: [(&str, &str); 8] = [
    (
        "alora_invocation_tokens",
        "starts the adapter at certain tokens only",
    ),
    ("layer_replication", "repeats layers"),
    ("trainable_token_indices", "replaces rows of the embedding"),
    ("target_parameters", "adapts the fused matrices of experts"),
    ("monteclora_config", "asks for another method"),
    ("kasa_config", "asks for another method"),
    ("arrow_config", "asks for another method"),
    ("velora_config", "asks for another method"),
];
/// Switches that ask for other arithmetic.
const OTHER_METHODS: [(&str, &str); 5] = [
    ("use_dora", "is DoRA, which scales the base's product too"),
    ("use_qalora", "is QA-LoRA, which adapts sums of inputs"),
    (
        "use_bdlora",
        "is BD-LoRA, whose matrices are cut into blocks",
    ),
    ("lora_bias", "adds biases to B"),
    (
        "fan_in_fan_out",
        "is of a base that stores its matrices transposed",
    ),
];

/// What the arithmetic of an adapter depends on.
#[derive(Debug)]
pub(super) struct AdapterConfig {
    /// `None`: as many as the rows of A.
    rank: Option<u32>,
    alpha: f64,
    ranks: Vec<(Regex, f64)>,
    alphas: Vec<(Regex, f64)>,
    /// α is divided by √rank instead of the rank.
    root: bool,
}

impl AdapterConfig {
    /// Reads and checks a config.
    pub(super) fn read(file: &str, json: &[u8]) -> Result<Self, LoadError> {
        let value = config_reader::parse(file, json)?;
        let config = ConfigReader::root(file, &value)?;
        let method = config.required("peft_type", config.text("peft_type")?)?;
        if method != "LORA" {
            let message = format!("is {method:?}; only LORA is supported");
            return Err(config.invalid("peft_type", message));
        }
        check_arithmetic(&config)?;
        Ok(Self {
            rank: Some(config.required_integer("r", 1..=RANK_MAX)?),
            alpha: config.number("lora_alpha", 0.0..=ALPHA_MAX)?.unwrap_or(8.0),
            ranks: patterns(&config, "rank_pattern")?,
            alphas: patterns(&config, "alpha_pattern")?,
            root: config.boolean("use_rslora")?.unwrap_or(false),
        })
    }

    /// What a GGUF file says, of all modules.
    pub(super) fn of_gguf(alpha: f64) -> Self {
        Self {
            rank: None,
            alpha,
            ranks: Vec::new(),
            alphas: Vec::new(),
            root: false,
        }
    }

    /// The rank of a module, by its name without the prefix of peft, if the config says it.
    pub(super) fn rank(&self, module: &str) -> Option<u32> {
        let own = first_match(&self.ranks, module);
        own.map(|rank| rank as u32).or(self.rank)
    }

    /// The factor of a module's product, which has this rank.
    pub(super) fn scale(&self, module: &str, rank: u32) -> f32 {
        let rank = f64::from(rank);
        let alpha = first_match(&self.alphas, module).unwrap_or(self.alpha);
        // llama.cpp takes 0 for a file that does not say it; peft's adapters with 0 change nothing.
        if self.rank.is_none() && alpha == 0.0 {
            return 1.0;
        }
        (alpha / if self.root { rank.sqrt() } else { rank }) as f32
    }
}

/// Far above the ranks of published adapters.
const RANK_MAX: u32 = 4096;
const ALPHA_MAX: f64 = 1e6;

fn check_arithmetic(config: &ConfigReader<'_>) -> Result<(), LoadError> {
    for (name, message) in OTHER_METHODS {
        if config.boolean(name)?.unwrap_or(false) {
            return Err(config.invalid(name, message));
        }
    }
    for (name, message) in OTHER_ARITHMETIC {
        let is_set = config.get(name).is_some_and(|value| {
            let is_empty = value.as_array().is_some_and(Vec::is_empty);
            !value.is_null() && !is_empty
        });
        if is_set {
            return Err(config.invalid(name, message));
        }
    }
    if let Some(other) = config.text("bias")?.filter(|bias| *bias != "none") {
        let message = format!("is {other:?}: the base's biases were trained too");
        return Err(config.invalid("bias", message));
    }
    // It may also be a boolean.
    let method = config
        .get("init_lora_weights")
        .and_then(|value| value.as_str());
    let changed = method.filter(|method| {
        let method = method.to_lowercase();
        CHANGED_BASE
            .iter()
            .any(|changed| method.starts_with(changed))
    });
    match changed {
        Some(method) => {
            let message = format!("is {method:?}: the base's weights were changed before training");
            Err(config.invalid("init_lora_weights", message))
        }
        None => Ok(()),
    }
}

/// The entries of a pattern: the first whose key matches the end of a module's name, from a dot on, counts.
fn patterns(config: &ConfigReader<'_>, name: &str) -> Result<Vec<(Regex, f64)>, LoadError> {
    let Some(patterns) = config.object(name)? else {
        return Ok(Vec::new());
    };
    let entries = patterns.entries().map(|(key, value)| {
        let number = value.as_f64().filter(|number| *number > 0.0);
        let number = number.ok_or_else(|| patterns.invalid(key, "is not a positive number"))?;
        let regex = Regex::new(&format!(r"^(?:.*\.)?(?:{key})$"))
            .map_err(|_| patterns.invalid(key, "is not a regular expression"))?;
        Ok((regex, number))
    });
    entries.collect()
}

fn first_match(patterns: &[(Regex, f64)], module: &str) -> Option<f64> {
    let (_, value) = patterns.iter().find(|(regex, _)| regex.is_match(module))?;
    Some(*value)
}
