//! cuBLASLt for products of many rows with bfloat16 weights: a table of its functions, and one plan per shape.
//!
//! The library's heuristics propose algorithms. At start they are timed once on the model's own weights, and the
//! fastest is kept, also for later starts ([`super::choices`]). cuBLASLt is column-major: `out` ([rows × outputs],
//! row-major) is an outputs × rows matrix to it, the transposed weight times the transposed rows.

use super::super::BackendError;
use super::library::{self, Opened, Places};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;

/// `out (=, +=) x · weightᵀ`, x and weight in bfloat16.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Product {
    /// `[rows × columns]`.
    pub(super) x: u64,
    /// `[outputs × columns]`.
    pub(super) weight: u64,
    /// `[rows × stride]`; only the first `outputs` columns are written.
    pub(super) out: u64,
    pub(super) shape: ProductShape,
}

/// The key of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ProductShape {
    pub(super) rows: u32,
    pub(super) outputs: u32,
    pub(super) columns: u32,
    /// Elements from one row of `out` to the next.
    pub(super) stride: u32,
    /// `out` is f32, else bfloat16.
    pub(super) wide: bool,
    /// Add to `out` instead of replacing it.
    pub(super) accumulate: bool,
}

type Handle = *mut c_void;
type Status = c_int;
type Algorithm = [u64; 8];

/// Same layout as `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Proposal {
    algorithm: Algorithm,
    workspace_bytes: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

impl Proposal {
    const NONE: Self = Self {
        algorithm: [0; 8],
        workspace_bytes: 0,
        state: 0,
        waves: 0.0,
        reserved: [0; 4],
    };
}

const COMPUTE_F32: c_int = 68;
const TYPE_F32: c_int = 0;
const TYPE_BF16: c_int = 14;
const DESC_TRANSPOSE_A: c_int = 3;
const OP_TRANSPOSE: c_int = 1;
const PREFERENCE_WORKSPACE: c_int = 1;
const PROPOSALS_MAX: usize = 8;
/// Workspace that any algorithm may use, in bytes: NVIDIA's recommendation for Hopper.
pub(super) const WORKSPACE_BYTES: u64 = 32 << 20;

type Matmul = unsafe extern "C" fn(
    Handle,
    Handle,
    *const c_void,
    u64,
    Handle,
    u64,
    Handle,
    *const c_void,
    u64,
    Handle,
    u64,
    Handle,
    *const Algorithm,
    u64,
    usize,
    *mut c_void,
) -> Status;
type Heuristic = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    c_int,
    *mut Proposal,
    *mut c_int,
) -> Status;
type SetAttribute = unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> Status;

/// The functions, as `cublasLt.h` declares them.
struct Table {
    create: unsafe extern "C" fn(*mut Handle) -> Status,
    destroy: unsafe extern "C" fn(Handle) -> Status,
    version: unsafe extern "C" fn() -> usize,
    desc_create: unsafe extern "C" fn(*mut Handle, c_int, c_int) -> Status,
    desc_set: SetAttribute,
    desc_destroy: unsafe extern "C" fn(Handle) -> Status,
    layout_create: unsafe extern "C" fn(*mut Handle, c_int, u64, u64, i64) -> Status,
    layout_destroy: unsafe extern "C" fn(Handle) -> Status,
    preference_create: unsafe extern "C" fn(*mut Handle) -> Status,
    preference_set: SetAttribute,
    preference_destroy: unsafe extern "C" fn(Handle) -> Status,
    heuristic: Heuristic,
    matmul: Matmul,
    _library: Opened,
}

impl Table {
    fn load(library: Opened) -> Result<Self, String> {
        Ok(Self {
            create: library.function("cublasLtCreate")?,
            destroy: library.function("cublasLtDestroy")?,
            version: library.function("cublasLtGetVersion")?,
            desc_create: library.function("cublasLtMatmulDescCreate")?,
            desc_set: library.function("cublasLtMatmulDescSetAttribute")?,
            desc_destroy: library.function("cublasLtMatmulDescDestroy")?,
            layout_create: library.function("cublasLtMatrixLayoutCreate")?,
            layout_destroy: library.function("cublasLtMatrixLayoutDestroy")?,
            preference_create: library.function("cublasLtMatmulPreferenceCreate")?,
            preference_set: library.function("cublasLtMatmulPreferenceSetAttribute")?,
            preference_destroy: library.function("cublasLtMatmulPreferenceDestroy")?,
            heuristic: library.function("cublasLtMatmulAlgoGetHeuristic")?,
            matmul: library.function("cublasLtMatmul")?,
            _library: library,
        })
    }
}

