//! Which adjacent steps a backend may run in one kernel: the norm before a product and the activation after it, or the
//! store of keys and values before attention.
//!
//! It follows from what each step reads and writes. A row buffer between two fused steps is not written, so nothing
//! else may read it: no later step before the buffer is next written, and no tail. Values are rounded in between
//! exactly as the buffer would have rounded them.

use super::{
    Activation, AttendPaged, BufferId, GatedActivation, MatMul, NormOptions, Plan, RmsNorm,
    RopeStoreKv, Step, Up,
};

/// A product with the adjacent steps fused into it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fused {
    /// The norm whose result is multiplied.
    pub norm: Option<RmsNorm>,
    /// The step to which the others are fused.
    pub product: MatMul,
    /// The activation of the product.
    pub gated: Option<GatedActivation>,
}

impl Fused {
    /// Number of steps that this replaces.
    pub fn steps(&self) -> usize {
        1 + usize::from(self.norm.is_some()) + usize::from(self.gated.is_some())
    }
}

/// The fused product that `rest` starts with, if its first steps can be fused.
pub fn find(plan: &Plan, rest: &[Step]) -> Option<Fused> {
    let norm = match rest.first()? {
        Step::RmsNorm(norm)
            if norm.delta.is_none()
                && !norm.accumulate
                && norm.options == NormOptions::default() =>
        {
            Some(*norm)
        }
        _ => None,
    };
    let at = usize::from(norm.is_some());
    let Step::MatMul(product) = *rest.get(at)? else {
        return None;
    };
    if norm.is_some_and(|norm| {
        norm.out != product.x || is_read_later(plan, product.x, &rest[at + 1..])
    }) {
        return None;
    }
    let gated = match rest.get(at + 1) {
        Some(Step::GatedActivation(gated))
            if gated.gate_up == product.out
                && gated.up == Up::SecondHalf
                && gated.numbers.is_none()
                && gated.routes.is_none()
                && !matches!(
                    gated.activation,
                    Activation::Gelu | Activation::Relu | Activation::ClampedSilu { .. }
                )
                && !product.accumulate
                && !is_read_later(plan, product.out, &rest[at + 2..]) =>
        {
            Some(*gated)
        }
        _ => None,
    };
    // Parts of a product run at different times: none may write what another one still normalizes.
    let out = gated.map_or(product.out, |gated| gated.out);
    if norm.is_some_and(|norm| norm.x == out) {
        return None;
    }
    let fused = Fused {
        norm,
        product,
        gated,
    };
    debug_assert!(
        fused.steps() <= rest.len(),
        "only steps that are there are fused"
    );
    (fused.steps() > 1).then_some(fused)
}

/// The store and the attention of a layer that `rest` starts with, if nothing else reads their queries.
pub fn find_attention(plan: &Plan, rest: &[Step]) -> Option<(RopeStoreKv, AttendPaged)> {
    let [
        Step::RopeStoreKv(store),
        Step::AttendPaged(attend),
        later @ ..,
    ] = rest
    else {
        return None;
    };
    let is_one = store.q == attend.q
        && store.layer == attend.layer
        && store.query_heads == attend.query_heads;
    // Every part of the attention reads qkv, while others write their result.
    let apart = attend.out != store.qkv;
    (is_one && apart && !is_read_later(plan, store.q, later)).then_some((*store, *attend))
}

/// Whether the current content of `buffer` is read by `rest` or by the tail after it.
fn is_read_later(plan: &Plan, buffer: BufferId, rest: &[Step]) -> bool {
    let read_first = |steps: &[Step]| {
        let accesses = steps.iter().flat_map(Step::buffers);
        accesses
            .filter(|(touched, _)| *touched == buffer)
            .map(|(_, access)| access.reads())
            .next()
    };
    // Nothing in the rest of the body touches the buffer, so any tail may read its content. For steps within a tail,
    // all tails are checked, their own among them: this fuses less than possible, never more.
    read_first(rest).unwrap_or_else(|| {
        plan.tails
            .iter()
            .any(|(_, steps)| read_first(steps).unwrap_or(false))
    })
}

#[cfg(test)]
mod tests;
