//! What a request wants of its text.

use crate::logprobs::Fragments;
use crate::marker::Sections;
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
    /// The only section in which these do; `None` is everywhere.
    pub scope: Option<StopScope>,
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

/// A section where stop strings are looked for.
#[derive(Clone, Debug)]
pub struct StopScope {
    /// All there are, compiled for the tokenizer of the request.
    pub sections: Arc<Sections>,
    /// The section's place among their names.
    pub section: usize,
}
