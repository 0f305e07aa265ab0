//! What a config says of each layer: kinds, windows, rotary embeddings, experts.

use super::config_reader::ConfigReader;
use super::error::LoadError;
use super::families::{Mixers, MlpRow, MlpSize, QueryHeads, RopeRow, Ropes, Rule, Sizes, Windows};
use super::rope::RopeSpec;
use super::spec::{ConvolutionSpec, LAYERS_MAX, LayerKind, LayerSpec};
use crate::plan::check::{HEAD_DIM_MAX, TAPS_MAX};
use serde_json::Value;
use std::collections::BTreeSet;

/// Pairs of head size and number of KV heads among a model's layers: those with a window, and the others. The plan has
/// buffers for each.
const HEAD_SHAPES_MAX: usize = 2;
/// Numbers of query heads among a model's layers. The plan has buffers for each.
const QUERY_HEADS_MAX: usize = 4;

/// The number of layers.
fn count(config: &ConfigReader<'_>) -> Result<Option<usize>, LoadError> {
    Ok(config
        .integer("num_hidden_layers", 1..=LAYERS_MAX)?
        .map(|count| count as usize))
}

/// What a config calls a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Attention, with a sliding window if it is true; with a state beside it in [`Mixers::AttentionAndState`].
    Attention(bool),
    Convolution,
    State,
    Mlp,
    Experts,
}

impl Windows {
    /// The field with the length of windows or chunks.
    pub(super) fn field(self) -> &'static str {
        match self {
            Self::Chunks => "attention_chunk_size",
            _ => "sliding_window",
        }
    }
}

impl Word {
    pub(super) fn kind(self, mixers: Mixers) -> LayerKind {
        match self {
            Self::Attention(_) if matches!(mixers, Mixers::AttentionAndState) => {
                LayerKind::AttentionAndState
            }
            Self::Attention(_) => LayerKind::Attention,
            Self::Convolution => LayerKind::Convolution,
            Self::State => LayerKind::State,
            Self::Mlp | Self::Experts => LayerKind::FeedForward,
        }
    }

    /// The meaning of a word of `layer_types` or `layers_block_type`, or of a letter of `hybrid_override_pattern`.
    fn parse(word: &str, mixers: Mixers, windows: Windows) -> Option<Self> {
        let has_chunks = matches!(windows, Windows::Chunks);
        let found = match word {
            "full_attention" | "attention" | "*" => Self::Attention(false),
            "sliding_attention" if !has_chunks => Self::Attention(true),
            "chunked_attention" if has_chunks => Self::Attention(true),
            "conv" => Self::Convolution,
            "linear_attention" | "mamba" | "M" => Self::State,
            "mlp" | "-" => Self::Mlp,
            "moe" | "E" => Self::Experts,
            "hybrid" if matches!(mixers, Mixers::AttentionAndState) => Self::Attention(false),
            _ => return None,
        };
        let known = match mixers {
            Mixers::Attention => matches!(found, Self::Attention(_)),
            Mixers::AttentionOrConvolution { sliding } => {
                matches!(found, Self::Convolution | Self::Attention(false))
                    || sliding && found == Self::Attention(true)
            }
            Mixers::AttentionOrState(_) => matches!(found, Self::State | Self::Attention(false)),
            Mixers::AttentionAndState => found == Self::Attention(false),
            Mixers::Blocks => !matches!(found, Self::Convolution | Self::Attention(true)),
        };
        known.then_some(found)
    }
}

