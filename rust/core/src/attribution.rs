//! Decoded text and the generated tokens attributed to it.
//!
//! A model's tokens and its text advance on different clocks. What ties them together is one
//! record per generated token, in generation order, with its place in the text. Rule numbers
//! (A1 to A11) are those of the attribution contract.

use crate::error::Error;
use crate::token::TokenId;
use smallvec::SmallVec;

/// Where a token stands in text: a byte offset, local to the text that holds the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenAnchor {
    /// The start of the character that holds the token's first byte (A2).
    Visible {
        /// UTF-8 bytes.
        byte_offset: u32,
    },
    /// A place between characters, of a token without text of its own (A3).
    ZeroWidth {
        /// UTF-8 bytes.
        byte_offset: u32,
    },
}

impl TokenAnchor {
    /// The offset, whatever the kind.
    #[must_use]
    pub const fn byte_offset(self) -> u32 {
        match self {
            Self::Visible { byte_offset } | Self::ZeroWidth { byte_offset } => byte_offset,
        }
    }

    /// Whether the token has text of its own.
    #[must_use]
    pub const fn is_visible(self) -> bool {
        matches!(self, Self::Visible { .. })
    }

    fn map(self, offset: impl FnOnce(u32) -> u32) -> Self {
        match self {
            Self::Visible { byte_offset } => Self::Visible {
                byte_offset: offset(byte_offset),
            },
            Self::ZeroWidth { byte_offset } => Self::ZeroWidth {
                byte_offset: offset(byte_offset),
            },
        }
    }

    /// A6: whether a record may leave with the text before `cut`.
    fn leaves_before(self, cut: usize) -> bool {
        match self {
            Self::Visible { byte_offset } => (byte_offset as usize) < cut,
            Self::ZeroWidth { byte_offset } => byte_offset as usize <= cut,
        }
    }
}

/// One generated token and its place in decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenAttribution {
    /// The id, as it was pushed.
    pub token_id: TokenId,
    /// Its place.
    pub anchor: TokenAnchor,
    /// Its first byte is not the first byte of the character at the anchor.
    pub continues_char: bool,
    /// It lost text to a cut (A7).
    pub cut: bool,
}

impl TokenAttribution {
    /// A token with text of its own, nothing lost.
    #[must_use]
    pub const fn visible(token_id: TokenId, byte_offset: u32) -> Self {
        Self {
            token_id,
            anchor: TokenAnchor::Visible { byte_offset },
            continues_char: false,
            cut: false,
        }
    }

    /// A token without text of its own.
    #[must_use]
    pub const fn zero_width(token_id: TokenId, byte_offset: u32) -> Self {
        Self {
            token_id,
            anchor: TokenAnchor::ZeroWidth { byte_offset },
            continues_char: false,
            cut: false,
        }
    }

    fn rebased(self, offset: impl FnOnce(u32) -> u32) -> Self {
        Self {
            anchor: self.anchor.map(offset),
            ..self
        }
    }
}

/// Records of a chunk; most chunks have few.
pub type Attributions = SmallVec<[TokenAttribution; 4]>;

/// Decoded text and the generated tokens attributed to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DecodedText {
    /// The text.
    pub text: String,
    /// One record per token, in generation order, offsets into `text`.
    pub attributions: Attributions,
}

impl DecodedText {
    /// Text and records that fit each other.
    ///
    /// # Errors
    /// [`Error::BadAttribution`] if offsets decrease, lie off a character boundary or past the
    /// text. A visible record at the very end is allowed only if it continues a character.
    pub fn new(text: String, attributions: Attributions) -> Result<Self, Error> {
        let mut before = 0;
        for (index, record) in attributions.iter().enumerate() {
            let offset = record.anchor.byte_offset() as usize;
            let problem = if offset < before {
                "has an offset below the one before it"
            } else if offset > text.len() {
                "has an offset past the end of the text"
            } else if !text.is_char_boundary(offset) {
                "has an offset inside a character"
            } else if record.anchor.is_visible() && offset == text.len() && !record.continues_char {
                "is visible at the end of the text, where it has none"
            } else {
                before = offset;
                continue;
            };
            return Err(Error::BadAttribution {
                index,
                token_id: record.token_id,
                problem,
            });
        }
        Ok(Self { text, attributions })
    }

