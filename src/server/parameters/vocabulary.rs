//! `allowed_token_ids` and `bad_words`: limits on the tokens of an answer, as a constraint around a grammar's.

use crate::engine::request::{Constraint, ConstraintState, SharedConstraint, Unsatisfiable};
use crate::server::wire::error::ApiError;
use crate::text::Tokenizer;
use std::sync::Arc;

/// The constraint `inner` with these limits: the only allowed ids (if there are any), and texts that may not be
/// written.
pub(crate) fn limited(
    inner: Option<SharedConstraint>,
    (allowed, bad_words): (&[u32], &[String]),
    tokenizer: Option<&Arc<Tokenizer>>,
    vocab: u32,
) -> Result<Option<SharedConstraint>, ApiError> {
    if allowed.is_empty() && bad_words.is_empty() {
        return Ok(inner);
    }
    let words = vocab.div_ceil(32) as usize;
    let mut mask = vec![0; words];
    if allowed.is_empty() {
        (0..vocab).for_each(|id| set(&mut mask, id));
    }
    allowed.iter().for_each(|id| set(&mut mask, *id));
    let mut bad = Vec::new();
    if !bad_words.is_empty() {
        let message = "`bad_words` needs a tokenizer, and this model has none";
        let tokenizer = tokenizer.ok_or_else(|| ApiError::unsupported("bad_words", message))?;
        for word in bad_words {
            bad.extend(forms(tokenizer, word)?);
        }
    }
    Ok(Some(SharedConstraint(Arc::new(Limited {
        inner,
        mask,
        bad: bad.into(),
    }))))
}

/// How a tokenizer writes a text at the beginning of another one, and after a space. The second counts only if the
/// space becomes part of the first token, as in vLLM: otherwise it ends in the same tokens, or is split in another way.
fn forms(tokenizer: &Tokenizer, word: &str) -> Result<Vec<Vec<u32>>, ApiError> {
    let encode = |text: &str| {
        let ids = tokenizer.encode(text, false);
        ids.map_err(|error| ApiError::invalid("bad_words", error.to_string()))
    };
    let word = word.trim_start();
    let (plain, spaced) = (encode(word)?, encode(&format!(" {word}"))?);
    let is_another = plain.len() == spaced.len() && plain.first() != spaced.first();
    let forms = [Some(plain), is_another.then_some(spaced)];
    Ok(forms
        .into_iter()
        .flatten()
        .filter(|ids| !ids.is_empty())
        .collect())
}

fn set(mask: &mut [u32], id: u32) {
    if let Some(word) = mask.get_mut(id as usize / 32) {
        *word |= 1 << (id % 32);
    }
}

fn has(mask: &[u32], id: u32) -> bool {
    mask.get(id as usize / 32)
        .is_some_and(|word| word >> (id % 32) & 1 == 1)
}

/// A constraint within limits.
#[derive(Debug)]
struct Limited {
    inner: Option<SharedConstraint>,
    /// Bits of the allowed tokens.
    mask: Vec<u32>,
    /// Token ids that may not follow each other.
    bad: Arc<[Vec<u32>]>,
}

#[derive(Debug)]
struct State {
    inner: Option<Box<dyn ConstraintState>>,
    mask: Arc<[u32]>,
    bad: Arc<[Vec<u32>]>,
    /// The last tokens, as many as may be part of a text that is not allowed.
    last: Vec<u32>,
}

impl Constraint for Limited {
    fn start(&self) -> Box<dyn ConstraintState> {
        let inner = self.inner.as_ref().map(|inner| inner.0.start());
        Box::new(State {
            inner,
            mask: self.mask.clone().into(),
            bad: self.bad.clone(),
            last: Vec::new(),
        })
    }
}

impl State {
    /// The tokens that would complete a text that is not allowed.
    fn banned(&self) -> impl Iterator<Item = u32> {
        self.bad.iter().filter_map(|ids| {
            let (last, before) = ids.split_last()?;
            self.last.ends_with(before).then_some(*last)
        })
    }

    fn allows(&self, id: u32) -> bool {
        has(&self.mask, id) && self.banned().all(|banned| banned != id)
    }
}

impl ConstraintState for State {
    fn fork(&self) -> Box<dyn ConstraintState> {
        let inner = self.inner.as_ref().map(|inner| inner.fork());
        Box::new(Self {
            inner,
            mask: self.mask.clone(),
            bad: self.bad.clone(),
            last: self.last.clone(),
        })
    }

    fn fill_mask(&mut self, mask: &mut [u32]) -> Result<bool, Unsatisfiable> {
        let holds = self
            .inner
            .as_mut()
            .map_or(Ok(false), |inner| inner.fill_mask(mask))?;
        for (word, allowed) in mask.iter_mut().zip(&*self.mask) {
            *word = if holds { *word & allowed } else { *allowed };
        }
        for id in self.banned() {
            if let Some(word) = mask.get_mut(id as usize / 32) {
                *word &= !(1 << (id % 32));
            }
        }
        Ok(true)
    }

    fn accept(&mut self, token_id: u32) -> Result<bool, Unsatisfiable> {
        if !self.allows(token_id) {
            return Err(Unsatisfiable);
        }
        let is_complete = self
            .inner
            .as_mut()
            .map_or(Ok(false), |inner| inner.accept(token_id))?;
        self.last.push(token_id);
        let kept = self
            .bad
            .iter()
            .map(Vec::len)
            .max()
            .unwrap_or(0)
            .saturating_sub(1);
        let surplus = self.last.len().saturating_sub(kept);
        self.last.drain(..surplus);
        Ok(is_complete)
    }

    /// A token that the limits forbid is not forced: the mask then shows that nothing may follow.
    fn forced(&mut self) -> Vec<u32> {
        let mut forced = self
            .inner
            .as_mut()
            .map_or_else(Vec::new, |inner| inner.forced());
        let before = std::mem::take(&mut self.last);
        self.last.clone_from(&before);
        let mut allowed = 0;
        for id in &forced {
            if !self.allows(*id) {
                break;
            }
            self.last.push(*id);
            allowed += 1;
        }
        self.last = before;
        forced.truncate(allowed);
        forced
    }
}

#[cfg(test)]
mod tests;
