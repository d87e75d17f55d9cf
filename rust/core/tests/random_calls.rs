//! Whatever is called in whatever order with whatever arguments: no panic, and after an error
//! everything is as it was.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use common::generation::{WishPicks, logprobs_of, wish_picks};
use common::sample::{Sample, any_spec, compiled_spec};
use common::{cases, output};
use detok_core::{
    Attributions, BatchDecoder, BatchRequest, DecodeOptions, DecodeStream, DecodedText,
    EngineUpdate, Error, Event, EventOptions, FinishKind, FinishReason, GivenLogprobs, MaskRule,
    RequestDecoder, SampledIds, Shared, Slot, SpanIndex, StepOutput, Stop, StreamOptions,
    TextDecodeOptions, TokenAttribution, TokenId, Unit, UnknownIds, mask, offsets, spans,
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

/// An update as an engine in any state of mind may give it.
#[derive(Clone, Debug)]
struct UpdatePick {
    ids: Vec<Index>,
    with_unknown: bool,
    /// How many more logprobs than ids there are, or fewer.
    logprobs: Option<i8>,
    end: Option<(FinishKind, Option<Index>)>,
    prompt: Option<Vec<Index>>,
    prompt_logprobs: Option<Vec<Option<Index>>>,
    cached_token_count: u64,
}

fn update_pick() -> impl Strategy<Value = UpdatePick> {
    let kind = select(vec![
        FinishKind::Stop,
        FinishKind::Length,
        FinishKind::Abort,
        FinishKind::Error,
        FinishKind::Repetition,
    ]);
    let end = (kind, prop::option::of(any::<Index>()));
    let ids = || prop::collection::vec(any::<Index>(), 0..5);
    (
        ids(),
        prop::bool::weighted(0.3),
        prop::option::of(-2..2_i8),
        prop::option::weighted(0.2, end),
        prop::option::weighted(0.4, ids()),
        prop::option::weighted(
            0.2,
            prop::collection::vec(prop::option::of(any::<Index>()), 0..4),
        ),
        select(vec![0, 1, u64::MAX]),
    )
        .prop_map(
            |(ids, with_unknown, logprobs, end, prompt, prompt_logprobs, cached_token_count)| {
                UpdatePick {
                    ids,
                    with_unknown,
                    logprobs,
                    end,
                    prompt,
                    prompt_logprobs,
                    cached_token_count,
                }
            },
        )
}

impl UpdatePick {
    fn of(&self, sample: &Sample) -> EngineUpdate {
        let pick = |index: &Index| sample.pick(std::slice::from_ref(index), true)[0];
        let token_ids: SampledIds = sample.pick(&self.ids, self.with_unknown).into();
        let logprobs = self.logprobs.map(|more| {
            let len = token_ids.len().saturating_add_signed(more.into());
            let ids = token_ids.iter().copied().chain([0, TokenId::MAX]);
            ids.take(len).map(|id| logprobs_of(id, &[id, 1])).collect()
        });
        let prompt_logprobs = self.prompt_logprobs.as_ref().map(|positions| {
            let told = |at: &Option<Index>| {
                at.as_ref()
                    .map(|at| GivenLogprobs::Told(logprobs_of(pick(at), &[0])))
            };
            positions.iter().map(told).collect()
        });
        EngineUpdate {
            logprobs,
            finish_reason: self.end.as_ref().map(|(kind, stop)| FinishReason {
                kind: *kind,
                stop: stop.as_ref().map(|stop| Stop::Token(pick(stop))),
            }),
            prompt_token_ids: self
                .prompt
                .as_ref()
                .map(|prompt| sample.pick(prompt, true).into()),
            prompt_logprobs,
            cached_token_count: self.cached_token_count,
            token_ids,
        }
    }
}

fn wanted(
    sample: &Sample,
    wishes: &WishPicks,
    ids: &[Index],
    strict: bool,
) -> Arc<TextDecodeOptions> {
    let unknown = if strict {
        UnknownIds::Error
    } else {
        UnknownIds::Skip
    };
    wishes
        .of(sample, &[], &sample.pick(ids, true), unknown)
        .options()
}

#[derive(Clone, Debug)]
enum BatchCall {
    Add(Vec<Index>),
    /// Slots, and how many ids each has; one more or fewer count, or id, than there should be.
    Step(Vec<(Slot, Vec<Index>)>, i8, bool),
    OneEach(Vec<(Slot, Index)>),
    Finish(Vec<Slot>),
    Remove(Vec<Slot>),
    Look(Slot),
}

fn slot() -> impl Strategy<Value = Slot> {
    prop_oneof![12 => 0..6u32, 1 => Just(Slot::MAX)]
}

fn batch_call() -> impl Strategy<Value = BatchCall> {
    let ids = || prop::collection::vec(any::<Index>(), 0..4);
    let slots = || prop::collection::vec(slot(), 0..4);
    let shift = prop_oneof![6 => Just(0), 1 => -1..2_i8];
    prop_oneof![
        4 => ids().prop_map(BatchCall::Add),
        8 => (prop::collection::vec((slot(), ids()), 0..5), shift, any::<bool>())
            .prop_map(|(runs, shift, texts)| BatchCall::Step(runs, shift, texts)),
        4 => prop::collection::vec((slot(), any::<Index>()), 0..5).prop_map(BatchCall::OneEach),
        1 => slots().prop_map(BatchCall::Finish),
        1 => slots().prop_map(BatchCall::Remove),
        1 => slot().prop_map(BatchCall::Look),
    ]
}

/// A batch that all calls are made on, and one that only sees what went well.
struct Batches<'s> {
    sample: &'s Sample,
    options: Arc<TextDecodeOptions>,
    tried: BatchDecoder,
    clean: BatchDecoder,
}

