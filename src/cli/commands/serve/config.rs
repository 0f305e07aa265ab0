//! `--config`: options in a TOML file, and the models that are served.
//!
//! The file's keys are the long names of the options on the command line, and they are parsed by the same parser: each
//! becomes an argument before those that were typed. A table `models.NAME` is a model with options of its own, which
//! win over those at the top of the file. What is typed wins over a variable, and a variable over the file.

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use folio::server::nearest;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use toml::{Table, Value};

/// The table of models.
const MODELS: &str = "models";
/// Options that a file cannot have.
const NOT_HERE: [&str; 3] = ["config", "help", "version"];

/// A file of options.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    /// Its path as typed, for messages.
    name: String,
    top: Table,
    /// The models, in the order of the file.
    models: Vec<(String, Table)>,
}

/// Arguments in place of a file's options.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arguments(pub(crate) Vec<OsString>);

impl ConfigFile {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let text = fs::read_to_string(path).with_context(|| name.clone())?;
        Self::parse(name, &text)
    }

    fn parse(name: String, text: &str) -> Result<Self> {
        let mut top: Table = text
            .parse()
            .map_err(|error: toml::de::Error| anyhow!("{name}: {error}"))?;
        let models = match top.remove(MODELS) {
            None => Vec::new(),
            Some(Value::Table(models)) => models
                .into_iter()
                .map(|(model, options)| match options {
                    Value::Table(options) => Ok((model, options)),
                    _ => bail!("{name}: `{MODELS}.{model}` is not a table of options"),
                })
                .collect::<Result<_>>()?,
            Some(_) => bail!(
                "{name}: `{MODELS}` is not a table; each model is one, such as [{MODELS}.chat]"
            ),
        };
        Ok(Self { name, top, models })
    }

    /// Whether the top of the file, which is about all models, has an option.
    pub(crate) fn has_at_top(&self, option: &str) -> bool {
        self.top.contains_key(option)
    }

    /// Names of the models that have a table.
    pub(crate) fn model_names(&self) -> impl Iterator<Item = &str> {
        self.models.iter().map(|(name, _)| name.as_str())
    }

    /// The arguments that stand for the file's options in `command`: those of the server, or of a model. `known` has
    /// all options that there may be; those that `command` does not have are left out. So are those that were typed, or
    /// set by a variable.
    pub(crate) fn arguments(
        &self,
        model: Option<&str>,
        known: &Command,
        command: &Command,
        given: &ArgMatches,
    ) -> Result<Arguments> {
        let own = model
            .and_then(|model| self.models.iter().find(|(name, _)| name == model))
            .map(|(_, table)| table);
        let mut seen: Vec<&str> = Vec::new();
        let mut arguments = Vec::new();
        let own = own.into_iter().flatten().map(|option| (option, model));
        for ((key, value), table) in own.chain(self.top.iter().map(|option| (option, None))) {
            let place = table.map_or_else(
                || self.name.clone(),
                |table| format!("{}: {MODELS}.{table}", self.name),
            );
            let option = find(known, key).with_context(|| place.clone())?;
            let id = option.get_id().as_str();
            if !has_option(command, id) || seen.contains(&id) {
                continue;
            }
            let source = given.value_source(id);
            // A variable names the model of a server of one, and a table is about its own.
            let is_its_model = table.is_some() && id == "model";
            if matches!(
                source,
                Some(ValueSource::CommandLine | ValueSource::EnvVariable)
            ) && !is_its_model
            {
                continue;
            }
            seen.push(id);
            push(&mut arguments, option, value).with_context(|| format!("{place}: {key}"))?;
        }
        Ok(Arguments(arguments))
    }
}

/// The option with this long name, with dashes or underscores.
fn find<'a>(command: &'a Command, key: &str) -> Result<&'a Arg> {
    let dashed = key.replace('_', "-");
    let allowed = || {
        command
            .get_arguments()
            .filter(|arg| arg.get_long().is_some_and(|name| !NOT_HERE.contains(&name)))
    };
    allowed().find(|arg| is_named(arg, &dashed)).ok_or_else(|| {
        let near = nearest(&dashed, allowed().filter_map(Arg::get_long));
        let tip = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        anyhow!("there is no option `{key}`{tip}")
    })
}

/// Whether this is the long name of an option, or another name for it.
fn is_named(arg: &Arg, long: &str) -> bool {
    let mut names = arg
        .get_long()
        .into_iter()
        .chain(arg.get_all_aliases().into_iter().flatten());
    names.any(|name| name == long)
}

fn has_option(command: &Command, id: &str) -> bool {
    command
        .get_arguments()
        .any(|arg| arg.get_id().as_str() == id)
}

/// Adds an option with its value, or for each value of a list.
fn push(arguments: &mut Vec<OsString>, option: &Arg, value: &Value) -> Result<()> {
    let flag = format!("--{}", option.get_long().unwrap_or_default());
    if matches!(option.get_action(), ArgAction::SetTrue) {
        return match value {
            Value::Boolean(true) => {
                arguments.push(flag.into());
                Ok(())
            }
            Value::Boolean(false) => Ok(()),
            _ => bail!("expected true or false"),
        };
    }
    let values = match value {
        Value::Array(values) => {
            ensure!(takes_several(option), "this option takes one value");
            values.as_slice()
        }
        one => std::slice::from_ref(one),
    };
    for value in values {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            // Options whose values are JSON.
            Value::Table(_) => serde_json::to_string(value).context("a table that is not JSON")?,
            Value::Boolean(_) => bail!("expected a value, not true or false"),
            Value::Datetime(_) | Value::Array(_) => bail!("expected a text or a number"),
        };
        // In one argument, so that a value may begin with a dash.
        arguments.push(format!("{flag}={text}").into());
    }
    Ok(())
}

fn takes_several(option: &Arg) -> bool {
    matches!(option.get_action(), ArgAction::Append)
}

#[cfg(test)]
mod tests;
