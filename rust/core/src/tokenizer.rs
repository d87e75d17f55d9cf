//! A tokenizer, as decoding sees it: a compiled table, or a source decoded by windows.

use crate::attribution::DecodedText;
use crate::buffer::Sink;
use crate::encode::Encoder;
use crate::error::{Error, LoadError};
use crate::exact::ExactDecoder;
use crate::program::Program;
use crate::stream::{DecodeStream, StreamOptions};
use crate::table::{Table, TokenFlags};
use crate::token::{TokenId, UnknownIds};
use crate::window::{self, WindowSource};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// How ids become text. One of these a tokenizer: a box around the table would save nothing, and
/// cost a look-up at every step.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Strategy {
    /// By a compiled table.
    Exact(Table),
    /// By windows of a source that could not be compiled.
    Window {
        source: Arc<dyn WindowSource>,
        reason: String,
    },
}

/// An immutable tokenizer, shared by its streams.
pub struct Tokenizer {
    strategy: Strategy,
    encoder: Encoder,
}

/// Most threads of one batch, whatever is asked for.
const MAX_THREADS: usize = 256;

/// A tokenizer, and what its source said that a user should know.
#[derive(Debug)]
pub struct Loaded {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// One sentence each.
    pub warnings: Vec<String>,
}

impl Loaded {
    /// A tokenizer with nothing to warn of.
    pub(crate) fn quietly(tokenizer: Tokenizer) -> Self {
        Self {
            tokenizer,
            warnings: Vec::new(),
        }
    }
}

/// What one-shot decoding shows and tolerates.
#[derive(Clone, Debug)]
pub struct DecodeOptions {
    /// Whether special tokens are hidden.
    pub skip_special_tokens: bool,
    /// Special tokens shown although the others are hidden; ascending.
    pub keep_special_tokens: Option<Arc<[TokenId]>>,
    /// What becomes of ids that cannot be mapped.
    pub unknown_ids: UnknownIds,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self {
            skip_special_tokens: true,
            keep_special_tokens: None,
            unknown_ids: UnknownIds::Error,
        }
    }
}

impl DecodeOptions {
    /// Whether a mapped token is decoded.
    #[inline]
    pub(crate) fn shows(&self, id: TokenId, flags: TokenFlags) -> bool {
        !self.skip_special_tokens || !flags.has(TokenFlags::HIDEABLE) || self.keeps(id)
    }

    fn keeps(&self, id: TokenId) -> bool {
        let kept = self.keep_special_tokens.as_ref();
        kept.is_some_and(|kept| kept.binary_search(&id).is_ok())
    }

    /// What a window source is told: with some special tokens kept, hiding the rest is ours.
    pub(crate) fn source_skips(&self) -> bool {
        self.skip_special_tokens && self.keep_special_tokens.is_none()
    }
}

impl Tokenizer {
    pub(crate) fn exact(table: Table, encoder: Encoder) -> Self {
        Self {
            strategy: Strategy::Exact(table),
            encoder,
        }
    }

    /// A tokenizer that decodes by windows of `source`; `reason` says why it must.
    #[must_use]
    pub fn from_window_source(
        source: Arc<dyn WindowSource>,
        reason: String,
        encoder: Encoder,
    ) -> Self {
        Self {
            strategy: Strategy::Window { source, reason },
            encoder,
        }
    }

    pub(crate) fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// The compiled table, unless decoding is by windows.
    #[must_use]
    pub fn table(&self) -> Option<&Table> {
        match &self.strategy {
            Strategy::Exact(table) => Some(table),
            Strategy::Window { .. } => None,
        }
    }

