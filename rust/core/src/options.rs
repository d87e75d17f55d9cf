//! What a request wants of its text.

use crate::logprobs::Fragments;
use crate::stop::StopStrings;
use crate::token::TokenId;
use crate::tokenizer::DecodeOptions;
use std::sync::Arc;

/// How the ids of one request become text, and where it ends. Stop strings are compiled once, and
/// shared by every request with the same options.
#[derive(Clone, Debug, Default)]
pub struct TextDecodeOptions {
    /// What is shown and tolerated.
    pub decode: DecodeOptions,
    /// Strings that end the text.
    pub stop: Option<Arc<StopStrings>>,
    /// Ids that end the request; ascending.
    pub stop_token_ids: Arc<[TokenId]>,
    /// Whether what ended the text stays in it.
    pub include_stop: bool,
    /// A stop completed by one of this many first tokens does not count.
    pub min_tokens: u64,
    /// Bytes at the end of the text that are held back in any case.
    pub min_bytes_to_buffer: usize,
    /// How the strings of logprobs show bytes that are no character.
    pub fragments: Fragments,
}
