//! What an engine reports, and the events made of it.
//!
//! Two clocks: what was *sampled* is told in the update in which it came; what is *decoded* is told
//! when it is certain. Each event has both, and neither waits for the other.

use crate::attribution::DecodedText;
use crate::logprobs::{GivenLogprobs, PositionLogprobs, SampledTexts};
use crate::stop::{Stop, StopMatch};
use crate::token::TokenId;
use smallvec::SmallVec;
use std::sync::Arc;

/// Ids of one update; most updates have few.
pub type SampledIds = SmallVec<[TokenId; 4]>;

/// Why a generation ended, as an engine says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishKind {
    /// An end of sequence, a stop token, or a stop string.
    Stop,
    /// The most tokens there may be.
    Length,
    /// The caller's wish.
    Abort,
    /// A failure of the engine.
    Error,
    /// The text went round in circles.
    Repetition,
}

/// Why a generation ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FinishReason {
    /// In one word.
    pub kind: FinishKind,
    /// Which stop it was; `None` for the end of sequence, and for what is no stop.
    pub stop: Option<Stop>,
}

/// What an engine reports at one step of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct EngineUpdate {
    /// Sampled since the last update.
    pub token_ids: SampledIds,
    /// One per id, if at all.
    pub logprobs: Option<Vec<PositionLogprobs>>,
    /// Set in the last update of a request.
    pub finish_reason: Option<FinishReason>,
    /// Needed in the first update if the decoder was not given the prompt.
    pub prompt_token_ids: Option<Arc<[TokenId]>>,
    /// One per id of the prompt, where there is one; looked at in the first update.
    pub prompt_logprobs: Option<Vec<Option<GivenLogprobs>>>,
    /// Prompt tokens the engine did not have to compute.
    pub cached_token_count: u64,
}

/// What was sampled in one update: ids, logprobs and texts, aligned with each other. A copy costs
/// little.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SampledDelta {
    /// The ids that count.
    pub token_ids: SampledIds,
    /// One per id, if the engine gave them.
    pub logprobs: Option<Arc<[PositionLogprobs]>>,
    /// One per id, if asked for: its text as its logprob would have it.
    pub token_texts: Option<SampledTexts>,
}

impl SampledDelta {
    /// One token without logprobs; its text, if asked for, is its own.
    #[must_use]
    pub fn of_token(token_id: TokenId, token_texts: bool) -> Self {
        Self {
            token_ids: [token_id].as_slice().into(),
            logprobs: None,
            token_texts: token_texts.then(|| [None].into_iter().collect()),
        }
    }
}

/// What was sampled in many updates.
#[derive(Debug, Default)]
pub(crate) struct SampledSoFar {
    token_ids: Vec<TokenId>,
    logprobs: Option<Vec<PositionLogprobs>>,
    token_texts: Option<SampledTexts>,
}

impl SampledSoFar {
    /// Joins a delta to the end. Logprobs and texts stay aligned: there are none unless each delta
    /// with ids has them.
    pub(crate) fn append(&mut self, delta: SampledDelta) {
        let logprobs = delta.logprobs.map(|logprobs| logprobs.to_vec());
        if self.token_ids.is_empty() {
            (self.logprobs, self.token_texts) = (logprobs, delta.token_texts);
        } else if !delta.token_ids.is_empty() {
            self.logprobs = self.logprobs.take().zip(logprobs).map(joined);
            self.token_texts = self.token_texts.take().zip(delta.token_texts).map(joined);
        }
        self.token_ids.extend(delta.token_ids);
    }
}

fn joined<A: Extend<T> + IntoIterator<Item = T>, T>((mut all, more): (A, A)) -> A {
    all.extend(more);
    all
}

impl From<SampledSoFar> for SampledDelta {
    fn from(all: SampledSoFar) -> Self {
        Self {
            token_ids: all.token_ids.into(),
            logprobs: all.logprobs.map(Into::into),
            token_texts: all.token_texts,
        }
    }
}

/// Counts of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TokenUsage {
    /// Ids of the prompt.
    pub prompt_token_count: u64,
    /// Sampled ids that count, those that end the request among them.
    pub output_token_count: u64,
    /// Of the prompt's, those the engine had cached: the largest number it told.
    pub cached_token_count: u64,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Finished {
    /// Tokens of the whole request.
    pub usage: TokenUsage,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Set if it was one of the request's own stops.
    pub stop_match: Option<StopMatch>,
    /// Sampled behind a match: not kept, not counted.
    pub dropped_token_ids: Vec<TokenId>,
    /// Index of the first kept token that lost text to a stop.
    pub first_cut_token: Option<u64>,
}

/// The beginning of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Start {
    /// The prompt.
    pub prompt_token_ids: Arc<[TokenId]>,
    /// One per id of it, where there is one.
    pub prompt_logprobs: Option<Vec<Option<PositionLogprobs>>>,
}

/// What one update brought.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TextDelta {
    /// Text that is certain now, and the tokens attributed to it: the decoder clock.
    pub decoded: Arc<DecodedText>,
    /// What was sampled: the engine clock.
    pub sampled: SampledDelta,
    /// Set in the last event.
    pub finished: Option<Box<Finished>>,
}

/// One event of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Always the first, and never again.
    Start(Start),
    /// One per update, or one at the end.
    TextDelta(TextDelta),
}
