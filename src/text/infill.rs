//! [`Infill`]: prompts for models that fill a gap between two texts. Such a model has tokens that mark the text before
//! the gap, the text after it, and the place where the answer begins.

use super::{Tokenizer, TokenizerError};

/// The tokens of one family of models.
struct Marks {
    before: &'static str,
    after: &'static str,
    gap: &'static str,
    /// The text after the gap comes first.
    after_first: bool,
}

const fn marks(before: &'static str, after: &'static str, gap: &'static str) -> Marks {
    Marks {
        before,
        after,
        gap,
        after_first: false,
    }
}

/// From the models' own documentation.
const FAMILIES: &[Marks] = &[
    // Qwen 2.5 and 3 Coder, CodeGemma, Granite 4.
    marks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    // StarCoder, Granite Code, Seed Coder, StableCode.
    marks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    marks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    // DeepSeek Coder: the gap is marked where it is, and the answer follows its end.
    marks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    // Code Llama.
    marks("▁<PRE>", "▁<SUF>", "▁<MID>"),
    // Codestral: the answer follows the text before the gap.
    Marks {
        before: "[PREFIX]",
        after: "[SUFFIX]",
        gap: "",
        after_first: true,
    },
];

/// Tokens after which another file would begin, so that the gap is filled.
const ENDS: &[&str] = &[
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<|file_separator|>",
    "<fim_pad>",
    "<reponame>",
    "<filename>",
    "▁<EOT>",
];
/// Names of the tokens before a repository's name, and before a file's.
const REPOSITORY: &[&str] = &["<|repo_name|>", "<reponame>"];
const FILE: &[&str] = &["<|file_sep|>", "<file_sep>"];

/// A gap in a text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gap<'a> {
    /// The text before it.
    pub before: &'a str,
    /// The text after it.
    pub after: &'a str,
    /// What the answer begins with.
    pub begun: &'a str,
    /// Other files, with their names.
    pub files: &'a [(String, String)],
}

/// How a model fills a gap.
pub struct Infill<'a> {
    tokenizer: &'a Tokenizer,
    marks: &'static Marks,
}

impl<'a> Infill<'a> {
    /// `None` if the model has no tokens for it.
    pub fn new(tokenizer: &'a Tokenizer) -> Option<Self> {
        let marks = FAMILIES.iter().find(|marks| {
            [marks.before, marks.after, marks.gap]
                .into_iter()
                .all(|token| token.is_empty() || tokenizer.id_of(token).is_some())
        })?;
        Some(Self { tokenizer, marks })
    }

    /// Tokens that end an answer, besides the model's end tokens.
    pub fn end_ids(&self) -> Vec<u32> {
        let own = [self.marks.before, self.marks.after, self.marks.gap];
        own.iter()
            .chain(ENDS)
            .filter_map(|token| self.tokenizer.id_of(token))
            .collect()
    }

    /// The prompt. Strings of special tokens within the texts are ordinary text.
    pub fn prompt(&self, gap: Gap<'_>) -> Result<Vec<u32>, TokenizerError> {
        let literal = |text: &str| {
            if text.is_empty() {
                Ok(Vec::new())
            } else {
                self.tokenizer.encode_literal(text, false)
            }
        };
        let marked = |token: &str, text: &str| {
            Ok::<_, TokenizerError>(
                self.tokenizer
                    .id_of(token)
                    .into_iter()
                    .chain(literal(text)?)
                    .collect::<Vec<_>>(),
            )
        };
        // What the tokenizer adds at the beginning of every text.
        let mut ids = self.tokenizer.encode("", true)?;
        let of = |names: &[&'static str]| {
            names
                .iter()
                .copied()
                .find(|name| self.tokenizer.id_of(name).is_some())
        };
        match (of(REPOSITORY), of(FILE)) {
            _ if gap.files.is_empty() => {}
            (Some(repository), Some(file)) => {
                ids.extend(marked(repository, "repository\n")?);
                for (name, text) in gap.files {
                    ids.extend(marked(file, &format!("{name}\n{text}\n"))?);
                }
                ids.extend(marked(file, "file\n")?);
            }
            _ => {
                for (_, text) in gap.files {
                    ids.extend(literal(&format!("{text}\n\n"))?);
                }
            }
        }
        let (before, after) = (
            marked(self.marks.before, gap.before)?,
            marked(self.marks.after, gap.after)?,
        );
        ids.extend(if self.marks.after_first {
            [after, before].concat()
        } else {
            [before, after].concat()
        });
        ids.extend(marked(self.marks.gap, gap.begun)?);
        Ok(ids)
    }
}
