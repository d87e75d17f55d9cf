//! All text and records of a stream, written when someone asks for them.
//!
//! A compiled tokenizer's text is a function of its ids, so a stream keeps four bytes a token and
//! decodes them a second time, in one run, for those who want everything at the end. A source
//! decoded by windows is not asked twice: there the chunks themselves are kept.

use crate::attribution::DecodedText;
use crate::buffer::AttributedTextBuffer;
use crate::exact::ExactDecoder;
use crate::token::{TokenId, UnknownIds};
use crate::tokenizer::{DecodeOptions, Tokenizer, decode_into};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What a stream remembers of what it handed out.
#[derive(Clone, Debug)]
pub(crate) enum History {
    /// Nothing.
    Forgotten,
    /// Enough to decode it again.
    Ids(Replay),
    /// The chunks, joined.
    Chunks(Box<DecodedText>),
}

/// Ids, and how far they have been decoded again.
#[derive(Clone, Debug)]
pub(crate) struct Replay {
    ids: Vec<TokenId>,
    /// Before the first id that was not decoded again.
    decoder: ExactDecoder,
    replayed: usize,
    /// What was; made when someone first asks.
    written: Option<Box<AttributedTextBuffer>>,
}

impl Replay {
    /// From the state behind the prompt.
    pub(crate) fn new(decoder: ExactDecoder) -> Self {
        Self {
            ids: Vec::new(),
            decoder,
            replayed: 0,
            written: None,
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
        self.write(tokenizer, options).text()
    }

    fn write(
        &mut self,
        tokenizer: &Tokenizer,
        options: &DecodeOptions,
    ) -> &mut AttributedTextBuffer {
        let buffer = self.written.get_or_insert_default();
        let ids = self.ids.get(self.replayed..).unwrap_or_default();
        if let (Some(table), false) = (tokenizer.table(), ids.is_empty()) {
            // Unknown ids were refused when they came.
            let tolerant = DecodeOptions {
                unknown_ids: UnknownIds::Skip,
                ..options.clone()
            };
            buffer.reserve(ids.len());
            if decode_into(table, &mut self.decoder, ids, &tolerant, buffer.as_mut()).is_ok() {
                self.replayed = self.ids.len();
            }
        }
        buffer
    }

    fn finish(mut self, tokenizer: &Tokenizer, options: &DecodeOptions) -> DecodedText {
        self.write(tokenizer, options);
        let mut buffer = self.written.unwrap_or_default();
        if let Some(table) = tokenizer.table() {
            self.decoder.finish(table.program(), buffer.as_mut());
        }
        buffer.take()
    }
}

/// All text and records of a finished stream; decoded at the first look.
pub struct Transcript {
    decoded: OnceLock<Arc<DecodedText>>,
    unread: Mutex<Option<Unread>>,
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
            unread: Mutex::new(None),
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
            unread: Mutex::new(Some(Unread {
                tokenizer,
                options,
                replay,
                cut,
            })),
        }
    }

    /// The text and its records.
    pub fn decoded(&self) -> &Arc<DecodedText> {
        self.decoded.get_or_init(|| {
            let mut unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::new(
                unread
                    .take()
                    .map_or_else(DecodedText::default, Unread::read),
            )
        })
    }
}

impl Unread {
    fn read(self) -> DecodedText {
        let mut decoded = self.replay.finish(&self.tokenizer, &self.options);
        if let Some(at) = self.cut {
            // The stream has checked the cut.
            let _checked = decoded.truncate(at);
        }
        decoded
    }
}

impl fmt::Debug for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Transcript").field(&self.decoded()).finish()
    }
}
