//! Log-probabilities of sampled tokens and their alternatives, with each token's text in context.
//!
//! They live on the engine clock: when a token is sampled, what comes after it is not known, so
//! its text is what its *left* context makes of it.

use crate::context::Discard;
use crate::error::Error;
use crate::event::SampledDelta;
use crate::exact::{ExactDecoder, REPLACEMENT};
use crate::generation::Observer;
use crate::program::{Program, Repair};
use crate::stream::{DecodeStream, Decoder};
use crate::table::{Table, TokenFlags};
use crate::token::TokenId;
use crate::tokenizer::{DecodeOptions, Strategy, Tokenizer};
use crate::window::WindowDecoder;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// How a token's string shows bytes that are no whole character in the token itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fragments {
    /// Each as `\xNN`.
    #[default]
    OpenAi,
    /// Not at all; the token that completes a character has the whole of it, so that the strings
    /// of a sound text join to that text.
    Empty,
    /// As U+FFFD, the token decoded alone.
    Replacement,
}

/// A token's text in its context, and its own bytes.
#[derive(Clone, Debug)]
pub enum TokenText {
    /// Both are what [`Table::copied_text`] has.
    Own(Arc<Tokenizer>),
    /// They are these; empty before a decoder has looked.
    Written {
        /// The text in context.
        text: Box<str>,
        /// The token's own bytes, in the middle of text.
        bytes: Box<[u8]>,
    },
}

impl Default for TokenText {
    fn default() -> Self {
        Self::Written {
            text: Box::default(),
            bytes: Box::default(),
        }
    }
}

/// A token that was sampled, or might have been, and how likely it was.
#[derive(Clone, Debug)]
pub struct TokenLogprob {
    /// The token.
    pub token_id: TokenId,
    /// As the engine gave it, whatever it is.
    pub logprob: f64,
    /// Its place among all tokens, if the engine tells.
    pub rank: Option<u64>,
    /// Filled in by a decoder.
    pub token: TokenText,
}

impl TokenLogprob {
    /// Without text, as an engine reports it.
    #[must_use]
    pub fn new(token_id: TokenId, logprob: f64, rank: Option<u64>) -> Self {
        Self {
            token_id,
            logprob,
            rank,
            token: TokenText::default(),
        }
    }

    /// The token's text in its context.
    #[must_use]
    pub fn text(&self) -> &str {
        match &self.token {
            TokenText::Own(tokenizer) => {
                let table = tokenizer.table();
                table
                    .and_then(|table| table.copied_text(self.token_id))
                    .unwrap_or_default()
            }
            TokenText::Written { text, .. } => text,
        }
    }

    /// The token's own bytes, whatever its context.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.token {
            TokenText::Own(_) => self.text().as_bytes(),
            TokenText::Written { bytes, .. } => bytes,
        }
    }
}

/// A number as an engine gives it.
#[derive(Clone, Copy, Debug)]
pub struct Logprob(pub f64);

/// By value: NaN equals itself, so that what was saved equals what it was saved from.
impl PartialEq for Logprob {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0 || self.0.is_nan() && other.0.is_nan()
    }
}

impl Eq for Logprob {}

/// Leaves the number out: 0.0 and -0.0 are equal and must hash alike.
impl Hash for Logprob {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

impl PartialEq for TokenLogprob {
    fn eq(&self, other: &Self) -> bool {
        Logprob(self.logprob) == Logprob(other.logprob)
            && (self.token_id, self.rank) == (other.token_id, other.rank)
            && self.text() == other.text()
            && self.bytes() == other.bytes()
    }
}

impl Eq for TokenLogprob {}

/// Leaves the number out, as its own hash does.
impl Hash for TokenLogprob {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.token_id, self.rank, self.text()).hash(state);
    }
}

/// The sampled token of one position, and its alternatives in the engine's order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PositionLogprobs {
    /// What was sampled.
    pub sampled: TokenLogprob,
    /// The likeliest tokens; the sampled one among them if the engine reported it so.
    pub top: Arc<[TokenLogprob]>,
}

