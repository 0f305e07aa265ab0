//! What a config says of factors and caps.

use super::config_heads::Heads;
use super::config_reader::ConfigReader;
use super::config_state::ParallelScales;
use super::error::LoadError;
use super::families::Scales;
use super::rope::damping;
use super::spec::{Factors, LatentSpec};

/// The multipliers and caps of a model, from its [`Scales`].
pub(super) struct Multipliers {
    pub(super) attention: f64,
    pub(super) attention_softcap: Option<f64>,
    pub(super) embedding: f64,
    /// Multiplies what attention and MLP add to the residual stream.
    ///
    /// Applied without a step of its own: `x += m · f(norm(x))` is equivalent to `y += f(norm(y))` with x = m · y, if
    /// embedded rows are divided by m and the norms' epsilon by m². Only the norms of the stream read y.
    pub(super) residual: f64,
    pub(super) logits: f64,
    pub(super) logits_softcap: Option<f64>,
    /// Factor of q's norm without a weight.
    pub(super) query_norm: f64,
    pub(super) factors: Factors,
}

impl Multipliers {
    pub(super) fn read(
        config: &ConfigReader<'_>,
        scales: Scales,
        heads: &Heads,
    ) -> Result<Self, LoadError> {
        let plain = Self::plain(config, heads)?;
        match scales {
            Scales::Plain => Ok(plain),
            Scales::LogitScale(default) => Ok(Self {
                logits: config.number("logit_scale", 1e-6..=1e6)?.unwrap_or(default),
                ..plain
            }),
            Scales::Gemma {
                scalar_default,
                softcaps,
            } => plain.of_gemma(config, heads, scalar_default, softcaps),
            Scales::EmbeddingIf(field) => Ok(Self {
                embedding: match config.boolean(field)? {
                    Some(true) => f64::from(heads.hidden).sqrt(),
                    _ => 1.0,
                },
                ..plain
            }),
            Scales::MiniCpm => plain.mini_cpm(config, heads),
            Scales::MuseGlimmer => plain.muse_glimmer(config),
            Scales::Unscaled => plain.unscaled(config, heads),
            Scales::FalconH1 => plain.parallel(config),
            Scales::Multipliers => plain.multiplied(config),
        }
    }

    fn plain(config: &ConfigReader<'_>, heads: &Heads) -> Result<Self, LoadError> {
        Ok(Self {
            attention: match heads.latent {
                Some(latent) => latent_scale(config, &latent)?,
                None => 1.0 / f64::from(heads.dim).sqrt(),
            },
            attention_softcap: None,
            embedding: 1.0,
            residual: 1.0,
            logits: 1.0,
            logits_softcap: None,
            query_norm: 1.0,
            factors: Factors::NONE,
        })
    }

    fn of_gemma(
        self,
        config: &ConfigReader<'_>,
        heads: &Heads,
        scalar_default: Option<f64>,
        softcaps: Option<[f64; 2]>,
    ) -> Result<Self, LoadError> {
        let scalar = match scalar_default {
            Some(default) => config
                .number("query_pre_attn_scalar", 1e-3..=1e6)?
                .unwrap_or(default),
            None => f64::from(heads.dim),
        };
        let given = [
            softcap(config, "attn_logit_softcapping", softcaps, 0)?,
            softcap(config, "final_logit_softcapping", softcaps, 1)?,
        ];
        // The first Gemma has no caps.
        let [attention_softcap, logits_softcap] = match scalar_default {
            Some(_) => given,
            None => [None, None],
        };
        Ok(Self {
            attention: 1.0 / scalar.sqrt(),
            attention_softcap,
            embedding: f64::from(heads.hidden).sqrt(),
            logits_softcap,
            ..self
        })
    }