    /// Neither text nor records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.attributions.is_empty()
    }

    /// Takes everything and leaves nothing.
    #[must_use]
    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Joins `other` to the end; its offsets move by the length of this text (A8).
    ///
    /// # Errors
    /// [`Error::TextTooLong`] if the joined text passes what 32-bit offsets address.
    pub fn append(&mut self, other: &Self) -> Result<(), Error> {
        let base = self.text.len();
        let limit = u32::MAX as usize;
        if other.text.len() > limit - base.min(limit) {
            return Err(Error::TextTooLong { limit });
        }
        self.text.push_str(&other.text);
        let moved = other.attributions.iter();
        self.attributions
            .extend(moved.map(|record| record.rebased(|offset| offset + base as u32)));
        Ok(())
    }

    /// Splits off the first `byte_len` bytes and the records that leave with them (A8):
    /// the record list is split at one index, that of the first record that may not leave.
    ///
    /// # Errors
    /// [`Error::CutInsideCharacter`] if `byte_len` is no character boundary of the text.
    pub fn drain_prefix(&mut self, byte_len: usize) -> Result<Self, Error> {
        if !self.text.is_char_boundary(byte_len) {
            return Err(Error::CutInsideCharacter { at: byte_len });
        }
        Ok(self.split_at(byte_len, self.leaving(byte_len)))
    }

    /// Index of the first record that may not leave with the text before `cut`.
    fn leaving(&self, cut: usize) -> usize {
        let mut records = self.attributions.iter();
        let stays = records.position(|record| !record.anchor.leaves_before(cut));
        stays.unwrap_or(self.attributions.len())
    }

    /// The prefix of `byte_len` bytes and `records` records; the rest stays, rebased.
    fn split_at(&mut self, byte_len: usize, records: usize) -> Self {
        if byte_len == self.text.len() && records == self.attributions.len() {
            return self.take();
        }
        let mut prefix = Self {
            text: self.text.drain(..byte_len).collect(),
            attributions: self.attributions.drain(..records).collect(),
        };
        prefix.attributions.shrink_to_fit();
        for record in &mut self.attributions {
            *record = record.rebased(|offset| offset - (byte_len as u32).min(offset));
        }
        prefix
    }

    /// Cuts the text at `at` (A7). Visible records at or past the cut and zero-width ones past it
    /// become zero-width there; every token that loses text or is moved is marked `cut`.
    ///
    /// # Errors
    /// [`Error::CutInsideCharacter`]; a cut at or past the end changes nothing.
    pub fn truncate(&mut self, at: usize) -> Result<(), Error> {
        if at >= self.text.len() {
            return Ok(());
        }
        if !self.text.is_char_boundary(at) {
            return Err(Error::CutInsideCharacter { at });
        }
        let ends = crate::span::touch_ends(self);
        for (record, end) in self.attributions.iter_mut().zip(ends) {
            if record.anchor.leaves_before(at) {
                record.cut |= record.anchor.is_visible() && end > at;
            } else {
                *record = TokenAttribution {
                    cut: true,
                    ..TokenAttribution::zero_width(record.token_id, at as u32)
                };
            }
        }
        self.text.truncate(at);
        Ok(())
    }
}

/// The last character boundary at or before `at`, which is inside the text.
pub(crate) fn floor_char_boundary(text: &str, at: usize) -> usize {
    let boundary = (at.saturating_sub(3)..=at)
        .rev()
        .find(|&at| text.is_char_boundary(at));
    boundary.unwrap_or(text.len())
}

/// Where the first byte of a waiting token is to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// This many bytes into what is not settled.
    Unsettled(u32),
    /// Nowhere: it stands at this offset of the settled text, or later if a record before it does.
    Settled(u32),
}

/// A token whose record cannot be written yet, or stands behind one that cannot.
#[derive(Clone, Copy, Debug)]
struct WaitingToken {
    token_id: TokenId,
    place: Place,
}

