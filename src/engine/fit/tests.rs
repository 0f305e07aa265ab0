//! Tests of fit.

use super::*;
use crate::backend::{Allocation, DeviceKind};
use crate::model::{Model, ModelSpec};
use crate::plan::Storage;

/// Hidden 64, 2 layers, 4 query and 2 KV heads of 16, MLP 128, vocabulary 256; tied embeddings.
pub(super) const SHAPE: &str = "64x2x4x2x16x128x256";
/// Per layer (64·64 + 2·32·64 + 64·64 + 3·128·64) · 2 bytes of matrices and (2·64 + 2·16) · 4 of norms; the table
/// 256·64·2; the last norm 64·4; 8 rotary frequencies.
pub(super) const WEIGHT_BYTES: u64 = 2 * (36_864 * 2 + 640) + 32_768 + 256 + 32;
/// 512 rows of x, normed, qkv, q, attended, gate_up, activated; 64 of sampled, sampled_normed, logits.
pub(super) const ACTIVATION_BYTES: u64 =
    4 * (512 * (64 + 64 + 128 + 64 + 64 + 256 + 128) + (64 + 32) * (64 + 64 + 256));
/// 2 layers of K and V, 2 heads, 32 slots of 16 halves.
pub(super) const BLOCK_BYTES: u64 = 2 * 2 * 2 * 32 * 16 * 2;

pub(super) fn config() -> Config {
    Config {
        gpu_memory_utilization: 0.5,
        max_model_len: Some(1024),
        ..Config::default()
    }
}

pub(super) fn gpu(memory: Option<u64>) -> Caps {
    Caps {
        name: "gpu".into(),
        api: "test",
        kind: DeviceKind::Discrete,
        tier: String::new(),
        activations: Storage::F32,
        int8_activations: false,
        half_products: false,
        binding_bytes_max: 1 << 31,
        memory_bytes: memory,
        memory_source: "",
        machine_bytes: None,
        allocation: Allocation::default(),
    }
}

fn report_for(config: &Config, caps: &Caps) -> FitReport {
    let model = Model::random(ModelSpec::named(SHAPE).expect("a shape"), 0);
    FitReport::new(
        &model,
        &model.record(caps.activations),
        Beside::default(),
        config,
        caps,
    )
}

#[test]
fn sizes_are_those_of_a_calculation_by_hand() {
    // The pool gets half the memory minus 181 792 bytes of weights and 1 720 320 of activations, in blocks of 8192
    // bytes. Two blocks are spare; a sequence of 1024 tokens takes 32.
    let check = |memory: u64, blocks: u32, context: u32, sequences: u32| {
        let fit = report_for(&config(), &gpu(Some(memory))).requested;
        assert_eq!(
            (fit.weight_bytes, fit.activation_bytes),
            (WEIGHT_BYTES, ACTIVATION_BYTES)
        );
        assert_eq!(fit.budget_bytes, Some(memory / 2));
        assert_eq!(
            (&fit.blocks[..], fit.kv_bytes),
            (&[blocks][..], u64::from(blocks) * BLOCK_BYTES),
            "{memory}"
        );
        assert_eq!(
            (fit.max_model_len, fit.sequences),
            (context, sequences),
            "{memory}"
        );
        assert_eq!((fit.fits(), fit.is_full()), (context > 0, context == 1024));
        assert_eq!(fit.kv_full_bytes, 34 * BLOCK_BYTES);
        assert_eq!(fit.kv_token_bytes * 32, BLOCK_BYTES);
    };
    // The pool is capped at twice what 64 sequences of 32 blocks take.
    check(100_000_000, 2 * 64 * 32 + 2, 1024, 64);
    check(10_098_304, 384, 1024, 11);
    check(4_098_304, 17, 480, 1);
    check(3_848_304, 2, 0, 0);
    check(1_000, 0, 0, 0);
}

#[test]
fn what_a_token_reads_is_what_its_speed_follows_from() {
    let fit = report_for(&config(), &gpu(Some(10_098_304))).requested;
    let kv = 512 * BLOCK_BYTES / 32;
    // The embedding table is also the LM head, so all weights are read.
    assert_eq!(fit.token_bytes, WEIGHT_BYTES + kv);
    assert_eq!(fit.tokens_per_s(fit.token_bytes as f64 * 25.0), 25.0);
}

