//! Structured output: the fields that set the form of an answer, and the adapter between grammars, which know text, and
//! the engine, which knows tokens.

use crate::engine::request::{Constraint, ConstraintState, SharedConstraint, Unsatisfiable};
use crate::server::parameters::kinds::structured::tagged;
use crate::server::parameters::table::{
    ResponseFormat, SchemaFields, StructuredFields, StructuredOutputs,
};
use crate::server::state::{ALWAYS, ModelState};
use crate::server::wire::error::ApiError;
use crate::text::answer::{AnswerFormat, ReasoningParser, ReasoningTracker, Start};
use crate::text::{
    Grammar, GrammarError, GrammarSpec, GrammarState, Grammars, Tokenizer, Waiting, watch,
};
use futures_channel::oneshot;
use futures_util::future::{Either, select};
use serde_json::json;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// Time after which a request with a grammar that is still compiled gets an error. It is several times what grammars
/// within the limits take on a busy machine, the first one's tables of the vocabulary included.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Size of a server's cache of compiled grammars, in bytes.
const CACHE_BYTES: usize = 64 << 20;

/// The form that an answer must have, and the field of the request that sets it.
#[derive(Clone, Debug)]
pub(crate) struct Structure {
    pub(crate) spec: GrammarSpec,
    pub(crate) field: &'static str,
}

impl StructuredFields {
    /// The form that these fields set. At most one of them may be given, or the same several times.
    pub(crate) fn structure(self) -> Result<Option<Structure>, ApiError> {
        let outputs = self
            .structured_outputs
            .map(StructuredOutputs::structures)
            .into_iter()
            .flatten();
        let others = [
            ("guided_json", self.guided_json),
            ("guided_regex", self.guided_regex),
            ("guided_choice", self.guided_choice),
            ("guided_grammar", self.guided_grammar),
            ("regex", self.regex),
            ("ebnf", self.ebnf),
            ("grammar", self.grammar),
            ("json_schema", self.json_schema),
        ];
        let format = self
            .response_format
            .map(ResponseFormat::spec)
            .transpose()?
            .flatten();
        let found = std::iter::once(("response_format", format))
            .chain(outputs)
            .chain(others);
        Structure::one(found.filter_map(|(field, spec)| Some(Structure { spec: spec?, field })))
    }
}

impl Structure {
    /// The one form that is given, if any. Some clients give the same one under two names.
    pub(crate) fn one(mut given: impl Iterator<Item = Self>) -> Result<Option<Self>, ApiError> {
        let first = given.next();
        match first
            .as_ref()
            .and_then(|first| Some((first, given.find(|other| other.spec != first.spec)?)))
        {
            None => Ok(first),
            Some((first, second)) => {
                let message = format!(
                    "`{}` and `{}` cannot both constrain the answer",
                    first.field, second.field
                );
                Err(ApiError::invalid(second.field, message))
            }
        }
    }
}

impl ResponseFormat {
    /// The grammar that this form asks for; `None` for plain text.
    fn spec(self) -> Result<Option<GrammarSpec>, ApiError> {
        if self.r#type == "structural_tag" {
            let tag = json!({"structures": self.structures, "triggers": self.triggers, "format": self.format});
            return tagged("response_format", &tag).map(Some);
        }
        let SchemaFields { schema, strict, .. } = self.json_schema.unwrap_or(self.beside);
        match (self.r#type, schema) {
            ("text", _) => Ok(None),
            ("json_object", None) => Ok(Some(GrammarSpec::json_object())),
            (_, None) => Err(ApiError::missing("response_format.json_schema.schema")),
            (kind, Some(schema)) => Ok(Some(GrammarSpec::Schema {
                schema,
                strict: strict && kind == "json_schema",
            })),
        }
    }
}

impl StructuredOutputs {
    fn structures(self) -> [(&'static str, Option<GrammarSpec>); 6] {
        [
            ("structured_outputs.json", self.json),
            (
                "structured_outputs.json_object",
                self.json_object.then(GrammarSpec::json_object),
            ),
            ("structured_outputs.regex", self.regex),
            ("structured_outputs.choice", self.choice),
            ("structured_outputs.grammar", self.grammar),
            ("structured_outputs.structural_tag", self.structural_tag),
        ]
    }
}

impl ModelState {
    /// Compiles a grammar of a client's, on a separate thread.
    pub(crate) async fn grammar(
        &self,
        client: u32,
        structure: Structure,
    ) -> Result<Grammar, ApiError> {
        let Structure { spec, field } = structure;
        self.grammar_of(client, field, move |_| Ok((spec, ())))
            .await
            .map(|(grammar, ())| grammar)
    }

