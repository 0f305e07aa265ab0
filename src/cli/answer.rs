//! One choice from its receiver to its end: token ids, text as it appears, reason and counters.

use anyhow::Result;
use folio::engine::handle::EventReceiver;
use folio::engine::request::{Event, FinishReason, RequestError, Token, Usage};
use folio::text::TextStream;
use futures_util::StreamExt as _;

/// A finished choice.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// `None` for a model without tokenizer.
    pub(crate) text: Option<String>,
    /// With the end token, if one ended it.
    pub(crate) tokens: Vec<Token>,
    /// `stop` or `length`, as the API spells it.
    pub(crate) finish_reason: &'static str,
    pub(crate) usage: Usage,
}

/// Reads a choice to its end and hands every piece of text to `show` as soon as it is certain.
///
/// A stop string found in the text ends the choice here: the receiver is dropped, which cancels it in the engine.
pub(crate) async fn collect(
    mut events: EventReceiver,
    mut text: Option<TextStream>,
    mut show: impl FnMut(&str) -> Result<()>,
) -> Result<Answer> {
    let mut answer = Answer { text: text.is_some().then(String::new), ..Answer::default() };
    while let Some(event) = events.next().await {
        match event {
            // Nothing of the kind was asked for.
            Event::Prompt(_) => {}
            Event::Token(token) => {
                let id = token.id;
                // A stop string may end the choice before the engine tells its usage.
                answer.usage.cached_tokens = token.cached_tokens;
                answer.tokens.push(token);
                let Some(stream) = &mut text else { continue };
                let piece = stream.push(id);
                add(&mut answer, &piece.text, &mut show)?;
                if piece.stopped {
                    answer.finish_reason = "stop";
                    answer.usage.completion_tokens = answer.tokens.len() as u32;
                    return Ok(answer);
                }
            }
            Event::Finished { reason, usage } => {
                answer.finish_reason = reason_name(reason);
                if let Some(stream) = &mut text {
                    let rest = stream.finish();
                    add(&mut answer, &rest.text, &mut show)?;
                    if rest.stopped {
                        answer.finish_reason = "stop";
                    }
                }
                answer.usage = usage;
                return Ok(answer);
            }
            Event::Failed(fault) => return Err(fault.into()),
        }
    }
    // The engine always ends a stream with an event; a closed channel means that its thread is gone.
    Err(RequestError::Internal.into())
}

fn add(answer: &mut Answer, piece: &str, show: &mut impl FnMut(&str) -> Result<()>) -> Result<()> {
    if piece.is_empty() {
        return Ok(());
    }
    if let Some(text) = &mut answer.text {
        text.push_str(piece);
    }
    show(piece)
}

fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use folio::model::demo;
    use folio::platform::block_on;
    use folio::text::Tokenizer;
    use std::sync::Arc;

    #[test]
    fn a_choice_ended_by_a_stop_string_tells_its_cached_tokens() {
        let tokenizer = Arc::new(Tokenizer::from_json(demo::TOKENIZER_JSON).expect("the demo's tokenizer"));
        let ids = tokenizer.encode("one two three", false).expect("plain text encodes");
        let (mut sender, receiver) = futures_channel::mpsc::channel(ids.len());
        for &id in &ids {
            let token = Token { id, logprob: None, top_logprobs: Vec::new(), cached_tokens: 96 };
            sender.try_send(Event::Token(token)).expect("the channel has room");
        }
        let text = TextStream::new(Some(tokenizer), &["two".to_owned()], true);
        let answer = block_on(collect(receiver, Some(text), |_| Ok(()))).expect("the choice ends");
        assert_eq!((answer.text.as_deref(), answer.finish_reason), (Some("one "), "stop"));
        assert_eq!(answer.usage.cached_tokens, 96);
        assert_eq!(answer.usage.completion_tokens as usize, answer.tokens.len());
    }
}
