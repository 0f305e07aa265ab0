//! The plan of a model with slots for adapters.

use super::AdapterLayout;
use super::layout::{SlotContent, Target};
use crate::plan::{
    AdapterSlots, BufferId, MatMul, MatMulExperts, Plan, RouteAdapters, Rows, Section, Step,
    Storage, WeightId,
};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Names of buffers of products with A, by the number of modules that a matrix stacks.
const SHRUNK: [&str; 6] = [
    "adapter_1",
    "adapter_2",
    "adapter_3",
    "adapter_4",
    "adapter_5",
    "adapter_6",
];

/// The weights of a target in all slots, and the rows between them.
#[derive(Clone, Copy)]
struct Slots {
    a: WeightId,
    b: WeightId,
    /// `[tokens × width]`.
    shrunk: BufferId,
}

/// The plan with the steps for adapters: after each product with a matrix that they may change, a product with A and
/// one with B, which is added to the output.
pub(in crate::model) fn with_slots(plain: Plan, layout: &AdapterLayout, rows: Storage) -> Plan {
    let mut plan = plain.clone();
    let count = layout.room.slots + 1;
    let routes = plan.buffer("adapter_routes", Rows::Routes(1), 2, Storage::F32);
    let slots = add_slots(&mut plan, layout, count, rows);
    plan.body = vec![Step::RouteAdapters(RouteAdapters {
        experts: None,
        routes,
    })];
    for step in &plain.body {
        plan.body.push(*step);
        if let Step::MatMul(product) = step
            && let Some(slots) = slots.get(&product.weight)
        {
            plan.body.extend(products(product, slots, routes));
        }
    }
    plan.adapters = Some(AdapterSlots {
        count,
        unused: Arc::new(plain),
    });
    plan
}

/// Adds the weights of all targets that the plan's body multiplies by.
fn add_slots(
    plan: &mut Plan,
    layout: &AdapterLayout,
    count: u32,
    rows: Storage,
) -> BTreeMap<WeightId, Slots> {
    let mut shrunk = BTreeMap::new();
    let mut slots = BTreeMap::new();
    for target in &layout.targets {
        let weight = plan
            .weights
            .iter()
            .position(|weight| weight.name == target.weight);
        let weight = weight.expect("a layer's matrix is a weight of the plan");
        let width = target.width(&layout.room);
        let own = Slots {
            a: add_weight(plan, layout, (target, 'a'), [width, target.columns], count),
            b: add_weight(plan, layout, (target, 'b'), [target.rows, width], count),
            shrunk: *shrunk.entry(width).or_insert_with(|| {
                let name = SHRUNK[(width / layout.room.rank) as usize - 1];
                plan.buffer(name, Rows::Tokens, width, rows)
            }),
        };
        slots.insert(WeightId(weight as u32), own);
    }
    slots
}

fn add_weight(
    plan: &mut Plan,
    layout: &AdapterLayout,
    (target, half): (&Target, char),
    [rows, columns]: [u32; 2],
    count: u32,
) -> WeightId {
    let section = Section {
        rows: rows * count,
        format: layout.room.format,
    };
    let name = format!("{}.lora_{half}", target.weight);
    let id = plan.weight_in_sections(name, columns, &[section]);
    plan.stack_experts(id, count);
    id
}

fn products(product: &MatMul, slots: &Slots, routes: BufferId) -> [Step; 2] {
    let step = MatMulExperts {
        x: product.x,
        routes: Some(routes),
        weight: slots.a,
        bias: None,
        accumulate: false,
        out: slots.shrunk,
    };
    let back = MatMulExperts {
        x: slots.shrunk,
        weight: slots.b,
        accumulate: true,
        out: product.out,
        ..step
    };
    [Step::MatMulExperts(step), Step::MatMulExperts(back)]
}

impl SlotContent {
    /// What is written to the plan's weights for a slot: each weight with its first row and its rows.
    pub fn rows<'a>(
        &'a self,
        plan: &'a Plan,
        slot: u32,
    ) -> impl Iterator<Item = (WeightId, u32, Bytes)> + 'a {
        let own = plan.with_adapters(false).weights.len();
        let weights = (own..).zip(self.matrices());
        weights.map(move |(weight, bytes)| {
            let spec = &plan.weights[weight];
            let rows = spec.rows / spec.experts;
            (WeightId(weight as u32), slot * rows, bytes)
        })
    }
}
