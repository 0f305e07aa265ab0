//! A number that an engine is given or that it tells is described in one place: the row of its table. Others read the
//! table, or are made from it.

use folio::config::{Config, EngineOption};
use folio::engine::handle::Stats;
use std::path::{Path, PathBuf};

/// The tables.
const TABLES: [&str; 3] = [
    "src/config.rs",
    "src/config/settings.rs",
    "src/engine/stats.rs",
];
/// What is made from them, or from the table of request fields.
const MADE: [&str; 3] = ["web/ts/limits.ts", "web/ts/requests.ts", "web/ts/stats.ts"];

#[test]
fn an_option_of_the_engine_is_described_in_one_file() {
    let numbers = Config::OPTIONS
        .iter()
        .map(|option| (option.name, option.help));
    let switches = Config::SWITCHES
        .iter()
        .map(|switch| (switch.name, switch.help));
    let settings = Config::SETTINGS
        .iter()
        .map(|setting| (setting.name, setting.help));
    let options = numbers.chain(switches).chain(settings);
    let marks = options.flat_map(|(name, help)| {
        [
            help.trim_end_matches('.').to_owned(),
            format!("\"FOLIO_{}\"", name.to_uppercase()),
            format!("long = \"{}\"", name.replace('_', "-")),
            format!(" {}?:", camel_case(name)),
        ]
    });
    assert_eq!(elsewhere(marks), Vec::<String>::new());
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
    assert_eq!(elsewhere(marks), Vec::<String>::new());
}

/// `max_num_seqs` as `maxNumSeqs`.
fn camel_case(name: &str) -> String {
    let mut words = name.split('_').map(str::to_owned);
    let first = words.next().unwrap_or_default();
    words.fold(first, |name, word| {
        name + &word[..1].to_uppercase() + &word[1..]
    })
}

/// The files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder of this repository");
    entries
        .flat_map(|entry| {
            let path = entry.expect("it can be listed").path();
            if path.is_dir() {
                files_below(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

/// The places outside of the tables that have one of these texts.
fn elsewhere(marks: impl Iterator<Item = String>) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let marks: Vec<_> = marks.collect();
    let mut found = Vec::new();
    for path in ["src", "web/src", "web/ts"]
        .iter()
        .flat_map(|folder| files_below(&root.join(folder)))
    {
        let name = path
            .strip_prefix(root)
            .expect("it is below")
            .to_string_lossy();
        if TABLES.contains(&&*name) || MADE.contains(&&*name) {
            continue;
        }
        // A picture or a font says nothing.
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let here = marks.iter().filter(|mark| text.contains(*mark));
        found.extend(here.map(|mark| format!("{name} has `{mark}`, which belongs to a table")));
    }
    found
}