    /// Name of the decoder family, or `window`.
    #[must_use]
    pub fn strategy_name(&self) -> &'static str {
        self.table()
            .map_or("window", |table| table.program().family.name())
    }

    /// Why the strategy is the window.
    #[must_use]
    pub fn strategy_reason(&self) -> Option<&str> {
        match &self.strategy {
            Strategy::Exact(_) => None,
            Strategy::Window { reason, .. } => Some(reason),
        }
    }

    /// Highest id + 1, added tokens included.
    ///
    /// # Errors
    /// A window source's own, or that it cannot tell.
    pub fn vocab_size(&self) -> Result<u64, Error> {
        match &self.strategy {
            Strategy::Exact(table) => Ok(table.vocab_size()),
            Strategy::Window { source, .. } => source.vocab_size().map_err(Error::Source),
        }
    }

    /// Every special id, ascending.
    ///
    /// # Errors
    /// A window source's own, or that it cannot tell.
    pub fn special_token_ids(&self) -> Result<Vec<TokenId>, Error> {
        match &self.strategy {
            Strategy::Exact(table) => {
                let special = |id: &TokenId| {
                    table
                        .flags(*id)
                        .is_some_and(|flags| flags.has(TokenFlags::SPECIAL))
                };
                Ok(table.ids().filter(special).collect())
            }
            Strategy::Window { source, .. } => source.special_token_ids().map_err(Error::Source),
        }
    }

    /// The token as the source spells it; `None` if the id is unknown.
    ///
    /// # Errors
    /// A window source's own.
    pub fn id_to_token(&self, id: TokenId) -> Result<Option<Cow<'_, str>>, Error> {
        match &self.strategy {
            Strategy::Exact(table) => Ok(table.name(id)),
            Strategy::Window { source, .. } => Ok(source
                .id_to_token(id)
                .map_err(Error::Source)?
                .map(Cow::Owned)),
        }
    }

    /// The id of a token by its name.
    ///
    /// # Errors
    /// A window source's own, or that it cannot tell.
    pub fn token_to_id(&self, token: &str) -> Result<Option<TokenId>, Error> {
        match &self.strategy {
            Strategy::Exact(table) => Ok(table.id_of(token)),
            Strategy::Window { source, .. } => source.token_to_id(token).map_err(Error::Source),
        }
    }

    /// Whether the token is special by its source's word; unknown ids are not.
    ///
    /// # Errors
    /// A window source's own.
    pub fn is_special(&self, id: TokenId) -> Result<bool, Error> {
        match &self.strategy {
            Strategy::Exact(table) => Ok(table
                .flags(id)
                .is_some_and(|flags| flags.has(TokenFlags::SPECIAL))),
            Strategy::Window { source, .. } => {
                let known = source.id_to_token(id).map_err(Error::Source)?.is_some();
                Ok(known && source.is_special(id).map_err(Error::Source)?)
            }
        }
    }

    /// The special or added token that is spelled like this, if there is one.
    ///
    /// # Errors
    /// A window source's own, or that it cannot tell.
    pub(crate) fn marked_token(&self, text: &str) -> Result<Option<TokenId>, Error> {
        match &self.strategy {
            Strategy::Exact(table) => Ok(table.marked_id_of(text)),
            Strategy::Window { source, .. } => {
                let Some(id) = source.token_to_id(text).map_err(Error::Source)? else {
                    return Ok(None);
                };
                let is_special = source.is_special(id).map_err(Error::Source)?;
                let is_marked = is_special || source.is_added(id).map_err(Error::Source)?;
                Ok(is_marked.then_some(id))
            }
        }
    }

    /// What the token contributes in the middle of text; `None` if unknown. For a window source,
    /// its text alone.
    ///
    /// # Errors
    /// A window source's own.
    pub fn token_bytes(&self, id: TokenId) -> Result<Option<Cow<'_, [u8]>>, Error> {
        match &self.strategy {
            Strategy::Exact(table) => Ok(table.token_bytes(id).map(Cow::Borrowed)),
            Strategy::Window { source, .. } => {
                if source.id_to_token(id).map_err(Error::Source)?.is_none() {
                    return Ok(None);
                }
                let text = source.decode(&[id], false).map_err(Error::Source)?;
                Ok(Some(Cow::Owned(text.into_bytes())))
            }
        }
    }

    /// A hash of what decoding depends on, the same in every process.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for the window: what a source does cannot be hashed.
    pub fn fingerprint(&self) -> Result<String, Error> {
        let table = self.table().ok_or_else(|| {
            Error::Unsupported(
                "a tokenizer decoded by windows has no fingerprint: its source is not data".into(),
            )
        })?;
        Ok(table.fingerprint())
    }

    /// Ids of `text`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] naming what is missing, or the source's own.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<TokenId>, Error> {
        self.encoder.encode(self.table(), text, add_special_tokens)
    }

    /// The text of a whole sequence.
    ///
    /// # Errors
    /// [`Error::UnknownToken`] unless unknown ids are skipped; a window source's own.
    pub fn decode(&self, ids: &[TokenId], options: &DecodeOptions) -> Result<String, Error> {
        let mut text = Vec::with_capacity(ids.len() * 5);
        self.decode_lossily(ids, options, &mut text)?;
        let text = String::from_utf8(text);
        Ok(text.unwrap_or_else(|bytes| String::from_utf8_lossy(bytes.as_bytes()).into_owned()))
    }

    /// The same as bytes behind what `text` has, for callers who check them anyway and decode much:
    /// if they are not UTF-8, [`String::from_utf8_lossy`] makes of them what [`Self::decode`] gives.
    ///
    /// # Errors
    /// As [`Self::decode`]; `text` may then have a part.
    pub fn decode_lossily(
        &self,
        ids: &[TokenId],
        options: &DecodeOptions,
        text: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let Strategy::Exact(table) = &self.strategy else {
            let decoded = self.decode_with_window(ids, options)?;
            text.extend_from_slice(decoded.text.as_bytes());
            return Ok(());
        };
        let program = table.program();
        if program.strict_runs {
            return decode_strict_runs(table, ids, options, text);
        }
        if program.is_joined_bytes() {
            return join_bytes(table, ids, options, text);
        }
        let mut decoder = ExactDecoder::new(program);
        for (index, &id) in ids.iter().enumerate() {
            if !(decoder.copies() && table.append_copied(id, text)) {
                push_other(table, &mut decoder, index, id, options, text)?;
            }
        }
        decoder.finish(program, text);
        Ok(())
    }

    /// The texts of many sequences, in order, decoded on up to `threads` threads.
    #[must_use]
    pub fn decode_batch(
        &self,
        sequences: &[Vec<TokenId>],
        options: &DecodeOptions,
        threads: usize,
    ) -> Vec<Result<String, Error>> {
        let decode = |share: &[Vec<TokenId>]| -> Vec<_> {
            share.iter().map(|ids| self.decode(ids, options)).collect()
        };
        let threads = threads.clamp(1, MAX_THREADS);
        let share = sequences.len().div_ceil(threads).max(1);
        std::thread::scope(|scope| {
            let mut shares = sequences.chunks(share);
            let first = shares.next();
            let others: Vec<_> = shares
                .map(|share| {
                    let worker =
                        std::thread::Builder::new().spawn_scoped(scope, move || decode(share));
                    (worker, share)
                })
                .collect();
            let mut texts = first.map_or_else(Vec::new, decode);
            for (worker, share) in others {
                texts.extend(match worker.map(std::thread::ScopedJoinHandle::join) {
                    Ok(Ok(texts)) => texts,
                    Ok(Err(panic)) => std::panic::resume_unwind(panic),
                    // The system gives no more threads: this one does it.
                    Err(_) => decode(share),
                });
            }
            texts
        })
    }

    /// The text of a whole sequence behind `prompt`, with one record per id.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub fn decode_attributed(
        self: &Arc<Self>,
        ids: &[TokenId],
        prompt: &[TokenId],
        options: &DecodeOptions,
    ) -> Result<DecodedText, Error> {
        let options = StreamOptions {
            decode: options.clone(),
            ..StreamOptions::default()
        };
        let mut stream = DecodeStream::open::<Error>(Arc::clone(self), prompt, options)?;
        stream.push_tokens(ids)?;
        Ok(stream.flush(None)?.1)
    }

    fn decode_with_window(
        &self,
        ids: &[TokenId],
        options: &DecodeOptions,
    ) -> Result<DecodedText, Error> {
        let Strategy::Window { source, .. } = &self.strategy else {
            return Ok(DecodedText::default());
        };
        // The source's own one-shot decode is exact; only hiding and unknown ids are ours.
        let mut shown = Vec::with_capacity(ids.len());
        for (index, &id) in ids.iter().enumerate() {
            if self.shows_in_window(source.as_ref(), index, id, options)? {
                shown.push(id);
            }
        }
        let text = source
            .decode(&shown, options.source_skips())
            .map_err(Error::Source)?;
        Ok(DecodedText {
            text,
            ..DecodedText::default()
        })
    }

    /// Whether an id goes into the window: known and not hidden.
    pub(crate) fn shows_in_window(
        &self,
        source: &dyn WindowSource,
        index: usize,
        id: TokenId,
        options: &DecodeOptions,
    ) -> Result<bool, Error> {
        match (
            window::shown(source, options, id).map_err(Error::Source)?,
            options.unknown_ids,
        ) {
            (Some(shown), _) => Ok(shown),
            (None, UnknownIds::Skip) => Ok(false),
            (None, UnknownIds::Error) => Err(self.unknown(index, id)),
        }
    }

    pub(crate) fn unknown(&self, index: usize, id: TokenId) -> Error {
        Error::UnknownToken {
            id,
            index,
            vocab_size: self.vocab_size().ok(),
        }
    }

    /// Everything needed to decode and, through the path of its source, to encode.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for the window over a source that is not data.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        crate::saved::write(self.table(), &self.encoder)
    }

    /// The source as the text of a `tokenizer.json`, where decoding by windows needs it.
    #[must_use]
    pub fn to_json(&self) -> Option<String> {
        match &self.strategy {
            Strategy::Exact(_) => None,
            Strategy::Window { source, .. } => source.to_json(),
        }
    }

    /// The tokenizer that [`Self::to_bytes`] wrote.
    ///
    /// # Errors
    /// [`LoadError::Invalid`] on another version or damage.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, LoadError> {
        let (table, encoder) = crate::saved::read(bytes)?;
        Ok(Self::exact(table, encoder))
    }
}

