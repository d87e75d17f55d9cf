//! Many requests in steps: slots, errors of one slot that leave the others alone, and the law that a
//! batch gives what a request gives.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail")]
#![allow(
    clippy::too_many_lines,
    clippy::type_complexity,
    reason = "a table has many rows"
)]

mod common;

use common::cases;
use common::generation::{Wishes, logprobs_of, request, stopping_spec, wish_picks};
use common::sample::{Sample, bytes_and_words};
use detok_core::{
    BatchDecoder, BatchRequest, DecodedText, Encoder, Ended, EngineUpdate, Error, Event,
    FinishKind, FinishReason, RequestDecoder, Slot, SourceError, StepOutput, Stop, StopMatch,
    TextDelta, TokenId, TokenUsage, Tokenizer, UnknownIds, WindowSource,
};
use proptest::prelude::*;
use proptest::sample::Index;
use std::sync::Arc;

/// More ids than a step has that is done without threads, whatever is asked for.
const MANY: usize = detok_core::THREADS_FROM;

fn open(sample: &Sample, prompt: &[TokenId], wishes: &Wishes) -> BatchRequest {
    BatchRequest::open::<Error>(Arc::clone(&sample.loose), prompt, wishes.options()).unwrap()
}

fn batch_of(sample: &Sample, requests: &[Wishes]) -> BatchDecoder {
    let mut batch = BatchDecoder::new(Arc::clone(&sample.loose));
    for (slot, wishes) in (0..).zip(requests) {
        assert_eq!(batch.add(open(sample, &[], wishes)).unwrap(), slot);
    }
    batch
}

fn step(batch: &mut BatchDecoder, runs: &[(Slot, &[TokenId])]) -> StepOutput {
    let slots: Vec<Slot> = runs.iter().map(|run| run.0).collect();
    let counts: Vec<u32> = runs.iter().map(|run| run.1.len() as u32).collect();
    let ids = runs.iter().map(|run| run.1).collect::<Vec<_>>().concat();
    batch.step(&slots, &ids, Some(&counts), true, 1).unwrap()
}

fn kept(output: &StepOutput) -> Vec<u32> {
    output.kept_tokens().collect()
}

fn token_texts(output: &StepOutput) -> Option<Vec<(TokenId, String)>> {
    let texts = output.token_texts()?;
    Some(
        texts
            .map(|sampled| (sampled.token_id, sampled.text().into_owned()))
            .collect(),
    )
}

fn texts(output: &StepOutput) -> Vec<&str> {
    (0..output.len())
        .map(|at| output.text(at).unwrap())
        .collect()
}

/// What failed where, in words that a table can hold.
fn errors(output: &mut StepOutput) -> Vec<(Slot, String)> {
    let kind = |error: &Error| match error {
        Error::NoSlot(slot) => format!("no slot {slot}"),
        Error::Ended(Ended::Slot(slot)) => format!("slot {slot} ended"),
        Error::UnknownToken { id, index, .. } => format!("unknown {id} at {index}"),
        other => other.to_string(),
    };
    let errors = output.take_errors();
    errors
        .iter()
        .map(|(slot, error)| (*slot, kind(error)))
        .collect()
}

/// Slots are numbered from 0, the lowest free one first, and used again.
#[test]
fn slots() {
    let sample = bytes_and_words();
    let plain = Wishes::default();
    let mut batch = batch_of(
        &sample,
        &[plain.clone(), plain.clone(), plain.clone(), plain.clone()],
    );
    assert_eq!((batch.len(), batch.is_empty()), (4, false));
    step(&mut batch, &[(1, &[0xe4])]);
    batch.remove(&[3, 1, 0]).unwrap();
    assert_eq!(batch.len(), 1);
    for slot in [0, 1, 3, 4] {
        assert_eq!(batch.add(open(&sample, &[], &plain)).unwrap(), slot);
    }
    // Nothing of the request before is left.
    assert_eq!(batch.pending(1).unwrap().incomplete_bytes, 0);
    assert_eq!(batch.usage(1).unwrap(), TokenUsage::default());
    assert_eq!(texts(&step(&mut batch, &[(1, &[0x41])])), ["A"]);

    // All or none.
    assert!(matches!(batch.remove(&[0, 9]), Err(Error::NoSlot(9))));
    assert!(matches!(batch.remove(&[0, 0]), Err(Error::BadStep(_))));
    assert_eq!(batch.len(), 5);
    batch.remove(&[]).unwrap();
    batch.remove(&[0, 1, 2, 3, 4]).unwrap();
    assert!(batch.is_empty());
    assert!(matches!(batch.pending(0), Err(Error::NoSlot(0))));
    assert!(matches!(batch.usage(Slot::MAX), Err(Error::NoSlot(_))));

    let other = bytes_and_words();
    let refused = batch.add(open(&other, &[], &plain)).unwrap_err();
    assert!(matches!(refused, Error::BadStep(_)), "{refused}");
    assert!(batch.is_empty());
}