#[test]
fn what_does_not_fit_is_told_with_what_does() {
    // 32 weights take 34 bytes in 8 bits and 20 bytes in 4 bits; rows are padded to 16 bytes; the embedding table
    // has 8 bits in both. A layer has 448 rows of 64 columns and 64 of 128.
    let (vectors, table) = (2 * 640 + 288, 256 * 80);
    let report = report_for(&config(), &gpu(Some(3_848_304)));
    let found: Vec<_> = report
        .alternatives
        .iter()
        .map(|(change, fit)| (*change, fit.weight_bytes, fit.max_model_len))
        .collect();
    let change = |quantization, kv_format| Change {
        quantization,
        kv_format,
        kv_cache_bytes: None,
    };
    let (q8, q4, kv_q8) = (
        Some(Quantization::Q8),
        Some(Quantization::Q4),
        Some(KvFormat::Q8),
    );
    let weights_q8 = vectors + table + 2 * (448 * 80 + 64 * 144);
    let weights_q4 = vectors + table + 2 * (448 * 48 + 64 * 80);
    // A block takes 8192 bytes, or 5120 in q8.
    let expected = [
        (change(None, kv_q8), WEIGHT_BYTES, 2 * 32),
        (change(q8, None), weights_q8, 9 * 32),
        (change(q8, kv_q8), weights_q8, 15 * 32),
        (change(q4, None), weights_q4, 13 * 32),
        (change(q4, kv_q8), weights_q4, 23 * 32),
    ];
    assert_eq!(found, expected);
    let expected = "weights (178 KiB) and activations (1.6 MiB) leave no room for a KV pool in 1.8 MiB (50 % of \
                    3.7 MiB); with --quantization q4 --kv-cache-dtype q8: weights 73.5 KiB, context 736 × 1 \
                    sequence";
    assert_eq!(report.to_string(), expected);
    // The smallest change with which everything fits wins over larger ones that would hold more.
    let report = report_for(
        &Config {
            max_model_len: Some(288),
            ..config()
        },
        &gpu(Some(3_848_304)),
    );
    assert_eq!(
        report
            .advice()
            .map(|(change, _)| change.to_string())
            .as_deref(),
        Some("--quantization q8")
    );
    let report = report_for(&config(), &gpu(Some(3_000_000)));
    assert!(report.advice().is_none());
    // 75 296 bytes in q4, 1 720 320 of activations, 3 blocks; twice that.
    assert!(
        report
            .to_string()
            .ends_with("; use a smaller model, or a device with more than 3.5 MiB"),
        "{report}"
    );
    let report = report_for(&config(), &gpu(Some(4_098_304)));
    let words = "the context (max_model_len) is limited to 480 tokens instead of 1024, because the KV pool has no \
                 room for a longer sequence; with --quantization";
    assert!(
        report.requested.fits() && report.to_string().starts_with(words),
        "{report}"
    );
    let report = report_for(&config(), &gpu(Some(100_000_000)));
    assert!(
        report.alternatives.is_empty()
            && report.to_string().ends_with("context 1024 × 64 sequences"),
        "{report}"
    );
}

#[test]
fn a_step_has_as_many_tokens_as_a_binding_holds() {
    let report = |binding_bytes_max| {
        report_for(
            &config(),
            &Caps {
                binding_bytes_max,
                ..gpu(Some(100_000_000))
            },
        )
    };
    // 64 sequences and a block; the widest row has 256 elements.
    let smallest = report(96 * 1024);
    assert_eq!(
        (
            smallest.requested.capacity.tokens_max,
            smallest.requested.fits()
        ),
        (96, true)
    );
    // One head of a block takes 32 slots of 16 halves.
    assert_eq!(smallest.requested.blocks, [96], "{smallest}");
    assert_eq!(report(500 * 1024 + 1023).requested.capacity.tokens_max, 500);
    assert_eq!(report(1 << 31).requested.capacity.tokens_max, 512);
    let too_small = report(96 * 1024 - 1);
    let expected = "row buffer gate_up (96 rows) needs 98304 bytes in one binding; the device's limit is 98303";
    assert_eq!(too_small.to_string(), expected);
    assert!(!too_small.requested.fits() && too_small.advice().is_none());
}

