//! The laws of exact decoding, each under its name, over random small tokenizers of every family.
//!
//! The oracle is the `tokenizers` crate's own one-shot decode. Where the core departs from it
//! (D1 to D3), and for the records, which the crate does not have, it is the slow twin in
//! `common::reference`; `the_twin_is_the_crate` holds that against the crate in turn.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail")]
#![allow(
    clippy::too_many_lines,
    clippy::type_complexity,
    reason = "a table has many rows"
)]

mod common;

use common::reference::{Deviations, Reference};
use common::sample::{
    Sample, Spec, bpe_decoder, byte_level, compiled_decoders, compiled_spec, llama, metaspace,
    old_metaspace, wordpiece,
};
use common::{cases, joined, open, skipping};
use std::sync::Arc;

use detok_core::{
    DecodeOptions, DecodeStream, DecodedText, Shared, StepText, StreamOptions, TokenId, Unit, spans,
};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What is shown: nothing special, everything, or some special tokens kept by id.
#[derive(Clone, Copy, Debug)]
enum Shown {
    HideSpecial,
    ShowSpecial,
    KeepSome(u64),
}

impl Shown {
    fn options(self, sample: &Sample) -> DecodeOptions {
        let keep = |mask: u64| {
            let special = sample.ids.iter().filter(|&&id| sample.is_special(id));
            let kept = special
                .enumerate()
                .filter(|(at, _)| mask >> (at % 64) & 1 == 1);
            kept.map(|(_, &id)| id).collect()
        };
        DecodeOptions {
            skip_special_tokens: !matches!(self, Self::ShowSpecial),
            keep_special_tokens: match self {
                Self::KeepSome(mask) => Some(keep(mask)),
                _ => None,
            },
            ..skipping()
        }
    }
}

fn shown() -> impl Strategy<Value = Shown> {
    prop_oneof![
        2 => Just(Shown::HideSpecial),
        1 => Just(Shown::ShowSpecial),
        1 => any::<u64>().prop_map(Shown::KeepSome),
    ]
}

fn picks(most: usize) -> impl Strategy<Value = Vec<Index>> {
    prop::collection::vec(any::<Index>(), 0..=most)
}

fn stream(sample: &Sample, prompt: &[TokenId], options: &DecodeOptions) -> DecodeStream {
    let options = StreamOptions {
        decode: options.clone(),
        ..StreamOptions::default()
    };
    open(&sample.loose, prompt, options)
}

/// The crate's one-shot decode of what `options` shows; `None` where the crate panics.
fn crate_decode(sample: &Sample, ids: &[TokenId], options: &DecodeOptions) -> Option<String> {
    let kept = options.keep_special_tokens.as_deref();
    let ids: Vec<TokenId> = match kept {
        None => ids.to_vec(),
        Some(kept) => {
            let shown = |id: &TokenId| kept.contains(id) || !sample.is_special(*id);
            ids.iter().copied().filter(shown).collect()
        }
    };
    let skips = options.skip_special_tokens && kept.is_none();
    catch_unwind(AssertUnwindSafe(|| {
        sample.oracle.decode(&ids, skips).expect("decodes")
    }))
    .ok()
}

/// One way to hand the same ids over.
#[derive(Clone, Debug)]
enum Call {
    PushToken,
    PushTokens(usize),
    Step,
    NextChunk,
}

fn calls(steps: bool) -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        3 => Just(Call::PushToken),
        3 => (0..6usize).prop_map(Call::PushTokens),
        2 => Just(Call::NextChunk),
        1 => Just(if steps { Call::Step } else { Call::NextChunk }),
    ];
    prop::collection::vec(call, 1..24)
}

