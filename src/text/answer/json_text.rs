//! Arguments that are passed on as the model wrote them: [`Repair`] makes the strings in them valid JSON, and
//! [`compact`] leaves out white space. Numbers keep all of their digits.

use std::collections::HashMap;

/// Makes strings valid JSON while they stream. A raw control character in a string, such as a line break in code, can
/// only mean itself, so it is escaped; a backslash before anything that is no escape becomes one of the text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Repair {
    in_string: bool,
    /// An escape so far, from its backslash.
    escape: String,
}

impl Repair {
    pub(crate) fn in_string(&self) -> bool {
        self.in_string
    }

    pub(crate) fn in_escape(&self) -> bool {
        !self.escape.is_empty()
    }

    /// The repaired text of all that is certain.
    pub(crate) fn push(&mut self, text: &str) -> String {
        let mut repaired = String::with_capacity(text.len());
        text.chars()
            .for_each(|character| self.take(character, &mut repaired));
        repaired
    }

    fn take(&mut self, character: char, repaired: &mut String) {
        if !self.escape.is_empty() {
            return self.take_escaped(character, repaired);
        }
        match character {
            '"' => self.in_string = !self.in_string,
            '\\' if self.in_string => return self.escape.push(character),
            control if self.in_string && control < ' ' => {
                // As JSON, a control character is its escape between quotes.
                let quoted = serde_json::Value::from(control.to_string()).to_string();
                return repaired.push_str(quoted.trim_matches('"'));
            }
            _ => {}
        }
        repaired.push(character);
    }

    fn take_escaped(&mut self, character: char, repaired: &mut String) {
        let is_escape = match self.escape.len() {
            1 => matches!(
                character,
                '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' | 'u'
            ),
            _ => character.is_ascii_hexdigit(),
        };
        if !is_escape {
            repaired.push_str(&self.literal());
            return self.take(character, repaired);
        }
        self.escape.push(character);
        if self.escape.len() == if self.escape.starts_with("\\u") { 6 } else { 2 } {
            repaired.push_str(&std::mem::take(&mut self.escape));
        }
    }

    /// Ends the text: the beginning of an escape was none.
    pub(crate) fn finish(&mut self) -> String {
        if self.escape.is_empty() {
            String::new()
        } else {
            self.literal()
        }
    }

    /// What began like an escape, as text.
    fn literal(&mut self) -> String {
        format!("\\{}", std::mem::take(&mut self.escape))
    }
}

/// A whole text, repaired.
pub(crate) fn repaired(text: &str) -> String {
    let mut repair = Repair::default();
    repair.push(text) + &repair.finish()
}

/// An object whose values are JSON as it was written. The last of several values of a key counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Object {
    members: Vec<(String, String)>,
    places: HashMap<String, usize>,
}

impl Object {
    pub(crate) fn insert(&mut self, key: &str, json: String) {
        match self.places.get(key) {
            Some(&place) => self.members[place].1 = json,
            None => {
                self.places.insert(key.to_owned(), self.members.len());
                self.members.push((key.to_owned(), json));
            }
        }
    }

    pub(crate) fn json(&self) -> String {
        let members: Vec<_> = self
            .members
            .iter()
            .map(|(key, json)| format!("{}:{json}", quoted(key)))
            .collect();
        format!("{{{}}}", members.join(","))
    }
}

/// A text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A text within a JSON string.
pub(crate) fn escaped(text: &str) -> String {
    let json = quoted(text);
    json[1..json.len() - 1].to_owned()
}

/// JSON without white space between its tokens.
pub(crate) fn compact(json: &str) -> String {
    let (mut in_string, mut is_escaped) = (false, false);
    json.chars()
        .filter(|character| {
            let is_space = !in_string && matches!(character, ' ' | '\n' | '\r' | '\t');
            match character {
                '"' if !is_escaped => in_string = !in_string,
                _ => {}
            }
            is_escaped = in_string && *character == '\\' && !is_escaped;
            !is_space
        })
        .collect()
}

#[cfg(test)]
mod tests;