/// What each layer is. Windows that `layer_types` does not say are added by [`slides`].
pub(super) fn words(
    config: &ConfigReader<'_>,
    mixers: Mixers,
    windows: Windows,
) -> Result<Vec<Word>, LoadError> {
    if let Mixers::Blocks = mixers {
        return blocks(config);
    }
    let count = config.required("num_hidden_layers", count(config)?)?;
    // Families whose layers have no windows and no states may have the field, but it means nothing.
    let reads = !matches!(
        (mixers, windows),
        (
            Mixers::Attention | Mixers::AttentionAndState,
            Windows::Never
        )
    );
    if let Some(words) = config.list("layer_types")?
        && reads
    {
        let words = of_layers(config, "layer_types", words, count)?;
        return words
            .iter()
            .map(|word| parse_word(config, "layer_types", word, (mixers, windows)))
            .collect();
    }
    let every = |n: usize, other: Word| {
        (0..count)
            .map(move |layer| {
                if (layer + 1).is_multiple_of(n) {
                    Word::Attention(false)
                } else {
                    other
                }
            })
            .collect()
    };
    Ok(match mixers {
        Mixers::Attention | Mixers::AttentionAndState | Mixers::Blocks => {
            vec![Word::Attention(false); count]
        }
        Mixers::AttentionOrConvolution { sliding: true } => (0..count)
            .map(|layer| match layer % 4 {
                2 => Word::Attention(false),
                0 if layer > 0 => Word::Attention(true),
                _ => Word::Convolution,
            })
            .collect(),
        Mixers::AttentionOrConvolution { sliding: false } => convolutions(config, count)?,
        Mixers::AttentionOrState(Rule::Delta | Rule::NegativeDelta) => {
            let interval = config
                .integer("full_attention_interval", 1..=LAYERS_MAX)?
                .unwrap_or(4);
            every(interval as usize, Word::State)
        }
        Mixers::AttentionOrState(Rule::Mamba2) => vec![Word::State; count],
    })
}

/// The layers of [`Mixers::Blocks`].
fn blocks(config: &ConfigReader<'_>) -> Result<Vec<Word>, LoadError> {
    let (name, words): (_, Vec<Word>) = match config.text("hybrid_override_pattern")? {
        Some(letters) => {
            let name = "hybrid_override_pattern";
            (
                name,
                letters
                    .chars()
                    .map(|letter: char| {
                        let letters = letter.to_string();
                        let word = Word::parse(&letters, Mixers::Blocks, Windows::Never);
                        word.ok_or_else(|| {
                            config.invalid(name, format!("has {letter:?}, not M, *, - or E"))
                        })
                    })
                    .collect::<Result<_, _>>()?,
            )
        }
        None => {
            let name = "layers_block_type";
            let words = config.required(name, config.list(name)?)?;
            (
                name,
                words
                    .iter()
                    .map(|word| parse_word(config, name, word, (Mixers::Blocks, Windows::Never)))
                    .collect::<Result<_, _>>()?,
            )
        }
    };
    check_count(
        config,
        name,
        words.len(),
        count(config)?.unwrap_or(words.len()),
    )?;
    if words.is_empty() || words.len() > LAYERS_MAX as usize {
        return Err(config.invalid(
            name,
            format!("has {} entries, not 1 to {LAYERS_MAX}", words.len()),
        ));
    }
    Ok(words)
}

fn parse_word(
    config: &ConfigReader<'_>,
    name: &str,
    word: &Value,
    (mixers, windows): (Mixers, Windows),
) -> Result<Word, LoadError> {
    let text = word.as_str();
    let found = text.and_then(|text| Word::parse(text, mixers, windows));
    found.ok_or_else(|| config.invalid(name, format!("has {word}, an unknown kind of layer")))
}

/// Convolutions, but attention in the layers that `full_attn_idxs` lists; without the list, attention only.
fn convolutions(config: &ConfigReader<'_>, count: usize) -> Result<Vec<Word>, LoadError> {
    let Some(attends) = config.list("full_attn_idxs")? else {
        return Ok(vec![Word::Attention(false); count]);
    };
    let mut words = vec![Word::Convolution; count];
    for index in attends {
        let layer = index
            .as_u64()
            .and_then(|index| words.get_mut(usize::try_from(index).ok()?));
        *layer.ok_or_else(|| {
            config.invalid(
                "full_attn_idxs",
                format!("has {index}, not one of {count} layers"),
            )
        })? = Word::Attention(false);
    }
    Ok(words)
}

/// The entries of a list for the layers of the model. Those of layers that guess tokens may follow, whose number is
/// `num_nextn_predict_layers`.
pub(super) fn of_layers<'a>(
    config: &ConfigReader<'_>,
    name: &str,
    list: &'a [Value],
    count: usize,
) -> Result<&'a [Value], LoadError> {
    let guessing = config.integer("num_nextn_predict_layers", 0..=LAYERS_MAX)?;
    if list.len() != count + guessing.unwrap_or(0) as usize {
        check_count(config, name, list.len(), count)?;
    }
    Ok(&list[..count])
}

