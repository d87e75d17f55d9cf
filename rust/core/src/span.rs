//! Spans: where the text of each token begins and ends, in bytes, code points or UTF-16
//! units, and the way back from text to tokens (A9, A11).

use crate::attribution::{DecodedText, TokenAttribution};
use crate::error::Error;
use std::ops::Range;

/// What offsets into text count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Unit {
    /// UTF-8 bytes.
    Byte,
    /// Unicode code points, as Python indexes strings.
    #[default]
    CodePoint,
    /// UTF-16 code units, as JavaScript indexes strings.
    Utf16,
}

impl Unit {
    fn width(self, character: char) -> usize {
        match self {
            Self::Byte => character.len_utf8(),
            Self::CodePoint => 1,
            Self::Utf16 => character.len_utf16(),
        }
    }
}

/// Whose a character is that several tokens share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Shared {
    /// Every token spans all characters that hold a byte of it.
    #[default]
    Touch,
    /// A character belongs to the token that holds its first byte; spans partition the text.
    Own,
}

/// When a token belongs to a range of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MaskRule {
    /// The character at its anchor lies in the range.
    #[default]
    First,
    /// Any of its characters does.
    Any,
    /// All of its characters do.
    All,
    /// More than half of its characters do.
    Majority,
}

/// End of the character that starts at `at`.
fn char_end(text: &str, at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    at + rest.chars().next().map_or(0, char::len_utf8)
}

/// Byte offset at which the `touch` span of each token ends, one per record.
pub(crate) fn touch_ends(decoded: &DecodedText) -> Vec<usize> {
    let mut ends = vec![0; decoded.attributions.len()];
    // From the back: a token's text runs to the next visible one, and through the character
    // it shares with it.
    let mut following: Option<(TokenAttribution, usize)> = None;
    for (slot, record) in ends.iter_mut().zip(&decoded.attributions).rev() {
        let offset = record.anchor.byte_offset() as usize;
        if !record.anchor.is_visible() {
            *slot = offset;
            continue;
        }
        *slot = match following {
            None => decoded.text.len(),
            Some((next, end)) => match next.anchor.byte_offset() as usize {
                start if next.continues_char => char_end(&decoded.text, start),
                start if start > offset => start,
                // Which byte of a window's piece is whose, nobody knows: each touches all of it.
                _ => end,
            },
        };
        following = Some((*record, *slot));
    }
    ends
}

/// Half-open byte ranges, one per record; zero-width tokens have an empty one at their place.
#[must_use]
fn byte_spans(decoded: &DecodedText, shared: Shared) -> Vec<Range<usize>> {
    let starts = decoded
        .attributions
        .iter()
        .map(|record| record.anchor.byte_offset() as usize);
    match shared {
        Shared::Touch => starts
            .zip(touch_ends(decoded))
            .map(|(start, end)| start..end)
            .collect(),
        Shared::Own => own_byte_spans(decoded),
    }
}

/// A token owns what lies between the first character whose first byte it holds and that of the
/// next token.
fn own_byte_spans(decoded: &DecodedText) -> Vec<Range<usize>> {
    let mut before = None;
    let mut spans: Vec<Range<usize>> = Vec::with_capacity(decoded.attributions.len());
    for record in &decoded.attributions {
        let offset = record.anchor.byte_offset() as usize;
        let mut start = offset;
        if record.anchor.is_visible() {
            let first_byte_elsewhere =
                before.is_some_and(|before| record.continues_char || before == offset);
            if first_byte_elsewhere {
                start = char_end(&decoded.text, offset);
            }
            before = Some(offset);
        }
        spans.push(start..start);
    }
    let mut end = decoded.text.len();
    for (span, record) in spans.iter_mut().zip(&decoded.attributions).rev() {
        if record.anchor.is_visible() {
            span.end = end.max(span.start);
            end = span.start;
        }
    }
    spans
}

/// Byte offsets of a text in another unit.
struct Ruler {
    /// Units before each byte; `None` where bytes and units are the same.
    before: Option<Vec<u32>>,
}

impl Ruler {
    fn new(text: &str, unit: Unit) -> Self {
        if unit == Unit::Byte || text.is_ascii() {
            return Self { before: None };
        }
        let mut before = Vec::with_capacity(text.len() + 1);
        let mut units = 0;
        for character in text.chars() {
            before.resize(before.len() + character.len_utf8(), units);
            units += unit.width(character) as u32;
        }
        before.push(units);
        Self {
            before: Some(before),
        }
    }

    fn measure(&self, byte: usize) -> usize {
        match &self.before {
            None => byte,
            Some(before) => before
                .get(byte)
                .or(before.last())
                .map_or(0, |&units| units as usize),
        }
    }
}

