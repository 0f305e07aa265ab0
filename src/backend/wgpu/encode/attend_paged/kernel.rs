//! The kernels of attention, with the constants that they are compiled with.

use super::super::super::device::Profile;
use super::super::super::matrices::Matrices;
use super::super::super::pipelines::Kernel;
use super::super::matmul::with_matrices;
use super::{ROWS_MAX, TILE_ROWS, is_serial, serial_lanes};
use crate::plan::{AttendPaged, KvFormat, Window};

/// Keys of a tile of `attend_paged_matrices`.
const TILE_KEYS: u32 = 64;

/// Options of the step that select kernel variants.
#[derive(Clone, Copy, Default)]
pub(super) struct AttendOptions {
    pub(super) softcap: bool,
    pub(super) alibi: bool,
    pub(super) sinks: bool,
    /// Windows are chunks.
    pub(super) chunks: bool,
}

impl AttendOptions {
    pub(super) fn of(step: &AttendPaged, window: Option<Window>) -> Self {
        Self {
            chunks: matches!(window, Some(Window::Chunk(_))),
            softcap: step.softcap.is_some(),
            alibi: step.alibi.is_some(),
            sinks: step.sinks.is_some(),
        }
    }
}

/// What a kernel of attention is compiled for.
#[derive(Clone, Copy)]
pub(super) struct AttendVariant {
    pub(super) options: AttendOptions,
    /// Elements of a key.
    pub(super) head_dim: u32,
    /// Maximum packed rows of an item: [`TILE_ROWS`], or a power of two up to [`ROWS_MAX`].
    pub(super) rows: u32,
    /// Format of the pool.
    pub(super) format: KvFormat,
}

impl AttendVariant {
    pub(super) fn kernel(&self, profile: &Profile) -> Kernel {
        let AttendOptions {
            softcap,
            alibi,
            sinks,
            chunks,
        } = self.options;
        let kernel = self
            .by_profile(profile)
            .number("HEAD_CHUNKS", self.runs())
            .define_if(softcap, "SOFTCAP")
            .define_if(alibi, "ALIBI")
            .define_if(sinks, "SINKS")
            .define_if(chunks, "CHUNKS");
        for_kv(kernel, self.format, profile)
    }

    /// The kernel for the device's class and tier, with its tile.
    fn by_profile(&self, profile: &Profile) -> Kernel {
        let is_tile = self.rows > ROWS_MAX;
        match profile.matrices() {
            _ if profile.texels => self.texel(),
            Some(matrices) if is_tile && self.format != KvFormat::F32 => self.matrices(matrices),
            _ if is_tile => self.prefill(),
            _ if is_serial(profile) => self.serial(serial_lanes(profile)),
            _ => self.decode(profile),
        }
    }

    /// Runs of 8 elements in a key.
    fn runs(&self) -> u32 {
        self.head_dim / 8
    }

    /// The same, padded to what kernels divide among 8 lanes or more.
    fn padded_runs(&self) -> u32 {
        self.runs().next_power_of_two().max(8)
    }

    /// `attend_paged_texel`: the more rows and runs per lane, the fewer keys at once, to limit registers.
    fn texel(&self) -> Kernel {
        let rows = self.rows;
        let lane_chunks = self.runs().div_ceil(8);
        debug_assert!(rows > 0 && lane_chunks > 0, "a lane has work");
        let keys = (64 / (rows * lane_chunks).next_power_of_two()).clamp(2, 8);
        Kernel::new("attend_paged_texel")
            .define("TEXELS")
            .define("SUBGROUPS")
            .number("ROWS", rows)
            .number("LANE_CHUNKS", lane_chunks)
            .number("KEYS", keys)
            .number("PAIRS", keys / 2)
            .number("QUADS", keys / 4)
            .number("OCTETS", keys / 8)
    }

    /// `attend_paged_matrices`: tiles by cooperative matrices.
    fn matrices(&self, matrices: Matrices) -> Kernel {
        let runs = self.padded_runs();
        let scores = matrices.grid(TILE_ROWS, TILE_KEYS);
        let results = matrices.grid(TILE_ROWS, 8 * runs);
        with_matrices(Kernel::new("attend_paged_matrices"), matrices)
            .number("HEAD_RUNS", runs)
            .number("VALUE_RUNS", runs / 8)
            .number("SUBGROUPS_COUNT", matrices.subgroups())
            .number("SCORES_ACROSS", scores.across)
            .number("SCORE_MATRICES_DOWN", scores.matrices_down)
            .number("SCORE_MATRICES_ACROSS", scores.matrices_across)
            .number("RESULTS_ACROSS", results.across)
            .number("RESULT_MATRICES_DOWN", results.matrices_down)
            .number("RESULT_MATRICES_ACROSS", results.matrices_across)
    }

    /// `attend_paged_prefill`: tiles.
    fn prefill(&self) -> Kernel {
        let runs = self.padded_runs();
        Kernel::new("attend_paged_prefill")
            .number("HEAD_RUNS", runs)
            .number("VECTORS_EACH", runs / 8)
    }

    /// `attend_paged_serial`: a subgroup of `lanes` lanes per item.
    fn serial(&self, lanes: u32) -> Kernel {
        Kernel::new("attend_paged_serial")
            .define("SUBGROUPS")
            .number("ROWS", self.rows)
            .number("LANES", lanes)
            .number("LANE_CHUNKS", self.runs().div_ceil(lanes))
    }

    /// `attend_paged_decode`: its lanes share keys by subgroups if one of any size holds the lanes of a key.
    fn decode(&self, profile: &Profile) -> Kernel {
        let rows = self.rows;
        debug_assert!(
            rows.is_power_of_two() && rows <= ROWS_MAX,
            "a lane has {ROWS_MAX} scores"
        );
        let lanes = self.padded_runs();
        Kernel::new("attend_paged_decode")
            .define_if(lanes <= profile.subgroup_size_min, "SUBGROUPS")
            .number("ROWS", rows)
            .number("KEYS", ROWS_MAX / rows)
            .number("LANES", lanes)
            .number("LANE_DOUBLINGS", (lanes / 8).ilog2())
    }
}

/// The kernel that joins partial results.
pub(super) fn merge_kernel(sinks: bool, head_dim: u32) -> Kernel {
    Kernel::new("attend_paged_merge")
        .number("HEAD_CHUNKS", head_dim / 8)
        .define_if(sinks, "SINKS")
}

/// `kernel` for a pool in `format`.
pub(in super::super) fn for_kv(kernel: Kernel, format: KvFormat, profile: &Profile) -> Kernel {
    match format {
        KvFormat::F32 => kernel,
        KvFormat::F16 => kernel
            .define("KV_F16")
            .define_if(!profile.half_conversion, "SOFT_HALF"),
        KvFormat::Q8 => kernel.define("KV_CODES"),
        KvFormat::Fp8 => kernel
            .define("KV_CODES")
            .define("KV_FP8")
            .define_if(!profile.half_conversion, "SOFT_HALF"),
    }
}
