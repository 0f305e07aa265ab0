//! Beam search: the fields that ask for one, in vLLM's older names, and stop strings within its beams.

use crate::engine::request::{
    BEAMS_MAX, BeamParams, Constraint, ConstraintState, DrawParams, SamplingParams,
    SharedConstraint, Unsatisfiable,
};
use crate::server::parameters::table::SamplingFields;
use crate::server::wire::error::ApiError;
use crate::text::TextStream;
use crate::text::answer::{AnswerParser, Parts};
use std::fmt;
use std::sync::Arc;

/// The search that these fields ask for.
pub(crate) fn beams(fields: &SamplingFields) -> Result<Option<BeamParams>, ApiError> {
    if !fields.use_beam_search {
        let of_beams = [
            ("length_penalty", fields.length_penalty.is_some()),
            ("early_stopping", fields.early_stopping.is_some()),
        ];
        return match of_beams.into_iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => Err(ApiError::invalid(
                name,
                format!("`{name}` needs `use_beam_search`: true"),
            )),
            None => Ok(None),
        };
    }
    if fields.stream {
        let message = "`use_beam_search` needs `stream`: false, because the best answers are known only at the end";
        return Err(ApiError::invalid("stream", message));
    }
    let (name, given) = fields
        .best_of
        .map_or(("n", fields.n), |best_of| ("best_of", Some(best_of)));
    let width = given.unwrap_or(1);
    let Some(width) = u32::try_from(width)
        .ok()
        .filter(|width| *width <= BEAMS_MAX)
    else {
        let message =
            format!("`{name}` must be at most {BEAMS_MAX} with `use_beam_search`, not {width}");
        return Err(ApiError::invalid(name, message));
    };
    Ok(Some(BeamParams {
        width,
        length_penalty: fields.length_penalty.unwrap_or(1.0),
        early_stopping: fields.early_stopping.unwrap_or(false),
    }))
}

/// The parameters of a search: what a model's defaults say about sampling does not apply. The engine refuses values of
/// the request that have no meaning in a search.
pub(crate) fn searching(
    params: SamplingParams,
    fields: &SamplingFields,
    beams: BeamParams,
) -> SamplingParams {
    let draw = DrawParams {
        repetition_penalty: fields.repetition_penalty.unwrap_or(1.0),
        presence_penalty: fields.presence_penalty.unwrap_or(0.0),
        frequency_penalty: fields.frequency_penalty.unwrap_or(0.0),
        ..DrawParams::greedy()
    };
    let logit_bias = params
        .logit_bias
        .iter()
        .filter(|(_, bias)| **bias != 0.0)
        .map(|(&id, &bias)| (id, bias))
        .collect();
    SamplingParams {
        draw,
        logit_bias,
        seed: fields.seed.map(i64::cast_unsigned),
        beams: Some(beams),
        ..params
    }
}

/// Stop strings as a constraint: the engine, which knows no text, learns from it that a beam has ended.
pub(crate) struct StopAtText {
    /// A choice's decoder, before its first token.
    pub(crate) text: TextStream,
    /// A choice's parser, before its first token.
    pub(crate) answer: AnswerParser,
    /// What else constrains the answer.
    pub(crate) inner: Option<SharedConstraint>,
}

/// A beam under [`StopAtText`].
struct StopState {
    text: TextStream,
    answer: AnswerParser,
    inner: Option<Box<dyn ConstraintState>>,
}

impl StopAtText {
    pub(crate) fn shared(self) -> SharedConstraint {
        SharedConstraint(Arc::new(self))
    }
}

impl Constraint for StopAtText {
    fn start(&self) -> Box<dyn ConstraintState> {
        let inner = self.inner.as_ref().map(|inner| inner.0.start());
        Box::new(StopState {
            text: self.text.clone(),
            answer: self.answer.clone(),
            inner,
        })
    }
}

impl ConstraintState for StopState {
    fn fork(&self) -> Box<dyn ConstraintState> {
        let inner = self.inner.as_ref().map(|inner| inner.fork());
        Box::new(Self {
            text: self.text.clone(),
            answer: self.answer.clone(),
            inner,
        })
    }

    fn fill_mask(&mut self, mask: &mut [u32]) -> Result<bool, Unsatisfiable> {
        self.inner
            .as_mut()
            .map_or(Ok(false), |inner| inner.fill_mask(mask))
    }

    fn accept(&mut self, token_id: u32) -> Result<bool, Unsatisfiable> {
        let is_complete = self
            .inner
            .as_mut()
            .map_or(Ok(false), |inner| inner.accept(token_id))?;
        let text = self.text.push(token_id).text;
        self.answer.push(&text, &mut Parts::default());
        Ok(self.answer.stop().is_some() || is_complete)
    }

    fn forced(&mut self) -> Vec<u32> {
        self.inner
            .as_mut()
            .map_or_else(Vec::new, |inner| inner.forced())
    }
}

impl fmt::Debug for StopAtText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("StopAtText")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for StopState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("StopState")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