/// A step whose arguments do not fit changes nothing.
#[test]
fn steps_that_are_refused() {
    let sample = bytes_and_words();
    let mut batch = batch_of(&sample, &[Wishes::default(), Wishes::default()]);
    let rows: [(&[Slot], &[TokenId], Option<&[u32]>); 9] = [
        (&[0, 1], &[97], None),
        (&[0], &[97, 98], None),
        (&[0, 1], &[97, 98], Some(&[1])),
        (&[0, 1], &[97, 98], Some(&[1, 2])),
        (&[0, 1], &[97, 98], Some(&[1, 0])),
        (&[0, 1], &[97, 98], Some(&[u32::MAX, u32::MAX])),
        (&[0, 0], &[97, 98], None),
        (&[7, 0, 7], &[97, 98, 99], None),
        (&[0, 1, 0], &[97, 98], Some(&[1, 1, 0])),
    ];
    for (slots, ids, counts) in rows {
        for threads in [0, 1, 3] {
            let refused = batch.step(slots, ids, counts, false, threads).unwrap_err();
            assert!(matches!(refused, Error::BadStep(_)), "{refused}");
        }
    }
    assert!(matches!(batch.finish(&[1, 1]), Err(Error::BadStep(_))));
    for slot in [0, 1] {
        assert_eq!(batch.usage(slot).unwrap(), TokenUsage::default());
    }
    let nothing = batch.step(&[], &[], None, true, 3).unwrap();
    assert_eq!(
        (nothing.len(), nothing.is_empty(), nothing.text(0)),
        (0, true, None)
    );
    assert!(batch.finish(&[]).unwrap().is_empty());
    assert_eq!(texts(&step(&mut batch, &[(0, &[97]), (1, &[])])), ["a", ""]);
}

/// A slot that fails stays as it was and leaves the others alone.
#[test]
fn errors_of_one_slot() {
    let sample = bytes_and_words();
    let strict = || Wishes::stopping_at(&["b"]);
    let mut batch = batch_of(&sample, &[strict(), strict(), strict()]);
    let mut output = step(
        &mut batch,
        &[
            (2, &[97]),
            (0, &[99, 9_999, 98]),
            (7, &[97, 97]),
            (1, &[99, 98, 9_999]),
        ],
    );
    assert_eq!(texts(&output), ["a", "", "", "c"]);
    assert_eq!(kept(&output), [1, 0, 0, 2]);
    assert_eq!(
        token_texts(&output).unwrap(),
        [(97, "a"), (99, "c"), (98, "b")].map(|(id, text)| (id, text.to_owned()))
    );
    assert_eq!(
        errors(&mut output),
        [
            (0, "unknown 9999 at 1".to_owned()),
            (7, "no slot 7".to_owned())
        ]
    );
    let found = StopMatch {
        stop: Stop::String("b".into()),
        byte_offset: 1,
        token_index: 1,
        cut: true,
    };
    assert_eq!(output.stopped(), [(1, found)]);
    assert!(output.take_errors().is_empty(), "taken");

    let mut output = step(&mut batch, &[(1, &[97]), (0, &[97]), (2, &[])]);
    assert_eq!(texts(&output), ["", "a", ""]);
    assert_eq!(kept(&output), [0, 1, 0]);
    assert_eq!(errors(&mut output), [(1, "slot 1 ended".to_owned())]);
    // Ended, and there until it is removed.
    assert_eq!(batch.usage(1).unwrap().output_token_count, 2);
    assert_eq!(batch.len(), 3);

    let mut output = batch.finish(&[9, 1, 0]).unwrap();
    assert_eq!(texts(&output), ["", "", ""]);
    assert_eq!(
        errors(&mut output),
        [(9, "no slot 9".to_owned()), (1, "slot 1 ended".to_owned())]
    );
    let mut output = step(&mut batch, &[(0, &[97]), (2, &[97])]);
    assert_eq!(errors(&mut output), [(0, "slot 0 ended".to_owned())]);
}

