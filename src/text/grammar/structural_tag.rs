//! Structural tags: the format in which clients of vLLM, SGLang and XGrammar describe an answer of free text and tagged
//! parts, as a grammar in Lark notation.
//!
//! The older form has `structures` (`begin`, `schema`, `end`) and `triggers`: text is free until it has a trigger, with
//! which one of the structures begins. The newer form is a tree of formats; [`Writer::format`] lists them.

use super::spec::{GrammarError, schema_in_lark};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Maximum nesting of formats.
const DEPTH_MAX: usize = 16;
/// Maximum formats and structures of one tag.
const PARTS_MAX: usize = 512;
/// Any text.
const ANY: &str = r"/(.|\n)*/";

/// The grammar of an answer with structural tags, in either form.
///
/// # Errors
///
/// A form that there is not here, or a wrong one; the message names its place.
pub fn structural_tag(tag: &Value) -> Result<String, GrammarError> {
    let mut writer = Writer::default();
    let start = if tag["format"].is_object() {
        writer.format("format", &tag["format"], 0)?
    } else {
        let tags = list("structures", &tag["structures"])?
            .iter()
            .map(|structure| {
                json!({"begin": structure["begin"], "end": structure["end"],
                "content": {"type": "json_schema", "json_schema": structure["schema"]}})
            });
        let both = json!({"triggers": tag["triggers"], "tags": tags.collect::<Vec<_>>()});
        writer.triggered("structures", &both, 0)?
    };
    Ok(format!("start: {start}{}", writer.rules))
}

/// Writes the rules of a grammar.
#[derive(Default)]
struct Writer {
    rules: String,
    count: usize,
    parts: usize,
}

impl Writer {
    /// Adds a rule, and returns its name. Its attributes come before the colon.
    fn rule(&mut self, attributes: &str, body: &str) -> String {
        let name = format!("part{}", self.count);
        self.count += 1;
        write!(self.rules, "\n{name}{attributes}: {body}").expect("a string takes text");
        name
    }

    /// An expression for a format.
    fn format(&mut self, at: &str, format: &Value, depth: usize) -> Result<String, GrammarError> {
        self.parts += 1;
        if depth > DEPTH_MAX || self.parts > PARTS_MAX {
            return Err(GrammarError::told(&format!(
                "`{at}`: at most {PARTS_MAX} formats may be nested {DEPTH_MAX} deep"
            )));
        }
        match format["type"].as_str() {
            Some("const_string") => literal(&format!("{at}.value"), &format["value"]),
            Some("json_schema") => {
                let schema = schema(&format!("{at}.json_schema"), format)?;
                Ok(self.rule("", &schema))
            }
            Some("regex") => {
                let pattern = text(&format!("{at}.pattern"), &format["pattern"])?;
                let body = llguidance::regex_to_lark(pattern, "dw");
                Ok(self.rule("", &format!("/{body}/")))
            }
            Some("any_text") => Ok(self.rule("", ANY)),
            Some("sequence") => self.elements(at, format, " ", depth),
            Some("or") => self.elements(at, format, " | ", depth),
            Some("optional") => self.repeated(at, format, "?", depth),
            Some("star") => self.repeated(at, format, "*", depth),
            Some("plus") => self.repeated(at, format, "+", depth),
            Some("tag") => self.tag(at, format, "", depth),
            Some("triggered_tags") => self.triggered(at, format, depth),
            Some("tags_with_separator") => self.separated(at, format, depth),
            _ => Err(GrammarError::told(&format!(
                "`{at}.type` must be const_string, json_schema, regex, any_text, sequence, or, optional, star, plus, \
                 tag, triggered_tags or tags_with_separator, not {}",
                format["type"]
            ))),
        }
    }

    fn elements(
        &mut self,
        at: &str,
        format: &Value,
        between: &str,
        depth: usize,
    ) -> Result<String, GrammarError> {
        let at = format!("{at}.elements");
        let elements = list(&at, &format["elements"])?;
        let mut parts = Vec::new();
        for (index, element) in elements.iter().enumerate() {
            let place = format!("{at}[{index}]");
            let is_last = index + 1 == elements.len() || between == " | ";
            if element["type"] == "any_text" && !is_last {
                return Err(GrammarError::told(&format!(
                    "`{place}`: free text must be the last element, or the content of a tag"
                )));
            }
            parts.push(self.format(&place, element, depth + 1)?);
        }
        Ok(self.rule("", &parts.join(between)))
    }

    fn repeated(
        &mut self,
        at: &str,
        format: &Value,
        times: &str,
        depth: usize,
    ) -> Result<String, GrammarError> {
        let content = self.format(&format!("{at}.content"), &format["content"], depth + 1)?;
        Ok(self.rule("", &format!("({content}){times}")))
    }

    /// A tag whose beginning has been written up to `begun`.
    fn tag(
        &mut self,
        at: &str,
        tag: &Value,
        begun: &str,
        depth: usize,
    ) -> Result<String, GrammarError> {
        let begin = text(&format!("{at}.begin"), &tag["begin"])?;
        let begin = begin.strip_prefix(begun).unwrap_or(begin);
        let at_end = format!("{at}.end");
        let ends = match &tag["end"] {
            Value::Array(ends) => ends
                .iter()
                .map(|end| text(&at_end, end))
                .collect::<Result<Vec<_>, _>>()?,
            end => vec![text(&at_end, end)?],
        };
        let ends = ends
            .iter()
            .map(|end| quoted(end))
            .collect::<Vec<_>>()
            .join(" | ");
        let content = &tag["content"];
        let rest = if content["type"] == "any_text" {
            if ends.is_empty() || ends == "\"\"" {
                self.rule("", ANY)
            } else {
                self.rule("[lazy]", &format!("{ANY} ({ends})"))
            }
        } else {
            let content = self.format(&format!("{at}.content"), content, depth + 1)?;
            format!("{content} ({ends})")
        };
        Ok(self.rule("", &format!("{} {rest}", quoted(begin))))
    }