impl PositionLogprobs {
    fn filled(&self, context: &TokenContext<'_>) -> Result<Self, Error> {
        let fill = |entry: &TokenLogprob| {
            Ok(TokenLogprob {
                token: context.token_text(entry.token_id)?,
                ..*entry
            })
        };
        let mut failed = None;
        // A slice of known length is made in place, which an iterator that may fail is not.
        let top = self.top.iter().map(|entry| match fill(entry) {
            Ok(filled) => filled,
            Err(error) => {
                failed = Some(error);
                entry.clone()
            }
        });
        let top = top.collect();
        match failed {
            Some(error) => Err(error),
            None => Ok(Self {
                sampled: fill(&self.sampled)?,
                top,
            }),
        }
    }
}

/// What an engine tells of one position.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GivenLogprobs {
    /// The sampled token's and no more.
    Alone(Logprob),
    /// With the sampled token marked.
    Told(PositionLogprobs),
    /// The sampled token is one of these.
    Among(Arc<[TokenLogprob]>),
}

impl GivenLogprobs {
    /// As those of a position where `id` was sampled; `None` if they are not.
    #[must_use]
    pub fn at(self, id: TokenId) -> Option<PositionLogprobs> {
        match self {
            Self::Alone(Logprob(logprob)) => Some(PositionLogprobs {
                sampled: TokenLogprob::new(id, logprob, None),
                top: Arc::default(),
            }),
            Self::Told(position) => (position.sampled.token_id == id).then_some(position),
            Self::Among(top) => {
                let sampled = top.iter().find(|entry| entry.token_id == id)?.clone();
                Some(PositionLogprobs { sampled, top })
            }
        }
    }
}

/// A place in a text where a token is about to come.
struct TokenContext<'c> {
    tokenizer: &'c Arc<Tokenizer>,
    decoder: &'c Decoder,
    options: &'c DecodeOptions,
    fragments: Fragments,
}

impl TokenContext<'_> {
    fn of(stream: &DecodeStream, fragments: Fragments) -> TokenContext<'_> {
        TokenContext {
            tokenizer: stream.tokenizer(),
            decoder: stream.decoder(),
            options: &stream.options().decode,
            fragments,
        }
    }

    fn token_text(&self, id: TokenId) -> Result<TokenText, Error> {
        if let (Strategy::Exact(table), true) = (self.tokenizer.strategy(), self.is_in_mid_text())
            && table.copied_text(id).is_some()
        {
            return Ok(TokenText::Own(Arc::clone(self.tokenizer)));
        }
        let bytes = self.tokenizer.token_bytes(id)?.unwrap_or_default();
        Ok(TokenText::Written {
            text: self.written_text(id)?.into(),
            bytes: bytes.into(),
        })
    }

    /// The same without the bytes; `None` for what [`Table::token_text`] has.
    fn sampled_text(&self, id: TokenId) -> Result<Option<String>, Error> {
        if self.is_own_text(id) {
            return Ok(None);
        }
        self.written_text(id).map(Some)
    }

    fn is_own_text(&self, id: TokenId) -> bool {
        matches!(self.tokenizer.strategy(), Strategy::Exact(table) if self.is_in_mid_text()
            && (self.fragments == Fragments::OpenAi || table.copied_text(id).is_some()))
    }

    fn is_in_mid_text(&self) -> bool {
        matches!(self.decoder, Decoder::Exact(decoder) if decoder.is_in_mid_text())
    }

    fn written_text(&self, id: TokenId) -> Result<String, Error> {
        Ok(match (self.tokenizer.strategy(), self.decoder) {
            (Strategy::Exact(table), Decoder::Exact(decoder)) => {
                self.text_by_table(table, *decoder, id)
            }
            (Strategy::Window { source, .. }, Decoder::Window(decoder)) => {
                let known = source.id_to_token(id).map_err(Error::Source)?.is_some();
                let text = if known {
                    decoder.preview(source.as_ref(), id)
                } else {
                    Ok(String::new())
                };
                let text = text.map_err(Error::Source)?;
                if self.fragments == Fragments::Empty && text.ends_with(REPLACEMENT) {
                    String::new()
                } else {
                    text
                }
            }
            // A decoder is made for its tokenizer's strategy and never changes.
            _ => String::new(),
        })
    }

    fn text_by_table(&self, table: &Table, decoder: ExactDecoder, id: TokenId) -> String {
        let Some(index) = table.index(id) else {
            return String::new();
        };
        let program = table.program();
        let (bytes, flags) = decoder.upcoming(table, index);
        let mut text = FragmentedText {
            program,
            fragments: self.fragments,
            is_byte: flags.has(TokenFlags::BYTE),
            text: String::new(),
        };
        let joins = self.options.shows(id, flags) && (text.is_byte || !program.pieces_end_runs);
        let tail = decoder.tail_bytes();
        let completing = completes(if joins { tail } else { &[] }, &bytes);
        let mut rest: &[u8] = &bytes;
        // Pending bytes that are not completed become U+FFFD, and text has begun.
        let mut strippable = decoder
            .strippable(program)
            .filter(|_| tail.is_empty() || completing.is_some());
        if let Some((character, taken)) = completing {
            let behind = bytes.get(taken..).unwrap_or_default();
            match &mut strippable {
                Some((content, count)) if text.becomes(character, *content) => {
                    *count -= 1;
                    rest = behind;
                }
                _ => {
                    strippable = None;
                    if self.fragments == Fragments::Empty {
                        text.push_char(character);
                        rest = behind;
                    }
                }
            }
        }
        if let Some((content, count)) = strippable {
            for _ in 0..count {
                rest = text.stripped(rest, content).unwrap_or(rest);
            }
        }
        text.push(rest);
        text.text
    }
}

