//! The engine's numbers as options of the command line: one for each row of [`Config::OPTIONS`].

use super::device;
use super::units::{parse_bytes, parse_count};
use clap::builder::ValueParser;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use folio::config::{Config, EngineOption};

/// The engine's numbers that were given.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitArgs(Vec<(&'static EngineOption, u64)>);

impl LimitArgs {
    /// The numbers that were given, by their options.
    pub(crate) fn given(&self) -> &[(&'static EngineOption, u64)] {
        &self.0
    }

    /// The number of an option, if it was given.
    pub(crate) fn get(&self, name: &str) -> Option<u64> {
        let is_named = |(option, _): &&(&EngineOption, u64)| option.name == name;
        self.0.iter().find(is_named).map(|(_, value)| *value)
    }

    /// The same with another number.
    pub(crate) fn with(&self, name: &str, value: u64) -> Self {
        let others = self.0.iter().filter(|(option, _)| option.name != name);
        let option = EngineOption::named(name).map(|option| (option, value));
        Self(others.copied().chain(option).collect())
    }
}

impl FromArgMatches for LimitArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = Config::OPTIONS
            .iter()
            .filter_map(|option| Some((option, (*matches.get_one::<Option<u64>>(option.name)?)?)));
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for LimitArgs {
    fn augment_args(command: Command) -> Command {
        command.args(Config::OPTIONS.iter().map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn arg(option: &EngineOption) -> Arg {
    let help = option.help.trim_end_matches('.');
    let name = option.name;
    let parser = ValueParser::new(move |text: &str| number(name, text));
    let example = if option.unit == "BYTES" {
        ", for example 8GiB"
    } else {
        ""
    };
    Arg::new(option.name)
        .long(option.name.replace('_', "-"))
        .env(format!("FOLIO_{}", option.name.to_uppercase()))
        .value_name(option.unit)
        .value_parser(parser)
        .allow_negative_numbers(true)
        .help(format!("{help}{example} [default: {}]", default_of(option)))
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
