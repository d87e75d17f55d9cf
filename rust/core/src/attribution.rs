//! Decoded text and the generated tokens attributed to it.
//!
//! A model's tokens and its text advance on different clocks. What ties them together is one
//! record per generated token, in generation order, with its place in the text. Rule numbers
//! (A1 to A11) are those of the attribution contract.

use crate::error::Error;
use crate::token::TokenId;
use smallvec::SmallVec;
use std::ops::Range;

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

    pub(crate) fn rebased(self, offset: impl FnOnce(u32) -> u32) -> Self {
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

    /// A token and its own text.
    #[must_use]
    pub fn of_token(token_id: TokenId, text: &str) -> Self {
        Self {
            text: text.to_owned(),
            attributions: Attributions::from_slice(&[TokenAttribution::visible(token_id, 0)]),
        }
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
        let records = self.leaving(0, byte_len);
        if byte_len == self.text.len() && records == self.attributions.len() {
            return Ok(self.take());
        }
        let prefix = self.slice(0..byte_len, 0..records);
        self.remove_prefix(byte_len, records);
        Ok(prefix)
    }

    /// Index of the first record, from `from` on, that may not leave with the text before `cut`.
    pub(crate) fn leaving(&self, from: usize, cut: usize) -> usize {
        let rest = self.attributions.get(from..).unwrap_or_default();
        let stays = rest
            .iter()
            .position(|record| !record.anchor.leaves_before(cut));
        from + stays.unwrap_or(rest.len())
    }

    /// A copy of a part; the records are those of the text.
    pub(crate) fn slice(&self, bytes: Range<usize>, records: Range<usize>) -> Self {
        let base = bytes.start as u32;
        let records = self.attributions.get(records).unwrap_or_default().iter();
        Self {
            text: self.text.get(bytes).unwrap_or_default().to_owned(),
            attributions: records
                .map(|record| record.rebased(|offset| offset - base.min(offset)))
                .collect(),
        }
    }

    /// A copy of a part; records of characters outside of it have no text in it.
    pub(crate) fn part(&self, bytes: Range<usize>, records: Range<usize>) -> Self {
        let (start, end) = (bytes.start as u32, bytes.end as u32);
        let mut part = self.slice(bytes, records.clone());
        let whole = self.attributions.get(records).unwrap_or_default();
        for (record, whole) in part.attributions.iter_mut().zip(whole) {
            let offset = whole.anchor.byte_offset();
            if whole.anchor.is_visible() && !(start..end).contains(&offset) || offset > end {
                *record = TokenAttribution {
                    cut: record.cut,
                    ..TokenAttribution::zero_width(
                        record.token_id,
                        offset.clamp(start, end) - start,
                    )
                };
            }
        }
        part
    }

    /// Drops text and records at the front; the rest is rebased.
    pub(crate) fn remove_prefix(&mut self, bytes: usize, records: usize) {
        self.text.drain(..bytes);
        self.attributions.drain(..records);
        for record in &mut self.attributions {
            *record = record.rebased(|offset| offset - (bytes as u32).min(offset));
        }
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