impl Table {
    /// What a token is called where its logprob is shown, in the middle of text and with
    /// [`Fragments::OpenAi`]: then that is the same whatever comes before. Empty for an id that is
    /// not mapped.
    #[must_use]
    pub fn token_text(&self, id: TokenId) -> Cow<'_, str> {
        if let Some(text) = self.copied_text(id) {
            return Cow::Borrowed(text);
        }
        let piece = self.index(id).map(|index| self.piece(index));
        let mut text = FragmentedText {
            program: self.program(),
            fragments: Fragments::OpenAi,
            is_byte: piece.is_some_and(|piece| piece.flags.has(TokenFlags::BYTE)),
            text: String::new(),
        };
        text.push(piece.map_or(&[][..], |piece| piece.bytes));
        Cow::Owned(text.text)
    }
}

/// The character that pending bytes and the first of `bytes` make, and how many it takes of these.
fn completes(pending: &[u8], bytes: &[u8]) -> Option<(char, usize)> {
    if pending.is_empty() {
        return None;
    }
    (1..=bytes.len().min(4 - pending.len().min(4))).find_map(|taken| {
        let mut joined: SmallVec<[u8; 4]> = SmallVec::from_slice(pending);
        joined.extend_from_slice(bytes.get(..taken)?);
        let character = std::str::from_utf8(&joined).ok()?.chars().next()?;
        Some((character, taken))
    })
}

/// A token's bytes as text.
struct FragmentedText<'p> {
    program: &'p Program,
    fragments: Fragments,
    /// A single byte of byte fallback, whose characters steps after joining may replace.
    is_byte: bool,
    text: String,
}

impl<'p> FragmentedText<'p> {
    fn push(&mut self, bytes: &[u8]) {
        for chunk in bytes.utf8_chunks() {
            if self.is_byte {
                chunk.valid().chars().for_each(|each| self.push_char(each));
            } else {
                self.text.push_str(chunk.valid());
            }
            self.push_broken(chunk.invalid());
        }
    }

    fn push_char(&mut self, character: char) {
        match self.replacement(character) {
            Some(to) => self.text.push_str(to),
            None => self.text.push(character),
        }
    }

    /// What steps after joining put in the place of a character.
    fn replacement(&self, character: char) -> Option<&'p str> {
        let program: &'p Program = self.program;
        let mut replacements = program.after_joining.iter();
        let found = replacements.find(|(from, _)| self.is_byte && *from == character);
        found.map(|(_, to)| to.as_str())
    }

    /// Whether it is `content` in the text.
    fn becomes(&self, character: char, content: char) -> bool {
        match self.replacement(character) {
            Some(to) => to.chars().eq([content]),
            None => character == content,
        }
    }

    /// What is behind the first character, if that one is `content` in the text.
    fn stripped<'b>(&self, bytes: &'b [u8], content: char) -> Option<&'b [u8]> {
        let first = bytes.utf8_chunks().next()?.valid().chars().next()?;
        let behind = bytes.get(first.len_utf8()..);
        behind.filter(|_| self.becomes(first, content))
    }

    fn push_broken(&mut self, bytes: &[u8]) {
        match (self.fragments, self.program.repair) {
            (Fragments::Empty, _) => {}
            (Fragments::OpenAi, _) => {
                let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or_default();
                for byte in bytes {
                    (self.text).extend(['\\', 'x', digit(byte >> 4), digit(byte & 15)]);
                }
            }
            (Fragments::Replacement, Repair::MaximalPart) if bytes.is_empty() => {}
            (Fragments::Replacement, Repair::MaximalPart) => self.text.push_str(REPLACEMENT),
            (Fragments::Replacement, Repair::EachByte) => {
                self.text.push_str(&REPLACEMENT.repeat(bytes.len()));
            }
        }
    }
}

