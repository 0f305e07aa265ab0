//! Published shapes by name: their parameters, and the formats of their weights.

use folio::model::{Model, ModelSpec};
use folio::plan::{Plan, Storage, WeightFormat, WeightSpec};

fn plan(name: &str) -> Plan {
    Model::random(ModelSpec::named(name).expect("a known shape"), 0).record(Storage::F32)
}

/// The numbers of parameters, without layers that predict further tokens and without towers for images and sound.
/// Layers of Gemma 4 whose values are their keys count them twice, as the plan does.
#[test]
fn shapes_have_the_published_parameters() {
    for (name, parameters) in [
        ("qwen3-0.6b", 596_049_920),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3-8b", 8_030_261_248),
        ("olmo-3-7b", 7_298_011_136),
        ("olmo-3-32b", 32_233_522_176),
        ("phi-4-mini", 3_836_021_760),
        ("gpt-oss-20b", 20_914_757_184),
        ("gpt-oss-120b", 116_829_156_672),
        ("gemma-4-e2b", 4_628_569_379),
        ("gemma-4-e4b", 7_463_013_418),
        ("gemma-4-12b", 11_923_078_960),
        ("gemma-4-26b-a4b", 25_247_559_710),
        ("gemma-4-31b", 30_807_445_820),
        ("glm-4.5-air", 106_852_251_264),
        ("ministral-3-3b", 3_429_006_336),
        ("ministral-3-8b", 8_489_553_920),
        ("ministral-3-14b", 13_506_073_600),
        ("granite-4.0-micro", 3_402_836_480),
        ("deepseek-v2-lite", 15_706_484_224),
        ("deepseek-v3", 671_026_419_200),
        ("glm-4.7-flash", 29_943_393_920),
    ] {
        let plan = plan(name);
        let weights = plan
            .weights
            .iter()
            .filter(|weight| !weight.name.starts_with("rope"));
        let count: u64 = weights
            .map(|weight| u64::from(weight.rows) * u64::from(weight.columns))
            .sum();
        assert_eq!(count, parameters, "{name}");
    }
}

/// The experts of gpt-oss are published in MXFP4, 4.25 bits a number, and everything else in 16 bits.
#[test]
fn gpt_oss_has_the_published_bytes() {
    for (name, experts_gb, others_gb) in
        [("gpt-oss-20b", 10.15, 3.61), ("gpt-oss-120b", 60.9, 4.33)]
    {
        let plan = plan(name);
        let is_expert =
            |weight: &&WeightSpec| matches!(weight.sections[0].format, WeightFormat::Mxfp4);
        let (experts, others): (Vec<_>, Vec<_>) = plan.weights.iter().partition(is_expert);
        assert!(
            experts
                .iter()
                .all(|weight| weight.name.contains(".expert_") && weight.experts > 1)
        );
        let gb = |weights: &[&WeightSpec]| {
            weights.iter().map(|weight| weight.bytes()).sum::<u64>() as f64 / 1e9
        };
        let (experts, others) = (gb(&experts), gb(&others));
        println!("{name}: experts {experts:.3} GB, others {others:.3} GB");
        // Rows of scales are padded, and biases are in f32.
        let is_right = |bytes: f64, published: f64| (0.99..1.025).contains(&(bytes / published));
        assert!(
            is_right(experts, experts_gb) && is_right(others, others_gb),
            "{name}"
        );
    }
}

#[test]
fn every_name_of_a_shape_is_known() {
    for name in ModelSpec::SHAPES {
        ModelSpec::named(name).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn what_is_no_shape_is_refused() {
    let error = ModelSpec::named("64x2x4")
        .expect_err("seven numbers are needed")
        .to_string();
    assert!(
        error.starts_with("shape: \"64x2x4\" is unknown; expected one of qwen3-0.6b"),
        "{error}"
    );
    let error = ModelSpec::named("64x2x4x3x16x96x256")
        .expect_err("3 does not divide 4")
        .to_string();
    assert_eq!(
        error,
        "shape 64x2x4x3x16x96x256: num_key_value_heads is 3, which does not divide num_attention_heads = 4"
    );
}
