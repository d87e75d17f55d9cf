//! The window decoder, for sources that cannot be compiled to a table: decode a short window
//! of ids, take off the known prefix, and call the difference new text.
//!
//! It withholds text that ends in U+FFFD, for that may be an unfinished character, but only
//! while the window is short: then what is there goes out as it is.

use crate::attribution::floor_char_boundary;
use crate::buffer::Sink;
use crate::context::Prompt;
use crate::table::TokenFlags;
use crate::token::TokenId;
use crate::tokenizer::DecodeOptions;
use std::error::Error as StdError;

/// An error of the source itself.
pub type SourceError = Box<dyn StdError + Send + Sync>;

/// Shortest and longest suffix of the prompt that is tried as context.
pub const SAFE_SUFFIX_MIN: usize = 4;
/// See [`SAFE_SUFFIX_MIN`].
pub const SAFE_SUFFIX_MAX: usize = 6;

/// Most ids a window holds before its text is forced out, and most ids of a prompt that are read.
pub const WINDOW_LIMIT: usize = 32;

/// Something that decodes whole sequences.
pub trait WindowSource: Send + Sync {
    /// The text of `ids`.
    ///
    /// # Errors
    /// The source's own.
    fn decode(&self, ids: &[TokenId], skip_special_tokens: bool) -> Result<String, SourceError>;

    /// The token's name; `None` if the id is unknown.
    ///
    /// # Errors
    /// The source's own.
    fn id_to_token(&self, id: TokenId) -> Result<Option<String>, SourceError>;

    /// Whether the token is special.
    ///
    /// # Errors
    /// The source's own.
    fn is_special(&self, id: TokenId) -> Result<bool, SourceError>;

    /// Whether the token was added to the model's vocabulary, as far as the source can tell.
    ///
    /// # Errors
    /// The source's own.
    fn is_added(&self, _id: TokenId) -> Result<bool, SourceError> {
        Ok(false)
    }

    /// The id of a token by its name, if the source can tell.
    ///
    /// # Errors
    /// The source's own, or that it cannot tell.
    fn token_to_id(&self, token: &str) -> Result<Option<TokenId>, SourceError>;

    /// Highest id + 1, if the source can tell.
    ///
    /// # Errors
    /// The source's own, or that it cannot tell.
    fn vocab_size(&self) -> Result<u64, SourceError>;

    /// Every special id, if the source can tell.
    ///
    /// # Errors
    /// The source's own, or that it cannot tell.
    fn special_token_ids(&self) -> Result<Vec<TokenId>, SourceError>;

    /// The source as the text of a `tokenizer.json`, if it is one.
    fn to_json(&self) -> Option<String> {
        None
    }
}

/// State of one text decoded by windows.
#[derive(Clone, Debug, Default)]
pub(crate) struct WindowDecoder {
    ids: Vec<TokenId>,
    /// Text of the first `prefix_ids` of `ids`, handed on already.
    prefix: String,
    prefix_ids: usize,
    /// U+FFFD that the prompt ends in: the prompt's, unless it is completed after all.
    broken: String,
    waiting: usize,
}

impl WindowDecoder {
    /// Reads the tail of the prompt: `Err` if an id of it is none, `Ok(Err)` if the source fails.
    /// Ids that are hidden or unknown are passed over, as they are in what is generated.
    pub(crate) fn seed<E>(
        source: &dyn WindowSource,
        options: &DecodeOptions,
        prompt: &(impl Prompt<E> + ?Sized),
    ) -> Result<Result<Self, SourceError>, E> {
        let mut tail = PromptTail {
            ids: Vec::new(),
            unread: prompt.len(),
        };
        // One more than the longest suffix: a suffix is never the whole prompt.
        if let Err(error) = tail.read(source, options, prompt, SAFE_SUFFIX_MAX + 1)? {
            return Ok(Err(error));
        }
        for len in SAFE_SUFFIX_MIN..=SAFE_SUFFIX_MAX.min(tail.ids.len().saturating_sub(1)) {
            let suffix = tail.latest(len);
            match source.decode(&suffix, options.source_skips()) {
                Ok(text) if text.contains('\u{fffd}') => {}
                Ok(text) => return Ok(Ok(Self::behind(suffix, text))),
                Err(error) => return Ok(Err(error)),
            }
        }
        if let Err(error) = tail.read(source, options, prompt, WINDOW_LIMIT)? {
            return Ok(Err(error));
        }
        let ids = tail.latest(tail.ids.len());
        if ids.is_empty() {
            return Ok(Ok(Self::default()));
        }
        Ok(source.decode(&ids, options.source_skips()).map(|mut text| {
            // Half a character at the end may still be completed; what is before it is the prompt's.
            let broken = text.split_off(text.trim_end_matches('\u{fffd}').len());
            Self {
                broken,
                ..Self::behind(ids, text)
            }
        }))
    }