/// Pushes `ids`; the caller makes sure that a failure leaves no trace.
pub(crate) fn decode_into(
    table: &Table,
    decoder: &mut ExactDecoder,
    ids: &[TokenId],
    options: &DecodeOptions,
    sink: &mut impl Sink,
) -> Result<(), Error> {
    for (index, &id) in ids.iter().enumerate() {
        if decoder.copies()
            && let Some(text) = table.copied_text(id)
        {
            sink.copy(id, text);
            continue;
        }
        push_other(table, decoder, index, id, options, sink)?;
    }
    Ok(())
}

/// A token that is not a mere copy here: hidden, unknown, partial, first, or behind one of these.
pub(crate) fn push_other(
    table: &Table,
    decoder: &mut ExactDecoder,
    index: usize,
    id: TokenId,
    options: &DecodeOptions,
    sink: &mut impl Sink,
) -> Result<(), Error> {
    match table.index(id) {
        Some(at) if options.shows(id, table.piece(at).flags) => decoder.push(table, id, at, sink),
        None if options.unknown_ids == UnknownIds::Error => {
            return Err(table.unknown(index, id));
        }
        Some(_) | None => sink.place_zero_width(id),
    }
    Ok(())
}

/// The bytes of all shown tokens, end to end.
fn join_bytes(
    table: &Table,
    ids: &[TokenId],
    options: &DecodeOptions,
    text: &mut Vec<u8>,
) -> Result<(), Error> {
    for (index, &id) in ids.iter().enumerate() {
        if table.append_copied(id, text) {
            continue;
        }
        match table.index(id).map(|at| table.piece(at)) {
            Some(piece) if options.shows(id, piece.flags) => text.extend_from_slice(piece.bytes),
            None if options.unknown_ids == UnknownIds::Error => {
                return Err(table.unknown(index, id));
            }
            Some(_) | None => {}
        }
    }
    Ok(())
}

