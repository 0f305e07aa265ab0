//! A constraint without a grammar: a hash of the previous tokens determines which may follow. Some states allow one
//! token, some all, a few none, and some end the choice.

use folio::backend::fake::mix;
use folio::engine::request::{Constraint, ConstraintState, SharedConstraint, Unsatisfiable};
use std::sync::Arc;

/// Maximum number of forced tokens reported in advance.
pub(crate) const FORCED_MAX: usize = 6;

#[derive(Debug)]
struct Rules {
    seed: u64,
    vocab: u32,
}

#[derive(Clone, Debug)]
struct Walk {
    hash: u64,
    vocab: u32,
}

/// A constraint with different rules for each seed.
pub(crate) fn shared(seed: u64, vocab: u32) -> SharedConstraint {
    SharedConstraint(Arc::new(Rules { seed, vocab }))
}

impl Constraint for Rules {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(Walk {
            hash: mix(0, self.seed),
            vocab: self.vocab,
        })
    }
}

impl Walk {
    fn only(&self) -> Option<u32> {
        (self.hash % 16 < 6).then(|| (self.hash / 16 % u64::from(self.vocab)) as u32)
    }

    fn allows(&self, id: u32) -> bool {
        match self.hash % 16 {
            0..6 => self.only() == Some(id),
            6..8 => true,
            8 if self.hash % 80 == 8 => false,
            _ => mix(self.hash, u64::from(id) << 1).is_multiple_of(3),
        }
    }
}

impl ConstraintState for Walk {
    fn fork(&self) -> Box<dyn ConstraintState> {
        Box::new(self.clone())
    }

    fn fill_mask(&mut self, mask: &mut [u32]) -> Result<bool, Unsatisfiable> {
        assert!(
            mask.iter().all(|&word| word == 0),
            "a mask is zero on entry"
        );
        let allowed = (0..self.vocab).filter(|&id| self.allows(id));
        allowed.for_each(|id| mask[id as usize / 32] |= 1 << (id % 32));
        Ok(!(6..8).contains(&(self.hash % 16)))
    }

    fn accept(&mut self, token_id: u32) -> Result<bool, Unsatisfiable> {
        if !self.allows(token_id) {
            return Err(Unsatisfiable);
        }
        self.hash = mix(self.hash, u64::from(token_id) << 1 | 1);
        Ok(self.hash.is_multiple_of(29))
    }

    fn forced(&mut self) -> Vec<u32> {
        let mut ahead = self.clone();
        let mut forced = Vec::new();
        while let Some(id) = ahead.only().filter(|_| forced.len() < FORCED_MAX) {
            forced.push(id);
            if ahead.accept(id).expect("it is the one allowed") {
                break;
            }
        }
        forced
    }
}
