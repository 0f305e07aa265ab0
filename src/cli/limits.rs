//! The engine's options of the command line: one for each row of [`Config::OPTIONS`], [`Config::SWITCHES`] and
//! [`Config::SETTINGS`].

use super::device;
use super::units::{parse_bytes, parse_count};
use anyhow::anyhow;
use clap::builder::{BoolishValueParser, PossibleValue, PossibleValuesParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use folio::config::{Config, EngineOption, EngineSetting, EngineSwitch};

/// The engine's options that were given.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitArgs {
    numbers: Vec<(&'static EngineOption, u64)>,
    switches: Vec<&'static EngineSwitch>,
    settings: Vec<(&'static EngineSetting, String)>,
}

impl LimitArgs {
    /// These settings with what was given, checked.
    ///
    /// # Errors
    ///
    /// A value outside its range, by the option's name.
    pub(crate) fn over(&self, mut config: Config) -> anyhow::Result<Config> {
        for switch in &self.switches {
            (switch.turn_on)(&mut config);
        }
        for (setting, text) in &self.settings {
            let option = setting.name.replace('_', "-");
            let set = setting.set(&mut config, text);
            set.map_err(|message| anyhow!("--{option}: {message}, not {text}"))?;
        }
        Ok(config.with(&self.numbers)?)
    }

    /// The number of an option, if it was given.
    pub(crate) fn get(&self, name: &str) -> Option<u64> {
        let is_named = |(option, _): &&(&EngineOption, u64)| option.name == name;
        self.numbers.iter().find(is_named).map(|(_, value)| *value)
    }

    /// The same with another number.
    pub(crate) fn with(&self, name: &str, value: u64) -> Self {
        let others = self
            .numbers
            .iter()
            .filter(|(option, _)| option.name != name);
        let option = EngineOption::named(name).map(|option| (option, value));
        Self {
            numbers: others.copied().chain(option).collect(),
            ..self.clone()
        }
    }
}

impl FromArgMatches for LimitArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let numbers = Config::OPTIONS
            .iter()
            .filter_map(|option| Some((option, (*matches.get_one::<Option<u64>>(option.name)?)?)));
        let switches = Config::SWITCHES
            .iter()
            .filter(|switch| matches.get_flag(switch.name));
        let settings = Config::SETTINGS.iter().filter_map(|setting| {
            Some((setting, matches.get_one::<String>(setting.name)?.clone()))
        });
        Ok(Self {
            numbers: numbers.collect(),
            switches: switches.collect(),
            settings: settings.collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for LimitArgs {
    fn augment_args(command: Command) -> Command {
        command
            .args(Config::OPTIONS.iter().map(number_arg))
            .args(Config::SWITCHES.iter().map(switch_arg))
            .args(Config::SETTINGS.iter().map(setting_arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn number_arg(option: &EngineOption) -> Arg {
    let help = option.help.trim_end_matches('.');
    let name = option.name;
    let parser = ValueParser::new(move |text: &str| number(name, text));
    let example = if option.unit == "BYTES" {
        ", for example 8GiB"
    } else {
        ""
    };
    named(option.name)
        .value_name(option.unit)
        .value_parser(parser)
        .allow_negative_numbers(true)
        .help(format!("{help}{example} [default: {}]", default_of(option)))
}

fn switch_arg(switch: &EngineSwitch) -> Arg {
    named(switch.name)
        .action(ArgAction::SetTrue)
        .value_parser(BoolishValueParser::new())
        .help(switch.help.trim_end_matches('.'))
}

fn setting_arg(setting: &EngineSetting) -> Arg {
    let default = (setting.default)(&Config::default());
    let words = setting.words.iter().filter_map(|names| names.split_first());
    let words =
        words.map(|(word, others)| PossibleValue::new(*word).aliases(others.iter().copied()));
    let parser = if setting.words.is_empty() {
        ValueParser::string()
    } else {
        PossibleValuesParser::new(words).into()
    };
    named(setting.name)
        .value_name(setting.unit)
        .value_parser(parser)
        .allow_negative_numbers(true)
        .help(format!("{} [default: {default}]", setting.help))
}

/// An option with its long form and its variable.
fn named(name: &'static str) -> Arg {
    Arg::new(name)
        .long(name.replace('_', "-"))
        .env(format!("FOLIO_{}", name.to_uppercase()))
}

/// The number of an option; `None`: what holds if it is absent, which vLLM calls `auto`.
fn number(name: &str, text: &str) -> Result<Option<u64>, String> {
    let option = EngineOption::named(name);
    let is_optional = option.is_some_and(|option| option.absent.is_some());
    match option.map(|option| option.unit) {
        _ if is_optional && text == "auto" => Ok(None),
        Some("TOKENS") if is_optional && text == "-1" => Ok(None),
        Some("BYTES") => parse_bytes(text).map(Some),
        _ => parse_count(text).map(Some),
    }
}

/// What holds if an option is not given.
fn default_of(option: &EngineOption) -> String {
    let of = |config: Config| (option.get)(&config).unwrap_or_default();
    let (default, on_cuda) = (of(Config::default()), of(device::cuda_defaults()));
    match option.absent {
        Some(words) => words.to_owned(),
        None if cfg!(feature = "cuda") && on_cuda != default => {
            format!("{default}, on CUDA devices {on_cuda}")
        }
        None if default == 0 => "none".to_owned(),
        None => default.to_string(),
    }
}