/// The clamps of each layer: of experts, and of other MLPs.
pub(super) fn clamps(
    config: &ConfigReader<'_>,
    row: MlpRow,
    count: usize,
) -> Result<Vec<[Option<f32>; 2]>, LoadError> {
    let mut clamps = vec![[None; 2]; count];
    if !row.clamps {
        return Ok(clamps);
    }
    for (kind, name) in ["swiglu_limits", "swiglu_limits_shared"]
        .into_iter()
        .enumerate()
    {
        let Some(limits) = config.list(name)? else {
            continue;
        };
        for (clamps, limit) in clamps
            .iter_mut()
            .zip(of_layers(config, name, limits, count)?)
        {
            let number = limit.as_f64().filter(|limit| (0.0..=1e6).contains(limit));
            clamps[kind] = match number {
                None if limit.is_null() => None,
                None => {
                    let message = format!("has {limit}, not a number from 0 on");
                    return Err(config.invalid(name, message));
                }
                Some(number) => (number > 0.0).then_some(number as f32),
            };
        }
    }
    Ok(clamps)
}

/// The options of short convolutions, if any layer has one.
pub(super) fn convolution(
    config: &ConfigReader<'_>,
    layers: &[LayerSpec],
) -> Result<Option<ConvolutionSpec>, LoadError> {
    if !layers
        .iter()
        .any(|layer| layer.kind == LayerKind::Convolution)
    {
        return Ok(None);
    }
    let taps = config.integer("conv_L_cache", 2..=TAPS_MAX)?.unwrap_or(3);
    let bias = config.boolean("conv_bias")?.unwrap_or(false);
    Ok(Some(ConvolutionSpec { taps, bias }))
}

/// The size of an MLP that is not its experts'.
pub(super) fn mlp_size(config: &ConfigReader<'_>, size: MlpSize) -> Result<u32, LoadError> {
    const MAX: u32 = 1 << 20;
    let name = match size {
        MlpSize::Field(name) => return config.multiple_of_eight(name, MAX),
        MlpSize::Adjusted if config.get("block_ff_dim").is_some() => "block_ff_dim",
        MlpSize::Adjusted => "intermediate_size",
    };
    if !config.boolean("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return config.multiple_of_eight(name, MAX);
    }
    let whole = config.required(name, config.integer(name, 8..=MAX)?)?;
    let factor = config
        .number("block_ffn_dim_multiplier", 1e-3..=1e3)?
        .unwrap_or(1.0);
    let multiple = config
        .integer("block_multiple_of", 8..=1 << 16)?
        .unwrap_or(256);
    let size = (f64::from(2 * whole / 3) * factor) as u32;
    let size = size.max(1).next_multiple_of(multiple);
    if !size.is_multiple_of(8) || size > MAX {
        return Err(config.invalid(
            name,
            format!("is {whole}: the adjusted size would be {size}"),
        ));
    }
    Ok(size)
}

/// For each layer, whether it has a sliding window.
pub(super) fn slides(
    config: &ConfigReader<'_>,
    windows: Windows,
    words: &[Word],
) -> Result<Vec<bool>, LoadError> {
    let asked = config.boolean("use_sliding_window")?.unwrap_or(false);
    let window = config.get(windows.field()).is_some();
    let count = words.len();
    let none = vec![false; count];
    match windows {
        Windows::Never => return Ok(none),
        Windows::EveryLayer | Windows::PatternIfSet(_) if !window => return Ok(none),
        Windows::UpperLayers | Windows::UnrotatedLayers if !asked => return Ok(none),
        _ => {}
    }
    let mut slides = match config.get("layer_types") {
        Some(_) => slides_of_words(words),
        None => usual_slides(config, windows, words)?,
    };
    if let (Windows::PatternButLast(_), Some(last)) = (windows, slides.last_mut()) {
        *last = false;
    }
    if slides.contains(&true) && !window {
        return Err(config.invalid(
            windows.field(),
            "is missing, but some layers have a sliding window",
        ));
    }
    Ok(slides)
}

