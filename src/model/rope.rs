//! Rotary frequencies: from a config to a plan's vector. Computed in f64, since a rounded frequency times a position of
//! 100,000 gives a wrong angle.

use super::config_reader::ConfigReader;
use super::error::LoadError;
use serde_json::Value;
use std::f64::consts::TAU;
use std::ops::RangeInclusive;

/// One variant of rotary embeddings in a model.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Base of the geometric series of wavelengths.
    pub theta: f64,
    /// Leading elements of a head that rotate.
    pub rotary_dim: u32,
    /// Pairs are `(2i, 2i + 1)` instead of `(i, i + rotary_dim / 2)`.
    pub interleaved: bool,
    /// How frequencies are stretched beyond the trained context.
    pub scaling: RopeScaling,
    /// Additional divisors of the frequencies; empty: none.
    pub divisors: Vec<f32>,
    /// The divisors for contexts beyond that of [`RopeScaling::Long`].
    pub long_divisors: Vec<f32>,
    /// The axes along which rows have positions.
    pub axes: RopeAxes,
}

/// The positions by which frequencies turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeAxes {
    /// Each row has one position.
    One,
    /// Patches of images: the first half of the pairs turn by the row, with frequencies 0, 2, 4 … of the series, the
    /// others by the column, with frequencies 1, 3, 5 ….
    Alternating,
}

impl RopeAxes {
    /// The axes of a patch's place.
    const ROW: f32 = 1.0;
    const COLUMN: f32 = 2.0;

    /// The frequencies in the order of their pairs, then the axis of each if there are several.
    fn arranged(self, frequencies: Vec<f32>) -> Vec<f32> {
        match self {
            Self::One => frequencies,
            Self::Alternating => {
                let every_other = |first: usize| frequencies.iter().copied().skip(first).step_by(2);
                let rows = every_other(0).map(|frequency| (frequency, Self::ROW));
                let columns = every_other(1).map(|frequency| (frequency, Self::COLUMN));
                let (mut numbers, axes): (Vec<f32>, Vec<f32>) = rows.chain(columns).unzip();
                numbers.extend(axes);
                numbers
            }
        }
    }
}

/// What an architecture says of its rotary embeddings, including the values of absent fields.
#[derive(Clone, Copy)]
pub(super) struct RopeOptions {
    /// See [`RopeSpec::interleaved`].
    pub(super) interleaved: bool,
    /// Default of `partial_rotary_factor`.
    pub(super) partial_rotary_factor: f64,
    /// A field with the number of elements that rotate, if `partial_rotary_factor` is absent.
    pub(super) rotary_dim: Option<&'static str>,
    /// All elements rotate, whatever the fields say: those of a latent's rotated part.
    pub(super) whole: bool,
    /// See [`RopeSpec::axes`].
    pub(super) axes: RopeAxes,
}

/// How a model stretches its rotary frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies are divided by a factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3: frequencies with long wavelengths are divided, those with short ones kept, with a ramp between.
    Llama3 {
        /// The divisor of long waves.
        factor: f64,
        /// Waves longer than `original_positions / low_freq_factor` are long.
        low_freq_factor: f64,
        /// Waves shorter than `original_positions / high_freq_factor` are short.
        high_freq_factor: f64,
        /// Context length of the original training.
        original_positions: f64,
    },
    /// YaRN: frequencies with few turns within the trained context are divided, others kept, with a ramp over the pairs
    /// between.
    Yarn {
        /// The divisor of long waves.
        factor: f64,
        /// Pairs up to here are kept.
        ramp_start: f64,
        /// Pairs from here on are divided.
        ramp_end: f64,
        /// Multiplies cos and sin.
        attention_factor: f64,
    },
    /// Only the first pairs turn, with the frequencies that they would have if all did, divided by a factor.
    Proportional {
        /// Pairs that turn.
        pairs: u32,
        /// The divisor.
        factor: f64,
    },
    /// Longrope: frequencies are divided by one of two lists, by the length of the context. Rotated keys are kept, so
    /// the list cannot change within a sequence: it depends on the longest context of the model.
    Long {
        /// Contexts up to this have [`RopeSpec::divisors`], longer ones [`RopeSpec::long_divisors`].
        original_positions: f64,
        /// Multiplies cos and sin: with the former divisors, and with the latter.
        attention_factors: [f64; 2],
    },
}

