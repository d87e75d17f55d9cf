//! The Python face of `detok-core`: signatures, conversions, one error map. No algorithm.
#![deny(unsafe_code)]

mod attribution;
mod choice;
mod decoded;
mod error;
mod ids;
mod lock;
mod position;
mod source;
mod stream;
mod strings;
mod tokenizer;

#[pyo3::pymodule]
mod _core {
    #[pymodule_export]
    use crate::attribution::{AttributionList, TokenAnchor, TokenAttribution};
    #[pymodule_export]
    use crate::decoded::DecodedText;
    #[pymodule_export]
    use crate::stream::{ChunkIterator, DecodeStream};
    #[pymodule_export]
    use crate::tokenizer::Tokenizer;

    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