    /// Those of Gemma 4.
    fn unscaled(self, config: &ConfigReader<'_>, heads: &Heads) -> Result<Self, LoadError> {
        let name = "use_bidirectional_attention";
        if config.get(name).is_some_and(|value| *value == "all") {
            let message = "is \"all\", but only attention to earlier tokens is supported";
            return Err(config.invalid(name, message));
        }
        Ok(Self {
            attention: 1.0,
            embedding: f64::from(heads.hidden).sqrt(),
            logits_softcap: config.number("final_logit_softcapping", 1e-3..=1e6)?,
            ..self
        })
    }

    fn mini_cpm(self, config: &ConfigReader<'_>, heads: &Heads) -> Result<Self, LoadError> {
        let number = |name: &str| config.required(name, config.number(name, 1e-3..=1e6)?);
        let layers = number("num_hidden_layers")?;
        Ok(Self {
            embedding: number("scale_emb")?,
            residual: number("scale_depth")? / layers.sqrt(),
            logits: number("dim_model_base")? / f64::from(heads.hidden),
            ..self
        })
    }

    fn muse_glimmer(self, config: &ConfigReader<'_>) -> Result<Self, LoadError> {
        let number = |name: &str| config.required(name, config.number(name, 1e-6..=1e6)?);
        Ok(Self {
            logits: number("output_multiplier")?,
            logits_softcap: config.number("final_logit_softcapping", 1e-3..=1e6)?,
            query_norm: number("qk_scale_factor")?,
            ..self
        })
    }

    /// Those of Granite.
    fn multiplied(self, config: &ConfigReader<'_>) -> Result<Self, LoadError> {
        let number =
            |name: &str| Ok::<_, LoadError>(config.number(name, 1e-3..=1e6)?.unwrap_or(1.0));
        Ok(Self {
            attention: number("attention_multiplier")?,
            embedding: number("embedding_multiplier")?,
            residual: number("residual_multiplier")?,
            logits: 1.0 / number("logits_scaling")?,
            ..self
        })
    }

    /// The multipliers of a model with attention and a state side by side.
    fn parallel(self, config: &ConfigReader<'_>) -> Result<Self, LoadError> {
        let number =
            |name: &str| Ok::<_, LoadError>(config.number(name, 1e-6..=1e6)?.unwrap_or(1.0));
        let ParallelScales {
            attention,
            residual,
            factors,
        } = ParallelScales::read(config)?;
        Ok(Self {
            attention: attention * self.attention,
            embedding: number("embedding_multiplier")?,
            residual,
            logits: number("lm_head_multiplier")?,
            factors,
            ..self
        })
    }

    /// Epsilon, rescaled for the stream as it is stored.
    pub(super) fn epsilon(&self, epsilon: f64) -> f32 {
        (epsilon / (self.residual * self.residual)) as f32
    }
}

/// A cap; if the config does not have it, that of the family with this index, unless the field is `null`.
fn softcap(
    config: &ConfigReader<'_>,
    name: &str,
    defaults: Option<[f64; 2]>,
    index: usize,
) -> Result<Option<f64>, LoadError> {
    match config.number(name, 1e-3..=1e6)? {
        None if !config.is_null(name) => Ok(defaults.map(|caps| caps[index])),
        given => Ok(given),
    }
}

/// Factor of q · k with a latent: 1 / √(elements of a head), times the square of what YaRN multiplies cos and sin by
/// with `mscale_all_dim`.
fn latent_scale(config: &ConfigReader<'_>, latent: &LatentSpec) -> Result<f64, LoadError> {
    let fields = match config.object("rope_parameters")? {
        Some(fields) => Some(fields),
        None => config.object("rope_scaling")?,
    };
    let plain = 1.0 / f64::from(latent.plain + latent.rotated).sqrt();
    let Some(fields) = fields else {
        return Ok(plain);
    };
    let (slope, factor) = (
        fields.number("mscale_all_dim", 0.0..=1e3)?,
        fields.number("factor", 1e-6..=1e9)?,
    );
    let (Some(slope), Some(factor)) = (slope, factor) else {
        return Ok(plain);
    };
    Ok(plain * damping(slope, factor).powi(2))
}
