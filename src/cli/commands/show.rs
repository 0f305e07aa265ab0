//! `folio show`: what a model is, without loading it.

use crate::cli::options::ModelArgs;
use crate::cli::terminal::output;
use anyhow::Result;
use clap::Args;
use folio::model::Model;
use folio::plan::Storage;
use folio::plan::figures::Figures;
use indicatif::{BinaryBytes, HumanCount};
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The model, as --model names it
    #[arg(value_name = "MODEL")]
    first: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ShowArgs) -> Result<()> {
    let model = args.model.or_first(args.first.as_deref())?;
    let (opened, files) = match model.describe_far()? {
        Some(far) => (far, None),
        None => {
            let (opened, files) = model.open_with_text()?;
            (opened, Some(files))
        }
    };
    let licence = files
        .as_ref()
        .and_then(crate::cli::options::TextFiles::licence);
    let template = match files
        .map(crate::cli::options::TextFiles::read)
        .transpose()?
    {
        None => "not known before it is downloaded",
        Some(text) if text.template.is_some() => "yes",
        Some(_) => "none: only completions",
    };
    let about = about(&model.name(), &opened, template, licence.as_deref());
    output::result(if args.json {
        about.to_string()
    } else {
        as_text(&about)
    })
}

fn about(name: &str, model: &Model, template: &str, licence: Option<&str>) -> Value {
    let (spec, plan) = (model.spec(), model.record(Storage::F32));
    let figures = plan.figures();
    json!({
        "model": name,
        "family": spec.architecture,
        "layers": spec.layers.len(),
        "parameters": figures.parameters,
        "bytes": plan.weight_bytes(),
        "format": shares(&figures),
        "context": spec.positions_max,
        "vocabulary": spec.vocab,
        "template": template,
        "licence": licence,
    })
}

/// The formats of the weights, the most frequent first, with their shares of the elements from a hundredth on.
fn shares(figures: &Figures) -> String {
    let all = figures.parameters.max(1);
    let shares = figures
        .formats
        .iter()
        .map(|(format, elements)| (format, elements * 100 / all));
    let shown = shares.filter(|(_, share)| *share > 0);
    shown
        .map(|(format, share)| format!("{format:?} {share} %"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn as_text(about: &Value) -> String {
    let number = |name: &str| about[name].as_u64().unwrap_or(0);
    let text = |name: &str| about[name].as_str().unwrap_or("unknown").to_owned();
    let rows = [
        ("model", text("model")),
        (
            "family",
            format!("{}, {} layers", text("family"), number("layers")),
        ),
        (
            "size",
            format!(
                "{} parameters, {}",
                HumanCount(number("parameters")),
                BinaryBytes(number("bytes"))
            ),
        ),
        ("format", text("format")),
        ("context", format!("{} tokens", number("context"))),
        ("vocabulary", format!("{} tokens", number("vocabulary"))),
        ("template", text("template")),
        ("licence", text("licence")),
    ];
    rows.map(|(name, value)| format!("{name:12} {value}"))
        .join("\n")
}