/// What a decoder writes to: settled text, and the places of tokens in it.
///
/// Bytes that are not settled stay with the decoder; `wait` and the `consumed` arguments
/// count in them.
pub(crate) trait Sink {
    /// A token whose text is whole and starts at the end of the settled text.
    fn copy(&mut self, token_id: TokenId, text: &str);
    /// A token that contributes no byte.
    fn place_zero_width(&mut self, token_id: TokenId);
    /// A token whose first byte is the `position`-th of those not settled.
    fn wait(&mut self, token_id: TokenId, position: usize);
    /// `text` settles in place of the first `consumed` unsettled bytes. Either both are the same
    /// bytes, or `text` is a single character.
    fn settle(&mut self, consumed: usize, text: &str);
    /// The first `consumed` unsettled bytes give no text. `latest_goes_on`: the latest waiting
    /// token has bytes behind them.
    fn discard(&mut self, consumed: usize, latest_goes_on: bool);
}

/// Text alone, for what a flush would give.
impl Sink for String {
    fn copy(&mut self, _token_id: TokenId, text: &str) {
        self.push_str(text);
    }
    fn place_zero_width(&mut self, _token_id: TokenId) {}
    fn wait(&mut self, _token_id: TokenId, _position: usize) {}
    fn settle(&mut self, _consumed: usize, text: &str) {
        self.push_str(text);
    }
    fn discard(&mut self, _consumed: usize, _latest_goes_on: bool) {}
}

/// Its bytes alone, for one-shot decoding.
impl Sink for Vec<u8> {
    fn copy(&mut self, _token_id: TokenId, text: &str) {
        self.extend_from_slice(text.as_bytes());
    }
    fn place_zero_width(&mut self, _token_id: TokenId) {}
    fn wait(&mut self, _token_id: TokenId, _position: usize) {}
    fn settle(&mut self, _consumed: usize, text: &str) {
        self.extend_from_slice(text.as_bytes());
    }
    fn discard(&mut self, _consumed: usize, _latest_goes_on: bool) {}
}

/// Settled text and records that were not handed out, and the tokens that wait.
#[derive(Clone, Debug, Default)]
pub struct AttributedTextBuffer {
    settled: DecodedText,
    waiting: SmallVec<[WaitingToken; 2]>,
}

/// A point to come back to when a call fails half-way.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    text_len: usize,
    records: usize,
    waiting: SmallVec<[WaitingToken; 2]>,
}

impl AttributedTextBuffer {
    /// Settled text that was not handed out.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.settled.text
    }

    /// Tokens whose place in the text is not known yet, or that stand behind one.
    #[must_use]
    pub fn waiting_tokens(&self) -> usize {
        self.waiting.len()
    }

    /// Neither text nor records nor tokens that wait.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.settled.is_empty() && self.waiting.is_empty()
    }

    pub(crate) fn checkpoint(&self) -> Checkpoint {
        Checkpoint {
            text_len: self.settled.text.len(),
            records: self.settled.attributions.len(),
            waiting: self.waiting.clone(),
        }
    }

    /// Forgets what came after `checkpoint`; nothing may have been handed out since.
    pub(crate) fn restore(&mut self, checkpoint: Checkpoint) {
        self.settled.text.truncate(checkpoint.text_len);
        self.settled.attributions.truncate(checkpoint.records);
        self.waiting = checkpoint.waiting;
    }

    /// Makes room for a run of tokens.
    pub(crate) fn reserve(&mut self, tokens: usize) {
        self.settled.attributions.reserve(tokens);
        // The usual length of a token; longer ones grow the text as it comes.
        self.settled.text.reserve(tokens * 4);
    }

    /// The next chunk, or `None` if neither text nor a record may leave while `min_bytes` bytes at
    /// the end are held back (A5, A6).
    pub fn next_chunk(&mut self, min_bytes: usize) -> Option<DecodedText> {
        let cut = self.settled.text.len().saturating_sub(min_bytes);
        let cut = floor_char_boundary(&self.settled.text, cut);
        let records = self.settled.leaving(cut);
        if cut == 0 && records == 0 {
            return None;
        }
        for token in &mut self.waiting {
            if let Place::Settled(offset) = &mut token.place {
                *offset -= (cut as u32).min(*offset);
            }
        }
        Some(self.settled.split_at(cut, records))
    }

    /// Moves all settled text into `text`, which is empty; its records are dropped.
    pub(crate) fn take_text(&mut self, text: &mut String) {
        self.settled.attributions.clear();
        for token in &mut self.waiting {
            if let Place::Settled(offset) = &mut token.place {
                *offset = 0;
            }
        }
        std::mem::swap(&mut self.settled.text, text);
    }

    /// Ends the text: what was not handed out. No token waits any more.
    pub(crate) fn take(&mut self) -> DecodedText {
        self.settled.take()
    }

    fn end(&self) -> u32 {
        self.settled.text.len() as u32
    }

    /// Resolves waiting tokens from the front: `place` gives a record, or a new place to wait at.
    fn resolve(&mut self, mut place: impl FnMut(usize, u32) -> Result<TokenAttribution, u32>) {
        let mut resolved = 0;
        let last = self.settled.attributions.last();
        let mut floor = last.map_or(0, |record| record.anchor.byte_offset());
        let total = self.waiting.len();
        for (index, token) in self.waiting.iter_mut().enumerate() {
            let record = match token.place {
                Place::Settled(offset) => Ok(TokenAttribution::zero_width(
                    token.token_id,
                    offset.max(floor),
                )),
                Place::Unsettled(position) => place(total - 1 - index, position),
            };
            match record {
                Ok(record) if resolved == index => {
                    let record = TokenAttribution {
                        token_id: token.token_id,
                        ..record
                    };
                    floor = record.anchor.byte_offset();
                    self.settled.attributions.push(record);
                    resolved = index + 1;
                }
                // Only tokens behind one that still waits get here, and only zero-width ones.
                Ok(record) => token.place = Place::Settled(record.anchor.byte_offset()),
                Err(position) => token.place = Place::Unsettled(position),
            }
        }
        if resolved == total {
            self.waiting.clear();
        } else {
            self.waiting.drain(..resolved);
        }
    }
}

