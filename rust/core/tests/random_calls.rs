//! Whatever is called in whatever order with whatever arguments: no panic, and after an error
//! everything is as it was.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use common::sample::{Sample, any_spec, compiled_spec};
use common::{cases, output};
use detok_core::{
    Attributions, DecodeOptions, DecodeStream, DecodedText, Error, MaskRule, Shared, SpanIndex,
    StreamOptions, TokenAttribution, TokenId, Unit, UnknownIds, mask, offsets, spans,
};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Call {
    Push(Index),
    PushMany(Vec<Index>),
    /// With an id of one's own among them.
    PushRaw(Vec<u32>),
    Step(Index),
    NextChunk,
    Flush(Option<usize>),
    Reset(Vec<Index>),
    Output,
    Append,
    DrainPrefix(usize),
    Truncate(usize),
    Take,
    Queries(usize, usize),
}

fn position() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 0..40usize, 1 => select(vec![usize::MAX, usize::MAX / 2, 1 << 32])]
}

fn call() -> impl Strategy<Value = Call> {
    let ids = || prop::collection::vec(any::<Index>(), 0..8);
    prop_oneof![
        8 => any::<Index>().prop_map(Call::Push),
        4 => ids().prop_map(Call::PushMany),
        1 => prop::collection::vec(prop_oneof![0..40u32, any::<u32>()], 0..4).prop_map(Call::PushRaw),
        4 => any::<Index>().prop_map(Call::Step),
        4 => Just(Call::NextChunk),
        1 => prop::option::of(position()).prop_map(Call::Flush),
        1 => ids().prop_map(Call::Reset),
        1 => Just(Call::Output),
        2 => Just(Call::Append),
        2 => position().prop_map(Call::DrainPrefix),
        1 => position().prop_map(Call::Truncate),
        1 => Just(Call::Take),
        2 => (position(), position()).prop_map(|(start, end)| Call::Queries(start, end)),
    ]
}

fn options() -> impl Strategy<Value = StreamOptions> {
    let limit = prop_oneof![2 => Just(u32::MAX as usize), 1 => 0..40usize];
    (
        any::<[bool; 3]>(),
        0..6usize,
        limit,
        prop::option::of(prop::collection::btree_set(0..40u32, 0..6)),
    )
        .prop_map(
            |([hide, skip, keep_output], min_bytes_to_buffer, text_limit, kept)| StreamOptions {
                decode: DecodeOptions {
                    skip_special_tokens: hide,
                    keep_special_tokens: kept.map(|kept| kept.into_iter().collect()),
                    unknown_ids: if skip {
                        UnknownIds::Skip
                    } else {
                        UnknownIds::Error
                    },
                },
                min_bytes_to_buffer,
                keep_output,
                text_limit,
            },
        )
}

/// A stream, and text that its chunks are gathered in.
struct World<'s> {
    sample: &'s Sample,
    options: StreamOptions,
    stream: DecodeStream,
    gathered: DecodedText,
    chunk: DecodedText,
}

impl World<'_> {
    fn make(&mut self, call: &Call) -> Result<(), Error> {
        match call {
            Call::Push(pick) => {
                let id = self.sample.pick(std::slice::from_ref(pick), true)[0];
                self.stream.push_token(id).map(drop)
            }
            Call::PushMany(picks) => {
                let ids = self.sample.pick(picks, true);
                self.stream.push_tokens(&ids).map(drop)
            }
            Call::PushRaw(ids) => self.stream.push_tokens(ids).map(drop),
            Call::Step(pick) => {
                let id = self.sample.pick(std::slice::from_ref(pick), true)[0];
                self.stream.step(id).map(drop)
            }
            Call::NextChunk => {
                if let Some(chunk) = self.stream.next_chunk() {
                    assert!(!chunk.is_empty());
                    fits(&chunk);
                    self.chunk = chunk;
                }
                Ok(())
            }
            Call::Flush(cut) => {
                let (last, all) = self.stream.flush(*cut)?;
                fits(&all);
                if let Some(last) = last {
                    fits(&last);
                    self.chunk = last;
                }
                Ok(())
            }
            Call::Reset(picks) => self.stream.reset(&self.sample.pick(picks, true)[..]),
            Call::Output => self.stream.output().map(drop),
            Call::Append => self.gathered.append(&self.chunk),
            Call::DrainPrefix(at) => {
                let prefix = self.gathered.drain_prefix(*at)?;
                fits(&prefix);
                Ok(())
            }
            Call::Truncate(at) => self.gathered.truncate(*at),
            Call::Take => {
                let taken = self.gathered.take();
                assert!(self.gathered.is_empty());
                self.chunk = taken;
                Ok(())
            }
            Call::Queries(start, end) => query(&self.gathered, *start, *end),
        }
    }

    /// Continues the stream and a copy taken before a failed call in the same way.
    fn check_equal(&mut self, before: &DecodeStream, ids: &[TokenId]) {
        let (mut stream, mut before) = (self.stream.clone(), before.clone());
        assert_eq!(stream.pending(), before.pending());
        assert_eq!(stream.token_count(), before.token_count());
        if self.options.keep_output {
            assert_eq!(output(&mut stream), output(&mut before));
        }
        for &id in ids {
            let pushed =
                [&mut stream, &mut before].map(|s| s.push_token(id).map_err(|e| e.to_string()));
            assert_eq!(pushed[0], pushed[1]);
        }
        assert_eq!(stream.pending(), before.pending());
        assert_eq!(stream.next_chunk(), before.next_chunk());
        let flushed = [&mut stream, &mut before].map(|s| s.flush(None).map_err(|e| e.to_string()));
        assert_eq!(flushed[0], flushed[1]);
    }
}

