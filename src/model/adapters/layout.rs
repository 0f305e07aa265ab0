//! Where a model has room for adapters, and what a slot holds of an adapter.

use super::file::LowRank;
use super::{Adapter, AdapterRoom};
use crate::model::error::LoadError;
use crate::model::gguf::interleaved_row;
use crate::model::spec::ModelSpec;
use crate::model::weights::{self, Adaptable};
use crate::plan::WeightFormat;
use bytes::Bytes;
use half::{bf16, f16};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The matrices of a model that adapters may change.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterLayout {
    pub(super) room: AdapterRoom,
    pub(super) targets: Vec<Target>,
    /// Elements of a head.
    head_dim: u32,
}

/// A matrix of the plan.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Target {
    /// Its name in the plan.
    pub(super) weight: String,
    pub(super) rows: u32,
    pub(super) columns: u32,
    /// The modules whose rows it stacks.
    modules: Vec<Module>,
}

#[derive(Clone, Debug, PartialEq)]
struct Module {
    name: String,
    rows: u32,
    runs: Vec<Run>,
}

/// Rows of a module that are consecutive in the matrix.
#[derive(Clone, Debug, PartialEq)]
struct Run {
    /// The first row in the matrix.
    to: u32,
    from: Range<u32>,
    /// What the rows of the base are multiplied by when it is loaded.
    factor: f32,
}

impl Target {
    /// Rows of A in a slot: the largest rank for each module.
    pub(super) fn width(&self, room: &AdapterRoom) -> u32 {
        self.modules.len() as u32 * room.rank
    }

    fn new(weight: Adaptable) -> Self {
        let mut modules: Vec<Module> = Vec::new();
        let mut to = 0;
        for part in weight.parts {
            let known = modules.iter().position(|module| module.name == part.module);
            let at = known.unwrap_or_else(|| {
                modules.push(Module {
                    name: part.module,
                    rows: part.rows,
                    runs: Vec::new(),
                });
                modules.len() - 1
            });
            for from in part.runs {
                let count = from.end - from.start;
                modules[at].runs.push(Run {
                    to,
                    from,
                    factor: part.factor,
                });
                to += count;
            }
        }
        Self {
            weight: weight.name,
            rows: to,
            columns: weight.columns,
            modules,
        }
    }
}

/// What a slot holds: an adapter, or several with factors. Its matrices are made when they are written to the device,
/// so that a request with factors of its own costs no memory.
pub struct SlotContent {
    /// Tells contents apart.
    pub digest: [u8; 32],
    matrices: Matrices,
}

/// Where the matrices of a content come from.
enum Matrices {
    /// Adapters of a model, each with a factor.
    Sum(Arc<AdapterLayout>, Vec<(Arc<Adapter>, f32)>),
    /// They are there.
    Given(Vec<Bytes>),
}

impl fmt::Debug for SlotContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotContent")
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

impl SlotContent {
    /// A content with these matrices, for models without arithmetic.
    #[doc(hidden)]
    pub fn given(digest: [u8; 32], matrices: Vec<Bytes>) -> Self {
        Self {
            digest,
            matrices: Matrices::Given(matrices),
        }
    }

    /// A and B of each matrix of the model, as whole rows of the plan's weights.
    pub(super) fn matrices(&self) -> Box<dyn Iterator<Item = Bytes> + '_> {
        match &self.matrices {
            Matrices::Given(matrices) => Box::new(matrices.iter().cloned()),
            Matrices::Sum(layout, parts) => {
                let targets = layout.targets.iter();
                Box::new(targets.flat_map(|target| target.fill(layout, parts)))
            }
        }
    }
}

impl AdapterLayout {
    /// The room in a model for adapters that change any of its matrices.
    pub(in crate::model) fn new(spec: &ModelSpec, room: AdapterRoom) -> Self {
        let targets = weights::adaptable(spec).into_iter().map(Target::new);
        Self {
            room,
            targets: targets.collect(),
            head_dim: spec.layers.first().map_or(0, |layer| layer.head_dim),
        }
    }

    /// The room.
    pub fn room(&self) -> &AdapterRoom {
        &self.room
    }

    /// Checks that an adapter is one of this model, and that it has room.
    pub fn check(&self, adapter: &Adapter) -> Result<(), LoadError> {
        let mut known: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
        for target in &self.targets {
            for module in &target.modules {
                known.insert(&module.name, (module.rows, target.columns));
            }
        }
        for (name, change) in &adapter.modules {
            let refused = |half: &str, message: String| LoadError::TensorRefused {
                file: adapter.file.clone(),
                tensor: format!("{name}.lora_{half}.weight"),
                message,
            };
            let Some((rows, columns)) = known.get(own_name(name)) else {
                return Err(refused("A", "adapts a module that the model lacks".into()));
            };
            if change.columns != *columns {
                let message = format!(
                    "has {} columns, but the model's matrix {columns}",
                    change.columns
                );
                return Err(refused("A", message));
            }
            if change.rows != *rows {
                let message = format!("has {} rows, but the model's matrix {rows}", change.rows);
                return Err(refused("B", message));
            }
            if change.rank > self.room.rank {
                let message = format!(
                    "has rank {}, but slots have room for {} (--max-lora-rank)",
                    change.rank, self.room.rank
                );
                return Err(refused("A", message));
            }
        }
        Ok(())
    }