/// One-shot decoding as the `tokenizers` crate does it: a run of byte pieces that is not UTF-8 as
/// a whole becomes one U+FFFD per byte (what deviation D1 departs from).
fn decode_strict_runs(
    table: &Table,
    ids: &[TokenId],
    options: &DecodeOptions,
    text: &mut Vec<u8>,
) -> Result<(), Error> {
    let program: &Program = table.program();
    let mut decoder = ExactDecoder::new(program);
    let mut run: Vec<(TokenId, usize)> = Vec::new();
    let mut bytes: Vec<u8> = Vec::new();
    let flush = |decoder: &mut ExactDecoder,
                 run: &mut Vec<(TokenId, usize)>,
                 bytes: &mut Vec<u8>,
                 text: &mut Vec<u8>| {
        if std::str::from_utf8(bytes).is_ok() {
            for &(id, at) in run.iter() {
                decoder.push(table, id, at, text);
            }
        } else {
            decoder.push_broken_run(program, bytes.len(), text);
        }
        run.clear();
        bytes.clear();
    };
    for (index, &id) in ids.iter().enumerate() {
        let Some(at) = table.index(id) else {
            push_other(table, &mut decoder, index, id, options, text)?;
            continue;
        };
        let piece = table.piece(at);
        if !options.shows(id, piece.flags) {
            continue;
        }
        if piece.flags.has(TokenFlags::BYTE) {
            run.push((id, at));
            bytes.extend_from_slice(piece.bytes);
        } else {
            flush(&mut decoder, &mut run, &mut bytes, text);
            decoder.push(table, id, at, text);
        }
    }
    flush(&mut decoder, &mut run, &mut bytes, text);
    decoder.finish(program, text);
    Ok(())
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("strategy", &self.strategy_name())
            .field("vocab_size", &self.vocab_size().ok())
            .finish_non_exhaustive()
    }
}
