//! One generation, decoded as its tokens arrive.

use crate::attribution::{AttributedTextBuffer, DecodedText, Sink};
use crate::context::{self, Prompt};
use crate::error::Error;
use crate::exact::ExactDecoder;
use crate::table::Table;
use crate::token::{TokenId, UnknownIds};
use crate::tokenizer::{DecodeOptions, Strategy, Tokenizer, decode_into};
use crate::window::{SourceError, WindowDecoder, WindowSource};
use std::sync::Arc;

/// What a stream shows, tolerates, holds back and keeps.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// What is shown and tolerated.
    pub decode: DecodeOptions,
    /// Bytes at the end of the text that chunks leave behind until the flush.
    pub min_bytes_to_buffer: usize,
    /// Whether text and records are kept after they were handed out.
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
#[derive(Debug, PartialEq, Eq)]
pub enum StepText {
    /// Nothing became certain.
    Nothing,
    /// Exactly the pushed token's own text.
    Token,
    /// Some other text.
    Text(String),
}

#[derive(Clone, Debug)]
enum Decoder {
    Exact(ExactDecoder),
    Window(WindowDecoder),
}

/// Incremental decoder of one generation.
///
/// A call that fails changes nothing.
#[derive(Clone, Debug)]
pub struct DecodeStream {
    tokenizer: Arc<Tokenizer>,
    options: StreamOptions,
    decoder: Decoder,
    buffer: AttributedTextBuffer,
    token_count: u64,
    finished: bool,
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
        Ok(Self {
            decoder: seed(&tokenizer, prompt, &options.decode)?,
            tokenizer,
            options,
            buffer: AttributedTextBuffer::default(),
            token_count: 0,
            finished: false,
        })
    }

    /// Starts over behind another prompt, with the same options.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn reset<E: From<Error>>(&mut self, prompt: &(impl Prompt<E> + ?Sized)) -> Result<(), E> {
        self.decoder = seed(&self.tokenizer, prompt, &self.options.decode)?;
        self.buffer = AttributedTextBuffer::default();
        self.token_count = 0;
        self.finished = false;
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
    #[inline]
    pub fn push_token(&mut self, id: TokenId) -> Result<usize, Error> {
        if let Some(text) = copied(&self.tokenizer, &self.decoder, id) {
            if !self.finished && self.buffer.text().len() + text.len() <= self.options.text_limit {
                self.buffer.copy(id, text);
                self.token_count += 1;
                return Ok(text.len());
            }
        }
        self.push_tokens(&[id])
    }

    /// Pushes a run of tokens, all or none; the number of bytes of text that became certain.
    ///
    /// # Errors
    /// As [`Self::push_token`], with the index in this run.
    pub fn push_tokens(&mut self, ids: &[TokenId]) -> Result<usize, Error> {
        if self.finished {
            return Err(Error::Finished);
        }
        let before = self.buffer.text().len();
        match (self.tokenizer.strategy(), &mut self.decoder) {
            (Strategy::Exact(table), Decoder::Exact(decoder)) => {
                let most = before + decoder.most_unsettled(table.program());
                check_run(table, ids, &self.options, most)?;
                self.buffer.reserve(ids.len());
                decode_into(table, decoder, ids, &self.options.decode, &mut self.buffer)?;
            }
            (Strategy::Window { source, .. }, Decoder::Window(decoder)) => {
                let start = (decoder.clone(), self.buffer.checkpoint());
                let run = WindowRun {
                    tokenizer: &self.tokenizer,
                    source: source.as_ref(),
                    options: &self.options,
                };
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
        self.token_count += ids.len() as u64;
        Ok(self.buffer.text().len() - before)
    }

    /// What may leave now: text, records, or both (A5, A6).
    pub fn next_chunk(&mut self) -> Option<DecodedText> {
        self.buffer
            .next_chunk(self.options.min_bytes_to_buffer, self.options.keep_output)
    }

    /// Pushes one token and hands out what may leave, as text alone. Its records count as handed out.
    ///
    /// # Errors
    /// As [`Self::push_token`].
    #[inline]
    pub fn step(&mut self, id: TokenId) -> Result<StepText, Error> {
        if self.options.min_bytes_to_buffer == 0 && self.buffer.is_drained() {
            if let Some(text) = copied(&self.tokenizer, &self.decoder, id) {
                if !self.finished
                    && self.buffer.text().len() + text.len() <= self.options.text_limit
                {
                    if self.options.keep_output {
                        self.buffer.copy(id, text);
                        self.buffer.hand_out_all(true);
                    }
                    self.token_count += 1;
                    return Ok(StepText::Token);
                }
            }
        }
        self.push_tokens(&[id])?;
        let text = self
            .buffer
            .next_text(self.options.min_bytes_to_buffer, self.options.keep_output);
        Ok(text.map_or(StepText::Nothing, StepText::Text))
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
        if self.finished {
            return Err(Error::Finished);
        }
        let rest = self.rest()?;
        if let Some(at) = cut {
            self.buffer.check_cut(at, &rest)?;
        }
        match (self.tokenizer.strategy(), &mut self.decoder) {
            (Strategy::Exact(table), Decoder::Exact(decoder)) => {
                decoder.finish(table.program(), &mut self.buffer);
            }
            (_, Decoder::Window(decoder)) => decoder.finish(&rest, &mut self.buffer),
            (Strategy::Window { .. }, Decoder::Exact(_)) => {}
        }
        self.finished = true;
        self.buffer.finish(cut, self.options.keep_output)
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

    /// All text since the start, held-back text included.
    ///
    /// # Errors
    /// [`Error::OutputNotKept`].
    pub fn output(&self) -> Result<&str, Error> {
        if self.options.keep_output {
            Ok(self.buffer.text())
        } else {
            Err(Error::OutputNotKept)
        }
    }

    /// What is withheld.
    #[must_use]
    pub fn pending(&self) -> Pending {
        let (incomplete, withheld) = match (self.tokenizer.strategy(), &self.decoder) {
            (Strategy::Exact(table), Decoder::Exact(decoder)) if !self.finished => (
                decoder.incomplete_bytes(),
                decoder.withheld_bytes(table.program()),
            ),
            _ => (0, 0),
        };
        Pending {
            incomplete_bytes: incomplete,
            held_bytes: self.buffer.held_bytes() + withheld,
            waiting_tokens: self.buffer.waiting_tokens(),
        }
    }

    /// Tokens pushed since the start.
    #[must_use]
    pub fn token_count(&self) -> u64 {
        self.token_count
    }
}

/// The text of a token that is a mere copy at this point.
#[inline]
fn copied<'t>(tokenizer: &'t Tokenizer, decoder: &Decoder, id: TokenId) -> Option<&'t str> {
    match (tokenizer.strategy(), decoder) {
        (Strategy::Exact(table), Decoder::Exact(decoder)) if decoder.copies() => {
            table.copied_text(id)
        }
        _ => None,
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
            let decoder = WindowDecoder::seed(source.as_ref(), options.source_skips(), prompt)?;
            Ok(Decoder::Window(decoder.map_err(Error::Source)?))
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
    if options.decode.unknown_ids == UnknownIds::Error {
        if let Some((index, id)) = table.first_unknown(ids) {
            return Err(Error::UnknownToken {
                id,
                index,
                vocab_size: Some(table.vocab_size()),
            });
        }
    }
    let limit = options.text_limit;
    if settled.saturating_add(table.most_bytes(ids.len())) <= limit {
        return Ok(());
    }
    // Near the limit every token counts by its own length.
    let lengths = ids
        .iter()
        .map(|&id| table.token_bytes(id).map_or(0, <[u8]>::len));
    let most = lengths.fold(settled, |most, len| {
        most.saturating_add(table.most_bytes_of(len))
    });
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
}

impl WindowRun<'_> {
    fn push(
        &self,
        ids: &[TokenId],
        decoder: &mut WindowDecoder,
        buffer: &mut AttributedTextBuffer,
    ) -> Result<(), Error> {
        let options = &self.options.decode;
        let failed = |error: SourceError| Error::Source(error);
        for (index, &id) in ids.iter().enumerate() {
            if self
                .tokenizer
                .shows_in_window(self.source, index, id, options)?
            {
                decoder
                    .push(self.source, options.source_skips(), id, buffer)
                    .map_err(failed)?;
            } else {
                buffer.place_zero_width(id);
            }
            if buffer.text().len() > self.options.text_limit {
                return Err(Error::TextTooLong {
                    limit: self.options.text_limit,
                });
            }
        }
        Ok(())
    }
}