/// Texts of an update's tokens as their logprobs would have them; `None` for the token's own, as
/// [`Table::token_text`] has it.
pub type SampledTexts = SmallVec<[Option<Box<str>>; 1]>;

/// Fills in what an update tells of its tokens, one by one: logprobs that the engine gave, and texts
/// that were asked for.
pub(crate) struct SampledWriter<'u> {
    /// As the engine gave them, one per id.
    given: std::slice::Iter<'u, PositionLogprobs>,
    fragments: Fragments,
    logprobs: Option<SmallVec<[PositionLogprobs; 1]>>,
    token_texts: Option<SampledTexts>,
}

impl<'u> SampledWriter<'u> {
    pub(crate) fn new(
        given: Option<&'u [PositionLogprobs]>,
        fragments: Fragments,
        token_texts: bool,
    ) -> SampledWriter<'u> {
        Self {
            given: given.unwrap_or_default().iter(),
            fragments,
            logprobs: given.map(|_| SmallVec::new()),
            token_texts: token_texts.then(SmallVec::new),
        }
    }

    /// Whether the token's text would be what [`Table::token_text`] has.
    pub(crate) fn is_own_text(&self, stream: &DecodeStream, id: TokenId) -> bool {
        TokenContext::of(stream, self.fragments).is_own_text(id)
    }

    /// Whether there is anything to write.
    pub(crate) fn writes(&self) -> bool {
        self.logprobs.is_some() || self.token_texts.is_some()
    }

    /// What was written, of these ids.
    pub(crate) fn sampled(self, token_ids: &[TokenId]) -> SampledDelta {
        SampledDelta {
            token_ids: token_ids.into(),
            // One position is made in place.
            logprobs: self.logprobs.map(|all| match all.into_inner() {
                Ok(one) => Arc::new(one) as Arc<[_]>,
                Err(all) => all.into_vec().into(),
            }),
            token_texts: self.token_texts,
        }
    }
}

impl Observer for SampledWriter<'_> {
    const LOOKS: bool = true;

    fn look(&mut self, stream: &DecodeStream, id: TokenId) -> Result<(), Error> {
        let context = TokenContext::of(stream, self.fragments);
        if let Some(logprobs) = &mut self.logprobs
            && let Some(position) = self.given.next()
        {
            logprobs.push(position.filled(&context)?);
        }
        if let Some(texts) = &mut self.token_texts {
            texts.push(context.sampled_text(id)?.map(Into::into));
        }
        Ok(())
    }
}

/// Texts of many tokens as their logprobs would have them.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenTexts {
    tokens: Vec<TokenEntry>,
    /// Texts that are not their tokens' own, end to end.
    text: String,
}

#[derive(Clone, Copy, Debug)]
struct TokenEntry {
    id: TokenId,
    is_own: bool,
    /// Where `text` has got to.
    end: usize,
}

impl TokenTexts {
    pub(crate) fn with_capacity(tokens: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(tokens),
            text: String::with_capacity(tokens),
        }
    }

    pub(crate) fn push_own(&mut self, id: TokenId) {
        self.tokens.push(TokenEntry {
            id,
            is_own: true,
            end: self.text.len(),
        });
    }

    fn push(&mut self, id: TokenId, text: &str) {
        self.text.push_str(text);
        self.tokens.push(TokenEntry {
            id,
            is_own: false,
            end: self.text.len(),
        });
    }

    /// Number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Forgets all but the first `tokens`.
    pub(crate) fn truncate(&mut self, tokens: usize) {
        self.tokens.truncate(tokens);
        self.text
            .truncate(self.tokens.last().map_or(0, |token| token.end));
    }

    /// Joins other texts to the end.
    pub(crate) fn append(&mut self, other: &Self) {
        let before = self.text.len();
        self.text.push_str(&other.text);
        self.tokens
            .extend(other.tokens.iter().map(|token| TokenEntry {
                end: before + token.end,
                ..*token
            }));
    }

    /// The texts, in order; `table` is the one of their tokenizer.
    pub(crate) fn iter<'t>(
        &'t self,
        table: Option<&'t Table>,
    ) -> impl ExactSizeIterator<Item = SampledText<'t>> {
        let mut start = 0;
        self.tokens.iter().map(move |token| {
            let written = self.text.get(start..token.end).unwrap_or_default();
            start = token.end;
            SampledText {
                token_id: token.id,
                written: (!token.is_own).then_some(written),
                table,
            }
        })
    }
}

