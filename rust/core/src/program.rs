//! How the contributions of tokens become text: the few facts about a decoder
//! pipeline that its table of bytes does not hold.

use serde::{Deserialize, Serialize};

/// The decoder family a tokenizer was compiled as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Family {
    /// Byte-level BPE: every token is bytes spelled in the byte alphabet.
    ByteLevel,
    /// Pieces, and single bytes for what no piece covers.
    ByteFallback,
    /// Pieces with a marker for the blank.
    Metaspace,
    /// Words and their continuations.
    WordPiece,
    /// Words that end in a suffix.
    BpeSuffix,
    /// Ranks of byte strings (tiktoken, tekken, raw bytes).
    Ranks,
    /// No decoder.
    Plain,
}

impl Family {
    /// The public name of the strategy.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ByteLevel => "byte_level",
            Self::ByteFallback => "byte_fallback",
            Self::Metaspace => "metaspace",
            Self::WordPiece => "wordpiece",
            Self::BpeSuffix => "bpe_suffix",
            Self::Ranks => "ranks",
            Self::Plain => "plain",
        }
    }
}

/// What is taken off the start of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Lead {
    /// Nothing.
    #[default]
    Nothing,
    /// The first mapped and shown token has a contribution of its own, also if it is empty.
    FirstToken,
    /// While there is no text, a piece has its leading marker taken off: `SentencePiece`'s rule.
    /// `repeat`: also of further pieces when the first gave nothing.
    Marker { repeat: bool },
    /// Up to `count` of this character are taken off the text as a whole.
    Strip { content: char, count: u32 },
}

/// What is taken off the end of text: up to `count` of this character.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Trail {
    pub(crate) content: char,
    pub(crate) count: u32,
}

/// How bytes that are not UTF-8 are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Repair {
    /// One U+FFFD per maximal part of a character (WHATWG): byte-level text.
    MaximalPart,
    /// One U+FFFD per byte: runs of byte pieces, `SentencePiece`'s rule (deviation D1).
    EachByte,
}

/// A compiled decoder pipeline, less its table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Program {
    pub(crate) family: Family,
    pub(crate) repair: Repair,
    /// A shown token that is no byte piece ends a run of byte pieces.
    pub(crate) pieces_end_runs: bool,
    pub(crate) lead: Lead,
    pub(crate) trail: Option<Trail>,
    /// Replacements of single characters made after bytes were joined; the contributions
    /// of other pieces have them already.
    pub(crate) after_joining: Vec<(char, String)>,
    /// One-shot `decode` follows the `tokenizers` crate on broken byte runs (`strict=True`).
    pub(crate) strict_runs: bool,
}

impl Program {
    /// Whether text is the joined bytes of its tokens and nothing else, with U+FFFD for each maximal
    /// part that is no UTF-8.
    pub(crate) fn is_joined_bytes(&self) -> bool {
        matches!(self.family, Family::ByteLevel | Family::Ranks)
            && *self == Self::bytes(self.family)
    }

    /// Bytes end to end, nothing taken off.
    pub(crate) const fn bytes(family: Family) -> Self {
        Self {
            family,
            repair: Repair::MaximalPart,
            pieces_end_runs: false,
            lead: Lead::Nothing,
            trail: None,
            after_joining: Vec::new(),
            strict_runs: false,
        }
    }
}
