use folio::backend::cpu::CpuBackend;
use folio::backend::wgpu::*;
use folio::backend::*;
use folio::plan::inputs::*;
use folio::plan::*;
use std::sync::Arc;

fn capacity(det: bool) -> Capacity {
    Capacity {
        tokens_max: 80,
        sequences_max: 8,
        samples_max: 80,
        feed_slots: 16,
        table_entries_max: 64,
        history_max: 16,
        bias_max: 16,
        mask_words_max: 64,
        copies_max: 8,
        block_size: 16,
        kv_format: KvFormat::F16,
        deterministic: det,
    }
}
struct Rng(u64);
impl Rng {
    fn f(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 40) as f32 / (1u64 << 24) as f32) * 2.0 - 1.0
    }
}

fn encode(format: WeightFormat, v: &[f32]) -> Vec<u8> {
    v.iter()
        .flat_map(|x| match format {
            WeightFormat::F32 => x.to_le_bytes().to_vec(),
            WeightFormat::F16 => half::f16::from_f32(*x).to_le_bytes().to_vec(),
            WeightFormat::Bf16 => half::bf16::from_f32(*x).to_le_bytes().to_vec(),
        })
        .collect()
}

fn run<B: Inspect>(b: &mut B, plan: &Arc<Plan>, cap: &Capacity, rows: u32, out: BufferId, seed: u64) -> Vec<f32> {
    let mut r = Rng(seed);
    b.load(plan.clone(), cap).unwrap();
    for (i, w) in plan.weights.iter().enumerate() {
        let v: Vec<f32> = (0..w.rows * w.columns).map(|_| r.f()).collect();
        b.write_weight(WeightId(i as u32), 0, encode(w.format, &v).into()).unwrap();
    }
    b.allocate_pool(&vec![8; plan.kv_groups.len()]).unwrap();
    for (i, s) in plan.buffers.iter().enumerate() {
        let n = if s.rows == Rows::Samples { rows } else { rows };
        let v: Vec<f32> = (0..n * s.columns).map(|_| r.f() * 2.0).collect();
        b.write_buffer(BufferId(i as u32), &v).unwrap();
    }
    b.write_feed(&(0..16).map(|i| i * 3).collect::<Vec<_>>()).unwrap();
    let inputs = BatchInputs {
        token_ids: (0..rows).map(|i| if i % 3 == 2 { FEED | (i % 16) } else { (i * 7) % plan.vocab }).collect(),
        positions: (0..rows).collect(),
        sequences: vec![SequenceRows { row_start: 0, row_count: rows, context_len: rows }],
        groups: plan
            .kv_groups
            .iter()
            .map(|_| GroupInputs {
                block_tables: vec![NONE; 8],
                table_starts: vec![0],
                slot_mapping: vec![NONE; rows as usize],
                copies: vec![(1, 2), (3, 5)],
            })
            .collect(),
        logits_rows: (0..rows).rev().collect(),
        ..Default::default()
    };
    let t = b.submit(&inputs).unwrap();
    pollster::block_on(b.read(t)).unwrap();
    pollster::block_on(b.read_buffer(out, rows)).unwrap()
}

fn compare(name: &str, plan: Plan, out: BufferId, rows: u32, tol: f32, options: &WgpuOptions, det: bool) {
    let plan = Arc::new(plan);
    let mut cap = capacity(det);
    if options.binding_bytes_max.is_some() {
        cap.tokens_max = rows;
    }
    let want = run(&mut CpuBackend::new(), &plan, &cap, rows, out, 7);
    let mut gpu = pollster::block_on(WgpuBackend::open(options)).unwrap();
    let got = run(&mut gpu, &plan, &cap, rows, out, 7);
    let worst = want
        .iter()
        .zip(&got)
        .map(|(a, b)| (a - b).abs() / a.abs().max(1.0))
        .fold(0.0f32, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) });
    println!("{name} rows {rows}: {worst:e}");
    assert!(worst < tol && want.len() == got.len());
}