fn slides_of_words(words: &[Word]) -> Vec<bool> {
    words
        .iter()
        .map(|word| *word == Word::Attention(true))
        .collect()
}

/// Which layers have a sliding window in a model without `layer_types`.
fn usual_slides(
    config: &ConfigReader<'_>,
    windows: Windows,
    words: &[Word],
) -> Result<Vec<bool>, LoadError> {
    let count = words.len();
    Ok(match windows {
        Windows::Never => vec![false; count],
        Windows::Words => slides_of_words(words),
        Windows::EveryLayer => vec![true; count],
        Windows::UpperLayers => {
            let first = config
                .integer("max_window_layers", 0..=u32::MAX)?
                .unwrap_or(28) as usize;
            (0..count).map(|layer| layer >= first).collect()
        }
        Windows::Pattern(every) | Windows::PatternIfSet(every) | Windows::PatternButLast(every) => {
            pattern(config, every, count)?
        }
        Windows::PatternAfterDense(every) => pattern_after_dense(config, every, count)?,
        Windows::PatternFromLast(every) => pattern_from_last(every, count),
        Windows::AfterFirst(every) => {
            let mut slides = pattern(config, every, count)?;
            slides.insert(0, false);
            slides.truncate(count);
            slides
        }
        Windows::UnrotatedLayers => rotated_layers(config, count)?
            .into_iter()
            .map(|rotated| !rotated)
            .collect(),
        Windows::Chunks => rotated_layers(config, count)?,
    })
}

/// Fails unless a list has an entry per layer.
fn check_count(
    config: &ConfigReader<'_>,
    name: &str,
    found: usize,
    count: usize,
) -> Result<(), LoadError> {
    if found == count {
        return Ok(());
    }
    Err(config.invalid(
        name,
        format!("has {found} entries, not num_hidden_layers = {count}"),
    ))
}

/// [`pattern`], counted from behind the first `first_k_dense_replace` layers; of these, another.
fn pattern_after_dense(
    config: &ConfigReader<'_>,
    every: u32,
    count: usize,
) -> Result<Vec<bool>, LoadError> {
    let dense = config.integer("first_k_dense_replace", 0..=LAYERS_MAX)?;
    let dense = count.min(dense.unwrap_or(0) as usize);
    let prefix = dense_pattern(config)? as usize;
    let mut slides: Vec<bool> = (1..=dense).map(|layer| layer % prefix != 0).collect();
    slides.extend(pattern(config, every, count - dense)?);
    Ok(slides)
}

/// Of the dense layers before those with experts, every n-th has no window.
fn dense_pattern(config: &ConfigReader<'_>) -> Result<u32, LoadError> {
    let field = "prefix_dense_sliding_window_pattern";
    Ok(config.integer(field, 1..=LAYERS_MAX)?.unwrap_or(1))
}

/// All but every n-th layer, counted from the last.
fn pattern_from_last(every: u32, count: usize) -> Vec<bool> {
    (0..count)
        .map(|layer| !(count - 1 - layer).is_multiple_of(every as usize))
        .collect()
}

/// All but every n-th layer; n is `sliding_window_pattern`, or `every` if it is absent.
fn pattern(config: &ConfigReader<'_>, every: u32, count: usize) -> Result<Vec<bool>, LoadError> {
    if let Some(Value::String(letters)) = config.get("sliding_window_pattern") {
        if letters.is_empty() || letters.chars().any(|letter| !"LG".contains(letter)) {
            return Err(config.invalid("sliding_window_pattern", "is not a text of L and G"));
        }
        return Ok(letters
            .chars()
            .cycle()
            .take(count)
            .map(|letter| letter == 'L')
            .collect());
    }
    let given = config.integer("sliding_window_pattern", 1..=LAYERS_MAX)?;
    let given = given.or(config.integer("_sliding_window_pattern", 1..=LAYERS_MAX)?);
    let every = given.unwrap_or(every) as usize;
    Ok((1..=count).map(|layer| layer % every != 0).collect())
}

/// The rotary embeddings of a model, and for each layer the index of its own.
type LayerRopes = (Vec<RopeSpec>, Vec<Option<usize>>);