/// Makes the calls in turn, around and around, until all ids are pushed; the chunks that came.
/// The text of a step counts as a chunk without records.
fn drive(stream: &mut DecodeStream, ids: &[TokenId], calls: &[Call]) -> Vec<DecodedText> {
    let mut chunks = Vec::new();
    let mut left = ids;
    let mut calls = calls.iter().chain([&Call::PushToken]).cycle();
    while let (Some(call), Some((&next, behind))) = (calls.next(), left.split_first()) {
        match call {
            Call::PushToken => {
                stream.push_token(next).unwrap();
                left = behind;
            }
            Call::PushTokens(count) => {
                let (run, behind) = left.split_at(left.len().min(*count));
                stream.push_tokens(run).unwrap();
                left = behind;
            }
            Call::Step => {
                let tokenizer = Arc::clone(stream.tokenizer());
                let text = match stream.step(next).unwrap() {
                    StepText::Nothing => String::new(),
                    StepText::Token => {
                        let bytes = tokenizer.token_bytes(next).unwrap().unwrap();
                        String::from_utf8(bytes.into_owned()).unwrap()
                    }
                    StepText::Text(text) => text.to_owned(),
                };
                chunks.push(DecodedText {
                    text,
                    ..DecodedText::default()
                });
                left = behind;
            }
            Call::NextChunk => chunks.extend(stream.next_chunk()),
        }
    }
    chunks
}

fn common_prefix(a: &str, b: &str) -> usize {
    let same = a.char_indices().zip(b.chars()).find(|((_, a), b)| a != b);
    same.map_or(a.len().min(b.len()), |((at, _), _)| at)
}

/// Strings that may come next: nothing, text, blanks and markers, and bytes that complete
/// characters or break them, spelled for the family.
fn continuations(sample: &Sample) -> Vec<Vec<String>> {
    let byte_level = sample.loose.strategy_name() == "byte_level";
    let byte = |byte: u8| match (byte_level, byte) {
        (false, byte) => format!("<0x{byte:02X}>"),
        (true, 0x80..=0xa0) => char::from_u32(u32::from(byte) - 0x7f + 0x121)
            .unwrap()
            .to_string(),
        (true, byte) => char::from(byte).to_string(),
    };
    let bytes: Vec<String> = [0x80, 0x81, 0x90, 0x96, 0xa0, 0xbf].map(byte).to_vec();
    let text = ["x", " ", "▁", "a", "Ġ", "hello", ".", "\u{fffd}"];
    let mut all = vec![Vec::new()];
    all.extend(text.map(|text| vec![text.to_owned()]));
    for first in &bytes {
        all.push(vec![first.clone(), "x".into()]);
        for second in &bytes {
            all.push(vec![first.clone(), second.clone(), "x".into()]);
            for third in &bytes {
                all.push(vec![
                    first.clone(),
                    second.clone(),
                    third.clone(),
                    "x".into(),
                ]);
            }
        }
    }
    // A replaced character must not pass for a certain one.
    all.push(vec![byte(0xef), byte(0xbf), byte(0xbd)]);
    all
}