impl Batches<'_> {
    fn make(&mut self, call: &BatchCall) {
        let sample = self.sample;
        match call {
            BatchCall::Add(prompt) => {
                let prompt = sample.pick(prompt, true);
                let (tokenizer, options) = (Arc::clone(&sample.loose), Arc::clone(&self.options));
                // A window's source may refuse the prompt.
                if let Ok(request) = BatchRequest::open::<Error>(tokenizer, &prompt[..], options) {
                    let clean = self.clean.add(request.clone()).unwrap();
                    assert_eq!(self.tried.add(request).unwrap(), clean);
                }
            }
            BatchCall::Step(runs, shift, texts) => {
                let slots: Vec<Slot> = runs.iter().map(|run| run.0).collect();
                let runs: Vec<Vec<TokenId>> =
                    runs.iter().map(|run| sample.pick(&run.1, true)).collect();
                let mut counts: Vec<u32> = runs.iter().map(|run| run.len() as u32).collect();
                if let Some(first) = counts.first_mut() {
                    *first = first.saturating_add_signed((*shift).into());
                }
                let step = self
                    .tried
                    .step(&slots, &runs.concat(), Some(&counts), *texts, 3);
                if let Ok(output) = step {
                    self.repeat(output, &slots, &runs, *texts);
                }
            }
            BatchCall::OneEach(runs) => {
                let slots: Vec<Slot> = runs.iter().map(|run| run.0).collect();
                let picks: Vec<Index> = runs.iter().map(|run| run.1).collect();
                let ids = sample.pick(&picks, true);
                if let Ok(output) = self.tried.step(&slots, &ids, None, false, 0) {
                    let runs: Vec<Vec<TokenId>> = ids.iter().map(|&id| vec![id]).collect();
                    self.repeat(output, &slots, &runs, false);
                }
            }
            BatchCall::Finish(slots) => {
                if let Ok(mut output) = self.tried.finish(slots) {
                    let good = without_errors(&mut output, slots);
                    let of_good: Vec<Slot> = good.iter().map(|&at| slots[at]).collect();
                    let clean = self.clean.finish(&of_good).unwrap();
                    same(&output, &clean, &good);
                }
            }
            BatchCall::Remove(slots) => {
                if self.tried.remove(slots).is_ok() {
                    self.clean.remove(slots).unwrap();
                }
            }
            BatchCall::Look(slot) => {
                let looked = [&self.tried, &self.clean]
                    .map(|batch| (batch.pending(*slot).ok(), batch.usage(*slot).ok()));
                assert_eq!(looked[0], looked[1]);
            }
        }
        assert_eq!(self.tried.len(), self.clean.len());
    }

    /// The same step without the slots that failed.
    fn repeat(
        &mut self,
        mut output: StepOutput,
        slots: &[Slot],
        runs: &[Vec<TokenId>],
        texts: bool,
    ) {
        let good = without_errors(&mut output, slots);
        let of_good: Vec<Slot> = good.iter().map(|&at| slots[at]).collect();
        let ids: Vec<TokenId> = good.iter().flat_map(|&at| runs[at].clone()).collect();
        let counts: Vec<u32> = good.iter().map(|&at| runs[at].len() as u32).collect();
        let clean = self
            .clean
            .step(&of_good, &ids, Some(&counts), texts, 1)
            .unwrap();
        same(&output, &clean, &good);
    }
}