/// Descriptors and algorithm for one shape.
struct Plan {
    desc: Handle,
    weight: Handle,
    x: Handle,
    out: Handle,
    proposals: Vec<Proposal>,
    chosen: usize,
}

/// An open cuBLASLt handle for the device that was current when it was opened.
pub(super) struct Blas {
    table: Table,
    handle: Handle,
    workspace: u64,
    plans: HashMap<ProductShape, Plan>,
}

fn check(what: &str, status: Status) -> Result<(), BackendError> {
    match status {
        0 => Ok(()),
        status => Err(BackendError::Validation(format!(
            "cuBLASLt: {what} failed with status {status}"
        ))),
    }
}

impl Blas {
    /// Opens the best cuBLASLt on this machine whose major version is at most `major_max`. The context must be
    /// current, and `workspace` must be [`WORKSPACE_BYTES`] of its memory.
    #[allow(unsafe_code, reason = "foreign calls")]
    pub(super) fn find(major_max: u32, workspace: u64) -> Result<Self, String> {
        let candidates = Places::here().candidates("cublasLt", major_max);
        let mut faults = Vec::new();
        for candidate in candidates {
            let opened = library::open(&candidate.path, &[])
                .and_then(Table::load)
                .and_then(|table| {
                    let mut handle = ptr::null_mut();
                    // SAFETY: writes a handle; the context is current.
                    match unsafe { (table.create)(&raw mut handle) } {
                        0 => Ok(Self {
                            table,
                            handle,
                            workspace,
                            plans: HashMap::new(),
                        }),
                        status => Err(format!("cublasLtCreate failed with status {status}")),
                    }
                });
            match opened {
                Ok(blas) => return Ok(blas),
                Err(fault) => faults.push(format!("{}: {fault}", candidate.path.display())),
            }
        }
        Err(if faults.is_empty() {
            format!("no cuBLASLt up to version {major_max} was found")
        } else {
            faults.join("; ")
        })
    }

    /// Version in NVIDIA's numbering: 130002 is 13.0.2.
    #[allow(unsafe_code, reason = "a foreign call")]
    pub(super) fn version(&self) -> usize {
        // SAFETY: takes nothing.
        unsafe { (self.table.version)() }
    }

    /// Whether a plan exists for this shape.
    pub(super) fn is_prepared(&self, shape: ProductShape) -> bool {
        self.plans.contains_key(&shape)
    }

    /// Creates the plan for a shape, unless it exists; returns the number of algorithms to choose from.
    pub(super) fn prepare(&mut self, shape: ProductShape) -> Result<usize, BackendError> {
        if !self.plans.contains_key(&shape) {
            let plan = self.plan(shape)?;
            self.plans.insert(shape, plan);
        }
        Ok(self.plans[&shape].proposals.len())
    }

    /// Sets the algorithm to use for a shape.
    pub(super) fn choose(&mut self, shape: ProductShape, chosen: usize) {
        if let Some(plan) = self.plans.get_mut(&shape) {
            plan.chosen = chosen.min(plan.proposals.len() - 1);
        }
    }

    /// Destroys the plan for a shape.
    pub(super) fn forget(&mut self, shape: ProductShape) {
        if let Some(plan) = self.plans.remove(&shape) {
            self.destroy(&plan);
        }
    }

    #[allow(unsafe_code, reason = "foreign calls")]
    fn destroy(&self, plan: &Plan) {
        // SAFETY: every handle was made by this table and is destroyed once.
        unsafe {
            (self.table.desc_destroy)(plan.desc);
            for layout in [plan.weight, plan.x, plan.out] {
                (self.table.layout_destroy)(layout);
            }
        }
    }

    /// Asks for algorithms for products of a shape.
    fn plan(&self, shape: ProductShape) -> Result<Plan, BackendError> {
        let [rows, outputs, columns] = [shape.rows, shape.outputs, shape.columns].map(u64::from);
        let out_type = if shape.wide { TYPE_F32 } else { TYPE_BF16 };
        // A failure part-way leaks a few descriptors, at most once per shape.
        let weight = self.layout(TYPE_BF16, columns, outputs, shape.columns)?;
        let x = self.layout(TYPE_BF16, columns, rows, shape.columns)?;
        let out = self.layout(out_type, outputs, rows, shape.stride)?;
        let desc = self.description()?;
        let proposals = self.proposals(desc, [weight, x, out])?;
        if proposals.is_empty() {
            return Err(BackendError::Validation(format!(
                "cuBLASLt has no algorithm for {shape:?}"
            )));
        }
        Ok(Plan {
            desc,
            weight,
            x,
            out,
            proposals,
            chosen: 0,
        })
    }

