//! What a config says of recurrent states.

use super::config_reader::ConfigReader;
use super::error::LoadError;
use super::families::{Mixers, Rule};
use super::spec::{Factors, GatedNormSpec, LayerSpec, StateRule, StateSpec};
use super::stored::Stored;
use crate::plan::check::TAPS_MAX;

/// Maximum heads of a state.
const HEADS_MAX: u32 = 1024;
/// Maximum elements of a head, of keys or of values.
const STATE_DIM_MAX: u32 = 512;

/// The state of a family, if any layer has one; `epsilon` is that of its norms.
pub(super) fn state(
    config: &ConfigReader<'_>,
    mixers: Mixers,
    layers: &[LayerSpec],
    epsilon: f64,
    stored: &Stored<'_>,
) -> Result<Option<StateSpec>, LoadError> {
    if !layers.iter().any(|layer| layer.kind.has_state()) {
        return Ok(None);
    }
    Ok(match mixers {
        Mixers::Attention | Mixers::AttentionOrConvolution { .. } => None,
        Mixers::AttentionOrState(Rule::Delta) => Some(delta(config, 1.0, epsilon, stored)?),
        Mixers::AttentionOrState(Rule::NegativeDelta) => {
            let negative = config.boolean("linear_allow_neg_eigval")?.unwrap_or(true);
            let beta_scale = if negative { 2.0 } else { 1.0 };
            Some(delta(config, beta_scale, 1e-5, stored)?)
        }
        Mixers::AttentionOrState(Rule::Mamba2) => {
            Some(mamba2(config, "mamba_proj_bias", epsilon, stored)?)
        }
        Mixers::Blocks => Some(mamba2(config, "use_bias", epsilon, stored)?),
        Mixers::AttentionAndState => Some(beside_attention(config, epsilon, stored)?),
    })
}

fn delta(
    config: &ConfigReader<'_>,
    beta_scale: f32,
    epsilon: f64,
    stored: &Stored<'_>,
) -> Result<StateSpec, LoadError> {
    // What OLMo Hybrid's class derives of the heads; other classes have defaults.
    let heads = |name: &str| {
        let name = config.get(name).map_or("num_attention_heads", |_| name);
        config.required(name, config.integer(name, 1..=HEADS_MAX)?)
    };
    let size = |name: &str, derived: u32| match config.get(name) {
        None if derived.is_multiple_of(8) && (8..=STATE_DIM_MAX).contains(&derived) => Ok(derived),
        _ => config.multiple_of_eight(name, STATE_DIM_MAX),
    };
    let key_heads = heads("linear_num_key_heads")?;
    let hidden = config.integer("hidden_size", 1..=1 << 20)?.unwrap_or(0);
    let key_dim = size("linear_key_head_dim", hidden * 3 / 4 / key_heads)?;
    let value_dim = size("linear_value_head_dim", 2 * key_dim)?;
    let spec = StateSpec {
        rule: StateRule::Delta { beta_scale },
        key_heads,
        heads: heads("linear_num_value_heads")?,
        key_dim,
        value_dim,
        tiled: stored.tiled_heads,
        taps: config
            .integer("linear_conv_kernel_dim", 2..=TAPS_MAX)?
            .unwrap_or(4),
        convolution_bias: false,
        bias: false,
        log_decays: stored.log_decays,
        norm: GatedNormSpec {
            present: true,
            run: value_dim,
            shared: true,
            gate_first: false,
            epsilon: epsilon as f32,
        },
    };
    check_heads(config, "linear_num_key_heads", spec)
}

/// Mamba 2; some fields have one of two names.
fn mamba2(
    config: &ConfigReader<'_>,
    bias: &str,
    epsilon: f64,
    stored: &Stored<'_>,
) -> Result<StateSpec, LoadError> {
    let either = |names: [&'static str; 2]| {
        if config.get(names[0]).is_some() {
            names[0]
        } else {
            names[1]
        }
    };
    let name = either(["mamba_num_heads", "mamba_n_heads"]);
    let heads = config.required(name, config.integer(name, 1..=HEADS_MAX)?)?;
    let name = either(["n_groups", "mamba_n_groups"]);
    let key_heads = config.integer(name, 1..=HEADS_MAX)?.unwrap_or(1);
    let key_dim =
        config.multiple_of_eight(either(["ssm_state_size", "mamba_d_state"]), STATE_DIM_MAX)?;
    let value_dim = mamba2_head(config, either(["mamba_head_dim", "mamba_d_head"]), heads)?;
    let taps = config
        .integer(either(["conv_kernel", "mamba_d_conv"]), 2..=TAPS_MAX)?
        .unwrap_or(4);
    let spec = StateSpec {
        rule: StateRule::Mamba2,
        key_heads,
        heads,
        key_dim,
        value_dim,
        tiled: stored.tiled_heads,
        taps,
        convolution_bias: config
            .boolean(either(["use_conv_bias", "mamba_conv_bias"]))?
            .unwrap_or(true),
        bias: config.boolean(bias)?.unwrap_or(false),
        log_decays: stored.log_decays,
        norm: GatedNormSpec {
            present: true,
            run: heads * value_dim / key_heads,
            shared: false,
            gate_first: true,
            epsilon: epsilon as f32,
        },
    };
    check_heads(config, name, spec)
}

