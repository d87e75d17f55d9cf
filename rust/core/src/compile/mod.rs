//! Sources → compiled tables, one file per kind of source.

mod crate_window;
mod decoder;
mod json;
mod ranks;
mod sentencepiece;
mod source;
mod tekken;
#[cfg(test)]
mod test_support;

pub use json::{from_tokenizer_json, from_tokenizer_json_file};
pub use ranks::{from_ranks, from_tiktoken, from_tiktoken_file, from_token_bytes};
pub use sentencepiece::from_sentencepiece;
pub use source::load_path;
pub use tekken::from_tekken_json;
