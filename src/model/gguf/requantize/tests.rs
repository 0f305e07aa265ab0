//! Mixtures and their names.

use super::*;

#[test]
fn mixtures_are_named_as_elsewhere() {
    for row in MIXTURES {
        let mixture: Mixture = row.0.to_uppercase().parse().expect("its own name");
        assert_eq!(mixture.to_string(), row.0.to_uppercase());
        assert!(encode::is_target(row.2) && encode::is_target(row.3));
    }
    assert_eq!("Q4_K".parse::<Mixture>(), "q4_k_m".parse());
    let message = "iq2_xs".parse::<Mixture>().expect_err("no such mixture");
    assert!(message.contains("q4_k_m"), "{message}");
}

#[test]
fn matrices_get_what_their_mixture_says() {
    let mixture: Mixture = "q4_k_m".parse().expect("it exists");
    let kind = |name: &str, columns| mixture.kind(name, columns, 32, name == "output.weight");
    assert_eq!(kind("output.weight", 2048), Some(BlockType::Q6K));
    assert_eq!(kind("blk.5.attn_q.weight", 2048), Some(BlockType::Q4K));
    // The first eighth, every third after it, and none of the others.
    assert_eq!(kind("blk.0.ffn_down.weight", 2048), Some(BlockType::Q6K));
    assert_eq!(kind("blk.6.attn_v.weight", 2048), Some(BlockType::Q6K));
    assert_eq!(kind("blk.5.attn_v.weight", 2048), Some(BlockType::Q4K));
    // Rows that are no super-blocks.
    assert_eq!(kind("blk.5.attn_q.weight", 96), Some(BlockType::Q5_0));
    assert_eq!(kind("blk.5.attn_q.weight", 40), None);
    for (name, quantizes) in [
        ("blk.0.attn_norm.weight", false),
        ("blk.0.ffn_gate_inp.weight", false),
        ("blk.0.ssm_conv1d.weight", false),
        ("blk.0.ffn_up.weight", true),
    ] {
        assert_eq!(is_quantized(name, &[8, 8]), quantizes, "{name}");
    }
    assert!(!is_quantized("blk.0.ffn_up.weight", &[8]));
}