/// What a slot withholds comes out when it is finished.
#[test]
fn what_a_finish_gives() {
    let sample = bytes_and_words();
    let holding = Wishes::stopping_at(&["abc"]);
    let mut batch = batch_of(&sample, &[holding.clone(), Wishes::default(), holding]);
    step(
        &mut batch,
        &[(0, &[97, 98]), (1, &[0xe4]), (2, &[97, 98, 99, 100])],
    );
    assert_eq!(batch.pending(0).unwrap().held_bytes, 2);
    assert_eq!(batch.pending(1).unwrap().incomplete_bytes, 1);
    let output = batch.finish(&[1, 0]).unwrap();
    assert_eq!(texts(&output), ["\u{fffd}", "ab"]);
    assert_eq!(kept(&output), [0, 0]);
    assert!(output.stopped().is_empty());
    assert!(output.token_texts().is_none());
    assert_eq!(output.decoded(0).unwrap().attributions.len(), 1);
    assert_eq!(output.decoded(1).unwrap().attributions.len(), 2);
    assert_eq!(output.decoded(2), None);
    for slot in [0, 1, 2] {
        assert_eq!(batch.pending(slot).unwrap(), detok_core::Pending::default());
    }
    assert_eq!(batch.usage(2).unwrap().output_token_count, 3);
}

/// A source of windows: an id is that letter, and decoding `!` fails.
struct Letters;

impl WindowSource for Letters {
    fn decode(&self, ids: &[TokenId], _skip_special_tokens: bool) -> Result<String, SourceError> {
        let letter = |id: &TokenId| match char::from_u32(*id) {
            Some('!') | None => Err(SourceError::from("out of order")),
            Some(letter) => Ok(letter),
        };
        ids.iter().map(letter).collect()
    }

    fn id_to_token(&self, id: TokenId) -> Result<Option<String>, SourceError> {
        Ok(char::from_u32(id).map(String::from))
    }

    fn is_special(&self, _id: TokenId) -> Result<bool, SourceError> {
        Ok(false)
    }

    fn token_to_id(&self, _token: &str) -> Result<Option<TokenId>, SourceError> {
        Ok(None)
    }

    fn vocab_size(&self) -> Result<u64, SourceError> {
        Ok(1 << 20)
    }

    fn special_token_ids(&self) -> Result<Vec<TokenId>, SourceError> {
        Ok(Vec::new())
    }
}

/// A source that fails fails the step, and names the slot; no slot has changed. An id that the source
/// does not know is an error of its slot alone, as anywhere.
#[test]
fn a_source_that_fails() {
    let source = Arc::new(Letters);
    let why = "letters".to_owned();
    let tokenizer =
        Tokenizer::from_window_source(source, why, Encoder::Missing("no encoder".into()));
    let tokenizer = Arc::new(tokenizer);
    let mut batch = BatchDecoder::new(Arc::clone(&tokenizer));
    let (none, options): (&[TokenId], _) = (&[], Wishes::stopping_at(&["xyz"]).options());
    for _ in 0..3 {
        let (tokenizer, options) = (Arc::clone(&tokenizer), Arc::clone(&options));
        batch
            .add(BatchRequest::open::<Error>(tokenizer, none, options).unwrap())
            .unwrap();
    }
    let [a, x, y, z, bad] = ['a', 'x', 'y', 'z', '!'].map(u32::from);
    step(&mut batch, &[(0, &[a, x]), (1, &[x]), (2, &[x, y])]);
    for threads in [1, 3] {
        let refused = batch
            .step(&[2, 1, 0], &[z, bad, a], None, true, threads)
            .unwrap_err();
        assert!(
            matches!(refused, Error::InSlot { slot: 1, .. }),
            "{refused}"
        );
    }
    let mut output = step(&mut batch, &[(2, &[z]), (1, &[TokenId::MAX]), (0, &[y, a])]);
    assert_eq!(texts(&output), ["", "", "xya"]);
    assert_eq!(output.stopped().len(), 1);
    assert_eq!(
        errors(&mut output),
        [(1, format!("unknown {} at 0", TokenId::MAX))]
    );
    assert_eq!(texts(&batch.finish(&[1, 0]).unwrap()), ["x", ""]);
}

/// One request twice: in a slot, and alone.
struct Twin {
    slot: Slot,
    alone: RequestDecoder,
    wishes: Wishes,
    left: Vec<TokenId>,
}

/// What one position of a step gave, and what an update gave: the same.
type Given = (DecodedText, Vec<TokenId>, Option<StopMatch>, Vec<String>);

