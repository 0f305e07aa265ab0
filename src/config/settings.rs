//! Options of an engine that are neither numbers nor switches, as a table: see [`Config::SETTINGS`].

use super::Config;
use crate::plan::KvFormat;

/// An option of an engine that is a word or a fraction: a row of the table.
#[derive(Clone, Copy, Debug)]
pub struct EngineSetting {
    /// The name, which the command line writes `--kv-cache-dtype` and its variable `FOLIO_KV_CACHE_DTYPE`.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub help: &'static str,
    /// What it is called in help: `SHARE`, `TYPE`.
    pub unit: &'static str,
    /// The words that it may be, each with its other names; empty if [`Self::set`] takes others.
    pub words: &'static [&'static [&'static str]],
    /// What holds where it is absent.
    pub default: fn(&Config) -> String,
    set: fn(&mut Config, &str) -> Result<(), String>,
}

impl EngineSetting {
    /// Sets the option. Its range is checked with the other settings.
    ///
    /// # Errors
    ///
    /// A text that is none of the words, or no number.
    pub fn set(&self, config: &mut Config, text: &str) -> Result<(), String> {
        let word = self.words.iter().find(|names| names.contains(&text));
        (self.set)(config, word.map_or(text, |names| names[0]))
    }
}

impl Config {
    /// The table of its options that are neither numbers nor switches.
    pub const SETTINGS: &'static [EngineSetting] = &[
        EngineSetting {
            name: "gpu_memory_utilization",
            help: "Fraction of the device's memory for weights and KV pool",
            unit: "SHARE",
            words: &[],
            default: |config| config.gpu_memory_utilization.to_string(),
            set: |config, text| {
                let share = text.parse().map_err(|_| "expected a number".to_owned())?;
                config.gpu_memory_utilization = share;
                Ok(())
            },
        },
        EngineSetting {
            name: "kv_cache_dtype",
            help: "Data type of the KV pool; auto is f16, q8 and fp8 (E4M3) hold nearly twice as many tokens",
            unit: "TYPE",
            words: &[&["auto"], &["f16"], &["f32"], &["q8"], &["fp8", "fp8_e4m3"]],
            default: |_| "auto".to_owned(),
            set: |config, text| {
                config.kv_format = match text {
                    "auto" => config.kv_format,
                    "f16" => KvFormat::F16,
                    "f32" => KvFormat::F32,
                    "q8" => KvFormat::Q8,
                    "fp8" => KvFormat::Fp8,
                    _ => return Err("expected auto, f16, f32, q8 or fp8".to_owned()),
                };
                Ok(())
            },
        },
    ];
}
