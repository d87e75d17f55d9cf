//! Sources → compiled tables, one file per kind of source.

mod crate_window;
mod decoder;
mod json;

pub use json::{from_tokenizer_json, from_tokenizer_json_file};