impl Twin {
    /// Pushes an update; what it gives, or the place of an unknown id.
    fn push(&mut self, ids: &[TokenId], ends: bool) -> Result<Given, String> {
        let told = ids.iter().map(|&id| logprobs_of(id, &[]));
        let reason = FinishReason {
            kind: FinishKind::Length,
            stop: None,
        };
        let update = EngineUpdate {
            token_ids: ids.into(),
            logprobs: Some(told.collect()),
            finish_reason: ends.then_some(reason),
            ..EngineUpdate::default()
        };
        let events = self.alone.push(&update).map_err(|error| match error {
            Error::UnknownToken { id, index, .. } => format!("unknown {id} at {index}"),
            Error::Ended(Ended::Request) => format!("slot {} ended", self.slot),
            other => other.to_string(),
        })?;
        let Some(Event::TextDelta(TextDelta {
            decoded,
            sampled,
            finished,
        })) = events.into_iter().next_back()
        else {
            panic!("an update has a delta");
        };
        let texts = sampled.logprobs.iter().flat_map(|all| all.iter());
        let texts = texts.map(|position| position.sampled.text().to_owned());
        let found = finished.and_then(|finished| finished.stop_match);
        Ok((
            DecodedText::clone(&decoded),
            sampled.token_ids.to_vec(),
            found,
            texts.collect(),
        ))
    }
}

/// Compares each position of an output with what the request alone gives.
fn compare(
    output: &mut StepOutput,
    twins: &mut [Twin],
    runs: &[(usize, Vec<TokenId>)],
    ends: bool,
) -> Result<(), TestCaseError> {
    let errors = errors(output);
    let mut errors = errors.iter();
    let mut stopped = output.stopped().iter();
    let mut token_texts = token_texts(output).map(Vec::into_iter);
    for (at, (which, ids)) in runs.iter().enumerate() {
        let twin = &mut twins[*which];
        let (decoded, kept) = (output.decoded(at).unwrap(), kept(output)[at] as usize);
        match twin.push(ids, ends) {
            Err(expected) => {
                prop_assert_eq!(errors.next(), Some(&(twin.slot, expected)));
                prop_assert!(decoded.is_empty());
                prop_assert_eq!(kept, 0);
            }
            Ok((expected, sampled, found, texts)) => {
                prop_assert_eq!(decoded, expected, "{:?}", &twin.wishes);
                prop_assert_eq!(&ids[..kept], &sampled);
                if let Some(found) = found {
                    prop_assert_eq!(stopped.next(), Some(&(twin.slot, found)));
                }
                if let Some(token_texts) = &mut token_texts {
                    let got: Vec<(TokenId, String)> = token_texts.by_ref().take(kept).collect();
                    let expected: Vec<_> = sampled.iter().copied().zip(texts).collect();
                    prop_assert_eq!(got, expected);
                }
            }
        }
    }
    prop_assert_eq!(errors.next(), None);
    prop_assert_eq!(stopped.next(), None);
    prop_assert_eq!(token_texts.map_or(0, Iterator::count), 0);
    Ok(())
}

