#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod attribution;
mod automaton;
mod batch;
mod buffer;
mod byte_kinds;
mod compile;
mod context;
mod encode;
mod error;
mod event;
mod exact;
mod generation;
mod logprobs;
mod marker;
mod options;
mod program;
mod request;
mod saved;
mod section;
mod span;
mod step_output;
mod stop;
mod stream;
mod table;
mod token;
mod tokenizer;
mod transcript;
mod utf8;
mod window;

pub use attribution::{Attributions, DecodedText, TokenAnchor, TokenAttribution};
pub use batch::{BatchDecoder, BatchRequest, Slot, THREADS_FROM};
pub use buffer::AttributedTextBuffer;
pub use compile::{
    from_ranks, from_sentencepiece, from_tekken_json, from_tiktoken, from_tiktoken_file,
    from_token_bytes, from_tokenizer_json, from_tokenizer_json_file, load_path,
};
pub use context::Prompt;
pub use encode::Encoder;
pub use error::{Ended, Error, LoadError};
pub use event::{
    EngineUpdate, Event, FinishKind, FinishReason, Finished, SampledDelta, SampledIds, Start,
    TextDelta, TokenUsage,
};
pub use logprobs::{
    Fragments, GivenLogprobs, Logprob, PositionLogprobs, SampledText, SampledTexts, TokenLogprob,
    TokenText,
};
pub use marker::{CONTENT, MARKERS, MAX_MARKER_BYTES, Marker, MarkerPart, Sections};
pub use options::{StopScope, TextDecodeOptions};
pub use program::Family;
pub use request::{EventOptions, Events, OneToken, RequestDecoder, prompt_positions};
pub use section::{Section, SectionSplitter};
pub use span::{MaskRule, Shared, SpanIndex, Unit, mask, offsets, spans};
pub use step_output::StepOutput;
pub use stop::{MAX_STOP_BYTES, Stop, StopMatch, StopStrings};
pub use stream::{DecodeStream, Pending, StepText, StreamOptions};
pub use table::{Table, TokenFlags};
pub use token::{TokenId, UnknownIds};
pub use tokenizer::{DecodeOptions, Loaded, Tokenizer};
pub use transcript::Transcript;
pub use window::{SAFE_SUFFIX_MAX, SAFE_SUFFIX_MIN, SourceError, WINDOW_LIMIT, WindowSource};
