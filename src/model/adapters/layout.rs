//! Where a model has room for adapters, and what a slot holds of an adapter.

use super::{Adapter, AdapterRoom};
use crate::model::error::LoadError;
use crate::model::spec::ModelSpec;
use crate::model::weights::{self, Adaptable};
use crate::plan::WeightFormat;
use bytes::Bytes;
use half::{bf16, f16};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

/// The matrices of a model that adapters may change.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterLayout {
    pub(super) room: AdapterRoom,
    pub(super) targets: Vec<Target>,
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

/// What a slot holds of an adapter, or of several with factors.
pub struct SlotContent {
    /// Tells contents apart.
    pub digest: [u8; 32],
    /// A and B of each target, as whole rows of the plan's weights.
    pub(super) matrices: Vec<[Bytes; 2]>,
}

impl fmt::Debug for SlotContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotContent")
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

impl SlotContent {
    /// A content without matrices, for models that have none.
    #[doc(hidden)]
    pub fn empty(digest: [u8; 32]) -> Self {
        Self {
            digest,
            matrices: Vec::new(),
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
    pub fn fill(&self, adapters: &[(&Adapter, f32)]) -> Option<SlotContent> {
        let mut hasher = blake3::Hasher::new_derive_key("folio 2026 content of an adapter slot");
        for (adapter, factor) in adapters {
            hasher.update(&adapter.digest).update(&factor.to_le_bytes());
        }
        let matrices = self
            .targets
            .iter()
            .map(|target| self.fill_target(target, adapters));
        Some(SlotContent {
            digest: *hasher.finalize().as_bytes(),
            matrices: matrices.collect::<Option<_>>()?,
        })
    }

    fn fill_target(&self, target: &Target, adapters: &[(&Adapter, f32)]) -> Option<[Bytes; 2]> {
        let width = target.width(&self.room) as usize;
        let columns = target.columns as usize;
        let mut a = vec![0.0; width * columns];
        let mut b = vec![0.0; target.rows as usize * width];
        for (module, at) in target
            .modules
            .iter()
            .zip((0..).step_by(self.room.rank as usize))
        {
            let mut next: usize = at;
            for (adapter, factor) in adapters {
                let Some(change) = adapter.change_of(&module.name) else {
                    continue;
                };
                let rank = change.rank as usize;
                if next + rank > at + self.room.rank as usize {
                    return None;
                }
                a[next * columns..][..rank * columns].copy_from_slice(&change.a);
                for run in &module.runs {
                    for (to, from) in (run.to as usize..).zip(run.from.clone()) {
                        let row = &change.b[from as usize * rank..][..rank];
                        let own = &mut b[to * width + next..][..rank];
                        for (own, value) in own.iter_mut().zip(row) {
                            *own = value * factor * run.factor;
                        }
                    }
                }
                next += rank;
            }
        }
        Some([a, b].map(|values| encode(self.room.format, &values)))
    }
}

impl Adapter {
    fn change_of(&self, module: &str) -> Option<&super::file::LowRank> {
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
