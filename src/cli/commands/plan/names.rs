//! The models that have short names, and which of them fit a device.

use super::{Subject, number};
use anyhow::Result;
use folio::config::Config;
use folio::engine::fit::{Beside, Bytes, FitReport};
use folio::model::ShortName;

/// A line for each short name.
pub(super) fn table(config: &Config, subject: &Subject) -> Result<String> {
    let mut lines = vec![
        "This is the built-in demo model, a toy. Real models with short names, for `folio serve NAME`:".to_owned(),
    ];
    for short in &ShortName::ALL {
        let what = line(short, config, subject)?;
        lines.push(format!("  {:<21} {what}", short.name));
    }
    Ok(lines.join("\n"))
}

/// What is known of a model on the device, from a model of the same size; its files have not been looked at.
fn line(short: &ShortName, config: &Config, subject: &Subject) -> Result<String> {
    let Some(model) = short.stand_in()? else {
        return Ok(format!("{} (size not known here)", short.repository));
    };
    let plan = model.record(subject.caps.activations);
    let fit = FitReport::new(&model, &plan, Beside::default(), config, &subject.caps).requested;
    let weights = Bytes(fit.weight_bytes);
    if !fit.fits() {
        return Ok(format!("about {weights}: does not fit"));
    }
    let speed = subject.read_gbps.map_or_else(String::new, |gbps| {
        format!(
            ", at most {} tokens/s",
            number(fit.tokens_per_s(gbps * 1e9))
        )
    });
    Ok(format!("about {weights}: fits, {}{speed}", fit.room()))
}
