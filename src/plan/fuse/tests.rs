//! Which steps become one.

use super::*;
use crate::plan::{Activation, Gates, GatherRows, Rows, Storage, Tail, WeightFormat};

/// `normed = norm(x); product = normed · Wᵀ; out = act(product)`, then `rest`.
fn plan(rest: impl FnOnce([BufferId; 4]) -> Vec<Step>) -> Plan {
    let mut plan = Plan::default();
    let mut buffer = |name, columns| plan.buffer(name, Rows::Tokens, columns, Storage::F32);
    let [x, normed, product, out] =
        [("x", 8), ("normed", 8), ("product", 16), ("out", 8)].map(|(n, c)| buffer(n, c));
    let weight = plan.weight("w", 16, 8, WeightFormat::F32);
    let (delta, epsilon, one_plus, accumulate, options) =
        (None, 1e-5, false, false, NormOptions::default());
    plan.body = vec![
        Step::RmsNorm(RmsNorm {
            x,
            delta,
            weight,
            epsilon,
            one_plus,
            accumulate,
            options,
            out: normed,
        }),
        Step::MatMul(MatMul {
            x: normed,
            weight,
            bias: None,
            accumulate,
            out: product,
        }),
        Step::GatedActivation(GatedActivation {
            gate_up: product,
            gates: Gates::default(),
            up: Up::SecondHalf,
            activation: Activation::Silu,
            numbers: None,
            routes: None,
            out,
        }),
    ];
    plan.body.extend(rest([x, normed, product, out]));
    plan
}

fn found(plan: &Plan, from: usize) -> Option<(bool, bool, usize)> {
    find(plan, &plan.body[from..])
        .map(|fused| (fused.norm.is_some(), fused.gated.is_some(), fused.steps()))
}

#[test]
fn neighbours_are_found() {
    let alone = plan(|_| Vec::new());
    assert_eq!(found(&alone, 0), Some((true, true, 3)));
    assert_eq!(found(&alone, 1), Some((false, true, 2)));
    assert_eq!(found(&alone, 2), None);
}

/// Every part of the product reads all of x, so none may write it.
#[test]
fn what_is_normalized_is_not_written() {
    let mut onto_x = plan(|_| Vec::new());
    let Step::MatMul(product) = &mut onto_x.body[1] else {
        unreachable!("the second step is the product")
    };
    product.out = BufferId(0);
    assert_eq!(found(&onto_x, 0), None);
    let mut gated_onto_x = plan(|_| Vec::new());
    let Step::GatedActivation(gated) = &mut gated_onto_x.body[2] else {
        unreachable!("the third step is gated")
    };
    gated.out = BufferId(0);
    assert_eq!(found(&gated_onto_x, 0), None);
}

/// Queries that another step reads must be written, and all of attention reads qkv.
#[test]
fn the_store_of_a_layer_is_found_before_its_attention() {
    let mut plan = Plan::default();
    let mut buffer = |name, columns| plan.buffer(name, Rows::Tokens, columns, Storage::F32);
    let [qkv, q, out] = [("qkv", 24), ("q", 8), ("out", 8)].map(|(n, c)| buffer(n, c));
    let (q_norm, k_norm, rope, options) = (None, None, None, crate::plan::StoreOptions::default());
    let store = RopeStoreKv {
        qkv,
        layer: 3,
        query_heads: 1,
        q_norm,
        k_norm,
        rope,
        options,
        q,
    };
    let (scale, softcap, alibi, sinks) = (1.0, None, None, None);
    let attend = AttendPaged {
        q,
        layer: 3,
        query_heads: 1,
        scale,
        softcap,
        alibi,
        sinks,
        out,
    };
    let found = |attend, later: &[Step]| {
        let steps = [
            &[Step::RopeStoreKv(store), Step::AttendPaged(attend)],
            later,
        ]
        .concat();
        find_attention(&plan, &steps).is_some()
    };
    assert!(found(attend, &[]));
    assert!(!found(AttendPaged { layer: 2, ..attend }, &[]));
    assert!(!found(AttendPaged { out: qkv, ..attend }, &[]));
    assert!(!found(
        attend,
        &[Step::GatherRows(GatherRows { x: q, out })]
    ));
    assert!(found(
        attend,
        &[Step::GatherRows(GatherRows { x: out, out: q })]
    ));
}

/// A buffer that is read later must be written.
#[test]
fn what_others_read_is_not_fused_away() {
    let read = |what: usize| {
        move |buffers: [BufferId; 4]| {
            vec![Step::GatherRows(GatherRows {
                x: buffers[what],
                out: buffers[0],
            })]
        }
    };
    assert_eq!(found(&plan(read(1)), 0), None, "the norm is read");
    assert_eq!(
        found(&plan(read(2)), 0),
        Some((true, false, 2)),
        "the product is read"
    );
    let rewritten = plan(|[x, normed, product, out]| {
        let again = Step::GatherRows(GatherRows {
            x: out,
            out: normed,
        });
        vec![
            again,
            Step::GatherRows(GatherRows {
                x: normed,
                out: product,
            }),
            Step::GatherRows(GatherRows { x: product, out: x }),
        ]
    });
    assert_eq!(
        found(&rewritten, 0),
        Some((true, true, 3)),
        "what is written anew may be read"
    );
    let mut tail = plan(|_| Vec::new());
    tail.tails = vec![(
        Tail::Sample,
        vec![Step::GatherRows(GatherRows {
            x: BufferId(1),
            out: BufferId(3),
        })],
    )];
    assert_eq!(found(&tail, 0), None, "the tail reads the norm");
}