    /// The content of a slot: the sum of adapters, each times a factor. They have been [checked](Self::check). `None`
    /// if their ranks exceed the slot's together.
    pub fn combine(self: &Arc<Self>, parts: &[(Arc<Adapter>, f32)]) -> Option<SlotContent> {
        let mut ranks: BTreeMap<&str, u32> = BTreeMap::new();
        let mut hasher = blake3::Hasher::new_derive_key("folio 2026 content of an adapter slot");
        for (adapter, factor) in parts {
            hasher.update(&adapter.digest).update(&factor.to_le_bytes());
            for (name, change) in &adapter.modules {
                *ranks.entry(own_name(name)).or_default() += change.rank;
            }
        }
        let fits = ranks.values().all(|rank| *rank <= self.room.rank);
        fits.then(|| SlotContent {
            digest: *hasher.finalize().as_bytes(),
            matrices: Matrices::Sum(self.clone(), parts.to_vec()),
        })
    }
}

impl Target {
    /// A and B of adapters, each times a factor.
    fn fill(&self, layout: &AdapterLayout, parts: &[(Arc<Adapter>, f32)]) -> [Bytes; 2] {
        let room = &layout.room;
        let (width, columns) = (self.width(room) as usize, self.columns as usize);
        let mut a = vec![0.0; width * columns];
        let mut b = vec![0.0; self.rows as usize * width];
        for (module, first) in self.modules.iter().zip((0..).step_by(room.rank as usize)) {
            let mut at: usize = first;
            for (adapter, factor) in parts {
                let Some(change) = adapter.change_of(&module.name) else {
                    continue;
                };
                let rank = change.rank as usize;
                a[at * columns..][..rank * columns].copy_from_slice(&change.a);
                module.fill_back(&mut b, (width, at), (change, *factor), layout.head_dim);
                at += rank;
            }
        }
        [a, b].map(|values| encode(room.format, &values))
    }
}

impl Module {
    /// Writes its rows of an adapter's B, times a factor, to the columns from `at` on of a matrix of this width.
    fn fill_back(
        &self,
        b: &mut [f32],
        (width, at): (usize, usize),
        (change, factor): (&LowRank, f32),
        head_dim: u32,
    ) {
        let rank = change.rank as usize;
        for run in &self.runs {
            for (to, from) in (run.to as usize..).zip(run.from.clone()) {
                let row = change.back_row(from as usize, head_dim as usize);
                let own = &mut b[to * width + at..][..rank];
                for (own, value) in own.iter_mut().zip(row) {
                    *own = value * factor * run.factor;
                }
            }
        }
    }
}

impl LowRank {
    /// A row of B, by its number in a checkpoint of the base, whose heads have `head_dim` rows.
    fn back_row(&self, row: usize, head_dim: usize) -> &[f32] {
        let stored = if self.is_interleaved {
            interleaved_row(row, head_dim)
        } else {
            row
        };
        let rank = self.rank as usize;
        &self.b[stored * rank..][..rank]
    }
}

impl Adapter {
    fn change_of(&self, module: &str) -> Option<&LowRank> {
        let mut modules = self.modules.iter();
        modules.find_map(|(name, change)| (own_name(name) == module).then_some(change))
    }

    /// The last words of the names of the modules that it changes, such as `q_proj`.
    pub fn targets(&self) -> BTreeSet<&str> {
        let names = self.modules.keys();
        names.filter_map(|name| name.rsplit('.').next()).collect()
    }
}

/// The name of a module from its layer on. Models within models of images and text put other words before it.
fn own_name(name: &str) -> &str {
    let is_of_text = !["visual", "vision", "audio"]
        .iter()
        .any(|word| name.contains(word));
    match name.find("layers.") {
        Some(at) if is_of_text => &name[at..],
        _ => name,
    }
}

fn encode(format: WeightFormat, values: &[f32]) -> Bytes {
    match format {
        WeightFormat::F16 => {
            let halves: Vec<u16> = values
                .iter()
                .map(|&value| f16::from_f32(value).to_bits())
                .collect();
            Bytes::copy_from_slice(bytemuck::cast_slice(&halves))
        }
        WeightFormat::Bf16 => {
            let halves: Vec<u16> = values
                .iter()
                .map(|&value| bf16::from_f32(value).to_bits())
                .collect();
            Bytes::copy_from_slice(bytemuck::cast_slice(&halves))
        }
        _ => Bytes::copy_from_slice(bytemuck::cast_slice(values)),
    }
}
