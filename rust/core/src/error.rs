//! Errors as data: a kind and the numbers that belong to it.

use crate::token::TokenId;

/// Why a call on a stream failed. The stream is as it was before the call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A generated id that the tokenizer cannot map.
    #[error(
        "token id {id} at index {index} is unknown to the tokenizer{}; \
         pass unknown_ids=\"skip\" to give such ids no text",
        vocab_size.map_or_else(String::new, |size| format!(" (vocab_size {size})"))
    )]
    UnknownToken {
        /// The id.
        id: TokenId,
        /// Its place in the call.
        index: usize,
        /// Highest id + 1, if the source tells.
        vocab_size: Option<u64>,
    },
    /// A push after `flush`.
    #[error("the stream was flushed; call reset() before pushing more tokens")]
    Finished,
    /// More text than 32-bit anchors can address.
    #[error(
        "the text kept by the stream would pass {limit} bytes; take chunks with keep_output=False, or start a new stream"
    )]
    TextTooLong {
        /// The most bytes a stream keeps.
        limit: usize,
    },
    /// A cut inside a character.
    #[error("cannot cut at byte {at}: it is not a character boundary of the text")]
    CutInsideCharacter {
        /// The byte offset asked for.
        at: usize,
    },
    /// A cut before text that a chunk has already carried away.
    #[error("cannot cut at byte {at}: {handed_out} bytes of the text were already handed out")]
    CutBeforeHandedOut {
        /// The byte offset asked for.
        at: usize,
        /// Bytes already handed out.
        handed_out: usize,
    },
    /// `output` of a stream that keeps none.
    #[error("the stream does not keep its output; open it with keep_output=True to read it")]
    OutputNotKept,
    /// A range whose ends are in the wrong order.
    #[error("range {start}..{end} is reversed")]
    ReversedRange {
        /// First position.
        start: u64,
        /// End, before the start.
        end: u64,
    },
    /// Records that cannot belong to the text.
    #[error("attribution {index} (token id {token_id}) {problem}")]
    BadAttribution {
        /// Index of the record.
        index: usize,
        /// Its token.
        token_id: TokenId,
        /// What is wrong, in words.
        problem: &'static str,
    },
    /// Stop strings that cannot be compiled.
    #[error("{0}")]
    BadStop(String),
    /// Markers that cannot be compiled, or a section that none of them has.
    #[error("{0}")]
    BadMarker(String),
    /// An id in a marker that the tokenizer does not have.
    #[error("{place} is token id {id}, which the tokenizer does not have")]
    UnknownMarkerToken {
        /// The id.
        id: TokenId,
        /// Its place in the pattern.
        index: usize,
        /// Its place, in words.
        place: String,
    },
    /// A push to a request or slot behind its end.
    #[error("the {0} has ended: its last text was given, and it takes no more tokens")]
    Ended(Ended),
    /// What an engine reported does not fit the request.
    #[error("{0}")]
    BadUpdate(String),
    /// The request itself failed: the engine's error, no prompt, no end.
    #[error("request {request_id:?} {problem}")]
    Request {
        /// The caller's name of the request.
        request_id: String,
        /// What is wrong, in words.
        problem: &'static str,
    },
    /// A step whose slots, ids and counts do not fit each other.
    #[error("{0}")]
    BadStep(String),
    /// A window source failed in one slot of a step, of which nothing was done.
    #[error("in slot {slot}: {error}")]
    InSlot {
        /// The slot.
        slot: u32,
        /// The source's error.
        error: Box<Error>,
    },
    /// A slot that is not in use.
    #[error("slot {0} is not in use; add() gives slots")]
    NoSlot(u32),
    /// A call that the source of the tokenizer cannot serve.
    #[error("{0}")]
    Unsupported(String),
    /// The source's own failure (a decode of the window strategy, an encode).
    #[error("{0}")]
    Source(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// What has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// One request.
    Request,
    /// A slot of a batch.
    Slot(u32),
    /// A splitter of sections.
    Splitter,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Request => f.write_str("request"),
            Self::Slot(slot) => write!(f, "request in slot {slot}"),
            Self::Splitter => f.write_str("splitter"),
        }
    }
}

impl Error {
    /// The same error, where the call's only id is the one at `at` of a longer run.
    #[must_use]
    pub fn at_index(self, at: usize) -> Self {
        match self {
            Self::UnknownToken { id, vocab_size, .. } => Self::UnknownToken {
                id,
                index: at,
                vocab_size,
            },
            other => other,
        }
    }
}

/// Why a tokenizer could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file system's own error.
    #[error("{path}: {error}")]
    Io {
        /// What was opened.
        path: String,
        /// Why it failed.
        error: std::io::Error,
    },
    /// The content is not what it should be.
    #[error("{path}: {problem}")]
    Invalid {
        /// The file or folder, or a word for data that has no path.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl LoadError {
    /// Data without a path of its own; [`LoadError::at`] names it later.
    pub(crate) fn invalid(problem: impl Into<String>) -> Self {
        Self::Invalid {
            path: "tokenizer data".into(),
            problem: problem.into(),
        }
    }

    /// The same error, naming the file it came from.
    #[must_use]
    pub fn at(self, path: &std::path::Path) -> Self {
        match self {
            Self::Invalid { problem, .. } => Self::Invalid {
                path: path.display().to_string(),
                problem,
            },
            io @ Self::Io { .. } => io,
        }
    }
}