proptest! {
    #![proptest_config(cases(192))]

    /// **text**: chunks joined, and `decode`, equal the oracle; with every record where the
    /// twin has it.
    #[test]
    fn text(spec in compiled_spec(), output in picks(24), shown in shown()) {
        let sample = spec.load();
        prop_assume!(sample.is_exact());
        let ids = sample.pick(&output, true);
        let options = shown.options(&sample);
        let expected = Reference::new(&sample, &options, Deviations::ALL).expected(&[], &ids);
        let got = common::decoded(&sample.loose, &[], &ids, &options);
        prop_assert_eq!(&got.text, &expected.text, "{}", sample.words(&ids));
        prop_assert_eq!(got, expected.clone(), "{}", sample.words(&ids));
        prop_assert_eq!(sample.loose.decode(&ids, &options).unwrap(), expected.text);
    }

    /// **text**, loaded strictly: one-shot `decode` equals the crate everywhere, a stream
    /// everywhere but in D1.
    #[test]
    fn text_when_strict(spec in compiled_spec(), output in picks(24), shown in shown()) {
        let sample = spec.load();
        prop_assume!(sample.strict.strategy_reason().is_none());
        let ids = sample.pick(&output, true);
        let options = shown.options(&sample);
        if let Some(expected) = crate_decode(&sample, &ids, &options) {
            let got = sample.strict.decode(&ids, &options).unwrap();
            prop_assert_eq!(got, expected, "{}", sample.words(&ids));
        }
        let expected = Reference::new(&sample, &options, Deviations::STRICT_STREAM).expected(&[], &ids);
        let got = common::decoded(&sample.strict, &[], &ids, &options);
        prop_assert_eq!(got, expected, "{}", sample.words(&ids));
    }

    /// The twin without deviations is the crate.
    #[test]
    fn the_twin_is_the_crate(spec in compiled_spec(), output in picks(24), shown in shown()) {
        let sample = spec.load();
        prop_assume!(sample.is_exact());
        let ids = sample.pick(&output, true);
        let options = shown.options(&sample);
        if let Some(expected) = crate_decode(&sample, &ids, &options) {
            let twin = Reference::new(&sample, &options, Deviations::NONE);
            prop_assert_eq!(twin.text(&ids), expected);
        }
    }

    /// **cuts**: any grouping of ids into calls, and any points at which chunks are taken, give
    /// the same text and records; chunks rebased and joined are everything the flush gives.
    #[test]
    fn cuts(
        spec in compiled_spec(),
        prompt in picks(6),
        output in picks(24),
        shown in shown(),
        calls in calls(false),
        min_bytes_to_buffer in 0..9usize,
        keep_output in any::<bool>(),
    ) {
        let sample = spec.load();
        prop_assume!(sample.is_exact());
        let (prompt, ids) = (sample.pick(&prompt, true), sample.pick(&output, true));
        let decode = shown.options(&sample);
        let expected = common::decoded(&sample.loose, &prompt, &ids, &decode);
        let options = StreamOptions { decode, min_bytes_to_buffer, keep_output, ..StreamOptions::default() };
        let mut stream = open(&sample.loose, &prompt, options);
        let mut chunks = drive(&mut stream, &ids, &calls);
        prop_assert!(chunks.iter().all(|chunk| !chunk.is_empty()));
        prop_assert_eq!(stream.token_count(), ids.len() as u64);
        let (last, all) = stream.flush(None).unwrap();
        if keep_output {
            prop_assert_eq!(&all, &expected);
        } else {
            prop_assert_eq!(last.clone().unwrap_or_default(), all);
        }
        chunks.extend(last);
        prop_assert_eq!(joined(&chunks), expected);
    }

    /// **cuts**, with `step` among the calls: the same text, and the records it did not show
    /// count as handed out.
    #[test]
    fn cuts_with_steps(
        spec in compiled_spec(),
        output in picks(24),
        calls in calls(true),
        min_bytes_to_buffer in 0..4usize,
        keep_output in any::<bool>(),
    ) {
        let sample = spec.load();
        prop_assume!(sample.is_exact());
        let ids = sample.pick(&output, true);
        let expected = common::decoded(&sample.loose, &[], &ids, &skipping());
        let options = StreamOptions {
            decode: skipping(), min_bytes_to_buffer, keep_output, ..StreamOptions::default()
        };
        let mut stream = open(&sample.loose, &[], options);
        let chunks = drive(&mut stream, &ids, &calls);
        let (last, all) = stream.flush(None).unwrap();
        let mut text: String = chunks.iter().map(|chunk| chunk.text.as_str()).collect();
        text.push_str(last.as_ref().map_or("", |chunk| &chunk.text));
        prop_assert_eq!(&text, &expected.text);
        if keep_output {
            prop_assert_eq!(all, expected);
        }
    }

    /// **cuts**, at the end of text: what a flush leaves is what it would have been, cut.
    #[test]
    fn cut_at_the_flush(
        spec in compiled_spec(), output in picks(16), calls in calls(false), at in any::<Index>(),
    ) {
        let sample = spec.load();
        prop_assume!(sample.is_exact());
        let ids = sample.pick(&output, true);
        let whole = common::decoded(&sample.loose, &[], &ids, &skipping());
        let mut stream = stream(&sample, &[], &skipping());
        let mut chunks = drive(&mut stream, &ids, &calls);
        let handed_out: usize = chunks.iter().map(|chunk| chunk.text.len()).sum();
        let boundaries: Vec<usize> = (handed_out..=whole.text.len())
            .filter(|&at| whole.text.is_char_boundary(at))
            .collect();
        let at = boundaries[at.index(boundaries.len())];
        let (last, all) = stream.flush(Some(at)).unwrap();
        chunks.extend(last);
        let shown = joined(&chunks);
        prop_assert_eq!(&all.text, &whole.text[..at]);
        prop_assert_eq!(&shown.text, &all.text);
        let touched = spans(&whole, Unit::Byte, Shared::Touch);
        for (index, (was, is)) in whole.attributions.iter().zip(&all.attributions).enumerate() {
            let place = was.anchor.byte_offset() as usize;
            let moved = place > at || (place == at && was.anchor.is_visible() && at < whole.text.len());
            let shortened = was.anchor.is_visible() && touched[index].end > at;
            let mut expected = if moved { common::zero(was.token_id, at as u32) } else { *was };
            expected.cut = moved || shortened;
            prop_assert_eq!(*is, expected, "record {}", index);
            // A record that left before the cut cannot change.
            let sent = shown.attributions[index];
            prop_assert_eq!((sent.token_id, sent.anchor), (is.token_id, is.anchor));
        }
    }

    /// **cover**: one record per id in order (A1), on character boundaries, never going back (A4);
    /// visible `own` spans partition the text.
    #[test]
    fn cover(spec in compiled_spec(), prompt in picks(6), output in picks(24), shown in shown()) {
        let sample = spec.load();
        prop_assume!(sample.is_exact());
        let (prompt, ids) = (sample.pick(&prompt, true), sample.pick(&output, true));
        let all = common::decoded(&sample.loose, &prompt, &ids, &shown.options(&sample));
        let recorded: Vec<TokenId> = all.attributions.iter().map(|r| r.token_id).collect();
        prop_assert_eq!(recorded, ids);
        prop_assert!(DecodedText::new(all.text.clone(), all.attributions.clone()).is_ok());
        let own = spans(&all, Unit::Byte, Shared::Own);
        let visible = all.attributions.iter().zip(own).filter(|(r, _)| r.anchor.is_visible());
        let spans: Vec<_> = visible.map(|(_, span)| span).collect();
        // What stands before the first visible record came with the prompt's last bytes.
        let mut end = spans.first().map_or(all.text.len(), |span| span.start);
        prop_assert!(end == 0 || !prompt.is_empty() || spans.is_empty());
        for span in spans {
            prop_assert_eq!(span.start, end);
            end = span.end;
        }
        prop_assert_eq!(end, all.text.len());
    }

    /// **seed**: text after a prompt is decode(prompt + output) less decode(prompt), whose U+FFFD
    /// for an unfinished end is dropped first, unless the output leaves it broken.
    #[test]
    fn seed(spec in compiled_spec(), prompt in picks(12), output in picks(12), shown in shown()) {
        let sample = spec.load();
        prop_assume!(sample.is_exact());
        let (prompt, ids) = (sample.pick(&prompt, true), sample.pick(&output, true));
        let options = shown.options(&sample);
        let expected = Reference::new(&sample, &options, Deviations::ALL).expected(&prompt, &ids);
        let got = common::decoded(&sample.loose, &prompt, &ids, &options);
        let words = format!("{} | {}", sample.words(&prompt), sample.words(&ids));
        prop_assert_eq!(&got.text, &expected.text, "{}", words);
        prop_assert_eq!(&got, &expected, "{}", words);
        // By `decode` itself, where the prompt ends in a whole character.
        let (before, all) = (sample.loose.decode(&prompt, &options).unwrap(), [prompt, ids].concat());
        if let (false, Some(rest)) = (
            before.ends_with('\u{fffd}'),
            sample.loose.decode(&all, &options).unwrap().strip_prefix(&before),
        ) {
            prop_assert_eq!(rest, got.text);
        }
    }

    /// **bounded**: at most three bytes are ever pending, and exactly those of an unfinished
    /// character.
    #[test]
    fn bounded(spec in compiled_spec(), prompt in picks(4), output in picks(24)) {
        let sample = spec.load();
        prop_assume!(sample.is_exact());
        let (prompt, ids) = (sample.pick(&prompt, true), sample.pick(&output, true));
        let options = skipping();
        let twin = Reference::new(&sample, &options, Deviations::ALL);
        let mut stream = stream(&sample, &prompt, &options);
        let mut shown = DecodedText::default();
        for at in 0..=ids.len() {
            if at > 0 {
                stream.push_token(ids[at - 1]).unwrap();
            }
            let pending = stream.pending();
            prop_assert!(pending.incomplete_bytes <= 3);
            prop_assert_eq!(pending.incomplete_bytes, twin.incomplete(&prompt, &ids[..at]));
            shown.append(&stream.next_chunk().unwrap_or_default()).unwrap();
            prop_assert_eq!(shown.attributions.len() + stream.pending().waiting_tokens, at);
        }
    }

    /// **atomic**: a call that fails changes nothing.
    #[test]
    fn atomic(
        spec in compiled_spec(), prompt in picks(4), output in picks(12), more in picks(6),
        at in any::<Index>(),
    ) {
        let sample = spec.load();
        prop_assume!(sample.is_exact());
        let (prompt, ids) = (sample.pick(&prompt, true), sample.pick(&output, false));
        let more = sample.pick(&more, false);
        let mut stream = stream(&sample, &prompt, &DecodeOptions::default());
        stream.push_tokens(&ids).unwrap();
        let mut untouched = stream.clone();
        let mut bad = more.clone();
        let index = at.index(bad.len() + 1);
        bad.insert(index, TokenId::MAX);
        let refused = stream.push_tokens(&bad).unwrap_err();
        let named = matches!(
            refused,
            detok_core::Error::UnknownToken { id: TokenId::MAX, index: i, .. } if i == index
        );
        prop_assert!(named, "{}", refused);
        prop_assert!(stream.push_token(TokenId::MAX).is_err());
        prop_assert!(stream.step(TokenId::MAX).is_err());
        for stream in [&mut stream, &mut untouched] {
            stream.push_tokens(&more).unwrap();
        }
        prop_assert_eq!(stream.pending(), untouched.pending());
        prop_assert_eq!(stream.token_count(), untouched.token_count());
        prop_assert_eq!(stream.next_chunk(), untouched.next_chunk());
        prop_assert_eq!(stream.flush(None).unwrap(), untouched.flush(None).unwrap());
    }
}

