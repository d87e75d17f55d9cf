//! One generation up to its stop: ids → text and records, as far as they may be shown.

use crate::attribution::{DecodedText, TokenAttribution};
use crate::automaton::{Completion, Progress};
use crate::context::Prompt;
use crate::error::Error;
use crate::options::{StopScope, TextDecodeOptions};
use crate::section::{Part, SectionScanner, Stretch};
use crate::stop::{Stop, StopMatch, StopStrings};
use crate::stream::{DecodeStream, Pending, StreamOptions};
use crate::table::Table;
use crate::token::TokenId;
use crate::tokenizer::Tokenizer;
use std::sync::Arc;

/// Looks at each token where it was sampled, before it is decoded.
pub(crate) trait Observer {
    /// Whether it wants to.
    const LOOKS: bool;

    /// `context` is the stream before the token.
    fn look(&mut self, context: &DecodeStream, id: TokenId) -> Result<(), Error>;
}

/// Nobody looks.
impl Observer for () {
    const LOOKS: bool = false;

    fn look(&mut self, _context: &DecodeStream, _id: TokenId) -> Result<(), Error> {
        Ok(())
    }
}

/// What became of a run of ids.
#[derive(Debug, Default)]
pub(crate) struct Pushed {
    /// How many of them count.
    pub(crate) kept: usize,
    /// Set if the last of these ended the generation.
    pub(crate) stopped: Option<Stopped>,
}

impl Pushed {
    /// So many ids, and no stop.
    pub(crate) fn all(kept: usize) -> Self {
        Self {
            kept,
            stopped: None,
        }
    }
}

/// How a stop ended the generation.
#[derive(Clone, Debug)]
pub(crate) struct Stopped {
    pub(crate) stop_match: StopMatch,
    /// The first token that lost text, counted in the whole generation.
    pub(crate) first_cut_token: Option<u64>,
}

/// A stream that ends at its stops, and holds back what may become one.
///
/// Most tokens are text of their own that may be shown at once. For these nothing but this struct is
/// touched, which is small, so that a step over thousands of generations stays in the cache; the
/// stream is told of them later.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    options: Arc<TextDecodeOptions>,
    /// How far the visible text is into the stop strings.
    stop_progress: Progress,
    /// The next token's own text may be shown at once: nothing is pending or held back.
    shows_copies: bool,
    ended: bool,
    /// Those the stream does not know of.
    copied: Copied,
    /// Tokens that were sampled and count.
    kept_tokens: u64,
    stream: Box<DecodeStream>,
    handed: HandedRecords,
    /// What is left to be handed out behind the end.
    rest: Option<Box<DecodedText>>,
    /// Set if stop strings are looked for in one section only.
    scope: Option<Box<ScopeReader>>,
}

