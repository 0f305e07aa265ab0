//! Layers whose rows see each other in both directions.

use super::buffers::Buffers;
use super::recorder::Recorder;
use crate::model::layer_weight::LayerWeight;
use crate::model::spec::LayerSpec;
use crate::plan::{AttendRows, BufferId, HeadNorm, RotateRows, Step, Window};

impl Recorder<'_> {
    /// Records attention of rows to each other: `x += output(attend(rotate(qkv(x))))`.
    pub(super) fn attention_of_rows(
        &mut self,
        steps: &mut Vec<Step>,
        buffers: &Buffers,
        (index, layer): (usize, &LayerSpec),
        x: BufferId,
    ) {
        let (query_heads, kv_heads, head_dim) =
            (self.spec.query_heads, layer.kv_heads, layer.head_dim);
        let qkv = self.project(steps, buffers, (index, layer), x);
        let columns = self.spec.query_columns(layer);
        let mut qk = qkv;
        if let Some(rope) = layer.rope.map(|rope| self.ropes[rope]) {
            qk = buffers.rotated[&(columns + layer.kv_columns())];
            let norms = self.norms_of_heads(index);
            steps.push(Step::RotateRows(RotateRows {
                qkv,
                query_heads,
                kv_heads,
                head_dim,
                norms,
                rope,
                out: qk,
            }));
        }
        let attended = buffers.attended[&columns];
        let attention = self.spec.attention;
        steps.push(Step::AttendRows(AttendRows {
            qk,
            v: qkv,
            query_heads,
            kv_heads,
            head_dim,
            scale: attention.scale,
            radius: layer.window.map(Window::tokens),
            alibi: self.slopes,
            out: attended,
        }));
        self.leave_attention(steps, buffers, index, attended);
    }

    /// The norms of q and k, if there are any.
    fn norms_of_heads(&mut self, index: usize) -> Option<[HeadNorm; 2]> {
        let q = self.head_norm(index, LayerWeight::QNorm)?;
        let k = self.head_norm(index, LayerWeight::KNorm)?;
        Some([q, k])
    }
}
