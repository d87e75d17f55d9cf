//! One generation, decoded as its tokens arrive.

use crate::attribution::{DecodedText, TokenAttribution};
use crate::buffer::{AttributedTextBuffer, Checkpoint, Sink, Unrecorded};
use crate::context::{self, Prompt};
use crate::error::Error;
use crate::exact::{ExactDecoder, REPLACEMENT};
use crate::table::{Table, TokenFlags};
use crate::token::{TokenId, UnknownIds};
use crate::tokenizer::{DecodeOptions, Strategy, Tokenizer, decode_into};
use crate::transcript::{History, Replay, Transcript};
use crate::window::{WindowDecoder, WindowSource};
use std::borrow::Cow;
use std::sync::Arc;

/// What a stream shows, tolerates, holds back and keeps.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// What is shown and tolerated.
    pub decode: DecodeOptions,
    /// Bytes at the end of the text that chunks leave behind until the flush.
    pub min_bytes_to_buffer: usize,
    /// Whether what was handed out can be had again, from `output` and at the flush.
    pub keep_output: bool,
    /// Most bytes of text a stream keeps; anchors are 32-bit.
    pub text_limit: usize,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            decode: DecodeOptions::default(),
            min_bytes_to_buffer: 0,
            keep_output: true,
            text_limit: u32::MAX as usize,
        }
    }
}

/// What is not handed out yet, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pending {
    /// Bytes of an unfinished character.
    pub incomplete_bytes: usize,
    /// Bytes of whole characters held back.
    pub held_bytes: usize,
    /// Tokens whose place in the text is not known, or that stand behind one.
    pub waiting_tokens: usize,
}

/// The text a step gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepText<'s> {
    /// Nothing became certain.
    Nothing,
    /// Exactly the pushed token's own text.
    Token,
    /// Some other text, there until the next call.
    Text(&'s str),
}

#[derive(Clone, Debug)]
pub(crate) enum Decoder {
    Exact(ExactDecoder),
    Window(Box<WindowDecoder>),
}

/// What a stream was, but for what it hands out.
#[derive(Debug)]
pub(crate) struct StreamCheckpoint {
    decoder: Decoder,
    buffer: Checkpoint,
    token_count: u64,
    steps_copy: bool,
}

/// Incremental decoder of one generation.
///
/// A call that fails changes nothing.
#[derive(Clone, Debug)]
pub struct DecodeStream {
    tokenizer: Arc<Tokenizer>,
    options: StreamOptions,
    decoder: Decoder,
    /// What is settled and was not handed out.
    buffer: AttributedTextBuffer,
    history: History,
    /// Text of the latest step; its memory serves the next.
    step_text: String,
    /// Bytes of text handed out.
    handed_bytes: usize,
    /// Those of them that are kept, or would be if the ids were decoded again.
    kept_before: usize,
    token_count: u64,
    /// A step may be a mere copy: in the middle of text, with nothing held back or pending.
    steps_copy: bool,
    /// Set by the flush.
    transcript: Option<Arc<Transcript>>,
}

impl DecodeStream {
    /// A stream behind `prompt`. Reads only the tail of the prompt and keeps none of it.
    ///
    /// # Errors
    /// The prompt's own for an id that is none; a window source's own.
    pub fn open<E: From<Error>>(
        tokenizer: Arc<Tokenizer>,
        prompt: &(impl Prompt<E> + ?Sized),
        options: StreamOptions,
    ) -> Result<Self, E> {
        let decoder = seed(&tokenizer, prompt, &options.decode)?;
        let mut stream = Self {
            history: match &decoder {
                _ if !options.keep_output => History::Forgotten,
                Decoder::Exact(decoder) => History::Ids(Replay::new(*decoder)),
                Decoder::Window(_) => History::Chunks(Box::default()),
            },
            tokenizer,
            options,
            decoder,
            buffer: AttributedTextBuffer::default(),
            step_text: String::new(),
            handed_bytes: 0,
            kept_before: 0,
            token_count: 0,
            steps_copy: false,
            transcript: None,
        };
        stream.update_steps_copy();
        Ok(stream)
    }