impl RopeSpec {
    /// From `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (transformers 4).
    pub(super) fn from_config(
        config: &ConfigReader<'_>,
        head_dim: u32,
        options: RopeOptions,
    ) -> Result<Self, LoadError> {
        Self::read(
            config,
            config.object("rope_parameters")?.as_ref(),
            head_dim,
            options,
        )
    }

    /// The variant for layers without a window, which is scaled, and the one for layers with a window, which is not.
    pub(super) fn scaled_and_plain(
        config: &ConfigReader<'_>,
        head_dim: u32,
        options: RopeOptions,
    ) -> Result<[Self; 2], LoadError> {
        let parameters = config.object("rope_parameters")?;
        if parameters.is_some_and(|parameters| parameters.get("full_attention").is_some()) {
            return Self::global_and_local(config, [head_dim; 2], options);
        }
        let scaled = Self::from_config(config, head_dim, options)?;
        let plain = Self {
            scaling: RopeScaling::None,
            ..scaled.clone()
        };
        Ok([scaled, plain])
    }

    /// The variant for layers without a window, and the one for layers with a window: `rope_parameters` has an object
    /// for each (transformers 5), or `rope_local_base_freq` is the base of the latter (transformers 4).
    pub(super) fn global_and_local(
        config: &ConfigReader<'_>,
        [head_dim, local_head_dim]: [u32; 2],
        options: RopeOptions,
    ) -> Result<[Self; 2], LoadError> {
        if let Some(parameters) = config.object("rope_parameters")? {
            let kinds = [
                ("full_attention", head_dim),
                ("sliding_attention", local_head_dim),
            ]
            .map(|(kind, head_dim)| {
                let parameters = parameters.required(kind, parameters.object(kind)?)?;
                Self::read(config, Some(&parameters), head_dim, options)
            });
            let [global, local] = kinds;
            return Ok([global?, local?]);
        }
        let global = Self::read(config, None, head_dim, options)?;
        let theta = config
            .number("rope_local_base_freq", 1e-3..=1e30)?
            .unwrap_or(10_000.0);
        let local = Self {
            theta,
            scaling: RopeScaling::None,
            ..global.clone()
        };
        Ok([global, local])
    }

    /// The variant for layers without a window, and the one for layers with a window: `rope_parameters` has an object
    /// for each (transformers 5); or `rope_theta` and `partial_rotary_factors` are lists with an entry per layer, and
    /// only the former variant is scaled, by `rope_scaling`.
    pub(super) fn listed(
        config: &ConfigReader<'_>,
        head_dim: u32,
        options: RopeOptions,
        slides: &[bool],
    ) -> Result<[Self; 2], LoadError> {
        if config.object("rope_parameters")?.is_some() {
            return Self::global_and_local(config, [head_dim; 2], options);
        }
        let of_kind = |local: bool| {
            let of = |name, default| listed_number(config, name, slides, local, default);
            let (theta, fraction) = (
                of("rope_theta", None)?,
                of(
                    "partial_rotary_factors",
                    Some(options.partial_rotary_factor),
                )?,
            );
            let rotary_dim = (f64::from(head_dim) * fraction) as u32;
            if !(2..=head_dim).contains(&rotary_dim) || !rotary_dim.is_multiple_of(2) {
                let message = format!(
                    "has {fraction}: it rotates {rotary_dim} of {head_dim} elements, not an even number"
                );
                return Err(config.invalid("partial_rotary_factors", message));
            }
            let plain = Self::plain(theta, rotary_dim, options.interleaved);
            match config.object("rope_scaling")? {
                Some(fields) if !local => {
                    plain.scaled(&fields, config, f64::from(head_dim), fraction)
                }
                _ => Ok(plain),
            }
        };
        Ok([of_kind(false)?, of_kind(true)?])
    }

    fn plain(theta: f64, rotary_dim: u32, interleaved: bool) -> Self {
        let scaling = RopeScaling::None;
        Self {
            theta,
            rotary_dim,
            interleaved,
            scaling,
            divisors: Vec::new(),
            long_divisors: Vec::new(),
            axes: RopeAxes::One,
        }
    }

