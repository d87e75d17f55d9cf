//! What servers rely on: public types move between threads and survive a caught panic.

use detok_core::{
    AttributedTextBuffer, Attributions, BatchDecoder, BatchRequest, DecodeOptions, DecodeStream,
    DecodedText, Encoder, Ended, EngineUpdate, Error, Event, Events, Family, FinishKind,
    FinishReason, Finished, Fragments, GivenLogprobs, LoadError, Loaded, MaskRule, Pending,
    PositionLogprobs, RequestDecoder, SampledDelta, Shared, SourceError, SpanIndex, Start,
    StepOutput, StepText, Stop, StopMatch, StopStrings, StreamOptions, Table, TextDecodeOptions,
    TextDelta, TokenAnchor, TokenAttribution, TokenFlags, TokenLogprob, TokenText, TokenUsage,
    Tokenizer, Transcript, Unit, UnknownIds,
};
use std::panic::{RefUnwindSafe, UnwindSafe};

const fn threads<T: Send + Sync>() {}
const fn unwinds<T: UnwindSafe + RefUnwindSafe>() {}
const fn stays<T: 'static + Unpin>() {}

macro_rules! assert_auto_traits {
    ($($name:ty),* $(,)?) => {
        const _: () = { $( threads::<$name>(); unwinds::<$name>(); stays::<$name>(); )* };
    };
}

assert_auto_traits!(
    AttributedTextBuffer,
    Attributions,
    DecodeOptions,
    DecodedText,
    Ended,
    Family,
    FinishKind,
    FinishReason,
    Finished,
    Fragments,
    MaskRule,
    Pending,
    Shared,
    SpanIndex,
    StepText<'_>,
    Stop,
    StopMatch,
    StopStrings,
    StreamOptions,
    Table,
    TextDecodeOptions,
    TokenAnchor,
    TokenAttribution,
    TokenFlags,
    TokenUsage,
    Unit,
    UnknownIds,
);

// These may hold a source of the caller's own (a window, an error of it), which promises no more
// than to be used from any thread.
macro_rules! assert_threads {
    ($($name:ty),* $(,)?) => { const _: () = { $( threads::<$name>(); stays::<$name>(); )* }; };
}

assert_threads!(
    BatchDecoder,
    BatchRequest,
    DecodeStream,
    Encoder,
    EngineUpdate,
    Error,
    Event,
    Events,
    GivenLogprobs,
    LoadError,
    Loaded,
    PositionLogprobs,
    RequestDecoder,
    SampledDelta,
    SourceError,
    Start,
    StepOutput,
    TextDelta,
    TokenLogprob,
    TokenText,
    Tokenizer,
    Transcript,
);

/// The assertions above are made by the compiler; a stream really moves.
#[test]
fn a_stream_moves_between_threads() {
    let json = br#"{"version": "1.0", "added_tokens": [], "normalizer": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}"#;
    let loaded = detok_core::from_tokenizer_json(json, false).unwrap();
    let tokenizer = std::sync::Arc::new(loaded.tokenizer);
    let prompt: &[u32] = &[];
    let mut stream =
        DecodeStream::open::<Error>(tokenizer, prompt, StreamOptions::default()).unwrap();
    stream.push_token(0).unwrap();
    let flushed = std::thread::spawn(move || stream.flush(None).unwrap().1);
    assert_eq!(flushed.join().unwrap().text, "a");
}
