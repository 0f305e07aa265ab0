//! Models that run beside a model.

/// Models that may run beside a model.
#[derive(Clone, Copy, Debug)]
pub struct Others<T> {
    /// Guesses its tokens.
    pub draft: Option<T>,
    /// Turns images into rows for it.
    pub tower: Option<T>,
}

/// None of them.
impl<T> Default for Others<T> {
    fn default() -> Self {
        Self {
            draft: None,
            tower: None,
        }
    }
}

impl<T> Others<T> {
    /// The same models in another form.
    pub(super) fn try_map<U, E>(
        self,
        mut form: impl FnMut(T) -> Result<U, E>,
    ) -> Result<Others<U>, E> {
        Ok(Others {
            draft: self.draft.map(&mut form).transpose()?,
            tower: self.tower.map(&mut form).transpose()?,
        })
    }
}