#[test]
fn a_given_pool_is_held_against_memory_only_where_that_is_known() {
    let given = |blocks: u64| Config {
        kv_cache_bytes: Some(blocks * BLOCK_BYTES),
        ..config()
    };
    let fits = |config: &Config, kind| {
        report_for(
            config,
            &Caps {
                kind,
                ..gpu(Some(3_000_000))
            },
        )
        .requested
        .fits()
    };
    assert!(
        fits(&given(100), DeviceKind::Discrete),
        "a given pool size may use all of the memory, not a share"
    );
    assert!(!fits(&given(200), DeviceKind::Discrete));
    assert!(
        fits(&given(200), DeviceKind::Integrated),
        "the machine's memory is unknown, the device's is a guess"
    );
    assert!(!fits(&given(200), DeviceKind::Software));
    let report = report_for(&given(2), &gpu(None));
    let expected = "a KV pool of 16.0 KiB is too small for any sequence; the smallest that works is 24.0 KiB; \
                    with --kv-cache-bytes 1MiB: context 1024 × 3 sequences";
    assert_eq!(report.to_string(), expected);
    let report = report_for(
        &Config {
            max_model_len: Some(4096),
            ..given(34)
        },
        &gpu(None),
    );
    assert_eq!(
        report
            .advice()
            .map(|(change, _)| change.to_string())
            .as_deref(),
        Some("--kv-cache-bytes 2MiB")
    );
}

#[test]
fn a_given_pool_larger_than_the_memory_that_a_device_shares_is_refused_with_both_numbers() {
    let given = |blocks: u64| Config {
        kv_cache_bytes: Some(blocks * BLOCK_BYTES),
        ..config()
    };
    let words = "weights (178 KiB), activations (1.6 MiB) and KV pool (1.6 MiB) do not fit in 2.9 MiB (the \
                 machine's available memory)";
    // What an integrated GPU reports is neither an upper nor a lower limit.
    for (kind, reported) in [
        (DeviceKind::Software, 3_000_000),
        (DeviceKind::Integrated, 1_000_000),
        (DeviceKind::Integrated, 9_000_000),
    ] {
        let caps = Caps {
            kind,
            machine_bytes: Some(3_000_000),
            ..gpu(Some(reported))
        };
        assert!(
            report_for(&given(100), &caps).requested.fits(),
            "{kind:?}, {reported}"
        );
        let expected = format!("{words}; with --kv-cache-bytes 1MiB: context 1024 × 3 sequences");
        assert_eq!(report_for(&given(200), &caps).to_string(), expected);
        let report = report_for(
            &Config {
                max_model_len: Some(4096),
                ..given(200)
            },
            &caps,
        );
        assert_eq!(
            report.to_string(),
            format!("{words}; use --kv-cache-bytes 1MiB or less")
        );
    }
}

#[test]
fn blocks_in_host_memory_are_part_of_a_memory_that_is_shared() {
    let with_host = Config {
        kv_host_bytes: 2_000_000,
        ..config()
    };
    let on = |kind, bytes| {
        report_for(
            &with_host,
            &Caps {
                kind,
                ..gpu(Some(bytes))
            },
        )
    };
    let plain = |kind, bytes| {
        report_for(
            &config(),
            &Caps {
                kind,
                ..gpu(Some(bytes))
            },
        )
        .requested
    };
    let own = on(DeviceKind::Discrete, 10_098_304).requested;
    assert_eq!(
        (own.kv_bytes, own.host_bytes),
        (plain(DeviceKind::Discrete, 10_098_304).kv_bytes, 2_000_000)
    );
    assert!(
        own.to_string()
            .contains(", and 1.9 MiB of host memory: context "),
        "{own}"
    );
    // The same pool as in a memory whose half is so much smaller.
    for kind in [DeviceKind::Integrated, DeviceKind::Processor] {
        let shared = on(kind, 10_098_304).requested;
        let smaller = plain(kind, 6_098_304);
        assert_eq!(shared.kv_bytes, smaller.kv_bytes, "{kind:?}");
        assert_eq!(
            shared.total_bytes(),
            smaller.total_bytes() + 2_000_000,
            "{kind:?}"
        );
        assert!(
            shared
                .to_string()
                .contains("KV in host memory 1.9 MiB, KV pool"),
            "{shared}"
        );
    }
    let refused = on(DeviceKind::Integrated, 4_098_304).to_string();
    let words = "weights (178 KiB), activations (1.6 MiB), --kv-host-bytes (1.9 MiB) leave no room for a KV pool";
    assert!(
        refused.starts_with(words) && refused.ends_with("; use a smaller --kv-host-bytes"),
        "{refused}"
    );
    let off = Config {
        prefix_caching: false,
        ..with_host.clone()
    };
    assert_eq!(
        report_for(&off, &gpu(Some(10_098_304)))
            .requested
            .host_bytes,
        0,
        "nothing leaves the pool"
    );
}

