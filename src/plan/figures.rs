//! [`Figures`]: what a plan shows of its model in numbers.

use super::{Plan, WeightFormat};

/// The size of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Elements of all weights.
    pub parameters: u64,
    /// Positions for which the model was made.
    pub positions_max: u32,
    /// The formats of the weights with their elements, the most frequent first.
    pub formats: Vec<(WeightFormat, u64)>,
}

impl Figures {
    /// The format of most elements, as text.
    pub fn main_format(&self) -> Option<String> {
        self.formats
            .first()
            .map(|(format, _)| format!("{format:?}"))
    }
}

impl Plan {
    /// The size of the model.
    pub fn figures(&self) -> Figures {
        let mut formats: Vec<(WeightFormat, u64)> = Vec::new();
        for weight in &self.weights {
            for section in &weight.sections {
                let elements = u64::from(section.rows) * u64::from(weight.columns);
                match formats
                    .iter_mut()
                    .find(|(format, _)| *format == section.format)
                {
                    Some((_, sum)) => *sum += elements,
                    None => formats.push((section.format, elements)),
                }
            }
        }
        formats.sort_by_key(|(_, elements)| std::cmp::Reverse(*elements));
        Figures {
            parameters: formats.iter().map(|(_, elements)| elements).sum(),
            positions_max: self.positions_max,
            formats,
        }
    }
}
