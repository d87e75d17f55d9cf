//! The Python face of `detok-core`: signatures, conversions, one error map. No algorithm.
#![deny(unsafe_code)]

mod arrow;
mod attribution;
mod batch;
mod choice;
mod decoded;
mod delta;
mod error;
mod finish;
mod ids;
mod lock;
mod logprobs;
mod marker;
mod options;
mod per_token;
mod position;
mod request;
mod sampled;
mod section;
mod source;
mod start;
mod step_output;
mod stream;
mod tokenizer;
mod update;
mod value;

#[pyo3::pymodule]
mod _core {
    #[pymodule_export]
    use crate::arrow::ArrowBatch;
    #[pymodule_export]
    use crate::attribution::{AttributionList, TokenAnchor, TokenAttribution};
    #[pymodule_export]
    use crate::batch::BatchDecoder;
    #[pymodule_export]
    use crate::decoded::DecodedText;
    #[pymodule_export]
    use crate::delta::TextDelta;
    #[pymodule_export]
    use crate::finish::{FinishReason, Finished, StopMatch, TokenUsage};
    #[pymodule_export]
    use crate::logprobs::{PositionLogprobs, TokenLogprob};
    #[pymodule_export]
    use crate::marker::Marker;
    #[pymodule_export]
    use crate::options::TextDecodeOptions;
    #[pymodule_export]
    use crate::request::RequestDecoder;
    #[pymodule_export]
    use crate::sampled::SampledDelta;
    #[pymodule_export]
    use crate::section::SectionSplitter;
    #[pymodule_export]
    use crate::start::Start;
    #[pymodule_export]
    use crate::step_output::StepOutput;
    #[pymodule_export]
    use crate::stream::{ChunkIterator, DecodeStream};
    #[pymodule_export]
    use crate::tokenizer::Tokenizer;
    #[pymodule_export]
    use crate::update::EngineUpdate;

    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
