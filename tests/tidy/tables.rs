//! A number that an engine is given or that it tells is described in one place: the row of its table. Others read the
//! table, or are made from it.

use super::judge;
use super::reader::sources;
use folio::config::{Config, EngineOption};
use folio::engine::handle::Stats;

/// The tables.
const TABLES: [&str; 2] = ["src/config.rs", "src/engine/stats.rs"];
/// What is made from them, or from the table of request fields.
const MADE: [&str; 3] = ["web/ts/limits.ts", "web/ts/requests.ts", "web/ts/stats.ts"];

#[test]
fn an_option_of_the_engine_is_described_in_one_file() {
    let marks = Config::OPTIONS.iter().flat_map(|option| {
        let (name, sentence) = (option.name, option.help.trim_end_matches('.'));
        [
            sentence.to_owned(),
            format!("\"FOLIO_{}\"", name.to_uppercase()),
            format!("long = \"{}\"", name.replace('_', "-")),
            format!(" {}?:", camel_case(name)),
        ]
    });
    judge("described twice", &elsewhere(marks));
}

#[test]
fn a_counter_is_described_in_one_file() {
    let marks = Stats::TABLE.iter().flat_map(|stat| {
        // A single word may mean anything.
        let field = Some(camel_case(stat.name)).filter(|name| name != stat.name);
        // A gauge may have the name of the option that bounds it.
        let metric = stat
            .metric
            .filter(|name| EngineOption::named(name).is_none())
            .map(str::to_owned);
        metric
            .into_iter()
            .chain(field)
            .map(|name| format!("\"{name}\""))
    });
    judge("described twice", &elsewhere(marks));
}

/// `max_num_seqs` as `maxNumSeqs`.
fn camel_case(name: &str) -> String {
    let mut words = name.split('_').map(str::to_owned);
    let first = words.next().unwrap_or_default();
    words.fold(first, |name, word| {
        name + &word[..1].to_uppercase() + &word[1..]
    })
}

/// The places outside of the tables that have one of these texts.
fn elsewhere(marks: impl Iterator<Item = String>) -> Vec<String> {
    let files: Vec<_> = sources(&["src", "web/src", "web/ts"], &["rs", "ts"])
        .into_iter()
        .filter(|file| !TABLES.contains(&file.path.as_str()) && !MADE.contains(&file.path.as_str()))
        .collect();
    let mut findings = Vec::new();
    for mark in marks {
        for file in files.iter().filter(|file| file.text.contains(&mark)) {
            findings.push(file.finding(1, &format!("has `{mark}`, which belongs to a table")));
        }
    }
    findings
}