/// Reads the rotary embeddings of heads of `head_dim` elements.
pub(super) fn ropes(
    config: &ConfigReader<'_>,
    row: RopeRow,
    head_dim: u32,
    slides: &[bool],
    shapes: &[LayerShape],
    sparse: &[bool],
) -> Result<LayerRopes, LoadError> {
    let dim_of = |local: bool| {
        let found = slides
            .iter()
            .zip(shapes)
            .find(|(slides, _)| **slides == local);
        found.map_or(head_dim, |(_, shape)| shape.head_dim)
    };
    let one = || Ok::<_, LoadError>(vec![RopeSpec::from_config(config, head_dim, row.options)?]);
    let count = slides.len();
    let by_window = || {
        slides
            .iter()
            .map(|&slides| Some(usize::from(slides)))
            .collect()
    };
    Ok(match row.layers {
        Ropes::One => (one()?, vec![Some(0); count]),
        Ropes::LocalAndGlobal => (
            RopeSpec::global_and_local(config, [dim_of(false), dim_of(true)], row.options)?.into(),
            by_window(),
        ),
        Ropes::ScaledIfGlobal => (
            RopeSpec::scaled_and_plain(config, head_dim, row.options)?.into(),
            by_window(),
        ),
        Ropes::ListedByKind => (
            RopeSpec::listed(config, head_dim, row.options, slides)?.into(),
            by_window(),
        ),
        Ropes::SomeLayers => (
            one()?,
            rotated_layers(config, count)?
                .into_iter()
                .map(|rotated| rotated.then_some(0))
                .collect(),
        ),
        Ropes::LocalUnlessAllGlobal => (one()?, local_unless_all_global(slides)),
        Ropes::LocalOrDense => (one()?, local_or_dense(config, slides, sparse)?),
        Ropes::ListedBases => listed_bases(config, row, head_dim, slides)?,
        Ropes::Never => (Vec::new(), vec![None; count]),
        Ropes::Local => (
            one()?,
            slides.iter().map(|&slides| slides.then_some(0)).collect(),
        ),
        Ropes::PositionEmbeddingType { default } => {
            let rotates = config
                .text("position_embedding_type")?
                .map_or(default, |kind| kind == "rope");
            (one()?, vec![rotates.then_some(0); count])
        }
    })
}

/// Rotations of the layers with a window; of all, if none has one.
fn local_unless_all_global(slides: &[bool]) -> Vec<Option<usize>> {
    let all = !slides.contains(&true);
    slides
        .iter()
        .map(|&slides| (all || slides).then_some(0))
        .collect()
}

/// Rotations of the layers with a window, and of dense ones if none of these has one.
fn local_or_dense(
    config: &ConfigReader<'_>,
    slides: &[bool],
    sparse: &[bool],
) -> Result<Vec<Option<usize>>, LoadError> {
    let is_dense_rotated = dense_pattern(config)? == 1;
    let layers = slides.iter().zip(sparse);
    Ok(layers
        .map(|(slides, sparse)| (*slides || is_dense_rotated && !sparse).then_some(0))
        .collect())
}

/// Rotations of the layers whose entry of `layer_rope_theta` is not zero; without the list, of those with a window.
fn listed_bases(
    config: &ConfigReader<'_>,
    row: RopeRow,
    head_dim: u32,
    slides: &[bool],
) -> Result<LayerRopes, LoadError> {
    let name = "layer_rope_theta";
    let mut rope = RopeSpec::from_config(config, head_dim, row.options)?;
    let Some(bases) = config.list(name)? else {
        let ropes = slides.iter().map(|&slides| slides.then_some(0));
        return Ok((vec![rope], ropes.collect()));
    };
    check_count(config, name, bases.len(), slides.len())?;
    let mut layers = Vec::with_capacity(bases.len());
    let mut known = None;
    for base in bases {
        let found = base.as_f64().filter(|base| (0.0..=1e30).contains(base));
        let found = found.ok_or_else(|| config.invalid(name, format!("has {base}, no base")))?;
        if found > 0.0 && *known.get_or_insert(found) != found {
            let message =
                format!("has {found} and others: layers with several bases are not supported");
            return Err(config.invalid(name, message));
        }
        layers.push((found > 0.0).then_some(0));
    }
    rope.theta = known.unwrap_or(rope.theta);
    Ok((vec![rope], layers))
}