    fn behind(ids: Vec<TokenId>, prefix: String) -> Self {
        Self {
            prefix_ids: ids.len(),
            ids,
            prefix,
            broken: String::new(),
            waiting: 0,
        }
    }

    /// A mapped and shown token. On error nothing has changed.
    pub(crate) fn push(
        &mut self,
        source: &dyn WindowSource,
        skip: bool,
        id: TokenId,
        sink: &mut impl Sink,
    ) -> Result<(), SourceError> {
        self.ids.push(id);
        match self.advance(source, skip) {
            Ok(text) => {
                // Whose byte is whose, a window cannot tell.
                sink.wait(id, 0);
                self.waiting += 1;
                self.hand_on(&text, sink);
                Ok(())
            }
            Err(error) => {
                self.ids.pop();
                Err(error)
            }
        }
    }

    /// What the text would have behind its known part if this token came next, special or not.
    pub(crate) fn preview(
        &self,
        source: &dyn WindowSource,
        id: TokenId,
    ) -> Result<String, SourceError> {
        let mut ids = self.ids.clone();
        ids.push(id);
        let decoded = source.decode(&ids, false)?;
        Ok(self.behind_prefix(&decoded).to_owned())
    }

    /// The new text, if any; moves the window on if there is.
    fn advance(&mut self, source: &dyn WindowSource, skip: bool) -> Result<String, SourceError> {
        let decoded = source.decode(&self.ids, skip)?;
        let forced = self.ids.len() - self.prefix_ids >= WINDOW_LIMIT;
        let text = self.behind_prefix(&decoded);
        if !forced && (text.is_empty() || text.ends_with('\u{fffd}')) {
            return Ok(String::new());
        }
        let rest = self.ids.get(self.prefix_ids..).unwrap_or_default().to_vec();
        self.prefix = source.decode(&rest, skip)?;
        self.broken.clear();
        self.prefix_ids = rest.len();
        self.ids = rest;
        Ok(text.to_owned())
    }

    /// All tokens that waited stand at the start of the text (A10).
    fn hand_on(&mut self, text: &str, sink: &mut impl Sink) {
        if text.is_empty() {
            return;
        }
        let first = text.chars().next().map_or(0, char::len_utf8);
        let (first, rest) = text.split_at(first);
        sink.settle(1, first);
        sink.settle(0, rest);
        self.waiting = 0;
    }

    /// What the rest of the window would give if the text ended here.
    pub(crate) fn rest(
        &self,
        source: &dyn WindowSource,
        skip: bool,
    ) -> Result<String, SourceError> {
        if self.waiting == 0 {
            return Ok(String::new());
        }
        let decoded = source.decode(&self.ids, skip)?;
        Ok(self.behind_prefix(&decoded).to_owned())
    }

    /// What a window's text has that was not handed on before.
    fn behind_prefix<'t>(&self, decoded: &'t str) -> &'t str {
        let known = self.prefix.len().min(decoded.len());
        let text = decoded
            .get(floor_char_boundary(decoded, known)..)
            .unwrap_or_default();
        text.strip_prefix(self.broken.as_str()).unwrap_or(text)
    }

    /// Ends the text with `rest`, as [`Self::rest`] gave it.
    pub(crate) fn finish(&mut self, rest: &str, sink: &mut impl Sink) {
        self.hand_on(rest, sink);
        sink.discard(1, false);
        self.waiting = 0;
    }
}

/// Ids of a prompt that count, read from its end.
struct PromptTail {
    /// The last one first.
    ids: Vec<TokenId>,
    unread: usize,
}

impl PromptTail {
    /// Reads on until there are `count` ids, or no more.
    fn read<E>(
        &mut self,
        source: &dyn WindowSource,
        options: &DecodeOptions,
        prompt: &(impl Prompt<E> + ?Sized),
        count: usize,
    ) -> Result<Result<(), SourceError>, E> {
        while self.ids.len() < count && self.unread > 0 {
            self.unread -= 1;
            let id = prompt.get(self.unread)?;
            match shown(source, options, id) {
                Ok(Some(true)) => self.ids.push(id),
                Ok(_) => {}
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(()))
    }

    /// The last `count` ids, in order.
    fn latest(&self, count: usize) -> Vec<TokenId> {
        let mut ids = self.ids.get(..count).unwrap_or_default().to_vec();
        ids.reverse();
        ids
    }
}

/// Whether an id is decoded; `None` if it is unknown.
pub(crate) fn shown(
    source: &dyn WindowSource,
    options: &DecodeOptions,
    id: TokenId,
) -> Result<Option<bool>, SourceError> {
    if source.id_to_token(id)?.is_none() {
        return Ok(None);
    }
    let hideable = options.skip_special_tokens && source.is_special(id)?;
    let flags = if hideable {
        TokenFlags::HIDEABLE
    } else {
        TokenFlags::default()
    };
    Ok(Some(options.shows(id, flags)))
}