    fn read(
        config: &ConfigReader<'_>,
        parameters: Option<&ConfigReader<'_>>,
        head_dim: u32,
        options: RopeOptions,
    ) -> Result<Self, LoadError> {
        let scaling = parameters.cloned().or(config.object("rope_scaling")?);
        let number = |name: &str, range: RangeInclusive<f64>| {
            let own = match &scaling {
                Some(fields) => fields.number(name, range.clone())?,
                None => None,
            };
            Ok::<_, LoadError>(own.or(config.number(name, range)?))
        };
        let given = number("partial_rotary_factor", 0.0..=1.0)?;
        let counted = options
            .rotary_dim
            .map_or(Ok(None), |field| config.integer(field, 2..=head_dim))?;
        let fraction = match (given, counted) {
            _ if options.whole => 1.0,
            (None, Some(count)) => f64::from(count) / f64::from(head_dim),
            (given, _) => given.unwrap_or(options.partial_rotary_factor),
        };
        let is_proportional = match &scaling {
            Some(fields) => fields.text("rope_type")? == Some("proportional"),
            None => false,
        };
        // A proportional rotation pairs elements of the whole head, but only the first pairs turn.
        let rotary_dim = if is_proportional {
            head_dim
        } else {
            (f64::from(head_dim) * fraction) as u32
        };
        if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
            let message = format!(
                "is {fraction}: it rotates {rotary_dim} of {head_dim} elements, not an even number"
            );
            return Err(config.invalid("partial_rotary_factor", message));
        }
        let theta = config.required("rope_theta", number("rope_theta", 1e-3..=1e30)?)?;
        let plain = Self {
            axes: options.axes,
            ..Self::plain(theta, rotary_dim, options.interleaved)
        };
        match scaling {
            Some(fields) => plain.scaled(&fields, config, f64::from(head_dim), fraction),
            None => Ok(plain),
        }
    }

    /// Stretches the frequencies as `fields` say. `fraction` of the head's elements rotate.
    fn scaled(
        mut self,
        fields: &ConfigReader<'_>,
        config: &ConfigReader<'_>,
        head_dim: f64,
        fraction: f64,
    ) -> Result<Self, LoadError> {
        let alpha = fields.number("alpha", 1e-3..=1e9)?;
        let kind = fields.text("rope_type")?.or(fields.text("type")?);
        match (kind, alpha) {
            (Some("proportional"), _) => {
                let pairs = (head_dim * fraction / 2.0) as u32;
                let factor = fields.number("factor", 1e-6..=1e9)?.unwrap_or(1.0);
                self.scaling = RopeScaling::Proportional { pairs, factor };
            }
            // The base of NTK, whatever the length of a sequence.
            (Some("dynamic"), Some(alpha)) => {
                self.theta *= alpha.powf(head_dim / (head_dim - 2.0));
            }
            (Some("longrope" | "su"), _) => self.read_long(fields, config)?,
            _ => {
                let rotary_dim = f64::from(self.rotary_dim);
                self.scaling = RopeScaling::from_fields(fields, config, self.theta, rotary_dim)?;
            }
        }
        Ok(self)
    }

    /// Reads the two lists of divisors of longrope.
    fn read_long(
        &mut self,
        fields: &ConfigReader<'_>,
        config: &ConfigReader<'_>,
    ) -> Result<(), LoadError> {
        let name = "original_max_position_embeddings";
        let given = match fields.number(name, 2.0..=1e9)? {
            Some(given) => Some(given),
            None => config.number(name, 2.0..=1e9)?,
        };
        let original_positions = config.required(name, given)?;
        let whole = config.number("max_position_embeddings", 1.0..=1e9)?;
        let stretch = config.required("max_position_embeddings", whole)? / original_positions;
        let attention_factor = match fields.number("attention_factor", 1e-6..=1e9)? {
            Some(given) => given,
            None if stretch <= 1.0 => 1.0,
            None => (1.0 + stretch.ln() / original_positions.ln()).sqrt(),
        };
        // Phi with experts has the factors themselves.
        let own = |name: &str| fields.number(name, 1e-6..=1e9);
        let attention_factors = [
            own("short_mscale")?.unwrap_or(attention_factor),
            own("long_mscale")?.unwrap_or(attention_factor),
        ];
        let read = |name: &str| {
            let list = fields.required(name, fields.list(name)?)?;
            let numbers = list.iter().map(|value| {
                let number = value.as_f64()?;
                (1e-6..=1e9).contains(&number).then_some(number as f32)
            });
            let numbers: Option<Vec<f32>> = numbers.collect();
            match numbers {
                Some(numbers) if numbers.len() == self.rotary_dim as usize / 2 => Ok(numbers),
                _ => Err(fields.invalid(
                    name,
                    format!("is not {} numbers above zero", self.rotary_dim / 2),
                )),
            }
        };
        let (short, long) = (read("short_factor")?, read("long_factor")?);
        self.scaling = RopeScaling::Long {
            original_positions,
            attention_factors,
        };
        self.divisors = short;
        self.long_divisors = long;
        Ok(())
    }

    /// Factor of cos and sin, for contexts of up to `positions_max` tokens.
    pub fn scale(&self, positions_max: u32) -> f32 {
        match self.scaling {
            RopeScaling::Yarn {
                attention_factor, ..
            } => attention_factor as f32,
            RopeScaling::Long {
                attention_factors, ..
            } => attention_factors[usize::from(self.is_long(positions_max))] as f32,
            _ => 1.0,
        }
    }

    /// Whether contexts of up to `positions_max` tokens have the divisors of long ones.
    fn is_long(&self, positions_max: u32) -> bool {
        matches!(self.scaling,
            RopeScaling::Long { original_positions, .. } if f64::from(positions_max) > original_positions)
    }

    /// Sets additional divisors of the frequencies, which a file has.
    pub(super) fn divide(&mut self, file: &str, divisors: &[f32]) -> Result<(), LoadError> {
        let usable = divisors
            .iter()
            .all(|divisor| divisor.is_finite() && *divisor > 0.0);
        if !usable || divisors.len() != self.rotary_dim as usize / 2 {
            let message = format!(
                "has {} numbers; expected {}, all above zero",
                divisors.len(),
                self.rotary_dim / 2
            );
            return Err(LoadError::Field {
                file: file.into(),
                field: "rope_freqs.weight".into(),
                message,
            });
        }
        self.divisors = divisors.into();
        Ok(())
    }

    /// Radians per position, for contexts of up to `positions_max` tokens; `rotary_dim / 2` numbers, and as many of
    /// axes if there are several.
    pub fn frequencies(&self, positions_max: u32) -> Vec<f32> {
        let divisors = if self.is_long(positions_max) {
            &self.long_divisors
        } else {
            &self.divisors
        };
        let dim = f64::from(self.rotary_dim);
        let plain =
            (0..self.rotary_dim / 2).map(|pair| self.theta.powf(-2.0 * f64::from(pair) / dim));
        let divisors = divisors
            .iter()
            .map(|divisor| f64::from(*divisor))
            .chain(std::iter::repeat(1.0));
        let scaled = plain
            .zip(0..)
            .map(|(frequency, pair)| self.scaling.apply(frequency, f64::from(pair)));
        let frequencies = scaled
            .zip(divisors)
            .map(|(frequency, divisor)| (frequency / divisor) as f32);
        self.axes.arranged(frequencies.collect())
    }
}

