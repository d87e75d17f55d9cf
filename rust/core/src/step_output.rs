//! What a step of a batch gave.

use crate::attribution::{DecodedText, TokenAttribution};
use crate::batch::{BatchRequest, Slot};
use crate::error::{Ended, Error};
use crate::generation::{Generation, Pushed};
use crate::logprobs::{SampledText, TextWriter, TokenTexts};
use crate::stop::StopMatch;
use crate::table::Table;
use crate::token::TokenId;
use crate::tokenizer::Tokenizer;
use std::sync::Arc;

/// What a step gave, by position in the slots it was called with.
#[derive(Debug)]
pub struct StepOutput {
    tokenizer: Arc<Tokenizer>,
    positions: Vec<Position>,
    /// Texts that are not those of their only token, end to end.
    text: String,
    /// Records of tokens that are not the only one; offsets are into the text of their position.
    records: Vec<TokenAttribution>,
    /// Texts of kept tokens as their logprobs have them, if asked for.
    pub(crate) token_texts: Option<TokenTexts>,
    /// Requests that ended at a stop of their own.
    stopped: Vec<(Slot, StopMatch)>,
    /// Slots that failed, and stayed as they were.
    pub(crate) errors: Vec<(Slot, Error)>,
}

/// What a step gave to one slot.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// The only token, if its own text is all there is: as most are, and nothing is written down.
    own: Option<TokenId>,
    /// How many of its ids count.
    kept: u32,
    /// How far the texts and records of the step have got.
    text_end: usize,
    record_end: usize,
}

/// What is done to a slot.
#[derive(Clone, Copy)]
pub(crate) enum Action<'i> {
    Push(&'i [TokenId]),
    Finish,
}

impl Action<'_> {
    /// Number of ids.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Push(ids) => ids.len(),
            Self::Finish => 0,
        }
    }
}

impl StepOutput {
    pub(crate) fn with_room_for(
        tokenizer: &Arc<Tokenizer>,
        slots: usize,
        token_texts: bool,
    ) -> Self {
        Self {
            tokenizer: Arc::clone(tokenizer),
            positions: Vec::with_capacity(slots),
            // Some have half a character, or what was held back.
            text: String::with_capacity(slots),
            records: Vec::with_capacity(slots / 4),
            token_texts: token_texts.then(|| TokenTexts::with_capacity(slots)),
            stopped: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Number of positions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.positions.len()
    }

    /// No positions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// The token whose own text, as [`Table::copied_text`] has it, is all there is at a position.
    #[inline]
    #[must_use]
    pub fn own_token(&self, position: usize) -> Option<TokenId> {
        self.positions.get(position)?.own
    }

    /// The text of a position.
    #[must_use]
    pub fn text(&self, position: usize) -> Option<&str> {
        let at = self.positions.get(position)?;
        match at.own {
            Some(id) => self.tokenizer.table()?.copied_text(id),
            None => self
                .text
                .get(self.before(position, |before| before.text_end)..at.text_end),
        }
    }

    /// The records of a position, if there is one; offsets are into its text.
    pub fn records(&self, position: usize) -> impl Iterator<Item = TokenAttribution> {
        let at = self.positions.get(position);
        let own = at.and_then(|at| at.own);
        let start = self.before(position, |before| before.record_end);
        let others = at.and_then(|at| self.records.get(start..at.record_end));
        own.map(|id| TokenAttribution::visible(id, 0))
            .into_iter()
            .chain(others.unwrap_or_default().iter().copied())
    }

    /// Text and records of a position.
    #[must_use]
    pub fn decoded(&self, position: usize) -> Option<DecodedText> {
        Some(DecodedText {
            text: self.text(position)?.to_owned(),
            attributions: self.records(position).collect(),
        })
    }

    fn before(&self, position: usize, end: impl FnOnce(&Position) -> usize) -> usize {
        let before = position
            .checked_sub(1)
            .and_then(|before| self.positions.get(before));
        before.map_or(0, end)
    }

    /// By position, how many of its ids count.
    #[must_use]
    pub fn kept_tokens(&self) -> impl ExactSizeIterator<Item = u32> {
        self.positions.iter().map(|position| position.kept)
    }

    /// Texts of all kept tokens, in the order of positions, if asked for.
    #[must_use]
    pub fn token_texts(&self) -> Option<impl ExactSizeIterator<Item = SampledText<'_>>> {
        let texts = self.token_texts.as_ref()?;
        Some(texts.iter(self.tokenizer.table()))
    }

    /// Requests that ended at a stop of their own.
    #[must_use]
    pub fn stopped(&self) -> &[(Slot, StopMatch)] {
        &self.stopped
    }