proptest! {
    #![proptest_config(cases(128))]

    /// **batch = request**: the same updates give the same texts, records, stops, kept counts and
    /// token texts, and the same errors, whatever slots a step names in which order. Slots that
    /// ended are removed now and then, and used again.
    #[test]
    fn a_batch_gives_what_requests_give(
        spec in stopping_spec(),
        requests in prop::collection::vec(
            (prop::collection::vec(any::<Index>(), 0..4), prop::collection::vec(any::<Index>(), 0..16), wish_picks(), any::<bool>()),
            1..8,
        ),
        steps in prop::collection::vec(
            (prop::collection::vec((any::<Index>(), 0..4usize), 0..6), any::<[bool; 3]>()), 1..12,
        ),
        threads in 0..4usize,
    ) {
        let sample = spec.load();
        prop_assume!(sample.is_exact());
        let mut batch = BatchDecoder::new(Arc::clone(&sample.loose));
        let enter = |batch: &mut BatchDecoder, which: usize| {
            let (prompt, output, wishes, skips) = &requests[which % requests.len()];
            let (prompt, ids) = (sample.pick(prompt, true), sample.pick(output, true));
            let unknown = if *skips { UnknownIds::Skip } else { UnknownIds::Error };
            let wishes = wishes.of(&sample, &prompt, &ids, unknown);
            let slot = batch.add(open(&sample, &prompt, &wishes)).unwrap();
            Twin { slot, alone: request(&sample.loose, &prompt, &wishes, true), wishes, left: ids }
        };
        let mut twins: Vec<Twin> = (0..requests.len().div_ceil(2)).map(|which| enter(&mut batch, which)).collect();
        for (at, (picks, [token_texts, removes, one_each])) in steps.iter().enumerate() {
            let mut runs: Vec<(usize, Vec<TokenId>)> = Vec::new();
            for (pick, count) in picks {
                let which = pick.index(twins.len());
                if runs.iter().all(|run| run.0 != which) {
                    let left = &mut twins[which].left;
                    // Behind its ids a request gets one that is unknown or ends nothing.
                    let mut ids: Vec<TokenId> = left.drain(..left.len().min(*count)).collect();
                    if *one_each {
                        ids.truncate(1);
                        ids.resize(1, sample.ids[0]);
                    }
                    runs.push((which, ids));
                }
            }
            let slots: Vec<Slot> = runs.iter().map(|run| twins[run.0].slot).collect();
            let counts: Vec<u32> = runs.iter().map(|run| run.1.len() as u32).collect();
            let ids: Vec<TokenId> = runs.iter().flat_map(|run| run.1.clone()).collect();
            let counts = (!one_each).then_some(&counts[..]);
            let mut output = batch.step(&slots, &ids, counts, *token_texts, threads).unwrap();
            prop_assert_eq!(output.len(), slots.len());
            prop_assert_eq!(output.token_texts().is_some(), *token_texts);
            compare(&mut output, &mut twins, &runs, false)?;
            for twin in &twins {
                let usage = batch.usage(twin.slot).unwrap();
                prop_assert!(usage.output_token_count <= 64);
            }
            if *removes {
                let ended = twins.iter().position(|twin| twin.alone.is_finished() || twin.left.is_empty());
                if let Some(which) = ended {
                    let slot = twins[which].slot;
                    batch.remove(&[slot]).unwrap();
                    twins[which] = enter(&mut batch, at);
                    prop_assert_eq!(twins[which].slot, slot);
                }
            }
        }
        let runs: Vec<(usize, Vec<TokenId>)> = (0..twins.len()).rev().map(|which| (which, Vec::new())).collect();
        let slots: Vec<Slot> = runs.iter().map(|run| twins[run.0].slot).collect();
        let mut output = batch.finish(&slots).unwrap();
        compare(&mut output, &mut twins, &runs, true)?;
    }
}

proptest! {
    #![proptest_config(cases(8))]

    /// **batch = request**, in threads: enough ids that there are some. Errors and stops come in the
    /// order of the slots all the same.
    #[test]
    fn threads_change_nothing(
        spec in stopping_spec(), wishes in prop::collection::vec(wish_picks(), 40),
        output in prop::collection::vec(any::<Index>(), 1..12), threads in 2..80usize,
    ) {
        let sample = spec.load();
        prop_assume!(sample.is_exact());
        let known = sample.pick(&output, false);
        let mut requests: Vec<Wishes> = wishes
            .iter()
            .map(|wishes| wishes.of(&sample, &[], &known, UnknownIds::Error))
            .collect();
        // One has as many ids as makes a step large.
        requests.push(Wishes::default());
        let many: Vec<TokenId> = known.iter().copied().cycle().take(MANY).collect();
        let mut bad = known.clone();
        bad.push(TokenId::MAX);
        let rows: Vec<(Slot, &[TokenId])> = (0..)
            .zip(&requests)
            .map(|(slot, _)| match slot {
                40 => (slot, &many[..]),
                slot if slot % 5 == 3 => (slot, &bad[..]),
                slot if slot % 7 == 5 => (900 + slot, &known[..]),
                slot => (slot, &known[..]),
            })
            .collect();
        let slots: Vec<Slot> = rows.iter().map(|row| row.0).collect();
        let counts: Vec<u32> = rows.iter().map(|row| row.1.len() as u32).collect();
        let ids = rows.iter().map(|row| row.1).collect::<Vec<_>>().concat();
        let [mut one, mut some] = [1, threads].map(|threads| {
            let mut batch = batch_of(&sample, &requests);
            let outputs = [(); 2].map(|()| batch.step(&slots, &ids, Some(&counts), true, threads).unwrap());
            let usage: Vec<TokenUsage> = (0..41).map(|slot| batch.usage(slot).unwrap()).collect();
            (outputs, usage)
        });
        prop_assert_eq!(one.1, some.1);
        for (one, some) in one.0.iter_mut().zip(&mut some.0) {
            for at in 0..=slots.len() {
                prop_assert_eq!(one.decoded(at), some.decoded(at));
            }
            prop_assert_eq!(kept(one), kept(some));
            prop_assert_eq!(one.stopped(), some.stopped());
            prop_assert_eq!(token_texts(one), token_texts(some));
            prop_assert_eq!(errors(one), errors(some));
        }
    }
}
