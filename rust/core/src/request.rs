//! The event stream of one request, without I/O: updates of an engine → events.

use crate::attribution::DecodedText;
use crate::error::{Ended, Error};
use crate::event::{
    EngineUpdate, Event, FinishKind, FinishReason, Finished, SampledDelta, SampledSoFar, Start,
    TextDelta, TokenUsage,
};
use crate::generation::{Generation, Observer, Pushed};
use crate::logprobs::{self, GivenLogprobs, PositionLogprobs, SampledWriter};
use crate::options::TextDecodeOptions;
use crate::stop::Stop;
use crate::table::Table;
use crate::token::TokenId;
use crate::tokenizer::Tokenizer;
use smallvec::SmallVec;
use std::sync::{Arc, LazyLock};

/// Events of one update: one, and the start before the first.
pub type Events = SmallVec<[Event; 1]>;

/// What most updates without text share.
static NOTHING: LazyLock<Arc<DecodedText>> = LazyLock::new(Arc::default);

/// Which events a request has, and what they tell.
#[derive(Clone, Copy, Debug)]
pub struct EventOptions {
    /// Whether each update has an event, or only the last.
    pub intermediate: bool,
    /// Whether each sampled token comes with its text.
    pub token_texts: bool,
}

impl Default for EventOptions {
    fn default() -> Self {
        Self {
            intermediate: true,
            token_texts: false,
        }
    }
}

/// What came of an update of one token. But for [`Self::Told`] it came without logprobs, and its text as
/// a logprob would have it is what [`Table::token_text`] has.
#[derive(Debug)]
pub enum OneToken {
    /// Its own text, as [`Table::copied_text`] has it.
    Shown(TokenId),
    /// Neither text nor a record: it waits for what comes.
    Waiting(TokenId),
    /// What this event tells.
    Told(TextDelta),
}

impl OneToken {
    /// The event in full. `table` is the one of its tokenizer; `token_texts` is what the request has
    /// asked for.
    #[must_use]
    pub fn into_delta(self, table: Option<&Table>, token_texts: bool) -> TextDelta {
        let (id, decoded) = match self {
            Self::Told(delta) => return delta,
            Self::Waiting(id) => (id, Arc::clone(&NOTHING)),
            Self::Shown(id) => {
                let text = table.and_then(|table| table.copied_text(id));
                let decoded = DecodedText::of_token(id, text.unwrap_or_default());
                (id, Arc::new(decoded))
            }
        };
        TextDelta {
            decoded,
            sampled: SampledDelta::of_token(id, token_texts),
            finished: None,
        }
    }
}

/// Makes events of what an engine reports of one request.
///
/// A call that fails changes nothing.
#[derive(Debug)]
pub struct RequestDecoder {
    tokenizer: Arc<Tokenizer>,
    options: Arc<TextDecodeOptions>,
    request_id: String,
    events: EventOptions,
    /// Kept until the start is told.
    prompt: Option<Arc<[TokenId]>>,
    /// Made with the prompt.
    generation: Option<Box<Generation>>,
    usage: TokenUsage,
    /// What waits for the end if updates have no events.
    sampled: SampledSoFar,
    has_started: bool,
    abort_cause: Option<Stop>,
}

impl RequestDecoder {
    /// `prompt` may be left to the first update.
    ///
    /// # Errors
    /// A window source's own.
    pub fn open(
        tokenizer: Arc<Tokenizer>,
        prompt: Option<Arc<[TokenId]>>,
        options: Arc<TextDecodeOptions>,
        request_id: String,
        events: EventOptions,
    ) -> Result<Self, Error> {
        let mut decoder = Self {
            tokenizer,
            options,
            request_id,
            events,
            prompt: None,
            generation: None,
            usage: TokenUsage::default(),
            sampled: SampledSoFar::default(),
            has_started: false,
            abort_cause: None,
        };
        if let Some(prompt) = prompt {
            decoder.generation = Some(decoder.open_generation(&prompt)?);
            decoder.prompt = Some(prompt);
        }
        Ok(decoder)
    }

    fn open_generation(&self, prompt: &[TokenId]) -> Result<Box<Generation>, Error> {
        let (tokenizer, options) = (Arc::clone(&self.tokenizer), Arc::clone(&self.options));
        Generation::open::<Error>(tokenizer, prompt, options).map(Box::new)
    }