/// Records are in order and on character boundaries.
fn fits(decoded: &DecodedText) {
    let mut before = 0;
    for record in &decoded.attributions {
        let at = record.anchor.byte_offset() as usize;
        assert!(before <= at && at <= decoded.text.len(), "{decoded:?}");
        assert!(decoded.text.is_char_boundary(at), "{decoded:?}");
        before = at;
    }
}

fn query(decoded: &DecodedText, start: usize, end: usize) -> Result<(), Error> {
    for unit in [Unit::Byte, Unit::CodePoint, Unit::Utf16] {
        let len = decoded.attributions.len();
        assert_eq!(offsets(decoded, unit).len(), len);
        for shared in [Shared::Touch, Shared::Own] {
            let spans = spans(decoded, unit, shared);
            assert_eq!(spans.len(), len);
            assert!(spans.iter().all(|span| span.start <= span.end), "{spans:?}");
        }
        let found = SpanIndex::new(decoded, unit).tokens_at(start, end)?;
        assert!(found.end <= len);
        for rule in [
            MaskRule::First,
            MaskRule::Any,
            MaskRule::All,
            MaskRule::Majority,
        ] {
            assert_eq!(
                mask(decoded, &[(start, end), (0, 3)], unit, rule)?.len(),
                len
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn no_panic_and_no_trace_of_an_error(
        spec in any_spec(),
        prompt in prop::collection::vec(any::<Index>(), 0..40),
        options in options(),
        calls in prop::collection::vec(call(), 0..40),
        probe in prop::collection::vec(any::<Index>(), 0..6),
        strict in any::<bool>(),
    ) {
        let sample = spec.load();
        let tokenizer = Arc::clone(if strict { &sample.strict } else { &sample.loose });
        let prompt = sample.pick(&prompt, true);
        // A window's source may refuse the prompt.
        let opened = DecodeStream::open::<Error>(tokenizer, &prompt[..], options.clone());
        prop_assume!(opened.is_ok());
        let mut world = World {
            sample: &sample,
            options,
            stream: opened.unwrap(),
            gathered: DecodedText::default(),
            chunk: DecodedText::default(),
        };
        let probe = sample.pick(&probe, true);
        for call in &calls {
            let before = (world.stream.clone(), world.gathered.clone(), world.chunk.clone());
            if world.make(call).is_err() {
                world.check_equal(&before.0, &probe);
                prop_assert_eq!(&world.gathered, &before.1);
                prop_assert_eq!(&world.chunk, &before.2);
            }
            fits(&world.gathered);
        }
    }

    /// Whatever records are given, `DecodedText::new` takes those that fit, and no call on what it
    /// took panics.
    #[test]
    fn records_of_ones_own(
        text in "[a你😀]{0,6}",
        records in prop::collection::vec((any::<u32>(), 0..24u32, any::<[bool; 3]>()), 0..6),
        start in position(), end in position(),
    ) {
        let records: Attributions = records
            .into_iter()
            .map(|(id, at, [visible, continues_char, cut])| TokenAttribution {
                continues_char,
                cut,
                ..if visible { TokenAttribution::visible(id, at) } else { TokenAttribution::zero_width(id, at) }
            })
            .collect();
        let mut ascending = records.clone();
        ascending.sort_by_key(|record| record.anchor.byte_offset());
        for records in [records, ascending] {
            if let Ok(mut decoded) = DecodedText::new(text.clone(), records) {
                fits(&decoded);
                let _refused = query(&decoded, start, end);
                let mut twice = decoded.clone();
                twice.append(&decoded).unwrap();
                fits(&twice);
                let _refused = twice.truncate(start);
                fits(&twice);
                if let Ok(prefix) = decoded.drain_prefix(end) {
                    fits(&prefix);
                }
                fits(&decoded);
            }
        }
    }

    /// Bytes that are no tokenizer are refused.
    #[test]
    fn garbage_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..64), strict in any::<bool>()) {
        prop_assert!(detok_core::from_tokenizer_json(&bytes, strict).is_err());
        prop_assert!(detok_core::Tokenizer::from_bytes(&bytes).is_err());
    }

    /// A saved tokenizer decodes as it did; a damaged one is refused.
    #[test]
    fn saved_and_loaded(spec in compiled_spec(), ids in prop::collection::vec(any::<Index>(), 0..12), at in any::<Index>()) {
        let sample = spec.load();
        prop_assume!(sample.is_exact());
        let ids = sample.pick(&ids, true);
        let mut bytes = sample.loose.to_bytes().unwrap();
        let loaded = detok_core::Tokenizer::from_bytes(&bytes).unwrap();
        prop_assert_eq!(loaded.fingerprint().unwrap(), sample.loose.fingerprint().unwrap());
        let options = common::skipping();
        prop_assert_eq!(loaded.decode(&ids, &options).unwrap(), sample.loose.decode(&ids, &options).unwrap());
        let at = at.index(bytes.len());
        bytes[at] ^= 0x55;
        prop_assert!(detok_core::Tokenizer::from_bytes(&bytes).is_err());
    }
}