    /// Takes the errors of slots that failed.
    pub fn take_errors(&mut self) -> Vec<(Slot, Error)> {
        std::mem::take(&mut self.errors)
    }

    /// The next position.
    #[inline]
    pub(crate) fn act(
        &mut self,
        table: Option<&Table>,
        slot: Slot,
        request: Option<&mut BatchRequest>,
        action: Action<'_>,
    ) {
        let (own, kept) = match (request, action) {
            (None, _) => (None, self.fail(slot, Error::NoSlot(slot))),
            (Some(request), Action::Push(&[id])) => {
                self.push_one(table, slot, &mut request.generation, id)
            }
            (Some(request), _) => (None, self.act_on(slot, &mut request.generation, action)),
        };
        self.positions.push(Position {
            own,
            kept,
            text_end: self.text.len(),
            record_end: self.records.len(),
        });
    }

    /// One id, the shortest way that there is: the token if its own text is all that it gave, and how
    /// many ids count.
    #[inline]
    fn push_one(
        &mut self,
        table: Option<&Table>,
        slot: Slot,
        generation: &mut Generation,
        id: TokenId,
    ) -> (Option<TokenId>, u32) {
        if table.is_some_and(|table| generation.show_copied(table, id)) {
            if let Some(texts) = &mut self.token_texts {
                texts.push_own(id);
            }
            return (Some(id), 1);
        }
        (None, self.push_uncopied(slot, generation, id))
    }

    /// The same of an id that may not be shown as it is; how many count.
    fn push_uncopied(&mut self, slot: Slot, generation: &mut Generation, id: TokenId) -> u32 {
        let fragments = generation.options().fragments;
        let before = self.token_texts.as_ref().map(TokenTexts::len);
        let way = match &mut self.token_texts {
            None => generation.push_known(id, &mut ()),
            Some(texts) => generation.push_known(id, &mut TextWriter { texts, fragments }),
        };
        match way {
            Ok(Some(pushed)) => self.count(slot, generation, pushed),
            Ok(None) => self.act_on(slot, generation, Action::Push(&[id])),
            Err(error) => self.fail_behind(before, slot, error),
        }
    }

    fn act_on(&mut self, slot: Slot, generation: &mut Generation, action: Action<'_>) -> u32 {
        if generation.has_ended() {
            return self.fail(slot, Error::Ended(Ended::Slot(slot)));
        }
        let fragments = generation.options().fragments;
        let before = self.token_texts.as_ref().map(TokenTexts::len);
        let texts = self.token_texts.as_mut();
        let done = match action {
            Action::Finish => generation
                .attempt(&[], Generation::finish)
                .map(|stopped| Pushed { kept: 0, stopped }),
            Action::Push(ids) => generation.attempt(ids, |generation| match texts {
                Some(texts) => generation.push(ids, false, &mut TextWriter { texts, fragments }),
                None => generation.push(ids, false, &mut ()),
            }),
        };
        match done {
            Ok(pushed) => self.count(slot, generation, pushed),
            Err(error) => self.fail_behind(before, slot, error),
        }
    }

    /// What became of ids, and what may be shown; how many count.
    fn count(&mut self, slot: Slot, generation: &mut Generation, pushed: Pushed) -> u32 {
        generation.move_chunk(&mut self.text, &mut self.records);
        if let Some(stopped) = pushed.stopped {
            self.stopped.push((slot, stopped.stop_match));
        }
        pushed.kept as u32
    }

    /// Fails, and forgets the texts of tokens from one on.
    #[cold]
    fn fail_behind(&mut self, texts: Option<usize>, slot: Slot, error: Error) -> u32 {
        if let (Some(all), Some(before)) = (&mut self.token_texts, texts) {
            all.truncate(before);
        }
        self.fail(slot, error)
    }

    #[cold]
    fn fail(&mut self, slot: Slot, error: Error) -> u32 {
        self.errors.push((slot, error));
        0
    }

    /// Joins the positions of `other` to the end.
    pub(crate) fn append(&mut self, other: Self) {
        let (text, records) = (self.text.len(), self.records.len());
        self.positions
            .extend(other.positions.into_iter().map(|position| Position {
                text_end: text + position.text_end,
                record_end: records + position.record_end,
                ..position
            }));
        self.text.push_str(&other.text);
        self.records.extend(other.records);
        self.stopped.extend(other.stopped);
        self.errors.extend(other.errors);
        if let (Some(texts), Some(more)) = (&mut self.token_texts, &other.token_texts) {
            texts.append(more);
        }
    }
}