    /// Starts over behind another prompt, with the same options.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn reset<E: From<Error>>(&mut self, prompt: &(impl Prompt<E> + ?Sized)) -> Result<(), E> {
        *self = Self::open(Arc::clone(&self.tokenizer), prompt, self.options.clone())?;
        Ok(())
    }

    /// The tokenizer the stream was opened with.
    #[must_use]
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The options the stream was opened with.
    #[must_use]
    pub fn options(&self) -> &StreamOptions {
        &self.options
    }

    /// Pushes one token; the number of bytes of text that became certain.
    ///
    /// # Errors
    /// [`Error::UnknownToken`], [`Error::Finished`], [`Error::TextTooLong`], a window source's own.
    pub fn push_token(&mut self, id: TokenId) -> Result<usize, Error> {
        if let (Strategy::Exact(table), Decoder::Exact(decoder), None) =
            (self.tokenizer.strategy(), &self.decoder, &self.transcript)
            && decoder.copies()
            && let Some(text) = table.copied_text(id)
            && text.len() <= self.options.text_limit.saturating_sub(self.kept_bytes())
        {
            let len = text.len();
            self.buffer.copy(id, text);
            self.count(id);
            self.steps_copy = false;
            return Ok(len);
        }
        self.push_tokens(&[id])
    }

    /// Pushes a run of tokens, all or none; the number of bytes of text that became certain.
    ///
    /// # Errors
    /// As [`Self::push_token`], with the index in this run.
    pub fn push_tokens(&mut self, ids: &[TokenId]) -> Result<usize, Error> {
        if self.transcript.is_some() {
            return Err(Error::Finished);
        }
        let before = self.buffer.text().len();
        let kept_bytes = self.kept_bytes();
        match (self.tokenizer.strategy(), &mut self.decoder) {
            (Strategy::Exact(table), Decoder::Exact(decoder)) => {
                let most = kept_bytes + decoder.most_unsettled(table.program());
                check_run(table, ids, &self.options, most)?;
                self.buffer.reserve(ids.len());
                decode_into(table, decoder, ids, &self.options.decode, &mut self.buffer)?;
            }
            (Strategy::Window { source, .. }, Decoder::Window(decoder)) => {
                let run = WindowRun {
                    tokenizer: &self.tokenizer,
                    source: source.as_ref(),
                    options: &self.options,
                    kept_before: self.kept_before,
                };
                let start = (decoder.clone(), self.buffer.checkpoint());
                if let Err(error) = run.push(ids, decoder, &mut self.buffer) {
                    *decoder = start.0;
                    self.buffer.restore(start.1);
                    return Err(error);
                }
            }
            // A decoder is made for its tokenizer's strategy and never changes.
            (Strategy::Exact(_), Decoder::Window(_))
            | (Strategy::Window { .. }, Decoder::Exact(_)) => {}
        }
        if let History::Ids(replay) = &mut self.history {
            replay.extend(ids);
        }
        self.token_count += ids.len() as u64;
        self.update_steps_copy();
        Ok(self.buffer.text().len() - before)
    }

    /// What may leave now: text, records, or both (A5, A6).
    pub fn next_chunk(&mut self) -> Option<DecodedText> {
        self.next_chunk_behind(self.options.min_bytes_to_buffer)
    }

    /// The same with `held` bytes at the end held back, whatever the options say.
    pub(crate) fn next_chunk_behind(&mut self, held: usize) -> Option<DecodedText> {
        let chunk = self.buffer.next_chunk(held)?;
        if let History::Chunks(kept) = &mut self.history {
            // Pushes refuse more text than offsets can address.
            let _fits = kept.append(&chunk);
        }
        self.count_handed(chunk.text.len());
        self.update_steps_copy();
        Some(chunk)
    }

    /// The same behind what `text` and `records` have, of a stream that keeps no output.
    pub(crate) fn move_chunk(
        &mut self,
        held: usize,
        text: &mut String,
        records: &mut Vec<TokenAttribution>,
    ) {
        let before = text.len();
        self.buffer.move_chunk(held, text, records);
        self.count_handed(text.len() - before);
        self.update_steps_copy();
    }

    /// A point to come back to, as long as nothing is handed out.
    pub(crate) fn checkpoint(&self) -> StreamCheckpoint {
        StreamCheckpoint {
            decoder: self.decoder.clone(),
            buffer: self.buffer.checkpoint(),
            token_count: self.token_count,
            steps_copy: self.steps_copy,
        }
    }

    /// Forgets what came after `checkpoint`, of a stream that keeps no output.
    pub(crate) fn restore(&mut self, checkpoint: StreamCheckpoint) {
        self.decoder = checkpoint.decoder;
        self.buffer.restore(checkpoint.buffer);
        self.token_count = checkpoint.token_count;
        self.steps_copy = checkpoint.steps_copy;
    }

    /// Whether the next step may be a mere copy, as [`Self::step_copied`] makes it.
    pub(crate) fn steps_copy(&self) -> bool {
        self.steps_copy
    }

    /// Counts such steps that were made elsewhere, of a stream that keeps no output.
    pub(crate) fn count_copied(&mut self, tokens: u64, bytes: usize) {
        self.token_count += tokens;
        self.count_handed(bytes);
    }

    /// Settled text that was not handed out.
    pub(crate) fn unhanded(&self) -> &str {
        self.buffer.text()
    }

    /// Of it, the text from a place on and the records from one on, both counted in the whole
    /// generation, and where the text begins to these.
    pub(crate) fn unhanded_from(
        &self,
        byte: usize,
        record: u64,
    ) -> (&str, &[TokenAttribution], usize) {
        let recorded = self.token_count - self.buffer.waiting_tokens() as u64;
        let new = recorded.saturating_sub(record) as usize;
        self.buffer
            .latest(byte.saturating_sub(self.handed_bytes), new)
    }

    /// How far into [`Self::unhanded`] the tokens that were handed out have text.
    pub(crate) fn end_of_handed_tokens(&self) -> usize {
        self.buffer.end_of_handed_tokens()
    }

    /// Bytes of text handed out.
    pub(crate) fn handed_bytes(&self) -> usize {
        self.handed_bytes
    }

    /// Whether a push of these, or a flush behind it, may fail.
    pub(crate) fn may_refuse(&self, ids: &[TokenId]) -> bool {
        let (Strategy::Exact(table), Decoder::Exact(decoder)) =
            (self.tokenizer.strategy(), &self.decoder)
        else {
            return true;
        };
        let strict = self.options.decode.unknown_ids == UnknownIds::Error;
        let settled = self.kept_bytes() + decoder.most_unsettled(table.program());
        strict && table.first_unknown(ids).is_some()
            || settled.saturating_add(table.most_bytes(ids.len())) > self.options.text_limit
    }

    /// Whether [`Self::push_known`] would push this token: one that is known, and cannot make the text
    /// too long.
    pub(crate) fn admits(&self, id: TokenId) -> bool {
        let (Strategy::Exact(table), Decoder::Exact(decoder)) =
            (self.tokenizer.strategy(), &self.decoder)
        else {
            return false;
        };
        let settled = self.buffer.text().len() + decoder.most_unsettled(table.program());
        table.index(id).is_some() && settled + table.most_bytes(1) <= self.options.text_limit
    }

    /// Pushes one token as [`Self::push_tokens`] does, of a stream that keeps no output and has not
    /// ended, if it is one that [`Self::admits`] says yes to.
    pub(crate) fn push_known(&mut self, id: TokenId) {
        let (Strategy::Exact(table), Decoder::Exact(decoder)) =
            (self.tokenizer.strategy(), &mut self.decoder)
        else {
            return;
        };
        let Some(index) = table.index(id) else {
            return;
        };
        match table.copied_text(id).filter(|_| decoder.copies()) {
            Some(text) => self.buffer.copy(id, text),
            None if self.options.decode.shows(id, table.piece(index).flags) => {
                decoder.push(table, id, index, &mut self.buffer);
            }
            None => self.buffer.place_zero_width(id),
        }
        self.token_count += 1;
        self.update_steps_copy();
    }

    /// How the next token would be decoded.
    pub(crate) fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Pushes one token and hands out what may leave, as text alone. Its records count as handed out.
    ///
    /// # Errors
    /// As [`Self::push_token`].
    #[inline]
    pub fn step(&mut self, id: TokenId) -> Result<StepText<'_>, Error> {
        if self.step_copied(id) {
            return Ok(StepText::Token);
        }
        self.step_uncopied(id)
    }

    /// Steps if the token's own text, as [`crate::Table::copied_text`] has it, is just what the step
    /// gives; says whether it did. Most steps are of this kind, and cost no more than to tell.
    #[inline]
    pub fn step_copied(&mut self, id: TokenId) -> bool {
        let Strategy::Exact(table) = self.tokenizer.strategy() else {
            return false;
        };
        let Some(len) = table.copied_len(id).filter(|_| self.steps_copy) else {
            return false;
        };
        if len > self.options.text_limit.saturating_sub(self.kept_before) {
            return false;
        }
        self.count(id);
        self.count_handed(len);
        true
    }

    /// Steps a token of which [`Self::step_copied`] has said no.
    ///
    /// # Errors
    /// As [`Self::push_token`].
    pub fn step_uncopied(&mut self, id: TokenId) -> Result<StepText<'_>, Error> {
        if let Some(text) = self.text_of_lone(id) {
            self.count(id);
            self.count_handed(text.len());
            return Ok(if text.is_empty() {
                StepText::Nothing
            } else {
                StepText::Text(text)
            });
        }
        self.step_text.clear();
        let hands_out_all = self.options.min_bytes_to_buffer == 0 && self.buffer.text().is_empty();
        match (self.tokenizer.strategy(), &mut self.decoder) {
            (Strategy::Exact(table), Decoder::Exact(decoder))
                if hands_out_all && self.transcript.is_none() =>
            {
                let most = self.kept_before + decoder.most_unsettled(table.program());
                check_run(table, &[id], &self.options, most)?;
                let sink = &mut Unrecorded(&mut self.buffer);
                decode_into(table, decoder, &[id], &self.options.decode, sink)?;
                self.buffer.take_text(&mut self.step_text);
                self.count(id);
                self.count_handed(self.step_text.len());
            }
            _ => {
                self.push_tokens(&[id])?;
                if let Some(chunk) = self.next_chunk() {
                    self.step_text = chunk.text;
                }
            }
        }
        self.update_steps_copy();
        Ok(match self.step_text.as_str() {
            "" => StepText::Nothing,
            text => StepText::Text(text),
        })
    }

    /// The text of tokens that may come ten thousand in a row, in the middle of text: nothing for one
    /// that is hidden, U+FFFD for a broken byte. `None` for any other token or place.
    fn text_of_lone(&self, id: TokenId) -> Option<&'static str> {
        let Strategy::Exact(table) = self.tokenizer.strategy() else {
            return None;
        };
        let flags = table.flags(id).filter(|_| self.steps_copy)?;
        if !self.options.decode.shows(id, flags) {
            return Some("");
        }
        let fits = REPLACEMENT.len() <= self.options.text_limit.saturating_sub(self.kept_before);
        (flags.has(TokenFlags::BROKEN) && fits).then_some(REPLACEMENT)
    }

    /// To be called when anything but a copying step has changed the stream.
    fn update_steps_copy(&mut self) {
        self.steps_copy = self.options.min_bytes_to_buffer == 0
            && self.buffer.is_empty()
            && self.transcript.is_none()
            && matches!(&self.decoder, Decoder::Exact(decoder) if decoder.copies());
    }

    /// Ends the text, cut at `cut` bytes if given: the last chunk, and everything (what was not
    /// handed out before, if the stream keeps no output).
    ///
    /// # Errors
    /// [`Error::Finished`] a second time; [`Error::CutInsideCharacter`] and
    /// [`Error::CutBeforeHandedOut`]; a window source's own.
    pub fn flush(
        &mut self,
        cut: Option<usize>,
    ) -> Result<(Option<DecodedText>, DecodedText), Error> {
        let (last, everything) = self.finish(cut)?;
        Ok((last, DecodedText::clone(everything.decoded())))
    }

    /// The same, with everything decoded only when it is looked at.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub fn finish(
        &mut self,
        cut: Option<usize>,
    ) -> Result<(Option<DecodedText>, Arc<Transcript>), Error> {
        if self.transcript.is_some() {
            return Err(Error::Finished);
        }
        let rest = self.rest()?;
        if self.kept_bytes() + rest.len() > self.options.text_limit {
            return Err(Error::TextTooLong {
                limit: self.options.text_limit,
            });
        }
        let local_cut = cut.map(|at| self.check_cut(at, &rest)).transpose()?;
        match (self.tokenizer.strategy(), &mut self.decoder) {
            (Strategy::Exact(table), Decoder::Exact(decoder)) => {
                decoder.finish(table.program(), &mut self.buffer);
            }
            (_, Decoder::Window(decoder)) => decoder.finish(&rest, &mut self.buffer),
            (Strategy::Window { .. }, Decoder::Exact(_)) => {}
        }
        let mut last = self.buffer.take();
        let everything = match std::mem::replace(&mut self.history, History::Forgotten) {
            History::Forgotten => None,
            History::Ids(replay) => {
                let tokenizer = Arc::clone(&self.tokenizer);
                Some(Transcript::unread(
                    tokenizer,
                    self.options.decode.clone(),
                    replay,
                    cut,
                ))
            }
            History::Chunks(mut kept) => {
                kept.append(&last)?;
                cut.map_or(Ok(()), |at| kept.truncate(at))?;
                Some(Transcript::of(*kept))
            }
        };
        local_cut.map_or(Ok(()), |at| last.truncate(at))?;
        let everything = Arc::new(everything.unwrap_or_else(|| Transcript::of(last.clone())));
        self.transcript = Some(Arc::clone(&everything));
        self.steps_copy = false;
        Ok(((!last.is_empty()).then_some(last), everything))
    }

    /// The place of a cut in what was not handed out.
    fn check_cut(&self, at: usize, rest: &str) -> Result<usize, Error> {
        let Some(local) = at.checked_sub(self.handed_bytes) else {
            return Err(Error::CutBeforeHandedOut {
                at,
                handed_out: self.handed_bytes,
            });
        };
        let text = self.buffer.text();
        let inside = match local.checked_sub(text.len()) {
            None => !text.is_char_boundary(local),
            Some(beyond) => beyond < rest.len() && !rest.is_char_boundary(beyond),
        };
        if inside {
            return Err(Error::CutInsideCharacter { at });
        }
        Ok(local)
    }

    /// What the flush would settle behind the text so far.
    fn rest(&self) -> Result<String, Error> {
        let mut rest = String::new();
        match (self.tokenizer.strategy(), &self.decoder) {
            (Strategy::Exact(table), Decoder::Exact(decoder)) => {
                decoder.clone().finish(table.program(), &mut rest);
            }
            (Strategy::Window { source, .. }, Decoder::Window(decoder)) => {
                let skips = self.options.decode.source_skips();
                rest = decoder
                    .rest(source.as_ref(), skips)
                    .map_err(Error::Source)?;
            }
            (Strategy::Exact(_), Decoder::Window(_))
            | (Strategy::Window { .. }, Decoder::Exact(_)) => {}
        }
        Ok(rest)
    }

    /// All text since the start, held-back text included; after the flush, all there is.
    ///
    /// # Errors
    /// [`Error::OutputNotKept`].
    pub fn output(&mut self) -> Result<Cow<'_, str>, Error> {
        if !self.options.keep_output {
            return Err(Error::OutputNotKept);
        }
        if let Some(transcript) = &self.transcript {
            return Ok(Cow::Borrowed(&transcript.decoded().text));
        }
        Ok(match &mut self.history {
            History::Ids(replay) => {
                Cow::Borrowed(replay.text(&self.tokenizer, &self.options.decode))
            }
            History::Chunks(kept) => Cow::Owned(kept.text.clone() + self.buffer.text()),
            History::Forgotten => Cow::Borrowed(self.buffer.text()),
        })
    }

    /// What is withheld.
    #[must_use]
    pub fn pending(&self) -> Pending {
        let (incomplete, withheld) = match (self.tokenizer.strategy(), &self.decoder) {
            (Strategy::Exact(table), Decoder::Exact(decoder)) if self.transcript.is_none() => (
                decoder.incomplete_bytes(),
                decoder.withheld_bytes(table.program()),
            ),
            _ => (0, 0),
        };
        Pending {
            incomplete_bytes: incomplete,
            held_bytes: self.buffer.text().len() + withheld,
            waiting_tokens: self.buffer.waiting_tokens(),
        }
    }

    /// Tokens pushed since the start.
    #[must_use]
    pub fn token_count(&self) -> u64 {
        self.token_count
    }

    /// Bytes of text that are kept.
    #[inline]
    fn kept_bytes(&self) -> usize {
        self.kept_before + self.buffer.text().len()
    }

    #[inline]
    fn count_handed(&mut self, bytes: usize) {
        self.handed_bytes += bytes;
        if self.options.keep_output {
            self.kept_before += bytes;
        }
    }

    #[inline]
    fn count(&mut self, id: TokenId) {
        if let History::Ids(replay) = &mut self.history {
            replay.push(id);
        }
        self.token_count += 1;
    }
}