    /// Compiles the grammar that `make` writes for a client, both on a separate thread. Also returns what else it
    /// makes.
    pub(crate) async fn grammar_of<T: Send + 'static>(
        &self,
        client: u32,
        field: &'static str,
        make: impl FnOnce(&Tokenizer) -> Result<(GrammarSpec, T), GrammarError> + Send + 'static,
    ) -> Result<(Grammar, T), ApiError> {
        let Some(tokenizer) = self.text.tokenizer.clone() else {
            return Err(ApiError::unsupported(
                field,
                "structured output needs a tokenizer, and this model has none",
            ));
        };
        let info = self.ready()?;
        let (vocab, end_ids) = (info.vocab, info.eos_token_ids.clone());
        let cell = self.grammars.clone();
        // The work ends when this request does.
        let waiting = Waiting::default();
        let watched = waiting.watched();
        let place = self.shared.compilations.place(client).await?;
        let (told, is_late) = oneshot::channel::<()>();
        let compiled = self.shared.offload(ALWAYS, move || {
            // Kept to the end of the work, also if that is too late for the request.
            let _place = place;
            let (spec, more) = make(&tokenizer)?;
            let grammars =
                cell.get_or_init(|| Grammars::new(tokenizer, vocab, &end_ids, CACHE_BYTES));
            Ok::<_, GrammarError>((
                grammars
                    .as_ref()
                    .map_err(GrammarError::clone)?
                    .compile_for(Some(watched), &spec)?,
                more,
            ))
        });
        // A request that waits for longer is told so by dropping this.
        let mut told = Some(told);
        let _running = watch(WAIT_MAX, None, move || drop(told.take()));
        let compiled = match select(pin!(compiled), is_late).await {
            Either::Left((compiled, _)) => compiled?,
            Either::Right(_) => Err(GrammarError::too_long()),
        };
        compiled.map_err(|error| ApiError::grammar(field, &error))
    }
}

/// The constraint of one request: a grammar that applies once the reasoning has ended.
#[derive(Debug)]
struct Structured {
    grammar: Grammar,
    reasoning: ReasoningTracker,
    call_id: Option<u32>,
}

#[derive(Debug)]
struct State {
    grammar: GrammarState,
    reasoning: ReasoningTracker,
    /// The token that opens a call, if there is one.
    call_id: Option<u32>,
}

/// A constraint that applies from the first token, for answers that are plain text.
pub(crate) fn from_the_start(grammar: Grammar) -> SharedConstraint {
    SharedConstraint(Arc::new(Structured {
        grammar,
        reasoning: ReasoningTracker::Ended,
        call_id: None,
    }))
}

/// A constraint for answers that begin at `start`. A grammar that describes the whole answer, reasoning included,
/// applies from the first token.
pub(crate) fn constraint(
    grammar: Grammar,
    format: AnswerFormat,
    tokenizer: &Arc<Tokenizer>,
    start: Start,
    whole_answer: bool,
) -> SharedConstraint {
    let reasoning = if whole_answer && format.reasoning == ReasoningParser::Harmony {
        ReasoningTracker::Ended
    } else {
        ReasoningTracker::new(format.reasoning, tokenizer, start)
    };
    let marker = format.tools.markers().first();
    SharedConstraint(Arc::new(Structured {
        grammar,
        reasoning,
        call_id: marker.and_then(|marker| tokenizer.id_of(marker)),
    }))
}

impl Constraint for Structured {
    fn start(&self) -> Box<dyn ConstraintState> {
        Box::new(State {
            grammar: self.grammar.start(),
            reasoning: self.reasoning.clone(),
            call_id: self.call_id,
        })
    }
}

impl ConstraintState for State {
    fn fork(&self) -> Box<dyn ConstraintState> {
        Box::new(Self {
            grammar: self.grammar.clone(),
            reasoning: self.reasoning.clone(),
            call_id: self.call_id,
        })
    }

    fn fill_mask(&mut self, mask: &mut [u32]) -> Result<bool, Unsatisfiable> {
        let (holds, also) = self.reasoning.state();
        if !holds {
            return Ok(false);
        }
        self.grammar.fill_mask(mask).map_err(|_| Unsatisfiable)?;
        if let Some(word) = also.and_then(|id| mask.get_mut(id as usize / 32)) {
            *word |= 1 << (also.unwrap_or(0) % 32);
        }
        Ok(true)
    }

    fn accept(&mut self, token_id: u32) -> Result<bool, Unsatisfiable> {
        if self.call_id == Some(token_id) && self.reasoning.is_tagged() {
            // A call ends a thought if the grammar begins with one.
            let mut grammar = self.grammar.clone();
            if let Ok(is_done) = grammar.accept(token_id) {
                (self.grammar, self.reasoning) = (grammar, ReasoningTracker::Ended);
                return Ok(is_done);
            }
        }
        if !self.reasoning.accept(token_id) {
            return Ok(false);
        }
        self.grammar.accept(token_id).map_err(|_| Unsatisfiable)
    }

    fn forced(&mut self) -> Vec<u32> {
        if matches!(self.reasoning, ReasoningTracker::Ended) {
            self.grammar.forced()
        } else {
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests;