/// Reads which text lies in the section where stop strings are looked for.
#[derive(Clone, Debug)]
struct ScopeReader {
    scanner: SectionScanner,
    /// Records that it has read.
    records: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Copied {
    tokens: u64,
    bytes: usize,
}

/// Records that were handed out.
#[derive(Clone, Copy, Debug, Default)]
struct HandedRecords {
    /// How many; as each pushed token has one, also the index of the next.
    count: u64,
    /// Of these, the last that has text.
    last_visible: Option<u64>,
}

impl Generation {
    /// Behind `prompt`.
    pub(crate) fn open<E: From<Error>>(
        tokenizer: Arc<Tokenizer>,
        prompt: &(impl Prompt<E> + ?Sized),
        options: Arc<TextDecodeOptions>,
    ) -> Result<Self, E> {
        if let (Some(table), Some(_)) = (tokenizer.table(), &options.stop) {
            table.classify_bytes();
        }
        let scope = options.scope.as_ref().filter(|_| options.stop.is_some());
        let scope = scope
            .map(|scope| ScopeReader::open(&tokenizer, scope, prompt).map(Box::new))
            .transpose()?;
        let stream = StreamOptions {
            decode: options.decode.clone(),
            keep_output: false,
            ..StreamOptions::default()
        };
        let mut generation = Self {
            stream: Box::new(DecodeStream::open(tokenizer, prompt, stream)?),
            stop_progress: Progress::default(),
            options,
            shows_copies: false,
            ended: false,
            copied: Copied::default(),
            kept_tokens: 0,
            handed: HandedRecords::default(),
            rest: None,
            scope,
        };
        generation.update_copies();
        Ok(generation)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(crate) fn kept_tokens(&self) -> u64 {
        self.kept_tokens
    }

    pub(crate) fn options(&self) -> &TextDecodeOptions {
        &self.options
    }

    /// Where the next token would come.
    pub(crate) fn stream(&self) -> &DecodeStream {
        &self.stream
    }

    pub(crate) fn pending(&self) -> Pending {
        self.stream.pending()
    }

    /// Pushes one id if its own text, as [`Table::copied_text`] has it, is all that comes of it and may
    /// be shown at once; says whether it did. The context is the same before and after.
    #[inline]
    pub(crate) fn show_copied(&mut self, table: &Table, id: TokenId) -> bool {
        if !self.shows_copies || self.ends_at_token(id) {
            return false;
        }
        let Some(len) = table.copied_len(id) else {
            return false;
        };
        if let Some(stops) = &self.options.stop {
            let Some(progress) = self.progress_behind(stops, table, id) else {
                return false;
            };
            self.stop_progress = progress;
        }
        self.copied.tokens += 1;
        self.copied.bytes += len;
        self.kept_tokens += 1;
        true
    }

    /// How far the text is into the stop strings behind the token's own, if that has none of them and
    /// need not be held back.
    #[inline]
    fn progress_behind(&self, stops: &StopStrings, table: &Table, id: TokenId) -> Option<Progress> {
        if self.scope.is_some() {
            return None;
        }
        let mut progress = self.stop_progress;
        let kinds = table.byte_kinds(id);
        if kinds.is_some_and(|kinds| stops.passes_over(progress, kinds)) {
            return Some(progress);
        }
        let text = table.copied_text(id)?;
        let found = stops.search(&mut progress, text, self.stops_count());
        let waits = !self.options.include_stop && stops.held(progress) > 0;
        (found.is_none() && !waits).then_some(progress)
    }

    /// Pushes one id, if that cannot fail: what became of it. What may be shown is the next chunk.
    pub(crate) fn push_known<O: Observer>(
        &mut self,
        id: TokenId,
        observer: &mut O,
    ) -> Result<Option<Pushed>, Error> {
        if self.ended || self.scope.is_some() || self.ends_at_token(id) {
            return Ok(None);
        }
        self.count_copied();
        if !self.stream.admits(id) {
            return Ok(None);
        }
        observer.look(&self.stream, id)?;
        let (before, counts) = (self.stream.unhanded().len(), self.stops_count());
        self.stream.push_known(id);
        self.kept_tokens += 1;
        let completion = self.search(before, self.stream.unhanded().len(), counts);
        let stopped = completion.map(|completion| self.end_at_string(completion));
        self.update_copies();
        Ok(Some(Pushed {
            kept: 1,
            stopped: stopped.transpose()?,
        }))
    }

    /// Tells the stream of the tokens it does not know of.
    fn count_copied(&mut self) {
        let Copied { tokens, bytes } = std::mem::take(&mut self.copied);
        if tokens > 0 {
            self.stream.count_copied(tokens, bytes);
            self.handed.count += tokens;
            self.handed.last_visible = Some(self.handed.count - 1);
        }
    }

    /// To be called when the stream was changed.
    fn update_copies(&mut self) {
        self.shows_copies = self.options.min_bytes_to_buffer == 0 && self.stream.steps_copy();
    }

    /// Runs `change`, which pushes `ids` at most and may finish; if it fails, nothing has changed.
    pub(crate) fn attempt<R>(
        &mut self,
        ids: &[TokenId],
        change: impl FnOnce(&mut Self) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.count_copied();
        if !self.stream.may_refuse(ids) {
            let changed = change(self);
            self.update_copies();
            return changed;
        }
        // A stop before an id that would be refused is a stop all the same, so it is tried out.
        let stream = self.stream.checkpoint();
        let (stop_progress, kept_tokens) = (self.stop_progress, self.kept_tokens);
        let scope = self.scope.clone();
        let changed = change(self).inspect_err(|_| {
            self.stream.restore(stream);
            self.scope = scope;
            self.stop_progress = stop_progress;
            self.kept_tokens = kept_tokens;
        });
        self.update_copies();
        changed
    }

    /// Pushes ids up to the first stop; to be called in an [`Self::attempt`]. `last_is_silent`: the
    /// last one only ends the text: it counts and has neither text nor record.
    pub(crate) fn push<O: Observer>(
        &mut self,
        ids: &[TokenId],
        last_is_silent: bool,
        observer: &mut O,
    ) -> Result<Pushed, Error> {
        if self.ended {
            return Err(Error::Finished);
        }
        let with_text = ids.len() - usize::from(last_is_silent && !ids.is_empty());
        let stops = self.options.stop.is_some() || !self.options.stop_token_ids.is_empty();
        if !stops && !O::LOOKS {
            self.stream
                .push_tokens(ids.get(..with_text).unwrap_or_default())?;
            self.kept_tokens += ids.len() as u64;
            return Ok(Pushed::all(ids.len()));
        }
        for (at, &id) in ids.iter().enumerate() {
            observer.look(&self.stream, id)?;
            let pushed = self.push_one(id, at < with_text);
            if let Some(stopped) = pushed.map_err(|error| error.at_index(at))? {
                return Ok(Pushed {
                    kept: at + 1,
                    stopped: Some(stopped),
                });
            }
        }
        Ok(Pushed::all(ids.len()))
    }

    fn push_one(&mut self, id: TokenId, has_text: bool) -> Result<Option<Stopped>, Error> {
        let counts = self.stops_count();
        if self.ends_at_token(id) {
            self.kept_tokens += 1;
            // What is not certain yet may have a stop string, which came first.
            if let Some(completion) = self.search_scope(counts, true) {
                return self.end_at_string(completion).map(Some);
            }
            if self.options.include_stop {
                self.stream.push_token(id)?;
            }
            return self.end_at_token(id).map(Some);
        }
        self.kept_tokens += 1;
        if !has_text {
            return Ok(None);
        }
        let before = self.stream.unhanded().len();
        self.stream.push_token(id)?;
        let completion = if self.scope.is_some() {
            self.search_scope(counts, false)
        } else {
            self.search(before, self.stream.unhanded().len(), counts)
        };
        completion
            .map(|completion| self.end_at_string(completion))
            .transpose()
    }

    /// Looks for a stop in a part of the text that was not handed out.
    fn search(&mut self, start: usize, end: usize, counts: bool) -> Option<Completion> {
        let stops = self.options.stop.as_ref()?;
        let text = self.stream.unhanded().get(start..end).unwrap_or_default();
        let completion = stops.search(&mut self.stop_progress, text, counts)?;
        Some(Completion {
            end: start + completion.end,
            ..completion
        })
    }

    /// Looks for a stop in the text of which it is certain by now that it lies in scope. At the end,
    /// what may be a marker is none, and nothing behind it is looked at.
    fn search_scope(&mut self, counts: bool, at_end: bool) -> Option<Completion> {
        let mut scope = self.scope.take()?;
        let mut found = None;
        let mut start = scope.scanner.decided().text;
        for (end, in_scope) in scope.read(&self.stream, &self.options, at_end) {
            let handed = self.stream.handed_bytes();
            if !in_scope {
                self.stop_progress = Progress::default();
            } else if found.is_none() {
                found = self.search(start - handed, end - handed, counts);
            }
            start = end;
        }
        if !at_end {
            self.scope = Some(scope);
        }
        found
    }

    /// Whether a stop that the next token completes would count.
    #[inline]
    fn stops_count(&self) -> bool {
        self.kept_tokens >= self.options.min_tokens
    }

    /// Whether the next token ends the generation if it is `id`.
    #[inline]
    fn ends_at_token(&self, id: TokenId) -> bool {
        let ids = &self.options.stop_token_ids;
        !ids.is_empty() && self.stops_count() && ids.binary_search(&id).is_ok()
    }

    fn end_at_token(&mut self, id: TokenId) -> Result<Stopped, Error> {
        self.end()?;
        let rest = self.rest.as_ref().map_or(0, |rest| rest.text.len());
        Ok(Stopped {
            stop_match: StopMatch {
                stop: Stop::Token(id),
                byte_offset: (self.stream.handed_bytes() + rest) as u64,
                token_index: self.kept_tokens - 1,
                cut: false,
            },
            first_cut_token: None,
        })
    }

    /// `completion.end` counts in the text that was not handed out. What the stop string has of
    /// that text was held back, so the cut is never before it.
    fn end_at_string(&mut self, completion: Completion) -> Result<Stopped, Error> {
        let stops = self.options.stop.as_ref();
        let stop = stops.map_or_else(Arc::default, |stops| stops.string(completion.index));
        let local = if self.options.include_stop {
            completion.end
        } else {
            completion.end.saturating_sub(stop.len())
        };
        let cut = self.stream.handed_bytes() + local;
        let head = self.stream.end_of_handed_tokens();
        let (rest, _) = self.stream.finish(Some(cut))?;
        self.ended = true;
        let records = rest.as_ref().map_or(&[][..], |rest| &rest.attributions);
        let cut_here = records.iter().position(|record| record.cut);
        let cut_here = cut_here.map(|at| self.handed.count + at as u64);
        let cut_before = self.handed.last_visible.filter(|_| head > local);
        // A token that only ends the text has no record.
        let is_recorded = self.handed.count + records.len() as u64 == self.kept_tokens;
        let cut_last = match records.last() {
            Some(record) => record.cut,
            // It was handed out before it was certain where the stop counts.
            None => cut_before.is_some_and(|cut| cut + 1 == self.kept_tokens),
        };
        let stopped = Stopped {
            first_cut_token: cut_before.or(cut_here),
            stop_match: StopMatch {
                stop: Stop::String(stop),
                byte_offset: cut as u64,
                token_index: self.kept_tokens - 1,
                cut: is_recorded && cut_last,
            },
        };
        self.rest = rest.map(Box::new);
        Ok(stopped)
    }

    /// Ends the text, without a stop unless it has one that was not certain; to be called in an
    /// [`Self::attempt`].
    pub(crate) fn finish(&mut self) -> Result<Option<Stopped>, Error> {
        if self.ended {
            return Err(Error::Finished);
        }
        // The token that would complete it was the last.
        let counts = self.kept_tokens > self.options.min_tokens;
        if let Some(completion) = self.search_scope(counts, true) {
            return self.end_at_string(completion).map(Some);
        }
        self.end()?;
        Ok(None)
    }

    fn end(&mut self) -> Result<(), Error> {
        let (rest, _) = self.stream.finish(None)?;
        self.rest = rest.map(Box::new);
        self.ended = true;
        Ok(())
    }

    /// Bytes at the end of the text that must wait.
    fn held(&self) -> usize {
        let held = match &self.options.stop {
            Some(stops) if !self.options.include_stop => stops.held(self.stop_progress),
            _ => 0,
        };
        let end = self.stream.handed_bytes() + self.stream.unhanded().len();
        let undecided = self.scope.as_ref();
        let undecided = undecided.map_or(0, |scope| scope.undecided(end, &self.options));
        (held + undecided).max(self.options.min_bytes_to_buffer)
    }

    /// What may be shown and was not.
    pub(crate) fn next_chunk(&mut self) -> Option<DecodedText> {
        self.count_copied();
        let chunk = if self.ended {
            self.rest.take().map(|rest| *rest)
        } else {
            let chunk = self.stream.next_chunk_behind(self.held());
            self.update_copies();
            chunk
        }?;
        self.count_handed(&chunk.attributions);
        Some(chunk)
    }

    /// The same, behind what `text` and `records` have; the records' offsets are those of the chunk.
    pub(crate) fn move_chunk(&mut self, text: &mut String, records: &mut Vec<TokenAttribution>) {
        self.count_copied();
        let before = records.len();
        if self.ended {
            if let Some(rest) = self.rest.take() {
                text.push_str(&rest.text);
                records.extend(rest.attributions);
            }
        } else {
            self.stream.move_chunk(self.held(), text, records);
            self.update_copies();
        }
        self.count_handed(records.get(before..).unwrap_or_default());
    }

    fn count_handed(&mut self, records: &[TokenAttribution]) {
        let mut last: Option<(usize, TokenAttribution)> = None;
        for (at, record) in records.iter().enumerate() {
            // Tokens of a window's piece have one anchor, and each may have a part in the end of it.
            let same_piece = last
                .is_some_and(|(_, last)| last.anchor == record.anchor && !record.continues_char);
            if record.anchor.is_visible() && !same_piece {
                last = Some((at, *record));
            }
        }
        if let Some((at, _)) = last {
            self.handed.last_visible = Some(self.handed.count + at as u64);
        }
        self.handed.count += records.len() as u64;
    }
}

impl ScopeReader {
    fn open<E: From<Error>>(
        tokenizer: &Arc<Tokenizer>,
        scope: &StopScope,
        prompt: &(impl Prompt<E> + ?Sized),
    ) -> Result<Self, E> {
        let sections = Arc::clone(&scope.sections);
        Ok(Self {
            scanner: SectionScanner::behind(sections, tokenizer, prompt)?,
            records: 0,
        })
    }

    /// Reads what has settled; the ends of what is certain by now, and whether each lies in scope.
    fn read(
        &mut self,
        stream: &DecodeStream,
        options: &TextDecodeOptions,
        at_end: bool,
    ) -> Vec<(usize, bool)> {
        let mut stretches = Vec::new();
        let (text, records, base) = stream.unhanded_from(self.scanner.read_bytes(), self.records);
        self.records += records.len() as u64;
        self.scanner.scan(text, records, base, &mut stretches);
        if at_end {
            self.scanner.finish(&mut stretches);
        }
        let section = options.scope.as_ref().map(|scope| scope.section);
        let in_scope = |stretch: &Stretch| {
            stretch.part == Part::Body && section == Some(self.scanner.section_of(stretch.marker))
        };
        let ends = stretches.iter();
        ends.map(|stretch| (stretch.end.text, in_scope(stretch)))
            .collect()
    }

    /// Bytes before `end` that may lie in scope, or be a marker.
    fn undecided(&self, end: usize, options: &TextDecodeOptions) -> usize {
        let section = options.scope.as_ref().map(|scope| scope.section);
        if section == Some(self.scanner.section()) {
            end - self.scanner.decided().text.min(end)
        } else {
            0
        }
    }
}
