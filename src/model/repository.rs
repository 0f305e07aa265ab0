//! Selects the files of a repository that a model needs, by their names alone. This works the same for the hub's list,
//! for a folder in its cache, and for files that a user has chosen in a browser.

use super::safetensors::{INDEX, SINGLE};
use serde_json::Value;
use std::collections::BTreeSet;

/// Config of a safetensors model.
const CONFIG: &str = "config.json";
/// Optional small files.
const BESIDE: [&str; 11] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.txt",
    // Of sentence-transformers.
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
];
/// Folder of further chat templates.
const MORE_TEMPLATES: &str = "additional_chat_templates/";
/// The default quantization, as in llama.cpp.
const DEFAULT_QUANTIZATION: &str = "Q4_K_M";
/// Prefixes of quantization names other than `Q` and a digit.
const OTHER_TYPES: [&str; 6] = ["F16", "BF16", "F32", "FP16", "MXFP4", "TQ"];
/// Maximum file names in an error message.
const LISTED_MAX: usize = 40;

/// The files to download.
#[derive(Debug, PartialEq, Eq)]
pub enum Selection {
    /// A folder of safetensors; with `index`, also the shards that it names.
    Folder {
        /// Files.
        files: Vec<String>,
        /// The index's name.
        index: Option<&'static str>,
    },
    /// GGUF files; the first is the one to open.
    Gguf {
        /// Files.
        files: Vec<String>,
        /// Selected by the default quantization.
        by_default: bool,
    },
}

/// Why no files, or not all, could be selected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// A GGUF file was asked for where there is none.
    #[error("no GGUF files found, so `:{requested}` does not apply")]
    NoGguf {
        /// The quantization or file name.
        requested: String,
    },
    /// Files that every model needs are missing.
    #[error("no {missing} found (files: {there})")]
    NoModel {
        /// What is missing.
        missing: &'static str,
        /// The files that are there.
        there: String,
    },
    /// No GGUF file has this name or quantization.
    #[error("no GGUF file matches `{requested}` (files: {there})")]
    NoMatch {
        /// The quantization or file name.
        requested: String,
        /// The GGUF files that are there.
        there: String,
    },
    /// Several GGUF files have this quantization.
    #[error("`{requested}` matches several files, choose one: {files}")]
    Ambiguous {
        /// The quantization.
        requested: String,
        /// Those files.
        files: String,
    },
    /// Parts of a split GGUF model are missing.
    #[error("{stem} has {count} parts, but only {present} are present")]
    Incomplete {
        /// File name without extension and part number.
        stem: String,
        /// Parts of the model.
        count: usize,
        /// Parts that are there.
        present: usize,
    },
    /// The index of a checkpoint's files is invalid, or lists a file that is missing.
    #[error("{INDEX}{0}")]
    Index(String),
}

/// One GGUF model: a file, or the parts of a split one in order.
#[derive(Debug)]
pub struct GgufFiles {
    /// File name without extension and part number.
    pub stem: String,
    /// Names of the files that are present.
    pub files: Vec<String>,
    /// Expected number of files.
    count: usize,
}

impl GgufFiles {
    /// Whether every part is present.
    pub fn is_whole(&self) -> bool {
        self.files.len() == self.count
    }

    fn label(&self) -> String {
        if self.count == 1 {
            self.files[0].clone()
        } else {
            format!("{} ({} parts)", self.files[0], self.count)
        }
    }
}

/// Selects the files that `requested` names, or those that a model needs by default. `names` are plain.
pub fn select(names: &[String], requested: Option<&str>) -> Result<Selection, SelectError> {
    let has = |name: &str| names.iter().any(|known| known == name);
    let models = ggufs(names);
    if let Some(requested) = requested {
        if models.is_empty() {
            return Err(SelectError::NoGguf {
                requested: requested.into(),
            });
        }
        return Ok(Selection::Gguf {
            files: pick(models, requested)?,
            by_default: false,
        });
    }
    let (single, index) = (has(SINGLE), has(INDEX));
    if has(CONFIG) && (single || index) {
        let index = (!single).then_some(INDEX);
        let fixed = [CONFIG, if single { SINGLE } else { INDEX }];
        let beside = BESIDE.into_iter().filter(|name| has(name));
        let templates = names.iter().map(String::as_str).filter(|name| {
            name.starts_with(MORE_TEMPLATES) && name.ends_with(".jinja") && is_plain(name)
        });
        let dense = names.iter().map(String::as_str);
        let files = fixed
            .into_iter()
            .chain(beside)
            .chain(templates)
            .chain(dense.filter(|name| is_of_dense(name)))
            .map(str::to_owned)
            .collect();
        return Ok(Selection::Folder { files, index });
    }
    if models.is_empty() {
        let missing = if single || index {
            CONFIG
        } else {
            "safetensors or GGUF files"
        };
        return Err(SelectError::NoModel {
            missing,
            there: listed(names.iter().map(String::as_str)),
        });
    }
    let files = match <[GgufFiles; 1]>::try_from(models) {
        Ok([only]) => whole(only)?,
        Err(models) => pick(models, DEFAULT_QUANTIZATION)?,
    };
    Ok(Selection::Gguf {
        files,
        by_default: true,
    })
}

/// Whether a file is of a dense module of sentence-transformers: `2_Dense/config.json`, or its weights.
fn is_of_dense(name: &str) -> bool {
    let Some((folder, file)) = name.split_once('/') else {
        return false;
    };
    let number = folder.strip_suffix("_Dense").unwrap_or_default();
    ([CONFIG, SINGLE].contains(&file) && !number.is_empty())
        && number.bytes().all(|digit| digit.is_ascii_digit())
}