    /// The caller's name of the request.
    #[must_use]
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Whether the last event was given.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.generation
            .as_ref()
            .is_some_and(|generation| generation.has_ended())
    }

    /// The stop of the request's own that ended it: the engine, which knows nothing of it, is to be
    /// told.
    #[must_use]
    pub fn abort_cause(&self) -> Option<&Stop> {
        self.abort_cause.as_ref()
    }

    /// The events of one update.
    ///
    /// # Errors
    /// [`Error::Request`] if the engine failed or the prompt is missing, [`Error::BadUpdate`] if the
    /// update does not fit the request, [`Error::Ended`], and those of
    /// [`DecodeStream::push_tokens`](crate::DecodeStream::push_tokens), with the index in the update.
    pub fn push(&mut self, update: &EngineUpdate) -> Result<Events, Error> {
        let Some(one) = self.push_one(update)? else {
            return self.push_any(update);
        };
        let delta = one.into_delta(self.tokenizer.table(), self.events.token_texts);
        Ok([Event::TextDelta(delta)].into_iter().collect())
    }

    /// The same, whatever the update is: for those of which [`Self::push_one`] has said no.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn push_any(&mut self, update: &EngineUpdate) -> Result<Events, Error> {
        if self.is_finished() {
            return Err(Error::Ended(Ended::Request));
        }
        let reason = update.finish_reason.as_ref();
        if reason.is_some_and(|reason| reason.kind == FinishKind::Error) {
            return Err(self.failed("failed: the engine finished it with an error"));
        }
        if let Some(logprobs) = &update.logprobs
            && logprobs.len() != update.token_ids.len()
        {
            return Err(Error::BadUpdate(format!(
                "logprobs must have one entry per token id: {} for {} ids",
                logprobs.len(),
                update.token_ids.len()
            )));
        }
        let start = if self.has_started {
            None
        } else {
            Some(self.start(update)?)
        };
        let mut generation = if let Some(generation) = self.generation.take() {
            generation
        } else if self.has_started {
            return Err(self.failed("was interrupted by an internal error"));
        } else {
            let prompt = start
                .as_ref()
                .map_or(&[][..], |start| &start.prompt_token_ids);
            self.open_generation(prompt)?
        };
        let delta = self.push_sampled(&mut generation, update);
        // A request whose first update fails is as it was: without a prompt of its own, if it had none.
        if delta.is_ok() || self.has_started || self.prompt.is_some() {
            self.generation = Some(generation);
        }
        let delta = delta?;
        let mut events = Events::new();
        if let Some(start) = start {
            self.has_started = true;
            self.prompt = None;
            self.usage.prompt_token_count = start.prompt_token_ids.len() as u64;
            events.push(Event::Start(start));
        }
        if let Some(delta) = self.count(update, delta) {
            events.push(Event::TextDelta(delta));
        }
        Ok(events)
    }

    fn failed(&self, problem: &'static str) -> Error {
        Error::Request {
            request_id: self.request_id.clone(),
            problem,
        }
    }

    fn start(&self, update: &EngineUpdate) -> Result<Start, Error> {
        let prompt = match (&self.prompt, &update.prompt_token_ids) {
            (Some(own), Some(told)) if own != told => {
                return Err(Error::BadUpdate(format!(
                    "the update has another prompt ({} ids) than the decoder was given ({} ids)",
                    told.len(),
                    own.len()
                )));
            }
            (Some(prompt), _) | (None, Some(prompt)) => Arc::clone(prompt),
            (None, None) => {
                return Err(self.failed(
                    "has no prompt: give prompt_token_ids to the decoder or in the first update",
                ));
            }
        };
        let given = update.prompt_logprobs.as_deref();
        Ok(Start {
            prompt_logprobs: given
                .map(|given| self.prompt_logprobs(&prompt, given))
                .transpose()?,
            prompt_token_ids: prompt,
        })
    }

    fn prompt_logprobs(
        &self,
        prompt: &[TokenId],
        given: &[Option<GivenLogprobs>],
    ) -> Result<Vec<Option<PositionLogprobs>>, Error> {
        let positions = prompt_positions(prompt, given)?;
        let TextDecodeOptions {
            decode, fragments, ..
        } = &*self.options;
        logprobs::fill_prompt(&self.tokenizer, prompt, &positions, decode, *fragments)
    }

    /// Pushes an update of one token that is not the engine's last, the shortest way that there is, if
    /// that cannot fail. `None`: nothing was done, and [`Self::push_any`] does it, or says what is wrong.
    ///
    /// # Errors
    /// None that could be named: what may fail is left to [`Self::push_any`].
    #[inline]
    pub fn push_one(&mut self, update: &EngineUpdate) -> Result<Option<OneToken>, Error> {
        let (&[id], None) = (update.token_ids.as_slice(), &update.finish_reason) else {
            return Ok(None);
        };
        let one_each = update.logprobs.as_ref().is_none_or(|all| all.len() == 1);
        if !self.has_started || !self.events.intermediate || !one_each {
            return Ok(None);
        }
        if update.logprobs.is_none()
            && let (Some(table), Some(generation)) = (self.tokenizer.table(), &mut self.generation)
            && generation.show_copied(table, id)
        {
            self.count_kept(1, update);
            return Ok(Some(OneToken::Shown(id)));
        }
        let Some(mut generation) = self.generation.take() else {
            return Ok(None);
        };
        let one = self.push_uncopied(&mut generation, update, id);
        self.generation = Some(generation);
        one
    }

    /// The same of a token that may not be shown as it is, or comes with logprobs.
    fn push_uncopied(
        &mut self,
        generation: &mut Generation,
        update: &EngineUpdate,
        id: TokenId,
    ) -> Result<Option<OneToken>, Error> {
        let mut writer = self.writer(update);
        // Of most there is nothing to write down.
        let is_plain = update.logprobs.is_none()
            && (!self.events.token_texts || writer.is_own_text(generation.stream(), id));
        let table = self.tokenizer.table().filter(|_| !is_plain);
        let (decoded, pushed) = if let Some(table) = table
            && generation.show_copied(table, id)
        {
            // Its context is the same before and after.
            writer.look(generation.stream(), id)?;
            let text = table.copied_text(id).unwrap_or_default();
            (Some(DecodedText::of_token(id, text)), Pushed::all(1))
        } else {
            let pushed = if is_plain {
                generation.push_known(id, &mut ())
            } else {
                generation.push_known(id, &mut writer)
            };
            let Some(pushed) = pushed? else {
                return Ok(None);
            };
            (generation.next_chunk(), pushed)
        };
        self.count_kept(1, update);
        if is_plain && decoded.is_none() && pushed.stopped.is_none() {
            return Ok(Some(OneToken::Waiting(id)));
        }
        let sampled = if is_plain {
            SampledDelta::of_token(id, self.events.token_texts)
        } else {
            writer.sampled(&[id])
        };
        let delta = self.delta(update, decoded, sampled, pushed);
        Ok(Some(OneToken::Told(delta)))
    }

    /// Pushes what was sampled, and ends the text if the engine says so.
    fn push_sampled<'u>(
        &self,
        generation: &mut Generation,
        update: &'u EngineUpdate,
    ) -> Result<Progress<'u>, Error> {
        let mut writer = self.writer(update);
        let ids = update.token_ids.as_slice();
        let pushed = generation.attempt(ids, |generation| {
            let last_is_silent = self.ends_in_silence(update);
            let mut pushed = if writer.writes() {
                generation.push(ids, last_is_silent, &mut writer)
            } else {
                generation.push(ids, last_is_silent, &mut ())
            }?;
            if pushed.stopped.is_none() && update.finish_reason.is_some() {
                pushed.stopped = generation.finish()?;
            }
            Ok(pushed)
        })?;
        let shows = self.events.intermediate || generation.has_ended();
        Ok(Progress {
            decoded: shows.then(|| generation.next_chunk()).flatten(),
            writer,
            has_ended: generation.has_ended(),
            pushed,
        })
    }

    fn writer<'u>(&self, update: &'u EngineUpdate) -> SampledWriter<'u> {
        let (fragments, token_texts) = (self.options.fragments, self.events.token_texts);
        SampledWriter::new(update.logprobs.as_deref(), fragments, token_texts)
    }

    /// Whether the last id of an update is the engine's end of the text, and no part of it. An engine
    /// that stopped at another id, or at a string, has sampled nothing but text.
    fn ends_in_silence(&self, update: &EngineUpdate) -> bool {
        let reason = update.finish_reason.as_ref();
        let Some(FinishReason { stop, .. }) =
            reason.filter(|reason| reason.kind == FinishKind::Stop)
        else {
            return false;
        };
        let at_last = match stop {
            None => true,
            Some(Stop::Token(id)) => update.token_ids.last() == Some(id),
            Some(Stop::String(_)) => false,
        };
        at_last && !self.options.include_stop
    }

    #[inline]
    fn count_kept(&mut self, kept: usize, update: &EngineUpdate) {
        self.usage.output_token_count += kept as u64;
        let cached = &mut self.usage.cached_token_count;
        *cached = (*cached).max(update.cached_token_count);
    }

    /// The event of an update that went well, if it has one.
    fn count(&mut self, update: &EngineUpdate, progress: Progress<'_>) -> Option<TextDelta> {
        let Progress {
            decoded,
            writer,
            pushed,
            has_ended,
        } = progress;
        let kept = update.token_ids.get(..pushed.kept).unwrap_or_default();
        self.count_kept(kept.len(), update);
        let mut sampled = writer.sampled(kept);
        if !self.events.intermediate {
            self.sampled.append(sampled);
            if !has_ended {
                return None;
            }
            sampled = std::mem::take(&mut self.sampled).into();
        }
        Some(self.delta(update, decoded, sampled, pushed))
    }

    /// An event: the last one if a stop was met or the engine says so.
    fn delta(
        &mut self,
        update: &EngineUpdate,
        decoded: Option<DecodedText>,
        sampled: SampledDelta,
        Pushed { kept, stopped }: Pushed,
    ) -> TextDelta {
        let stop_match = stopped.as_ref().map(|stopped| stopped.stop_match.clone());
        let stop = stop_match
            .as_ref()
            .map(|stop_match| stop_match.stop.clone());
        let own_reason = stop.as_ref().map(|stop| FinishReason {
            kind: FinishKind::Stop,
            stop: Some(stop.clone()),
        });
        self.abort_cause = stop;
        let reason = own_reason.or_else(|| update.finish_reason.clone());
        TextDelta {
            decoded: decoded.map_or_else(|| Arc::clone(&NOTHING), Arc::new),
            sampled,
            finished: reason.map(|finish_reason| {
                Box::new(Finished {
                    usage: self.usage,
                    finish_reason,
                    stop_match,
                    dropped_token_ids: update.token_ids.get(kept..).unwrap_or_default().to_vec(),
                    first_cut_token: stopped.and_then(|stopped| stopped.first_cut_token),
                })
            }),
        }
    }

    /// Says so if the updates have ended and the request has not.
    ///
    /// # Errors
    /// [`Error::Request`].
    pub fn close(&self) -> Result<(), Error> {
        if self.is_finished() {
            return Ok(());
        }
        Err(self.failed("has no end: its updates ended without a finish reason"))
    }
}

/// What an update came to.
struct Progress<'u> {
    decoded: Option<DecodedText>,
    writer: SampledWriter<'u>,
    pushed: Pushed,
    has_ended: bool,
}

/// What an engine told of the tokens of a prompt, where it told anything.
///
/// # Errors
/// [`Error::BadUpdate`] if they are not those of this prompt.
pub fn prompt_positions(
    prompt: &[TokenId],
    given: &[Option<GivenLogprobs>],
) -> Result<Vec<Option<PositionLogprobs>>, Error> {
    if given.len() != prompt.len() {
        return Err(Error::BadUpdate(format!(
            "prompt_logprobs must have one entry per prompt token: {} for {} tokens",
            given.len(),
            prompt.len()
        )));
    }
    let of_token = |(at, (&id, given)): (usize, (&TokenId, &Option<GivenLogprobs>))| {
        let Some(given) = given.clone() else {
            return Ok(None);
        };
        given.at(id).map(Some).ok_or_else(|| {
            Error::BadUpdate(format!(
                "prompt_logprobs[{at}] is not of the prompt's token, {id}"
            ))
        })
    };
    prompt.iter().zip(given).enumerate().map(of_token).collect()
}