/// The number of `name` for layers with or without a window: one for all, or an entry per layer, of which those of one
/// kind are equal. Entries beyond the last layer are ignored: they are those of layers that guess tokens.
fn listed_number(
    config: &ConfigReader<'_>,
    name: &str,
    slides: &[bool],
    local: bool,
    default: Option<f64>,
) -> Result<f64, LoadError> {
    if !config.get(name).is_some_and(Value::is_array) {
        let given = config.number(name, 1e-3..=1e30)?;
        return config.required(name, given.or(default));
    }
    let list = config.list(name)?.unwrap_or_default();
    if list.len() < slides.len() {
        let message = format!("has {} entries, not one per layer", list.len());
        return Err(config.invalid(name, message));
    }
    let entries = list.iter().zip(slides);
    let mut found = None;
    // Without layers of this kind, nothing reads its rotation.
    for (entry, _) in entries.filter(|(_, slides)| **slides == local) {
        let number = entry.as_f64().filter(|entry| (1e-3..=1e30).contains(entry));
        let number = number
            .ok_or_else(|| config.invalid(name, format!("has {entry}, no number above zero")))?;
        if *found.get_or_insert(number) != number {
            let message = format!("has {number} and others in layers of one kind");
            return Err(config.invalid(name, message));
        }
    }
    Ok(found.or(default).unwrap_or(10_000.0))
}