/// For each layer, whether it has rotary embeddings: `no_rope_layers` has a 1 if so.
fn rotated_layers(config: &ConfigReader<'_>, count: usize) -> Result<Vec<bool>, LoadError> {
    // An empty list is none.
    let given = config.list("no_rope_layers")?;
    let Some(given) = given.filter(|given| !given.is_empty()) else {
        let interval = config
            .integer("no_rope_layer_interval", 1..=LAYERS_MAX)?
            .unwrap_or(4) as usize;
        return Ok((1..=count).map(|layer| layer % interval != 0).collect());
    };
    if given.len() != count {
        let message = format!(
            "has {} entries, not num_hidden_layers = {count}",
            given.len()
        );
        return Err(config.invalid("no_rope_layers", message));
    }
    given
        .iter()
        .map(|entry| match entry.as_u64() {
            Some(rotates @ 0..=1) => Ok(rotates == 1),
            _ => Err(config.invalid("no_rope_layers", format!("has {entry}, not 0 or 1"))),
        })
        .collect()
}

/// The sizes of a layer, and where its keys and values come from.
#[derive(Clone, Copy)]
pub(super) struct LayerShape {
    pub(super) query_heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
    pub(super) mlp: u32,
    pub(super) kv_from: Option<usize>,
    pub(super) value_is_key: bool,
}

/// The sizes of each layer; `usual` are those that hold where the config says nothing else.
pub(super) fn shapes(
    config: &ConfigReader<'_>,
    (sizes, query_heads): (Sizes, QueryHeads),
    usual: LayerShape,
    slides: &[bool],
) -> Result<Vec<LayerShape>, LoadError> {
    let mut shapes = vec![usual; slides.len()];
    if query_heads == QueryHeads::ByLayer {
        set_query_heads(config, slides, &mut shapes)?;
    }
    if sizes == Sizes::ByKind {
        set_heads(config, slides, &mut shapes)?;
        share_keys_and_values(config, slides, &mut shapes)?;
        check_heads(config, &shapes)?;
    }
    Ok(shapes)
}

/// Sets the number of query heads of each layer.
fn set_query_heads(
    config: &ConfigReader<'_>,
    slides: &[bool],
    shapes: &mut [LayerShape],
) -> Result<(), LoadError> {
    let name = "num_attention_heads_per_layer";
    if let Some(list) = config.list(name)? {
        let list = of_layers(config, name, list, shapes.len())?;
        for (shape, heads) in shapes.iter_mut().zip(list) {
            let heads = heads.as_u64().filter(|heads| (1..=1024).contains(heads));
            let heads = heads.and_then(|heads| u32::try_from(heads).ok());
            shape.query_heads =
                heads.ok_or_else(|| config.invalid(name, "has something else than 1..=1024"))?;
        }
    } else if let Some(heads) = sliding_heads(config, shapes)? {
        let sliding = shapes.iter_mut().zip(slides).filter(|(_, slides)| **slides);
        sliding.for_each(|(shape, _)| shape.query_heads = heads);
    }
    let kinds: BTreeSet<_> = shapes.iter().map(|shape| shape.query_heads).collect();
    if kinds.len() > QUERY_HEADS_MAX {
        let message = format!(
            "gives layers {} numbers of heads; at most {QUERY_HEADS_MAX} are supported",
            kinds.len()
        );
        return Err(config.invalid(name, message));
    }
    Ok(())
}

