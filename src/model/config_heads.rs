//! What a config says of the heads of attention.

use super::config_reader::ConfigReader;
use super::error::LoadError;
use super::spec::LatentSpec;
use crate::plan::check::{GROUP_SIZE_MAX, HEAD_DIM_MAX, LATENT_DIM_MAX, LATENT_HEADS_MAX};

/// The hidden size, and the heads of attention.
pub(super) struct Heads {
    pub(super) hidden: u32,
    pub(super) query: u32,
    pub(super) kv: u32,
    pub(super) dim: u32,
    pub(super) latent: Option<LatentSpec>,
}

impl Heads {
    /// Those of attention to a latent, or of its own keys and values.
    pub(super) fn of(config: &ConfigReader<'_>, latent: bool) -> Result<Self, LoadError> {
        if latent {
            Self::read_latent(config)
        } else {
            Self::read(config)
        }
    }

    /// Latent attention: all heads share one key, the latent and what is rotated.
    fn read_latent(config: &ConfigReader<'_>) -> Result<Self, LoadError> {
        let hidden = config.multiple_of_eight("hidden_size", 1 << 16)?;
        let query = config.integer("num_attention_heads", 1..=LATENT_HEADS_MAX)?;
        let query = config.required("num_attention_heads", query)?;
        if config.boolean("attention_bias")?.unwrap_or(false) {
            return Err(config.invalid(
                "attention_bias",
                "is true: biases of latent attention are not supported",
            ));
        }
        let size = |name: &str| config.multiple_of_eight(name, HEAD_DIM_MAX);
        let query_rank = config
            .get("q_lora_rank")
            .map(|_| config.multiple_of_eight("q_lora_rank", 1 << 16));
        let (rank, rotated) = (size("kv_lora_rank")?, size("qk_rope_head_dim")?);
        let plain = size("qk_nope_head_dim")?;
        // MiniCPM 3 may leave out the size of a head of v; others have tensors of another shape then.
        let value = match config.get("v_head_dim") {
            None if hidden.is_multiple_of(8 * query) => hidden / query,
            _ => size("v_head_dim")?,
        };
        if rank + rotated > LATENT_DIM_MAX {
            let message = format!(
                "is {rank}: with {rotated} rotated elements, a token would have over {LATENT_DIM_MAX}"
            );
            return Err(config.invalid("kv_lora_rank", message));
        }
        let latent = Some(LatentSpec {
            query_rank: query_rank.transpose()?,
            rank,
            plain,
            rotated,
            value,
        });
        Ok(Self {
            hidden,
            query,
            kv: 1,
            dim: rank + rotated,
            latent,
        })
    }

    /// Elements of a head that are rotated, or a part of which is.
    pub(super) fn rotated(&self) -> u32 {
        self.latent.map_or(self.dim, |latent| latent.rotated)
    }

    /// Heads with keys and values of their own, or shared in groups.
    fn read(config: &ConfigReader<'_>) -> Result<Self, LoadError> {
        let hidden = config.multiple_of_eight("hidden_size", 1 << 16)?;
        let query = config.integer("num_attention_heads", 1..=1024)?;
        let query = config.required("num_attention_heads", query)?;
        let kv = config
            .integer("num_key_value_heads", 1..=1024)?
            .unwrap_or(query);
        check_groups(config, query, kv)?;
        if config.get("head_dim").is_some() {
            let dim = config.multiple_of_eight("head_dim", HEAD_DIM_MAX)?;
            return Ok(Self {
                hidden,
                query,
                kv,
                dim,
                latent: None,
            });
        }
        let dim = hidden / query;
        if hidden % query != 0 {
            let message = format!("is {query}, which does not divide hidden_size = {hidden}");
            return Err(config.invalid("num_attention_heads", message));
        }
        if dim % 8 != 0 || dim > HEAD_DIM_MAX {
            let message = format!("would be {dim}, not a multiple of 8 up to {HEAD_DIM_MAX}");
            return Err(config.invalid("head_dim", message));
        }
        Ok(Self {
            hidden,
            query,
            kv,
            dim,
            latent: None,
        })
    }
}

/// Fails unless query heads share those of keys and values in groups of a supported size.
pub(super) fn check_groups(
    config: &ConfigReader<'_>,
    query: u32,
    kv: u32,
) -> Result<(), LoadError> {
    if !query.is_multiple_of(kv) {
        let message = format!("is {kv}, which does not divide num_attention_heads = {query}");
        return Err(config.invalid("num_key_value_heads", message));
    }
    if query / kv > GROUP_SIZE_MAX {
        let message =
            format!("is {kv}: more than {GROUP_SIZE_MAX} of {query} query heads would share one");
        return Err(config.invalid("num_key_value_heads", message));
    }
    Ok(())
}