/// What YaRN multiplies cos and sin by if frequencies are divided by `factor`.
pub(in crate::model) fn damping(slope: f64, factor: f64) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * slope * factor.ln() + 1.0
    }
}

impl RopeScaling {
    fn from_fields(
        fields: &ConfigReader<'_>,
        config: &ConfigReader<'_>,
        theta: f64,
        dim: f64,
    ) -> Result<Self, LoadError> {
        let positive = |name: &str| fields.required(name, fields.number(name, 1e-6..=1e9)?);
        match fields.text("rope_type")?.or(fields.text("type")?) {
            // Dynamic scaling begins beyond the trained length, which no context exceeds; sections of multimodal
            // positions (mrope) are alike for text.
            None | Some("default" | "dynamic" | "mrope") => Ok(Self::None),
            Some("linear") => Ok(Self::Linear {
                factor: positive("factor")?,
            }),
            Some("llama3") => {
                let (low, high) = (positive("low_freq_factor")?, positive("high_freq_factor")?);
                if low >= high {
                    return Err(fields.invalid(
                        "low_freq_factor",
                        format!("is {low}, not below high_freq_factor = {high}"),
                    ));
                }
                Ok(Self::Llama3 {
                    factor: positive("factor")?,
                    low_freq_factor: low,
                    high_freq_factor: high,
                    original_positions: positive("original_max_position_embeddings")?,
                })
            }
            Some("yarn") => Self::yarn(fields, config, theta, dim),
            Some(other) => Err(fields.invalid(
                "rope_type",
                format!("is {other:?}, not default, linear, llama3, yarn or longrope"),
            )),
        }
    }

    fn yarn(
        fields: &ConfigReader<'_>,
        config: &ConfigReader<'_>,
        theta: f64,
        dim: f64,
    ) -> Result<Self, LoadError> {
        let number = |name: &str| fields.number(name, 1e-6..=1e9);
        let factor = fields.required("factor", number("factor")?)?;
        let positions = match number("original_max_position_embeddings")? {
            Some(positions) => positions,
            None => config.required(
                "max_position_embeddings",
                config.number("max_position_embeddings", 1.0..=1e9)?,
            )?,
        };
        // The (fractional) index of the pair that makes this many turns within the trained context.
        let pair = |turns: f64| dim * (positions / (turns * TAU)).ln() / (2.0 * theta.ln());
        let (start, end) = (
            pair(number("beta_fast")?.unwrap_or(32.0)),
            pair(number("beta_slow")?.unwrap_or(1.0)),
        );
        let truncate = fields.boolean("truncate")?.unwrap_or(true);
        let (start, end) = if truncate {
            (start.floor(), end.ceil())
        } else {
            (start, end)
        };
        let (ramp_start, ramp_end) = (start.max(0.0), end.min(dim - 1.0));
        let damped = |slope: f64| damping(slope, factor);
        let attention_factor = match (
            number("attention_factor")?,
            number("mscale")?,
            number("mscale_all_dim")?,
        ) {
            (Some(given), ..) => given,
            (None, Some(slope), Some(all)) => damped(slope) / damped(all),
            _ => damped(1.0),
        };
        // As transformers does: avoids a ramp of length zero.
        let ramp_end = if ramp_end == ramp_start {
            ramp_end + 0.001
        } else {
            ramp_end
        };
        Ok(Self::Yarn {
            factor,
            ramp_start,
            ramp_end,
            attention_factor,
        })
    }

    /// The scaled frequency of a pair, from its plain frequency.
    fn apply(self, frequency: f64, pair: f64) -> f64 {
        match self {
            Self::None | Self::Long { .. } => frequency,
            Self::Proportional { pairs, factor } => {
                if pair < f64::from(pairs) {
                    frequency / factor
                } else {
                    0.0
                }
            }
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_positions,
            } => {
                let waves = original_positions * frequency / TAU;
                let kept = ((waves - low_freq_factor) / (high_freq_factor - low_freq_factor))
                    .clamp(0.0, 1.0);
                frequency * (kept + (1.0 - kept) / factor)
            }
            Self::Yarn {
                factor,
                ramp_start,
                ramp_end,
                ..
            } => {
                let divided = ((pair - ramp_start) / (ramp_end - ramp_start)).clamp(0.0, 1.0);
                frequency * ((1.0 - divided) + divided / factor)
            }
        }
    }
}

#[cfg(test)]
mod tests;
