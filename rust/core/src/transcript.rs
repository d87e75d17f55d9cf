//! All text and records of a stream, written when someone asks for them.
//!
//! A compiled tokenizer's text is a function of its ids, so a stream keeps four bytes a token and
//! decodes them a second time, in one run, for those who want everything at the end. A source
//! decoded by windows is not asked twice: there the chunks themselves are kept.

use crate::attribution::{AttributedTextBuffer, DecodedText};
use crate::exact::ExactDecoder;
use crate::token::{TokenId, UnknownIds};
use crate::tokenizer::{DecodeOptions, Tokenizer, decode_into};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// What a stream remembers of what it handed out.
#[derive(Clone, Debug)]
pub(crate) enum History {
    /// Nothing.
    Forgotten,
    /// Enough to decode it again.
    Ids(Box<Replay>),
    /// The chunks, joined.
    Chunks(DecodedText),
}

/// Ids, and how far they have been decoded again.
#[derive(Clone, Debug)]
pub(crate) struct Replay {
    decoder: ExactDecoder,
    ids: Vec<TokenId>,
    replayed: usize,
    buffer: AttributedTextBuffer,
}

impl Replay {
    /// From the state behind the prompt.
    pub(crate) fn new(decoder: ExactDecoder) -> Self {
        Self {
            decoder,
            ids: Vec::new(),
            replayed: 0,
            buffer: AttributedTextBuffer::default(),
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, id: TokenId) {
        self.ids.push(id);
    }

    pub(crate) fn extend(&mut self, ids: &[TokenId]) {
        self.ids.extend_from_slice(ids);
    }

    /// Text that is certain so far.
    pub(crate) fn text(&mut self, tokenizer: &Tokenizer, options: &DecodeOptions) -> &str {
        if let Some(table) = tokenizer.table() {
            let ids = self.ids.get(self.replayed..).unwrap_or_default();
            // Unknown ids were refused when they came.
            let tolerant = DecodeOptions {
                unknown_ids: UnknownIds::Skip,
                ..options.clone()
            };
            self.buffer.reserve(ids.len());
            if decode_into(table, &mut self.decoder, ids, &tolerant, &mut self.buffer).is_ok() {
                self.replayed = self.ids.len();
            }
        }
        self.buffer.text()
    }

    fn finish(mut self, tokenizer: &Tokenizer, options: &DecodeOptions) -> DecodedText {
        self.text(tokenizer, options);
        if let Some(table) = tokenizer.table() {
            self.decoder.finish(table.program(), &mut self.buffer);
        }
        self.buffer.take()
    }
}

/// All text and records of a finished stream; decoded at the first look.
pub struct Transcript {
    decoded: OnceLock<Arc<DecodedText>>,
    unread: Option<Unread>,
}

struct Unread {
    tokenizer: Arc<Tokenizer>,
    options: DecodeOptions,
    replay: Replay,
    cut: Option<usize>,
}

impl Transcript {
    pub(crate) fn of(decoded: DecodedText) -> Self {
        Self {
            decoded: OnceLock::from(Arc::new(decoded)),
            unread: None,
        }
    }

    /// `cut` is inside the text and on a character boundary, or behind it.
    pub(crate) fn unread(
        tokenizer: Arc<Tokenizer>,
        options: DecodeOptions,
        replay: Replay,
        cut: Option<usize>,
    ) -> Self {
        Self {
            decoded: OnceLock::new(),
            unread: Some(Unread {
                tokenizer,
                options,
                replay,
                cut,
            }),
        }
    }

    /// The text and its records.
    pub fn decoded(&self) -> &Arc<DecodedText> {
        self.decoded.get_or_init(|| {
            let Some(unread) = &self.unread else {
                return Arc::default();
            };
            let replay = unread.replay.clone();
            let mut decoded = replay.finish(&unread.tokenizer, &unread.options);
            if let Some(at) = unread.cut {
                // The stream has checked the cut.
                let _checked = decoded.truncate(at);
            }
            Arc::new(decoded)
        })
    }
}

impl fmt::Debug for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Transcript").field(&self.decoded()).finish()
    }
}
