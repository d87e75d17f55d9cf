//! What the tests of the core share: small tokenizers, and a slow, obvious twin of the decoder.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail")]

pub(crate) mod generation;
pub(crate) mod reference;
pub(crate) mod sample;

use detok_core::{
    DecodeOptions, DecodeStream, DecodedText, Error, StreamOptions, TokenAttribution, TokenId,
    Tokenizer, UnknownIds,
};
use proptest::test_runner::Config;
use std::sync::Arc;

/// Cases of one property; `PROPTEST_CASES` raises the number, and failures are kept as named rows.
pub(crate) fn cases(default: u32) -> Config {
    let from_environment = std::env::var("PROPTEST_CASES").ok();
    Config {
        cases: from_environment
            .and_then(|cases| cases.parse().ok())
            .unwrap_or(default),
        failure_persistence: None,
        max_shrink_iters: 4096,
        max_global_rejects: 1 << 20,
        ..Config::default()
    }
}

/// Unknown ids skipped, special tokens hidden.
pub(crate) fn skipping() -> DecodeOptions {
    DecodeOptions {
        unknown_ids: UnknownIds::Skip,
        ..DecodeOptions::default()
    }
}

pub(crate) fn open(
    tokenizer: &Arc<Tokenizer>,
    prompt: &[TokenId],
    options: StreamOptions,
) -> DecodeStream {
    DecodeStream::open::<Error>(Arc::clone(tokenizer), prompt, options).unwrap()
}

/// All text so far, handed out or not.
pub(crate) fn output(stream: &mut DecodeStream) -> String {
    stream.output().unwrap().to_string()
}

/// Everything, from one push of all ids.
pub(crate) fn decoded(
    tokenizer: &Arc<Tokenizer>,
    prompt: &[TokenId],
    ids: &[TokenId],
    options: &DecodeOptions,
) -> DecodedText {
    tokenizer.decode_attributed(ids, prompt, options).unwrap()
}

/// Text and its records, which fit it.
pub(crate) fn text(text: &str, records: &[TokenAttribution]) -> DecodedText {
    DecodedText::new(text.to_owned(), records.iter().copied().collect()).unwrap()
}

pub(crate) fn visible(token_id: TokenId, byte_offset: u32) -> TokenAttribution {
    TokenAttribution::visible(token_id, byte_offset)
}

pub(crate) fn continuing(token_id: TokenId, byte_offset: u32) -> TokenAttribution {
    TokenAttribution {
        continues_char: true,
        ..visible(token_id, byte_offset)
    }
}

pub(crate) fn zero(token_id: TokenId, byte_offset: u32) -> TokenAttribution {
    TokenAttribution::zero_width(token_id, byte_offset)
}

pub(crate) fn cut(record: TokenAttribution) -> TokenAttribution {
    TokenAttribution {
        cut: true,
        ..record
    }
}

/// Chunks rebased and joined, the obvious way.
pub(crate) fn joined(chunks: &[DecodedText]) -> DecodedText {
    let mut all = DecodedText::default();
    for chunk in chunks {
        all.append(chunk).unwrap();
    }
    all
}