    /// Free text, in which each trigger begins one of the tags.
    fn triggered(
        &mut self,
        at: &str,
        format: &Value,
        depth: usize,
    ) -> Result<String, GrammarError> {
        let (at_tags, at_triggers) = (format!("{at}.tags"), format!("{at}.triggers"));
        let tags = list(&at_tags, &format["tags"])?;
        let triggers = list(&at_triggers, &format["triggers"])?;
        let triggers: Vec<_> = triggers
            .iter()
            .map(|trigger| text(&at_triggers, trigger))
            .collect::<Result<_, _>>()?;
        let mut parts = Vec::new();
        let mut begun = 0;
        for trigger in &triggers {
            let mut after = Vec::new();
            for (index, tag) in tags.iter().enumerate() {
                let begins = tag["begin"]
                    .as_str()
                    .is_some_and(|begin| begin.starts_with(trigger));
                if begins && !trigger.is_empty() {
                    after.push(self.tag(
                        &format!("{at_tags}[{index}]"),
                        tag,
                        trigger,
                        depth + 1,
                    )?);
                }
            }
            begun += after.len();
            if after.is_empty() {
                return Err(GrammarError::told(&format!(
                    "`{at_triggers}`: no tag begins with {}",
                    quoted(trigger)
                )));
            }
            // The first trigger ends the free text.
            let free = self.rule("[lazy]", &format!("{ANY} {}", quoted(trigger)));
            parts.push(format!("{free} ({})", after.join(" | ")));
        }
        if begun < tags.len() || triggers.is_empty() {
            return Err(GrammarError::told(&format!(
                "`{at_tags}`: every tag must begin with one of the triggers"
            )));
        }
        let part = self.rule("", &parts.join(" | "));
        let has_one = format["at_least_one"] == true;
        let none: Vec<_> = triggers
            .iter()
            .map(|trigger| format!("(.|\\n)*{}(.|\\n)*", escaped(trigger)))
            .collect();
        write!(
            self.rules,
            "\nFREE{}: {ANY} & ~/{}/",
            self.count,
            none.join("|")
        )
        .expect("a string takes text");
        let free = format!("FREE{}", self.count);
        self.count += 1;
        Ok(self.rule(
            "",
            &match (has_one, format["stop_after_first"] == true) {
                (true, true) => part,
                (false, true) => format!("{part} | {free}"),
                (true, false) => format!("{part}+ {free}"),
                (false, false) => format!("{part}* {free}"),
            },
        ))
    }

    /// Tags with the same text between them.
    fn separated(
        &mut self,
        at: &str,
        format: &Value,
        depth: usize,
    ) -> Result<String, GrammarError> {
        let at_tags = format!("{at}.tags");
        let mut tags = Vec::new();
        for (index, tag) in list(&at_tags, &format["tags"])?.iter().enumerate() {
            tags.push(self.tag(&format!("{at_tags}[{index}]"), tag, "", depth + 1)?);
        }
        let between = literal(&format!("{at}.separator"), &format["separator"])?;
        let tag = self.rule("", &tags.join(" | "));
        let all = if format["stop_after_first"] == true {
            tag
        } else {
            format!("{tag} ({between} {tag})*")
        };
        let times = if format["at_least_one"] == true {
            ""
        } else {
            "?"
        };
        Ok(self.rule("", &format!("({all}){times}")))
    }
}

/// The value that a schema describes, as JSON.
fn schema(at: &str, format: &Value) -> Result<String, GrammarError> {
    let (schema, style) = (&format["json_schema"], &format["style"]);
    if !style.is_null() && *style != "json" {
        return Err(GrammarError::told(&format!(
            "`{at}`: `style` must be json, not {style}"
        )));
    }
    if !schema.is_object() && !schema.is_boolean() {
        return Err(GrammarError::told(&format!("`{at}` must be a schema")));
    }
    schema_in_lark(schema, false)
}

fn list<'a>(at: &str, value: &'a Value) -> Result<&'a [Value], GrammarError> {
    match value.as_array() {
        Some(items) if !items.is_empty() && items.len() <= PARTS_MAX => Ok(items),
        _ => Err(GrammarError::told(&format!(
            "`{at}` must be a list of 1 to {PARTS_MAX} entries"
        ))),
    }
}

fn text<'a>(at: &str, value: &'a Value) -> Result<&'a str, GrammarError> {
    value
        .as_str()
        .ok_or_else(|| GrammarError::told(&format!("`{at}` must be a string")))
}

fn literal(at: &str, value: &Value) -> Result<String, GrammarError> {
    text(at, value).map(quoted)
}

/// A text as a literal in Lark notation.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A text as a pattern that matches nothing else.
fn escaped(text: &str) -> String {
    text.chars()
        .map(|character| format!("\\x{{{:X}}}", u32::from(character)))
        .collect()
}