/// The shards that an index lists; all are in `names`.
pub fn shards(index_json: &[u8], names: &[String]) -> Result<Vec<String>, SelectError> {
    let fault = |message: String| Err(SelectError::Index(message));
    let index: Value = serde_json::from_slice(index_json)
        .map_err(|error| SelectError::Index(format!(": {error}")))?;
    let Some(map) = index["weight_map"].as_object() else {
        return fault(": weight_map is missing".into());
    };
    let mut shards = BTreeSet::new();
    for (tensor, shard) in map {
        let Some(shard) = shard.as_str() else {
            return fault(format!(": the file name of {tensor:?} is not a string"));
        };
        if !is_plain(shard) {
            return fault(format!(": invalid file name {shard:?}"));
        }
        if !names.iter().any(|name| name == shard) {
            return fault(format!(" lists {shard:?}, which is missing"));
        }
        shards.insert(shard.to_owned());
    }
    if shards.is_empty() {
        return fault(": weight_map is empty".into());
    }
    Ok(shards.into_iter().collect())
}

/// Whether a name is a plain relative path on every system: no `..`, no absolute path, no drive, no alternate stream.
pub fn is_plain(name: &str) -> bool {
    name.split('/').all(|part| !matches!(part, "" | "." | ".."))
        && !name.contains(['\\', ':'])
        && !name.contains(char::is_control)
}

/// The GGUF models among the names, without projectors (`mmproj`) and statistics (`imatrix`), which are not models.
pub fn ggufs(names: &[String]) -> Vec<GgufFiles> {
    let mut models: Vec<GgufFiles> = Vec::new();
    let mut sorted: Vec<&String> = names.iter().collect();
    sorted.sort();
    for name in sorted {
        let lower = name.to_ascii_lowercase();
        let file = lower.rsplit('/').next().unwrap_or_default();
        let Some(stem) = lower.strip_suffix(".gguf").map(|stem| &name[..stem.len()]) else {
            continue;
        };
        if file.starts_with("mmproj") || file.contains("imatrix") {
            continue;
        }
        let (stem, count) = split_of(stem).map_or((stem, 1), |(stem, count)| (stem, count));
        match models
            .last_mut()
            .filter(|last| count > 1 && last.stem == stem && last.count == count)
        {
            Some(model) => model.files.push(name.clone()),
            None => models.push(GgufFiles {
                stem: stem.to_owned(),
                files: vec![name.clone()],
                count,
            }),
        }
    }
    models
}

/// `model-00001-of-00003` → `model`, 3.
fn split_of(stem: &str) -> Option<(&str, usize)> {
    let (head, count) = stem.rsplit_once("-of-")?;
    let (head, number) = head.rsplit_once('-')?;
    if number.len() != 5 || count.len() != 5 {
        return None;
    }
    let (number, count) = (number.parse::<usize>().ok()?, count.parse().ok()?);
    (1..=count).contains(&number).then_some((head, count))
}

/// The one model that `requested` names: by a file's exact name, else by the quantization in its name.
fn pick(mut models: Vec<GgufFiles>, requested: &str) -> Result<Vec<String>, SelectError> {
    if let Some(at) = models
        .iter()
        .position(|model| model.files.iter().any(|file| file == requested))
    {
        return whole(models.swap_remove(at));
    }
    let there = listed(
        models
            .iter()
            .map(GgufFiles::label)
            .collect::<Vec<_>>()
            .iter()
            .map(String::as_str),
    );
    models.retain(|model| carries(&model.stem, requested));
    match <[GgufFiles; 1]>::try_from(models) {
        Ok([only]) => whole(only),
        Err(none) if none.is_empty() => Err(SelectError::NoMatch {
            requested: requested.into(),
            there,
        }),
        Err(several) => {
            let files = listed(several.iter().map(|model| model.files[0].as_str()));
            Err(SelectError::Ambiguous {
                requested: requested.into(),
                files,
            })
        }
    }
}

fn whole(model: GgufFiles) -> Result<Vec<String>, SelectError> {
    if !model.is_whole() {
        let GgufFiles { stem, files, count } = model;
        return Err(SelectError::Incomplete {
            stem,
            count,
            present: files.len(),
        });
    }
    Ok(model.files)
}

/// Whether a file's name contains a quantization as a word, in any case. `Q4_K` is not in `Q4_K_M`.
fn carries(stem: &str, quantization: &str) -> bool {
    let (stem, word) = (stem.to_ascii_uppercase(), quantization.to_ascii_uppercase());
    let bytes = stem.as_bytes();
    stem.match_indices(&word).any(|(at, _)| {
        let opens = at == 0 || !bytes[at - 1].is_ascii_alphanumeric();
        let end = bytes.get(at + word.len());
        opens && end.is_none_or(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_')
    })
}

/// The quantization in a GGUF file's name, in capitals.
pub fn quantization_of(stem: &str) -> Option<String> {
    let upper = stem.to_ascii_uppercase();
    let mut words = upper.split(['-', '.', '/']);
    words
        .rfind(|word: &&str| {
            let digits = word.strip_prefix("IQ").or_else(|| word.strip_prefix('Q'));
            digits.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
                || OTHER_TYPES.iter().any(|known| word.starts_with(known))
        })
        .map(str::to_owned)
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let shown = names[..names.len().min(LISTED_MAX)].join(", ");
    match names.len() {
        0 => "none".to_owned(),
        count if count > LISTED_MAX => format!("{shown}, and {} more", count - LISTED_MAX),
        _ => shown,
    }
}

#[cfg(test)]
mod tests;
