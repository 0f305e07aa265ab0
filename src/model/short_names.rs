//! Short names of models that people start with, for `folio run qwen3:0.6b`.
//!
//! Names and sizes are Ollama's, where it has the model; repositories are those of the models' makers or of llama.cpp's
//! organization, in the quantization that their pages recommend. The files themselves were not tried.

use super::Model;
use super::error::LoadError;
use super::quantize::Quantization;
use super::spec::ModelSpec;

/// A model by its short name.
#[derive(Clone, Copy, Debug)]
pub struct ShortName {
    /// Such as `qwen3:0.6b`.
    pub name: &'static str,
    /// `org/repo`, with `:` and the quantization if it has GGUF files.
    pub repository: &'static str,
    /// A [shape](ModelSpec::named) with as many weights, for plans; empty: there is none.
    shape: &'static str,
}

/// A row of the table.
const fn row(name: &'static str, repository: &'static str, shape: &'static str) -> ShortName {
    ShortName {
        name,
        repository,
        shape,
    }
}

impl ShortName {
    /// The table. The first of several sizes is the one that the name alone means.
    #[rustfmt::skip]
    pub const ALL: [Self; 30] = [
        row("qwen3:8b", "Qwen/Qwen3-8B-GGUF:Q4_K_M", "4096x36x32x8x128x12288x151936"),
        row("qwen3:0.6b", "Qwen/Qwen3-0.6B-GGUF:Q8_0", "qwen3-0.6b"),
        row("qwen3:1.7b", "Qwen/Qwen3-1.7B-GGUF:Q8_0", "2048x28x16x8x128x6144x151936"),
        row("qwen3:4b", "Qwen/Qwen3-4B-GGUF:Q4_K_M", "2560x36x32x8x128x9728x151936"),
        row("qwen3:14b", "Qwen/Qwen3-14B-GGUF:Q4_K_M", "5120x40x40x8x128x17408x151936"),
        row("qwen3:30b-a3b", "Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M", ""),
        row("qwen3:32b", "Qwen/Qwen3-32B-GGUF:Q4_K_M", "5120x64x64x8x128x25600x151936"),
        row("qwen2.5-coder:7b", "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF:Q4_K_M", "3584x28x28x4x128x18944x152064"),
        row("qwen2.5-coder:1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M", "1536x28x12x2x128x8960x151936"),
        row("gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M", "2560x34x8x4x256x10240x262208"),
        row("gemma3:270m", "ggml-org/gemma-3-270m-it-GGUF:Q8_0", "640x18x4x1x256x2048x262144"),
        row("gemma3:1b", "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", "1152x26x4x1x256x6912x262144"),
        row("gemma3:12b", "ggml-org/gemma-3-12b-it-GGUF:Q4_K_M", "3840x48x16x8x256x15360x262208"),
        row("gemma3:27b", "ggml-org/gemma-3-27b-it-GGUF:Q4_K_M", "5376x62x32x16x128x21504x262208"),
        row("gpt-oss:20b", "ggml-org/gpt-oss-20b-GGUF", "gpt-oss-20b"),
        row("gpt-oss:120b", "ggml-org/gpt-oss-120b-GGUF", "gpt-oss-120b"),
        row("llama3.2:3b", "meta-llama/Llama-3.2-3B-Instruct", "3072x28x24x8x128x8192x128256"),
        row("llama3.2:1b", "meta-llama/Llama-3.2-1B-Instruct", "llama-3.2-1b"),
        row("llama3.1:8b", "meta-llama/Llama-3.1-8B-Instruct", "llama-3-8b"),
        row("smollm2:1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M", "2048x24x32x32x64x8192x49152"),
        row("smollm2:360m", "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF:Q8_0", "960x32x15x5x64x2560x49152"),
        row("smollm3:3b", "ggml-org/SmolLM3-3B-GGUF:Q4_K_M", "2048x36x16x4x128x11008x128256"),
        row("lfm2:1.2b", "LiquidAI/LFM2-1.2B-GGUF:Q4_K_M", ""),
        row("lfm2:350m", "LiquidAI/LFM2-350M-GGUF:Q4_K_M", ""),
        row("granite4:micro", "ibm-granite/granite-4.0-micro-GGUF:Q4_K_M", "granite-4.0-micro"),
        row("granite4:tiny-h", "ibm-granite/granite-4.0-h-tiny-GGUF:Q4_K_M", "granite-4.0-h-tiny"),
        row("granite4:small-h", "ibm-granite/granite-4.0-h-small-GGUF:Q4_K_M", "granite-4.0-h-small"),
        row("phi4-mini:3.8b", "microsoft/Phi-4-mini-instruct", "phi-4-mini"),
        row("devstral:24b", "mistralai/Devstral-Small-2507_gguf:Q4_K_M", "5120x40x32x8x128x32768x131072"),
        row("qwen3-embedding:0.6b", "Qwen/Qwen3-Embedding-0.6B-GGUF:Q8_0", "qwen3-0.6b"),
    ];

    /// The model that a name means: a whole one, or its part before the colon, with Ollama's `:latest` or without.
    pub fn find(name: &str) -> Option<&'static Self> {
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let whole = Self::ALL.iter().find(|row| row.name == plain);
        whole.or_else(|| Self::ALL.iter().find(|row| row.family() == plain))
    }

    /// The name before the colon.
    fn family(&self) -> &'static str {
        self.name
            .split_once(':')
            .map_or(self.name, |(family, _)| family)
    }

    /// A model of the same size without weights, for plans; `None` if the size is not known.
    ///
    /// # Errors
    ///
    /// The shape cannot be quantized.
    pub fn stand_in(&self) -> Result<Option<Model>, LoadError> {
        if self.shape.is_empty() {
            return Ok(None);
        }
        let model = Model::random(ModelSpec::named(self.shape)?, 0);
        let is_gguf = self.repository.to_ascii_lowercase().contains("gguf");
        Ok(Some(match is_gguf {
            true if self.repository.ends_with(":Q8_0") => model.quantized(Quantization::Q8)?,
            true => model.quantized(Quantization::Q4)?,
            false => model,
        }))
    }
}

#[cfg(test)]
mod tests;
