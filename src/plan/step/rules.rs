//! Checks shared by several steps: matching sizes, and the limits of heads and experts.

use super::super::error::PlanErrorKind;
use super::super::format::{Storage, WeightFormat};
use super::super::operands::{BufferId, BufferSpec, KvLayer, Operands, Rows, WeightId, WeightSpec};

/// Maximum elements per head.
pub const HEAD_DIM_MAX: u32 = 512;
/// Maximum query heads per KV head.
pub const GROUP_SIZE_MAX: u32 = 16;
/// Maximum elements of a latent with its rotated part.
pub const LATENT_DIM_MAX: u32 = 576;
/// Maximum query heads that share a latent.
pub const LATENT_HEADS_MAX: u32 = 128;
/// Maximum experts per token.
pub const ROUTES_MAX: u32 = 32;
/// Maximum taps of a short convolution.
pub const TAPS_MAX: u32 = 8;
/// Maximum keys of a head of a recurrent state, and maximum values.
pub const STATE_DIM_MAX: u32 = 256;

/// Fails unless two sizes are equal.
pub(super) fn same(
    what: impl FnOnce() -> String,
    found: u32,
    expected: u32,
) -> Result<(), PlanErrorKind> {
    if found == expected {
        return Ok(());
    }
    Err(PlanErrorKind::SizeMismatch {
        what: what(),
        found: u64::from(found),
        expected: u64::from(expected),
    })
}

/// Fails unless a column is the first of a run of 8, or a number of columns consists of such runs.
pub(super) fn whole_runs(what: &str, columns: u32) -> Result<(), PlanErrorKind> {
    if columns.is_multiple_of(8) {
        return Ok(());
    }
    let (what, found) = (what.into(), columns.to_string());
    Err(PlanErrorKind::Unsupported {
        what,
        found,
        expected: "a multiple of 8",
    })
}

/// Fails if there is a cap that is not positive.
pub(super) fn positive_softcap(softcap: Option<f32>) -> Result<(), PlanErrorKind> {
    match softcap {
        Some(cap) if !(cap.is_finite() && cap > 0.0) => {
            let (what, found) = ("softcap".into(), cap.to_string());
            Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "a positive number",
            })
        }
        _ => Ok(()),
    }
}

impl<'a> Operands<'a> {
    /// The spec of a buffer that is known to exist.
    pub(super) fn known_buffer(&self, id: BufferId) -> &'a BufferSpec {
        self.buffer(id).expect("ids are checked before shapes")
    }

    /// The spec of a weight that is known to exist.
    pub(super) fn known_weight(&self, id: WeightId) -> &'a WeightSpec {
        self.weight(id).expect("ids are checked before shapes")
    }

    /// Fails unless the buffer is `rows × columns`.
    pub(super) fn check_buffer(
        &self,
        id: BufferId,
        rows: Rows,
        columns: u32,
    ) -> Result<(), PlanErrorKind> {
        let buffer = self.known_buffer(id);
        if buffer.rows != rows {
            let (name, found) = (buffer.name.into(), buffer.rows);
            return Err(PlanErrorKind::RowsMismatch {
                name,
                found,
                expected: rows,
            });
        }
        same(
            || format!("columns of {}", buffer.name),
            buffer.columns,
            columns,
        )
    }

    /// Fails unless rows of the buffer have `columns` columns from column `first` on.
    pub(super) fn check_columns(
        &self,
        id: BufferId,
        rows: Rows,
        first: u32,
        columns: u32,
    ) -> Result<(), PlanErrorKind> {
        let BufferSpec {
            name,
            columns: whole,
            ..
        } = *self.known_buffer(id);
        self.check_buffer(id, rows, whole)?;
        if first.checked_add(columns).is_some_and(|end| end <= whole) {
            return Ok(());
        }
        let (what, found) = (
            format!("columns of {name}"),
            format!("{columns} from {first} on, of {whole}"),
        );
        Err(PlanErrorKind::Unsupported {
            what,
            found,
            expected: "columns within the row",
        })
    }

    /// Fails unless the state layer, which is known to exist, has so many elements.
    pub(super) fn check_state(&self, layer: u32, elements: u32) -> Result<(), PlanErrorKind> {
        let found = self.state_layers[layer as usize].elements;
        same(
            || format!("elements of state layer {layer}"),
            found,
            elements,
        )
    }

    /// Fails unless the elements of the buffer are f32.
    pub(super) fn check_f32(&self, id: BufferId) -> Result<(), PlanErrorKind> {
        match self.known_buffer(id) {
            BufferSpec {
                storage: Storage::F32,
                ..
            } => Ok(()),
            BufferSpec { name, storage, .. } => {
                let (what, found) = ((*name).into(), storage.to_string());
                Err(PlanErrorKind::Unsupported {
                    what,
                    found,
                    expected: "f32",
                })
            }
        }
    }

    /// Fails unless the weight is `rows × columns`.
    pub(super) fn check_weight(
        &self,
        id: WeightId,
        rows: u32,
        columns: u32,
    ) -> Result<(), PlanErrorKind> {
        let weight = self.known_weight(id);
        same(|| format!("rows of {}", weight.name), weight.rows, rows)?;
        same(
            || format!("columns of {}", weight.name),
            weight.columns,
            columns,
        )
    }

    /// Fails unless the weight is an f32 vector of this length.
    pub(super) fn check_f32_vector(&self, id: WeightId, columns: u32) -> Result<(), PlanErrorKind> {
        self.check_weight(id, 1, columns)?;
        let weight = self.known_weight(id);
        match weight.format_of(0) {
            WeightFormat::F32 => Ok(()),
            other => {
                let (what, found) = (weight.name.clone(), other.to_string());
                Err(PlanErrorKind::Unsupported {
                    what,
                    found,
                    expected: "f32",
                })
            }
        }
    }

    /// The layer, if this number of query heads can share its KV heads.
    pub(super) fn check_heads(
        &self,
        layer: u32,
        query_heads: u32,
    ) -> Result<KvLayer, PlanErrorKind> {
        let kv = self.kv_layers[layer as usize];
        let (groups, rest) = (query_heads / kv.heads.max(1), query_heads % kv.heads.max(1));
        let groups_max = if kv.latent {
            LATENT_HEADS_MAX
        } else {
            GROUP_SIZE_MAX
        };
        if groups == 0 || rest != 0 || groups > groups_max {
            let found = format!("{query_heads} over {} KV heads", kv.heads);
            let expected = "1 to 16 query heads for each KV head, or up to 128 for a latent";
            return Err(PlanErrorKind::Unsupported {
                what: "query_heads".into(),
                found,
                expected,
            });
        }
        Ok(kv)
    }

    /// Routes per token of a buffer of routes to `experts` experts.
    pub(super) fn routes_per_token(
        &self,
        routes: BufferId,
        experts: u32,
    ) -> Result<u32, PlanErrorKind> {
        let BufferSpec { name, rows, .. } = self.known_buffer(routes);
        match *rows {
            Rows::Routes(per_token) if (1..=experts.min(ROUTES_MAX)).contains(&per_token) => {
                Ok(per_token)
            }
            rows => {
                let (what, found) = (
                    format!("rows of {name}"),
                    format!("{rows} to {experts} experts"),
                );
                let expected = "1 to 32 routes a token, each to another expert";
                Err(PlanErrorKind::Unsupported {
                    what,
                    found,
                    expected,
                })
            }
        }
    }
}
