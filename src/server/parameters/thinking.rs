//! [`Thinking`]: whether and how long the model should think, in whatever words a request says it, and the variables by
//! which chat templates are told.

use serde_json::{Map, Value};

/// The names of the switch: a template reads one of them.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// What a request says of thinking, apart from the template's variables.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Thinking {
    /// Whether the model thinks; `None`: the template's default.
    pub(crate) on: Option<bool>,
    /// How long, in the template's own words.
    pub(crate) effort: Option<&'static str>,
}

impl Thinking {
    /// Every effort but "none" turns thinking on.
    pub(crate) fn of_effort(effort: Option<&'static str>) -> Self {
        Self {
            on: effort.map(|effort| effort != "none"),
            effort,
        }
    }

    /// The template's variables. The request's own take precedence; one name of the switch among them decides for both.
    pub(crate) fn variables(self, own: Option<Map<String, Value>>) -> Option<Map<String, Value>> {
        let own = own.unwrap_or_default();
        let mut variables = Map::new();
        if let Some(on) = self.on
            && !SWITCHES.iter().any(|name| own.contains_key(*name))
        {
            variables.extend(SWITCHES.map(|name| (name.to_owned(), on.into())));
        }
        if let Some(effort) = self.effort {
            variables.insert("reasoning_effort".to_owned(), effort.into());
        }
        variables.extend(own);
        (!variables.is_empty()).then_some(variables)
    }
}

#[cfg(test)]
mod tests;