/// The text of a sampled token as its logprob would have it.
#[derive(Clone, Copy, Debug)]
pub struct SampledText<'t> {
    /// The token.
    pub token_id: TokenId,
    written: Option<&'t str>,
    table: Option<&'t Table>,
}

impl<'t> SampledText<'t> {
    /// The text, unless it is what [`Table::token_text`] has.
    #[must_use]
    pub fn written(&self) -> Option<&'t str> {
        self.written
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> Cow<'t, str> {
        match (self.written, self.table) {
            (Some(text), _) => Cow::Borrowed(text),
            (None, Some(table)) => table.token_text(self.token_id),
            (None, None) => Cow::default(),
        }
    }
}

impl SampledDelta {
    /// Texts of the ids as their logprobs would have them, if asked for; `table` is the one of their
    /// tokenizer.
    #[must_use]
    pub fn texts<'t>(
        &'t self,
        table: Option<&'t Table>,
    ) -> Option<impl ExactSizeIterator<Item = SampledText<'t>>> {
        let texts = self.token_texts.as_ref()?.iter().zip(&self.token_ids);
        Some(texts.map(move |(written, &token_id)| SampledText {
            token_id,
            written: written.as_deref(),
            table,
        }))
    }
}

/// Writes down the text of each token as its logprob would have it.
pub(crate) struct TextWriter<'t> {
    pub(crate) texts: &'t mut TokenTexts,
    pub(crate) fragments: Fragments,
}

impl Observer for TextWriter<'_> {
    const LOOKS: bool = true;

    fn look(&mut self, stream: &DecodeStream, id: TokenId) -> Result<(), Error> {
        match TokenContext::of(stream, self.fragments).sampled_text(id)? {
            None => self.texts.push_own(id),
            Some(text) => self.texts.push(id, &text),
        }
        Ok(())
    }
}

/// Fills in the logprobs of a prompt: each token in the context of the prompt before it.
pub(crate) fn fill_prompt(
    tokenizer: &Arc<Tokenizer>,
    prompt: &[TokenId],
    given: &[Option<PositionLogprobs>],
    options: &DecodeOptions,
    fragments: Fragments,
) -> Result<Vec<Option<PositionLogprobs>>, Error> {
    let mut decoder = match tokenizer.strategy() {
        Strategy::Exact(table) => Decoder::Exact(ExactDecoder::new(table.program())),
        Strategy::Window { .. } => Decoder::Window(Box::default()),
    };
    let mut filled = Vec::with_capacity(given.len());
    for (&id, position) in prompt.iter().zip(given) {
        let context = TokenContext {
            tokenizer,
            decoder: &decoder,
            options,
            fragments,
        };
        let position = position.as_ref();
        filled.push(
            position
                .map(|position| position.filled(&context))
                .transpose()?,
        );
        pass_over(tokenizer, &mut decoder, id, options)?;
    }
    Ok(filled)
}

/// Moves on behind a token of the prompt, if it is known and shown.
fn pass_over(
    tokenizer: &Tokenizer,
    decoder: &mut Decoder,
    id: TokenId,
    options: &DecodeOptions,
) -> Result<(), Error> {
    match (tokenizer.strategy(), decoder) {
        (Strategy::Exact(table), Decoder::Exact(decoder)) => {
            if let Some(index) = table.index(id)
                && options.shows(id, table.piece(index).flags)
            {
                decoder.push(table, id, index, &mut Discard);
            }
        }
        (Strategy::Window { source, .. }, Decoder::Window(decoder)) => {
            let source = source.as_ref();
            let shown = crate::window::shown(source, options, id).map_err(Error::Source)?;
            if shown == Some(true) {
                let decoder: &mut WindowDecoder = decoder;
                let pushed = decoder.push(source, options.source_skips(), id, &mut Discard);
                pushed.map_err(Error::Source)?;
            }
        }
        _ => {}
    }
    Ok(())
}
