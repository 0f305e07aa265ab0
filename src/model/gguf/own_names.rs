//! What a file calls the tensors of a checkpoint, and whether a model reads them all.

use crate::model::error::LoadError;
use crate::model::spec::ModelSpec;
use crate::model::weights;

/// The tensors that a checkpoint has (of one of several experts), each with the file's own name.
#[derive(Debug, Default)]
pub(in crate::model) struct OwnNames(Vec<(String, String)>);

impl OwnNames {
    pub(super) fn add(&mut self, name: String, own: String) {
        self.0.push((name, own));
    }

    /// Fails if the file has a tensor that the model does not read: it would change the results.
    pub(in crate::model) fn refuse_unread(
        &self,
        file: &str,
        spec: &ModelSpec,
    ) -> Result<(), LoadError> {
        let layers = spec.layers.len() as u64;
        let read = weights::names_of(spec);
        let unread = self
            .0
            .iter()
            .find(|(name, own)| !read.contains(name) && !is_harmless(own, layers));
        match unread {
            None => Ok(()),
            Some((_, own)) => Err(LoadError::Field {
                file: file.to_owned(),
                field: format!("tensor {own:?}"),
                message:
                    "is not a part of this architecture: without it the results would be others"
                        .to_owned(),
            }),
        }
    }
}

/// Whether a tensor may stay unread: frequencies, which are computed or were read, and layers that predict further
/// tokens.
fn is_harmless(own: &str, layers: u64) -> bool {
    let layer = own
        .strip_prefix("blk.")
        .and_then(|rest| rest.split('.').next()?.parse::<u64>().ok());
    own.starts_with("rope_")
        || own.contains("rot_embd")
        || own.contains("rope_freqs")
        || layer.is_some_and(|layer| layer >= layers)
        || own.starts_with("mtp.")
        || own.starts_with("nextn.")
}