    /// Describes a matrix in column order, with `stride` elements from one column to the next.
    #[allow(unsafe_code, reason = "a foreign call")]
    fn layout(
        &self,
        kind: c_int,
        rows: u64,
        columns: u64,
        stride: u32,
    ) -> Result<Handle, BackendError> {
        let mut layout = ptr::null_mut();
        // SAFETY: writes a handle.
        let status = unsafe {
            (self.table.layout_create)(&raw mut layout, kind, rows, columns, i64::from(stride))
        };
        check("a layout", status).map(|()| layout)
    }

    /// Describes the product, of a transposed weight.
    #[allow(unsafe_code, reason = "foreign calls")]
    fn description(&self) -> Result<Handle, BackendError> {
        let mut desc = ptr::null_mut();
        let transpose = OP_TRANSPOSE;
        // SAFETY: writes a handle, of which the attribute is set with its size.
        unsafe {
            let status = (self.table.desc_create)(&raw mut desc, COMPUTE_F32, TYPE_F32);
            check("a description", status)?;
            let status = (self.table.desc_set)(
                desc,
                DESC_TRANSPOSE_A,
                (&raw const transpose).cast(),
                size_of::<c_int>(),
            );
            check("an attribute", status)?;
        }
        Ok(desc)
    }

    /// The algorithms that can be used, the best one by a heuristic first.
    #[allow(unsafe_code, reason = "foreign calls")]
    fn proposals(
        &self,
        desc: Handle,
        [weight, x, out]: [Handle; 3],
    ) -> Result<Vec<Proposal>, BackendError> {
        let (table, bytes) = (&self.table, WORKSPACE_BYTES as usize);
        let mut preference = ptr::null_mut();
        let mut proposals = [Proposal::NONE; PROPOSALS_MAX];
        let mut found: c_int = 0;
        // SAFETY: the handles are valid; the preference is passed with its size; the heuristic writes at most as many
        // proposals as there is room for.
        unsafe {
            let status = (table.preference_create)(&raw mut preference);
            check("a preference", status)?;
            let status = (table.preference_set)(
                preference,
                PREFERENCE_WORKSPACE,
                (&raw const bytes).cast(),
                size_of::<usize>(),
            );
            check("a preference", status)?;
            let status = (table.heuristic)(
                self.handle,
                desc,
                weight,
                x,
                out,
                out,
                preference,
                PROPOSALS_MAX as c_int,
                proposals.as_mut_ptr(),
                &raw mut found,
            );
            (table.preference_destroy)(preference);
            check("the choice of an algorithm", status)?;
        }
        let found = usize::try_from(found).unwrap_or(0);
        let found = proposals.into_iter().take(found);
        Ok(found.filter(|proposal| proposal.state == 0).collect())
    }

    /// Enqueues a product whose shape has been prepared.
    #[allow(unsafe_code, reason = "a foreign call")]
    pub(super) fn run(&self, product: &Product, stream: *mut c_void) -> Result<(), BackendError> {
        let plan = self.plans.get(&product.shape);
        let plan = plan.ok_or_else(|| {
            BackendError::Validation(format!("{:?} was not prepared", product.shape))
        })?;
        let proposal = &plan.proposals[plan.chosen];
        let (one, beta) = (
            1.0f32,
            if product.shape.accumulate {
                1.0f32
            } else {
                0.0
            },
        );
        let out = product.out;
        // SAFETY: the plan's descriptors are alive; the addresses are device memory of at least the shape's size, and
        // the workspace has the size given in the preference.
        let status = unsafe {
            (self.table.matmul)(
                self.handle,
                plan.desc,
                (&raw const one).cast(),
                product.weight,
                plan.weight,
                product.x,
                plan.x,
                (&raw const beta).cast(),
                out,
                plan.out,
                out,
                plan.out,
                &raw const proposal.algorithm,
                self.workspace,
                WORKSPACE_BYTES as usize,
                stream,
            )
        };
        check("a product", status)
    }
}

impl Drop for Blas {
    #[allow(unsafe_code, reason = "foreign calls")]
    fn drop(&mut self) {
        self.plans.values().for_each(|plan| self.destroy(plan));
        // SAFETY: made by this table and destroyed once, after its plans.
        unsafe { (self.table.destroy)(self.handle) };
    }
}

#[cfg(test)]
mod tests;