/// Anchors of all tokens in `unit`.
#[must_use]
pub fn offsets(decoded: &DecodedText, unit: Unit) -> Vec<usize> {
    let ruler = Ruler::new(&decoded.text, unit);
    let anchors = decoded
        .attributions
        .iter()
        .map(|record| record.anchor.byte_offset());
    anchors
        .map(|offset| ruler.measure(offset as usize))
        .collect()
}

/// Spans of all tokens in `unit` (A9).
#[must_use]
pub fn spans(decoded: &DecodedText, unit: Unit, shared: Shared) -> Vec<Range<usize>> {
    let ruler = Ruler::new(&decoded.text, unit);
    let spans = byte_spans(decoded, shared).into_iter();
    spans
        .map(|span| ruler.measure(span.start)..ruler.measure(span.end))
        .collect()
}

/// The `touch` spans of visible tokens, searchable by position (A11).
#[derive(Clone, Debug)]
pub struct SpanIndex {
    /// Index of each visible token among all.
    tokens: Vec<u32>,
    starts: Vec<usize>,
    ends: Vec<usize>,
    text_end: usize,
}

impl SpanIndex {
    /// Walks the text once.
    #[must_use]
    pub fn new(decoded: &DecodedText, unit: Unit) -> Self {
        let mut index = Self {
            tokens: Vec::new(),
            starts: Vec::new(),
            ends: Vec::new(),
            text_end: Ruler::new(&decoded.text, unit).measure(decoded.text.len()),
        };
        let spans = spans(decoded, unit, Shared::Touch);
        for (token, (span, record)) in spans.into_iter().zip(&decoded.attributions).enumerate() {
            if record.anchor.is_visible() {
                index.tokens.push(token as u32);
                index.starts.push(span.start);
                index.ends.push(span.end);
            }
        }
        index
    }

    /// Indices of the tokens whose text overlaps `start..end`, zero-width tokens between them
    /// included. Two binary searches.
    ///
    /// # Errors
    /// [`Error::ReversedRange`] if `end` is before `start`.
    pub fn tokens_at(&self, start: usize, end: usize) -> Result<Range<usize>, Error> {
        if end < start {
            return Err(Error::ReversedRange {
                start: start as u64,
                end: end as u64,
            });
        }
        let end = end.min(self.text_end);
        let first = self.ends.partition_point(|&token_end| token_end <= start);
        let behind = self
            .starts
            .partition_point(|&token_start| token_start < end);
        if start >= end || first >= behind {
            return Ok(0..0);
        }
        let token = |at: usize| self.tokens.get(at).map_or(0, |&token| token as usize);
        Ok(token(first)..token(behind - 1) + 1)
    }
}

/// One answer per token: does it belong to the text in `ranges`, given in `unit` (A11)?
///
/// # Errors
/// [`Error::ReversedRange`] if a range ends before it starts.
pub fn mask(
    decoded: &DecodedText,
    ranges: &[(usize, usize)],
    unit: Unit,
    rule: MaskRule,
) -> Result<Vec<bool>, Error> {
    let ranges = merged(ranges)?;
    let contains = |at: usize| {
        let next = ranges.partition_point(|range| range.start <= at);
        next > 0 && ranges.get(next - 1).is_some_and(|range| at < range.end)
    };
    // inside[i]: how many of the first i code points lie in a range.
    let mut inside = vec![0];
    let mut position = 0;
    for character in decoded.text.chars() {
        let before = inside.last().copied().unwrap_or(0);
        inside.push(before + usize::from(contains(position)));
        position += unit.width(character);
    }
    let text_end = position;
    let reaches_end = ranges
        .iter()
        .any(|range| range.end == text_end && range.start <= text_end);
    let code_points = spans(decoded, Unit::CodePoint, Shared::Touch);
    let places = offsets(decoded, unit);
    let answers = decoded
        .attributions
        .iter()
        .zip(code_points.iter().zip(places));
    Ok(answers
        .map(|(record, (span, place))| {
            if !record.anchor.is_visible() {
                return contains(place) || (place == text_end && reaches_end);
            }
            let count = |at: usize| inside.get(at).or(inside.last()).copied().unwrap_or(0);
            let hit = count(span.end) - count(span.start);
            match rule {
                MaskRule::First => contains(place),
                MaskRule::Any => hit > 0,
                MaskRule::All => hit > 0 && hit == span.len(),
                MaskRule::Majority => hit * 2 > span.len(),
            }
        })
        .collect())
}

/// The ranges in order, overlaps joined, empty ones kept only where they may mark the end.
fn merged(ranges: &[(usize, usize)]) -> Result<Vec<Range<usize>>, Error> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    let mut merged: Vec<Range<usize>> = Vec::with_capacity(sorted.len());
    for (start, end) in sorted {
        if end < start {
            return Err(Error::ReversedRange {
                start: start as u64,
                end: end as u64,
            });
        }
        match merged.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => merged.push(start..end),
        }
    }
    Ok(merged)
}