/// Elements of a head, which may be "auto" or absent: then they follow from the size of all heads.
fn mamba2_head(config: &ConfigReader<'_>, name: &str, heads: u32) -> Result<u32, LoadError> {
    if config.get(name).is_some_and(|value| *value != "auto") {
        return config.multiple_of_eight(name, STATE_DIM_MAX);
    }
    let hidden = config.integer("hidden_size", 1..=1 << 16)?.unwrap_or(0);
    let expand = config.integer("mamba_expand", 1..=64)?.unwrap_or(2);
    let all = config
        .integer("mamba_d_ssm", 1..=1 << 20)?
        .unwrap_or(expand * hidden);
    let dim = all / heads;
    if !all.is_multiple_of(heads) || dim == 0 || dim > STATE_DIM_MAX || !dim.is_multiple_of(8) {
        let message =
            format!("would be {all} / {heads}, not a multiple of 8 up to {STATE_DIM_MAX}");
        return Err(config.invalid(name, message));
    }
    Ok(dim)
}

/// Mamba 2 beside attention: it may have no norm, or its gate before it.
fn beside_attention(
    config: &ConfigReader<'_>,
    epsilon: f64,
    stored: &Stored<'_>,
) -> Result<StateSpec, LoadError> {
    for name in [
        "attention_bias",
        "mlp_bias",
        "projectors_bias",
        "mamba_proj_bias",
    ] {
        if config.boolean(name)?.unwrap_or(false) {
            return Err(config.invalid(
                name,
                "is true: biases are not supported in this architecture",
            ));
        }
    }
    let mut spec = mamba2(config, "mamba_proj_bias", epsilon, stored)?;
    spec.norm.present = config.boolean("mamba_rms_norm")?.unwrap_or(false);
    spec.norm.gate_first = !config.boolean("mamba_norm_before_gate")?.unwrap_or(true);
    Ok(spec)
}

fn check_heads(
    config: &ConfigReader<'_>,
    name: &str,
    spec: StateSpec,
) -> Result<StateSpec, LoadError> {
    if !spec.heads.is_multiple_of(spec.key_heads) {
        let message = format!(
            "is {}, which does not divide the {} heads",
            spec.key_heads, spec.heads
        );
        return Err(config.invalid(name, message));
    }
    Ok(spec)
}

/// The factors of a model with attention and Mamba 2 side by side.
pub(super) struct ParallelScales {
    /// Of q · k.
    pub(super) attention: f64,
    /// Of what branches add to the stream: x = residual · y, where y is the stream that is computed.
    pub(super) residual: f64,
    pub(super) factors: Factors,
}

impl ParallelScales {
    /// Reads all multipliers. The gate of an MLP and z pass a function that is not linear, so that their factors belong
    /// to the norms before them; everything else follows from these.
    pub(super) fn read(config: &ConfigReader<'_>) -> Result<Self, LoadError> {
        let number =
            |name: &str| Ok::<_, LoadError>(config.number(name, 1e-6..=1e6)?.unwrap_or(1.0));
        let [gate, down] = numbers(config, "mlp_multipliers")?;
        let [z, u, b, c, dt] = numbers(config, "ssm_multipliers")?;
        let (input, residual) = (number("ssm_in_multiplier")? * z, down / gate);
        let attended = number("attention_in_multiplier")?;
        let factors = Factors {
            mixer_norm: input as f32,
            mlp_norm: gate as f32,
            values: (attended * number("attention_out_multiplier")? / (input * residual)) as f32,
            channels: [u / z, b / z, c / z].map(|factor| factor as f32),
            gates: (dt / z) as f32,
            state: (number("ssm_out_multiplier")? / residual) as f32,
        };
        let attention = number("key_multiplier")? * (attended / input) * (attended / input);
        Ok(Self {
            attention,
            residual,
            factors,
        })
    }
}

/// A list of positive numbers; ones if it is absent.
fn numbers<const N: usize>(config: &ConfigReader<'_>, name: &str) -> Result<[f64; N], LoadError> {
    let Some(list) = config.list(name)? else {
        return Ok([1.0; N]);
    };
    let numbers: Option<Vec<f64>> = list
        .iter()
        .map(|value| {
            value
                .as_f64()
                .filter(|number| (1e-6..=1e6).contains(number))
        })
        .collect();
    let numbers = numbers.and_then(|numbers| numbers.try_into().ok());
    numbers.ok_or_else(|| config.invalid(name, format!("is not {N} numbers above zero")))
}