/// Positions of slots that did not fail; those that did have nothing.
fn without_errors(output: &mut StepOutput, slots: &[Slot]) -> Vec<usize> {
    let failed = output.take_errors();
    let (good, bad): (Vec<usize>, Vec<usize>) =
        (0..slots.len()).partition(|&at| failed.iter().all(|(slot, _)| *slot != slots[at]));
    assert_eq!(bad.len(), failed.len());
    for at in bad {
        assert!(output.decoded(at).unwrap().is_empty());
        assert_eq!(output.kept_tokens().nth(at), Some(0));
    }
    good
}

fn same(output: &StepOutput, clean: &StepOutput, good: &[usize]) {
    assert_eq!(clean.len(), good.len());
    for (of_clean, &at) in good.iter().enumerate() {
        let decoded = output.decoded(at).unwrap();
        fits(&decoded);
        assert_eq!(Some(decoded), clean.decoded(of_clean));
        assert_eq!(
            output.kept_tokens().nth(at),
            clean.kept_tokens().nth(of_clean)
        );
    }
    assert_eq!(output.stopped(), clean.stopped());
    let texts = [output, clean].map(|output| {
        let texts = output.token_texts();
        let texts = texts.map(|texts| texts.map(|sampled| (sampled.token_id, sampled.text())));
        texts.map(Iterator::collect::<Vec<_>>)
    });
    assert_eq!(texts[0], texts[1]);
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

    /// Whatever an engine says of a request: no panic, and no trace of what was refused.
    #[test]
    fn any_updates_of_a_request(
        spec in any_spec(), prompt in prop::option::of(prop::collection::vec(any::<Index>(), 0..40)),
        wishes in wish_picks(), updates in prop::collection::vec(update_pick(), 0..12),
        strict in any::<bool>(), intermediate in any::<bool>(), token_texts in any::<bool>(),
    ) {
        let events = EventOptions { intermediate, token_texts };
        let sample = spec.load();
        let ids: Vec<Index> = updates.iter().flat_map(|update| update.ids.clone()).collect();
        let options = wanted(&sample, &wishes, &ids, strict);
        let prompt = prompt.map(|prompt| sample.pick(&prompt, true).into());
        let open = || {
            let (tokenizer, options) = (Arc::clone(&sample.loose), Arc::clone(&options));
            RequestDecoder::open(tokenizer, prompt.clone(), options, String::new(), events)
        };
        let (Ok(mut decoder), Ok(mut clean)) = (open(), open()) else { return Ok(()) };
        for update in &updates {
            let update = update.of(&sample);
            let _open = decoder.close();
            let Ok(events) = decoder.push(&update) else { continue };
            for event in &events {
                if let Event::TextDelta(delta) = event {
                    fits(&delta.decoded);
                    prop_assert_eq!(delta.finished.is_some(), decoder.is_finished());
                }
            }
            prop_assert_eq!(events, clean.push(&update).unwrap());
            prop_assert_eq!(decoder.abort_cause(), clean.abort_cause());
        }
    }

    /// Whatever is asked of a batch: no panic, no trace of a step or slot that failed.
    #[test]
    fn any_calls_of_a_batch(
        spec in any_spec(), wishes in wish_picks(), calls in prop::collection::vec(batch_call(), 0..24),
        texts in prop::collection::vec(any::<Index>(), 0..8), strict in any::<bool>(),
    ) {
        let sample = spec.load();
        let options = wanted(&sample, &wishes, &texts, strict);
        let [tried, clean] = [(); 2].map(|()| BatchDecoder::new(Arc::clone(&sample.loose)));
        let mut batches = Batches { sample: &sample, options, tried, clean };
        for call in &calls {
            batches.make(call);
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
