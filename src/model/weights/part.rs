//! A checkpoint tensor as a part of a weight.

use crate::model::tensor_names::Order;
use crate::plan::WeightFormat;
use crate::plan::format::GROUP;
use std::ops::Range;

/// A checkpoint tensor that is part of a weight.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::model) struct Part {
    pub(in crate::model) tensor: String,
    pub(in crate::model) shape: Vec<u64>,
    pub(super) order: Order,
    /// Rows of the tensor (elements of a vector) that the weight has, in its order; empty: all as they are.
    pub(super) runs: Vec<Range<u32>>,
    pub(super) change: Change,
}

/// What becomes of a tensor's elements when they are read. A matrix whose elements change becomes f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    None,
    /// They are multiplied by this.
    Times(f32),
    /// −exp(x), computed in f64.
    NegativeExponential,
}

impl Change {
    pub(super) fn times(factor: f32) -> Self {
        if factor == 1.0 {
            Self::None
        } else {
            Self::Times(factor)
        }
    }

    pub(super) fn apply(self, value: f32) -> f32 {
        match self {
            Self::None => value,
            Self::Times(factor) => value * factor,
            Self::NegativeExponential => -f64::from(value).exp() as f32,
        }
    }
}

impl Part {
    /// A whole tensor.
    pub(super) fn new(tensor: impl Into<String>, shape: &[u64]) -> Self {
        let (tensor, shape) = (tensor.into(), shape.to_vec());
        Self {
            tensor,
            shape,
            order: Order::Rows,
            runs: Vec::new(),
            change: Change::None,
        }
    }

    /// Rows of the weight from this tensor; elements if the weight is a vector.
    pub(super) fn rows(&self) -> u32 {
        if self.order == Order::HeadKeys {
            return self.runs.len() as u32
                * u32::try_from(self.shape[1]).expect("a dimension fits 32 bits");
        }
        if !self.runs.is_empty() {
            return self.runs.iter().map(|run| run.end - run.start).sum();
        }
        self.stored_rows()
    }

    /// The runs of rows that the weight has, in its order.
    pub(super) fn all_runs(&self) -> Vec<Range<u32>> {
        if self.runs.is_empty() {
            std::iter::once(0..self.stored_rows()).collect()
        } else {
            self.runs.clone()
        }
    }

    /// Repeats the first rows that the weight has of this tensor until there are so many more. Nothing reads them.
    pub(super) fn pad(&mut self, mut missing: u32) {
        let mut runs = self.all_runs();
        let first = runs[0].start;
        let rows = self.rows();
        while missing > 0 {
            let count = missing.min(rows);
            runs.push(first..first + count);
            missing -= count;
        }
        self.runs = runs;
    }

    /// Rows of this tensor; elements if the weight is a vector.
    pub(super) fn stored_rows(&self) -> u32 {
        let rows = match (self.order, &self.shape[..]) {
            (Order::Patches | Order::Merged(_), [rows, ..]) => *rows,
            (Order::Rows, []) => 1,
            (Order::Rows, [rows] | [rows, _]) => *rows,
            // A vector with more dimensions, such as the taps of a convolution.
            (Order::Rows, shape) => shape.iter().product(),
            (Order::Experts | Order::ExpertsInterleaved, [experts, rows, ..]) => experts * rows,
            (_, [experts, .., rows]) => experts * rows,
            _ => unreachable!("a tensor has a shape"),
        };
        u32::try_from(rows).expect("the rows of a weight fit 32 bits")
    }

    /// Elements per expert of a vector.
    pub(super) fn each(&self) -> u32 {
        let experts = if self.order == Order::Rows {
            1
        } else {
            self.shape[0]
        };
        u32::try_from(u64::from(self.stored_rows()) / experts)
            .expect("a part is smaller than the whole")
    }

    /// Elements per row; `None` if the weight is a vector.
    pub(super) fn columns(&self) -> Option<u32> {
        let columns = match (self.order, &self.shape[..]) {
            (Order::HeadKeys, _) => u64::from(self.runs[0].end - self.runs[0].start),
            (Order::Rows | Order::Merged(_), [_, columns])
            | (Order::Experts | Order::ExpertsInterleaved, [_, _, columns])
            | (Order::Transposed | Order::TransposedInterleaved, [_, columns, _]) => *columns,
            (Order::Patches, [_, patch @ ..]) => patch.iter().product::<u64>().next_multiple_of(8),
            _ => return None,
        };
        Some(u32::try_from(columns).expect("a dimension of the spec fits 32 bits"))
    }

    /// The format of the weight's rows. A matrix whose elements change or move becomes f32; the columns of a quantized
    /// matrix are no rows of its format, and become f16.
    pub(super) fn format(&self, stored: WeightFormat) -> WeightFormat {
        match self.order {
            Order::Merged(_) => WeightFormat::F32,
            _ if self.change != Change::None => WeightFormat::F32,
            Order::HeadKeys if stored.is_quantised() => WeightFormat::F16,
            _ => stored,
        }
    }

    /// Whether published checkpoints have this tensor in MXFP4: the experts' matrices of gpt-oss, which a checkpoint in
    /// 16 bits stores by columns.
    pub(in crate::model) fn is_published_in_mxfp4(&self) -> bool {
        let by_columns = matches!(self.order, Order::Transposed | Order::TransposedInterleaved);
        by_columns
            && self
                .columns()
                .is_some_and(|columns| columns.is_multiple_of(GROUP as u32))
    }

    /// The same tensor stored by rows: quantized checkpoints store all matrices by rows, others some by columns.
    pub(in crate::model) fn by_rows(mut self) -> Self {
        let order = match self.order {
            Order::Transposed => Order::Experts,
            Order::TransposedInterleaved => Order::ExpertsInterleaved,
            _ => return self,
        };
        if let [_, columns, rows] = &mut self.shape[..] {
            std::mem::swap(columns, rows);
            self.order = order;
        }
        self
    }
}