#[test]
fn processors_leave_memory_to_other_programs() {
    let on = |kind, bytes| {
        let caps = Caps {
            kind,
            machine_bytes: Some(bytes),
            ..gpu(Some(bytes))
        };
        report_for(&config(), &caps).requested
    };
    let pool = |kind| on(kind, 4_000_000).kv_bytes;
    let [all, half] = [DeviceKind::Discrete, DeviceKind::Processor].map(pool);
    assert!(half.abs_diff(all / 2) <= BLOCK_BYTES, "{half} of {all}");
    let small = on(DeviceKind::Processor, 1_500_000);
    assert!(
        !small.fits(),
        "weights and activations do not fit: {small:?}"
    );
}

/// In a browser, no size is known: a large pool is tried, and halved while the device refuses it.
#[test]
fn unknown_memory_is_found_by_trying() {
    let spec = ModelSpec::named("qwen3-0.6b").expect("a shape");
    let model = Model::random(spec, 0);
    let plan = model.record(Storage::F32);
    let fit = |caps: &Caps| Fit::new(&Config::default(), &plan, Beside::default(), caps);
    let (tried, software) = (
        fit(&gpu(None)),
        fit(&Caps {
            kind: DeviceKind::Software,
            ..gpu(None)
        }),
    );
    let block = tried.kv_bytes / u64::from(tried.blocks[0]);
    for (fit, bytes) in [(&tried, 2 << 30), (&software, 512 << 20)] {
        assert!(
            fit.kv_bytes <= bytes && fit.kv_bytes + block > bytes,
            "{} of {bytes} bytes",
            fit.kv_bytes
        );
    }
    assert_eq!(sizes::shrink(&[1000, 31], true), Some(vec![500, 15]));
    assert_eq!(sizes::shrink(&[1000, 31], false), Some(vec![750, 23]));
    assert_eq!(sizes::shrink(&[1000, 4], true), None);
}

#[test]
fn the_source_of_a_size_is_said() {
    let caps = Caps {
        memory_source: "Vulkan's memory budget",
        ..gpu(Some(6 << 30))
    };
    let text = report_for(&Config::default(), &caps).requested.to_string();
    assert!(
        text.contains("(90 % of 6.0 GiB, Vulkan's memory budget)"),
        "{text}"
    );
}

#[test]
fn bytes_read_well() {
    let check = |bytes: u64, text: &str| assert_eq!(Bytes(bytes).to_string(), text);
    check(0, "0 B");
    check(999, "999 B");
    check(1_000, "1.0 KiB");
    check(6 << 30, "6.0 GiB");
    check(161 << 20, "161 MiB");
    check(u64::MAX, "16777216 TiB");
}

/// Of a patch in the tower of Mistral 3: x twice, normed, q, k and v, q and k, attended, gate_up, activated, and
/// its 588 numbers in 592 columns. A row of four of them is 4096 numbers, then 1024, and three times as many as the
/// model's 64.
const TOWER_PATCH_BYTES: u64 =
    4 * (3 * 1024 + 3072 + 2048 + 1024 + 8192 + 4096 + 592) + 4096 + 1024 + 3 * 64;

/// An image of 1540 × 1540 pixels has 110 × 110 patches, four of which become a row.
#[test]
fn a_tower_counts_with_a_step_of_the_largest_image_that_may_come() {
    let config = config();
    let text = ModelSpec::named(SHAPE).expect("a shape");
    let json =
        br#"{"model_type": "mistral3", "vision_config": {"image_size": 1540, "patch_size": 14}}"#;
    let spec = ModelSpec::tower_from_json("config.json", json, &text).expect("it is read");
    let spec = spec.expect("there is a tower");
    let text = Model::random(text, 0);
    let fit = |rows: u32, caps: &Caps| {
        let mut tower = Model::random(spec.clone(), 0);
        let tile = tower.tile_patches(rows).expect("it is a tower");
        tower.reserve_patches(TowerPlan::patches(tile));
        let tower = TowerPlan::new(tower.record(caps.activations), tile, caps);
        let beside = Beside {
            draft: None,
            tower: Some(&tower),
        };
        let plan = text.record(caps.activations);
        let fit = FitReport::new(&text, &plan, beside, &config, caps).requested;
        assert_eq!(fit.excess, None);
        (fit.activation_bytes, tower.rows_limited())
    };
    let caps = gpu(Some(16 << 30));
    let (all, limited) = fit(8192, &caps);
    let (few, _) = fit(1024, &caps);
    assert!(all > 12_100 * TOWER_PATCH_BYTES);
    assert_eq!(all - few, (12_100 - 4096) * TOWER_PATCH_BYTES);
    assert_eq!(limited, None);
    // 4096 rows of gate_up take 128 MiB: larger images are refused, not the model.
    let narrow = Caps {
        binding_bytes_max: 128 << 20,
        ..caps
    };
    assert_eq!(fit(8192, &narrow), (few, Some(1024)));
}