/// The number of query heads of layers with a window, if it is another one.
fn sliding_heads(
    config: &ConfigReader<'_>,
    shapes: &[LayerShape],
) -> Result<Option<u32>, LoadError> {
    let name = "num_sliding_attention_heads";
    if let Some(heads) = config.integer(name, 1..=1024)? {
        return Ok(Some(heads));
    }
    let Some(other) = config.object("attention_other_setting")? else {
        return Ok(None);
    };
    let kind = other.text("attention_type")?.unwrap_or("sliding_attention");
    if kind != "sliding_attention" {
        let message = format!("is {kind:?}, not \"sliding_attention\"");
        return Err(other.invalid("attention_type", message));
    }
    let usual = shapes.first().map(|shape| (shape.kv_heads, shape.head_dim));
    for (name, usual) in [
        ("num_attention_groups", usual.map(|usual| usual.0)),
        ("head_dim", usual.map(|usual| usual.1)),
    ] {
        let own = other.integer(name, 1..=1024)?;
        if own.is_some_and(|own| Some(own) != usual) {
            return Err(other.invalid(name, "is not that of other layers"));
        }
    }
    other.integer("num_attention_heads", 1..=1024)
}

/// Sets the heads of layers without a window, then those of the exceptions that `per_layer_config` lists.
fn set_heads(
    config: &ConfigReader<'_>,
    slides: &[bool],
    shapes: &mut [LayerShape],
) -> Result<(), LoadError> {
    let value_is_key = config.boolean("attention_k_eq_v")?.unwrap_or(false);
    let exceptions = config.object("per_layer_config")?;
    let global_dim = optional_size(config, "global_head_dim", HEAD_DIM_MAX)?;
    let listed_heads = config.integer("num_global_key_value_heads", 1..=1024)?;
    let global_heads = if value_is_key { listed_heads } else { None };
    for (index, (shape, slides)) in shapes.iter_mut().zip(slides).enumerate() {
        if !slides {
            shape.head_dim = global_dim.unwrap_or(shape.head_dim);
            shape.kv_heads = global_heads.unwrap_or(shape.kv_heads);
            shape.value_is_key = value_is_key;
        }
        let own = match &exceptions {
            Some(exceptions) => exceptions.object(&index.to_string())?,
            None => None,
        };
        if let Some(own) = own {
            let head_dim = optional_size(&own, "head_dim", HEAD_DIM_MAX)?;
            let kv_heads = own.integer("num_key_value_heads", 1..=1024)?;
            shape.head_dim = head_dim.unwrap_or(shape.head_dim);
            shape.kv_heads = kv_heads.unwrap_or(shape.kv_heads);
        }
    }
    Ok(())
}

/// Lets the last `num_kv_shared_layers` use the keys and values of the last layer of their kind before them.
fn share_keys_and_values(
    config: &ConfigReader<'_>,
    slides: &[bool],
    shapes: &mut [LayerShape],
) -> Result<(), LoadError> {
    let name = "num_kv_shared_layers";
    let count = slides.len();
    let shared = config.integer(name, 0..=LAYERS_MAX)?.unwrap_or(0) as usize;
    let is_double = config.boolean("use_double_wide_mlp")?.unwrap_or(false);
    if shared >= count {
        return Err(config.invalid(name, format!("is {shared} of {count} layers")));
    }
    let own = count - shared;
    for index in own..count {
        let from = slides[..own]
            .iter()
            .rposition(|slides_before| *slides_before == slides[index]);
        let from = from.ok_or_else(|| {
            let message = format!("is {shared}: layer {index} has none of its kind before them");
            config.invalid(name, message)
        })?;
        let mlp = shapes[index].mlp;
        shapes[index] = LayerShape {
            mlp: if is_double { 2 * mlp } else { mlp },
            kv_from: Some(from),
            value_is_key: false,
            ..shapes[from]
        };
    }
    Ok(())
}

/// Fails if layers have heads of more kinds than the plan has buffers for.
fn check_heads(config: &ConfigReader<'_>, shapes: &[LayerShape]) -> Result<(), LoadError> {
    let kinds: BTreeSet<_> = shapes
        .iter()
        .map(|shape| (shape.head_dim, shape.kv_heads))
        .collect();
    if kinds.len() > HEAD_SHAPES_MAX {
        let message = format!(
            "gives layers {} kinds of heads; at most {HEAD_SHAPES_MAX} are supported",
            kinds.len()
        );
        return Err(config.invalid("per_layer_config", message));
    }
    Ok(())
}

fn optional_size(
    config: &ConfigReader<'_>,
    name: &str,
    max: u32,
) -> Result<Option<u32>, LoadError> {
    config
        .get(name)
        .map(|_| config.multiple_of_eight(name, max))
        .transpose()
}