fn seed<E: From<Error>>(
    tokenizer: &Tokenizer,
    prompt: &(impl Prompt<E> + ?Sized),
    options: &DecodeOptions,
) -> Result<Decoder, E> {
    match tokenizer.strategy() {
        Strategy::Exact(table) => {
            let decoder = context::seed(table, |id, flags| options.shows(id, flags), prompt)?;
            Ok(Decoder::Exact(decoder))
        }
        Strategy::Window { source, .. } => {
            let decoder = WindowDecoder::seed(source.as_ref(), options, prompt)?;
            Ok(Decoder::Window(Box::new(decoder.map_err(Error::Source)?)))
        }
    }
}

/// Refuses a run before anything changes: an unknown id, or more text than may be kept. `settled`
/// is what there may be before it; what the run may add is counted at its most.
fn check_run(
    table: &Table,
    ids: &[TokenId],
    options: &StreamOptions,
    settled: usize,
) -> Result<(), Error> {
    if options.decode.unknown_ids == UnknownIds::Error
        && let Some((index, id)) = table.first_unknown(ids)
    {
        return Err(table.unknown(index, id));
    }
    let limit = options.text_limit;
    if settled.saturating_add(table.most_bytes(ids.len())) <= limit {
        return Ok(());
    }
    // Near the limit every token counts by its own length.
    let lengths = ids.iter().map(|&id| match table.copied_len(id) {
        Some(len) => len + 1,
        None => table.most_bytes_of(table.token_bytes(id).map_or(0, <[u8]>::len)),
    });
    let most = lengths.fold(settled, usize::saturating_add);
    if most > limit {
        Err(Error::TextTooLong { limit })
    } else {
        Ok(())
    }
}

/// A run of tokens through the window; on failure the caller restores what was.
struct WindowRun<'s> {
    tokenizer: &'s Tokenizer,
    source: &'s dyn WindowSource,
    options: &'s StreamOptions,
    kept_before: usize,
}

impl WindowRun<'_> {
    fn push(
        &self,
        ids: &[TokenId],
        decoder: &mut WindowDecoder,
        buffer: &mut AttributedTextBuffer,
    ) -> Result<(), Error> {
        let options = &self.options.decode;
        for (index, &id) in ids.iter().enumerate() {
            if self
                .tokenizer
                .shows_in_window(self.source, index, id, options)?
            {
                decoder
                    .push(self.source, options.source_skips(), id, buffer)
                    .map_err(Error::Source)?;
            } else {
                buffer.place_zero_width(id);
            }
            if self.kept_before + buffer.text().len() > self.options.text_limit {
                return Err(Error::TextTooLong {
                    limit: self.options.text_limit,
                });
            }
        }
        Ok(())
    }
}