impl Sink for AttributedTextBuffer {
    #[inline]
    fn copy(&mut self, token_id: TokenId, text: &str) {
        let record = TokenAttribution::visible(token_id, self.settled.text.len() as u32);
        self.settled.text.push_str(text);
        self.settled.attributions.push(record);
    }

    fn place_zero_width(&mut self, token_id: TokenId) {
        let end = self.end();
        if self.waiting.is_empty() {
            self.settled
                .attributions
                .push(TokenAttribution::zero_width(token_id, end));
        } else {
            self.waiting.push(WaitingToken {
                token_id,
                place: Place::Settled(end),
            });
        }
    }

    fn wait(&mut self, token_id: TokenId, position: usize) {
        self.waiting.push(WaitingToken {
            token_id,
            place: Place::Unsettled(position as u32),
        });
    }

    fn settle(&mut self, consumed: usize, text: &str) {
        let base = self.end();
        self.settled.text.push_str(text);
        let same_bytes = consumed == text.len();
        self.resolve(|_, position| {
            let at = position as usize;
            if at >= consumed {
                return Err(position - consumed as u32);
            }
            let start = if same_bytes {
                floor_char_boundary(text, at)
            } else {
                0
            };
            Ok(TokenAttribution {
                continues_char: at > start,
                ..TokenAttribution::visible(0, base + start as u32)
            })
        });
    }

    fn discard(&mut self, consumed: usize, latest_goes_on: bool) {
        let base = self.end();
        self.resolve(|from_latest, position| {
            if position as usize >= consumed {
                Err(position - consumed as u32)
            } else if latest_goes_on && from_latest == 0 {
                Err(0)
            } else {
                Ok(TokenAttribution::zero_width(0, base))
            }
        });
    }
}

/// A buffer whose settled text leaves at once, so that nobody will see its records. Tokens that
/// wait are still counted: they leave with what comes later.
pub(crate) struct Unrecorded<'b>(pub(crate) &'b mut AttributedTextBuffer);