#[test]
fn dense() {
    for a in WgpuBackend::adapters() {
        println!("{a:?}");
    }
    for class in [Class::Software, Class::Discrete] {
        for tier in [Tier::T0, Tier::T1] {
            for limit in [None, Some(20000u64)] {
                let options = WgpuOptions {
                    adapter: Some(0),
                    class: Some(class),
                    tier: Some(tier),
                    binding_bytes_max: limit,
                    ..Default::default()
                };
                println!("{class:?} {tier:?} {limit:?}");
                for rows in [1, 2, 3, 7, 13, 17, 33, 70] {
                    for (format, cols, outs) in
                        [(WeightFormat::F32, 40, 33), (WeightFormat::F16, 264, 70), (WeightFormat::Bf16, 1032, 70)]
                    {
                        for bias in [false, true] {
                            if limit.is_some() && rows > 17 {
                                continue;
                            }
                            let mut p = Plan { vocab: 50, ..Default::default() };
                            let x = p.buffer("x", Rows::Tokens, cols, Storage::F32);
                            let out = p.buffer("out", Rows::Tokens, outs, Storage::F32);
                            if limit.is_some() && cols == 1032 && rows > 3 {
                                continue;
                            }
                            let w = p.weight("w", outs, cols, format);
                            let b = bias.then(|| p.weight("b", 1, outs, WeightFormat::Bf16));
                            p.body.push(Step::MatMul { x, weight: w, bias: b, accumulate: bias, out });
                            compare(
                                &format!("matmul {format:?} {cols}x{outs}"),
                                p,
                                out,
                                rows,
                                1e-4,
                                &options,
                                rows == 13,
                            );
                        }
                    }
                }
                for rows in [1, 5, 70] {
                    if limit.is_some() && rows > 5 {
                        continue;
                    }
                    let mut p = Plan { vocab: 50, ..Default::default() };
                    let out = p.buffer("out", Rows::Tokens, 72, Storage::F32);
                    let t = p.weight("t", 50, 72, WeightFormat::Bf16);
                    p.body.push(Step::Embed { table: t, scale: 1.5, out });
                    compare("embed", p, out, rows, 1e-6, &options, false);
                    for delta in [false, true] {
                        let mut p = Plan { vocab: 50, ..Default::default() };
                        let x = p.buffer("x", Rows::Tokens, 72, Storage::F32);
                        let d = p.buffer("d", Rows::Tokens, 72, Storage::F32);
                        let out = p.buffer("out", Rows::Tokens, 72, Storage::F32);
                        let w = p.weight("t", 1, 72, WeightFormat::Bf16);
                        p.body.push(Step::RmsNorm {
                            x,
                            delta: delta.then_some(d),
                            weight: w,
                            epsilon: 1e-5,
                            one_plus: delta,
                            out,
                        });
                        compare("norm", p.clone(), out, rows, 1e-5, &options, false);
                        compare("norm x", p, x, rows, 1e-5, &options, false);
                    }
                    for act in
                        [Activation::Silu, Activation::GeluTanh, Activation::ClampedSwiglu { alpha: 1.7, limit: 1.0 }]
                    {
                        let mut p = Plan { vocab: 50, ..Default::default() };
                        let g = p.buffer("x", Rows::Tokens, 88, Storage::F32);
                        let out = p.buffer("out", Rows::Tokens, 44, Storage::F32);
                        p.body.push(Step::GatedActivation { gate_up: g, activation: act, out });
                        compare("gated", p, out, rows, 1e-5, &options, false);
                    }
                    let mut p = Plan { vocab: 50, ..Default::default() };
                    let x = p.buffer("x", Rows::Tokens, 88, Storage::F32);
                    let out = p.buffer("out", Rows::Samples, 88, Storage::F32);
                    p.body.push(Step::GatherRows { x, out });
                    compare("gather", p, out, rows, 1e-9, &options, false);
                }
            }
        }
    }
}