proptest! {
    #![proptest_config(cases(96))]

    /// **earliest**: what is settled is the longest prefix that all continuations share.
    #[test]
    fn earliest(spec in compiled_spec(), prompt in picks(4), output in picks(10)) {
        let sample = spec.load();
        prop_assume!(sample.is_exact());
        let (prompt, ids) = (sample.pick(&prompt, true), sample.pick(&output, true));
        let options = skipping();
        let twin = Reference::new(&sample, &options, Deviations::ALL);
        let mut stream = stream(&sample, &prompt, &options);
        stream.push_tokens(&ids).unwrap();
        let settled = common::output(&mut stream);
        let words = format!("{} | {}", sample.words(&prompt), sample.words(&ids));
        prop_assert_eq!(&settled, &twin.settled(&prompt, &ids), "{}", words);
        let mut certain: Option<String> = None;
        for more in continuations(&sample) {
            let more: Vec<&str> = more.iter().map(String::as_str).collect();
            let text = twin.continued(&prompt, &ids, &more);
            match &mut certain {
                None => certain = Some(text),
                Some(certain) => certain.truncate(common_prefix(certain, &text)),
            }
        }
        prop_assert_eq!(settled, certain.unwrap(), "{}", words);
    }
}

/// Every decoder of the list compiles, so that the laws are not held over windows.
#[test]
fn every_family_compiles() {
    let mut names = Vec::new();
    for (decoder, _) in compiled_decoders() {
        let sample = Spec::new(decoder.clone(), &["a", "b"], &[("<s>", true)]).load();
        assert_eq!(sample.loose.strategy_reason(), None, "{decoder}");
        names.push(sample.loose.strategy_name());
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(
        names,
        [
            "bpe_suffix",
            "byte_fallback",
            "byte_level",
            "metaspace",
            "plain",
            "wordpiece"
        ]
    );
}

/// D1 to D3: what the crate gives, what the core gives, and that `strict` takes it back.
#[test]
fn deviations_are_these() {
    let names: [(&str, Value, &[&str], &[(&str, bool)], &[&str], &str, &str); 9] = [
        (
            "D1 one byte breaks a run",
            llama(),
            &["<0x41>", "<0xFF>"],
            &[],
            &["<0x41>", "<0xFF>"],
            "\u{fffd}\u{fffd}",
            "A\u{fffd}",
        ),
        (
            "D1 a whole character stays",
            llama(),
            &["<0xE4>", "<0xBD>", "<0xA0>"],
            &[],
            &["<0xE4>", "<0xBD>", "<0xA0>", "<0xE4>"],
            "\u{fffd}\u{fffd}\u{fffd}\u{fffd}",
            "你\u{fffd}",
        ),
        (
            "D1 each byte has its own",
            llama(),
            &["<0xE4>", "<0xBD>", "a"],
            &[],
            &["<0xE4>", "<0xBD>", "a"],
            "\u{fffd}\u{fffd}a",
            "\u{fffd}\u{fffd}a",
        ),
        (
            "D2 é is a letter of the alphabet",
            byte_level(),
            &["a"],
            &[("café", false)],
            &["café"],
            "caf\u{fffd}",
            "café",
        ),
        (
            "D2 č",
            byte_level(),
            &["a"],
            &[("č", false)],
            &["č"],
            "\r",
            "č",
        ),
        (
            "D2 special",
            byte_level(),
            &["a"],
            &[("Ġ", true)],
            &["Ġ"],
            " ",
            "Ġ",
        ),
        (
            "D3 inner markers",
            metaspace("always"),
            &["▁in▁the"],
            &[],
            &["▁in▁the"],
            "inthe",
            "in the",
        ),
        (
            "D3 only the first piece",
            metaspace("first"),
            &["▁in▁the"],
            &[],
            &["▁in▁the", "▁in▁the"],
            "inthe in the",
            "in the in the",
        ),
        (
            "D3 two markers",
            old_metaspace(true),
            &["▁▁"],
            &[],
            &["▁▁"],
            "",
            " ",
        ),
    ];
    let options = DecodeOptions {
        skip_special_tokens: false,
        ..skipping()
    };
    for (name, decoder, vocabulary, added, tokens, theirs, ours) in names {
        let sample = Spec::new(decoder, vocabulary, added).load();
        let ids: Vec<TokenId> = tokens.iter().map(|token| sample.id(token)).collect();
        assert_eq!(
            sample.oracle.decode(&ids, false).unwrap(),
            theirs,
            "{name}: the crate"
        );
        assert_eq!(sample.loose.decode(&ids, &options).unwrap(), ours, "{name}");
        assert_eq!(
            common::decoded(&sample.loose, &[], &ids, &options).text,
            ours,
            "{name}"
        );
        assert_eq!(
            sample.strict.decode(&ids, &options).unwrap(),
            theirs,
            "{name}: strict"
        );
        if name.starts_with("D1") {
            assert_eq!(
                common::decoded(&sample.strict, &[], &ids, &options).text,
                ours,
                "{name}"
            );
        } else {
            assert_eq!(
                common::decoded(&sample.strict, &[], &ids, &options).text,
                theirs,
                "{name}"
            );
        }
    }
}

/// Outside D1 to D3 nothing is changed: all pairs of members of each family.
#[test]
fn text_of_all_pairs() {
    for (decoder, members) in compiled_decoders() {
        let sample = Spec::new(decoder.clone(), members, &[("<|end|>", true)]).load();
        let options = skipping();
        let twin = Reference::new(&sample, &options, Deviations::ALL);
        for &a in &sample.ids {
            for &b in &sample.ids {
                let expected = twin.expected(&[], &[a, b]);
                let got = common::decoded(&sample.loose, &[], &[a, b], &options);
                assert_eq!(
                    got,
                    expected,
                    "{decoder} {:?} {:?}",
                    sample.spelled(a),
                    sample.spelled(b)
                );
            }
        }
    }
}

/// What is not of these families is decoded by windows, and says why.
#[test]
fn what_does_not_compile_says_why() {
    let rows = [
        (bpe_decoder(), "a</w>b"),
        (
            serde_json::json!({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"}),
            "a",
        ),
        (
            serde_json::json!({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true}),
            "a",
        ),
    ];
    for (decoder, token) in rows {
        let sample = Spec::new(decoder.clone(), &[token], &[]).load();
        assert_eq!(sample.loose.strategy_name(), "window", "{decoder}");
        assert!(
            sample
                .loose
                .strategy_reason()
                .is_some_and(|reason| !reason.is_empty())
        );
    }
    let sample = Spec::new(wordpiece(true), &["a"], &[]).load();
    assert_eq!(sample.loose.strategy_reason(), None);
}