impl Unrecorded<'_> {
    /// The first `consumed` unsettled bytes are gone. `latest_goes_on` as in [`Sink::discard`].
    fn consume(&mut self, consumed: usize, latest_goes_on: bool) {
        let waiting = &mut self.0.waiting;
        let latest = waiting.len().saturating_sub(1);
        let mut resolved = 0;
        for (index, token) in waiting.iter_mut().enumerate() {
            let Place::Unsettled(position) = &mut token.place else {
                resolved += usize::from(resolved == index);
                continue;
            };
            match (*position as usize).checked_sub(consumed) {
                Some(left) => *position = left as u32,
                None if latest_goes_on && index == latest => *position = 0,
                None => resolved += 1,
            }
        }
        if resolved == waiting.len() {
            waiting.clear();
        } else {
            waiting.drain(..resolved);
        }
    }
}

impl Sink for Unrecorded<'_> {
    fn copy(&mut self, _token_id: TokenId, text: &str) {
        self.0.settled.text.push_str(text);
    }

    fn place_zero_width(&mut self, token_id: TokenId) {
        if !self.0.waiting.is_empty() {
            self.0.place_zero_width(token_id);
        }
    }

    fn wait(&mut self, token_id: TokenId, position: usize) {
        self.0.wait(token_id, position);
    }

    fn settle(&mut self, consumed: usize, text: &str) {
        self.0.settled.text.push_str(text);
        self.consume(consumed, false);
    }

    fn discard(&mut self, consumed: usize, latest_goes_on: bool) {
        self.consume(consumed, latest_goes_on);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visible(id: TokenId, at: u32) -> TokenAttribution {
        TokenAttribution::visible(id, at)
    }

    fn zero(id: TokenId, at: u32) -> TokenAttribution {
        TokenAttribution::zero_width(id, at)
    }

    fn decoded(text: &str, records: &[TokenAttribution]) -> DecodedText {
        DecodedText::new(text.into(), records.iter().copied().collect()).expect("fits")
    }

    #[test]
    fn append_moves_offsets_by_the_text_before() {
        let mut text = decoded("a", &[visible(1, 0)]);
        text.append(&decoded("你", &[visible(2, 0), visible(3, 0), zero(4, 3)]))
            .expect("short");
        assert_eq!(
            text,
            decoded(
                "a你",
                &[visible(1, 0), visible(2, 1), visible(3, 1), zero(4, 4)]
            )
        );
    }

    #[test]
    fn drain_splits_the_records_at_one_index() {
        // Generation order outranks kind: the zero-width record waits behind the visible one.
        let records = [visible(1, 0), zero(2, 0), visible(3, 0)];
        let mut text = decoded("你", &records);
        assert_eq!(
            text.drain_prefix(0).expect("boundary"),
            DecodedText::default()
        );
        assert_eq!(text, decoded("你", &records));
        assert!(matches!(
            text.drain_prefix(1),
            Err(Error::CutInsideCharacter { at: 1 })
        ));
        assert_eq!(
            text.drain_prefix(3).expect("boundary"),
            decoded("你", &records)
        );
    }

    #[test]
    fn truncate_marks_what_lost_text() {
        let mut text = decoded(
            "abcd",
            &[visible(1, 0), zero(2, 2), visible(3, 2), visible(4, 3)],
        );
        text.truncate(2).expect("boundary");
        let cut = |record| TokenAttribution {
            cut: true,
            ..record
        };
        assert_eq!(
            text,
            decoded(
                "ab",
                &[visible(1, 0), zero(2, 2), cut(zero(3, 2)), cut(zero(4, 2))]
            )
        );
        let mut head = decoded("abcd", &[visible(1, 0)]);
        head.truncate(2).expect("boundary");
        assert_eq!(head, decoded("ab", &[cut(visible(1, 0))]));
    }

    #[test]
    fn refuses_records_that_do_not_fit() {
        let cases: [(&str, &[TokenAttribution], bool); 6] = [
            ("ab", &[visible(1, 1), visible(2, 0)], false),
            ("ab", &[zero(1, 3)], false),
            ("é", &[visible(1, 1)], false),
            ("ab", &[visible(1, 2)], false),
            ("ab", &[zero(1, 2)], true),
            (
                "",
                &[TokenAttribution {
                    continues_char: true,
                    ..visible(1, 0)
                }],
                true,
            ),
        ];
        for (text, records, fits) in cases {
            let made = DecodedText::new(text.into(), records.iter().copied().collect());
            assert_eq!(made.is_ok(), fits, "{text:?} {records:?}");
        }
    }
}
