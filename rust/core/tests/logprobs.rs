//! A token's text in its left context, as its logprob has it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail")]
#![allow(
    clippy::too_many_lines,
    clippy::type_complexity,
    reason = "a table has many rows"
)]
#![allow(
    clippy::items_after_statements,
    reason = "the type of a row stands above its table"
)]

mod common;

use common::generation::{End, Wishes, logprobs_of, request, run, stopping_spec, updates};
use common::reference::{Deviations, Reference};
use common::sample::{
    BYTE_LEVEL, SUFFIXED, Sample, Spec, WORDS, bpe_decoder, byte_fallback, byte_level,
    bytes_and_pieces, bytes_and_words, fuse, metaspace, replace, sequence, strip, wordpiece,
};
use common::{cases, skipping};
use detok_core::{
    DecodeOptions, EngineUpdate, Fragments, GivenLogprobs, PositionLogprobs, TokenId,
};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

const ALL: [Fragments; 3] = [Fragments::OpenAi, Fragments::Empty, Fragments::Replacement];

/// The logprobs of ids that were sampled behind a prompt, in updates of these sizes; `top` are
/// alternatives at each place.
fn sampled(
    sample: &Sample,
    (decode, fragments): (&DecodeOptions, Fragments),
    prompt: &[TokenId],
    ids: &[TokenId],
    (sizes, top): (&[usize], &[TokenId]),
) -> Vec<PositionLogprobs> {
    let wishes = Wishes {
        decode: decode.clone(),
        fragments,
        ..Wishes::default()
    };
    let mut updates = updates(ids, sizes, End::Length);
    for update in &mut updates {
        let told = update.token_ids.iter().map(|&id| logprobs_of(id, top));
        update.logprobs = Some(told.collect());
    }
    let run = run(request(&sample.loose, prompt, &wishes, true), &updates).unwrap();
    let logprobs = run.logprobs();
    let named = logprobs.iter().map(|position| position.sampled.text());
    let texts = run.token_texts(&sample.loose).expect("asked for");
    assert!(texts.iter().eq(named), "texts are those of the logprobs");
    logprobs
}

fn texts(
    sample: &Sample,
    how: (&DecodeOptions, Fragments),
    prompt: &[TokenId],
    ids: &[TokenId],
) -> Vec<String> {
    let logprobs = sampled(sample, how, prompt, ids, (&[1], &[]));
    let texts = logprobs.iter();
    texts
        .map(|position| position.sampled.text().to_owned())
        .collect()
}

/// The same, of the prompt's own.
fn prompt_texts(
    sample: &Sample,
    how: (&DecodeOptions, Fragments),
    prompt: &[TokenId],
) -> Vec<String> {
    let (decode, fragments) = how;
    let wishes = Wishes {
        decode: decode.clone(),
        fragments,
        ..Wishes::default()
    };
    let told = prompt
        .iter()
        .map(|&id| Some(GivenLogprobs::Told(logprobs_of(id, &[]))));
    let update = EngineUpdate {
        prompt_logprobs: Some(told.collect()),
        finish_reason: Some(End::Length.reason(None)),
        ..EngineUpdate::default()
    };
    let run = run(request(&sample.loose, prompt, &wishes, true), &[update]).unwrap();
    let logprobs = run.start.prompt_logprobs.unwrap();
    let texts = logprobs.iter();
    texts
        .map(|position| position.as_ref().unwrap().sampled.text().to_owned())
        .collect()
}

/// Tokens by their content; a number is an id.
fn ids(sample: &Sample, tokens: &[&str]) -> Vec<TokenId> {
    let id = |token: &&str| match token.strip_prefix('#').map(str::parse) {
        Some(Ok(id)) => id,
        _ => sample.id(token),
    };
    tokens.iter().map(id).collect()
}

/// (what it shows, prompt, tokens, `openai`, `empty`, `replacement`)
type Row = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
    &'static [&'static str],
    &'static [&'static str],
    &'static [&'static str],
);

fn check(sample: &Sample, decode: &DecodeOptions, rows: &[Row]) {
    for (name, prompt, tokens, openai, empty, replacement) in rows {
        let (prompt, output) = (ids(sample, prompt), ids(sample, tokens));
        for (fragments, expected) in ALL.into_iter().zip([openai, empty, replacement]) {
            let how = (decode, fragments);
            assert_eq!(
                texts(sample, how, &prompt, &output),
                *expected,
                "{name}: {fragments:?}"
            );
            // The same tokens as a prompt's.
            let all = [&prompt[..], &output].concat();
            let of_prompt = prompt_texts(sample, how, &all).split_off(prompt.len());
            assert_eq!(of_prompt, *expected, "{name}: {fragments:?}, of a prompt");
        }
    }
}

fn showing() -> DecodeOptions {
    DecodeOptions {
        skip_special_tokens: false,
        ..skipping()
    }
}

#[test]
fn in_byte_level_text() {
    let vocabulary: Vec<&str> = BYTE_LEVEL.iter().copied().chain(["ŁĺĢ"]).collect();
    let added = [("<s>", true), ("café", false)];
    let sample = Spec::new(byte_level(), &vocabulary, &added).load();
    let rows: [Row; 12] = [
        (
            "whole tokens",
            &[],
            &["Ġthe", "a"],
            &[" the", "a"],
            &[" the", "a"],
            &[" the", "a"],
        ),
        (
            "a character of three",
            &[],
            &["ä", "½ł", "a"],
            &["\\xe4", "\\xbd\\xa0", "a"],
            &["", "你", "a"],
            &["\u{fffd}", "\u{fffd}\u{fffd}", "a"],
        ),
        (
            "text before the first part and behind the last",
            &[],
            &["aä", "½ł", "ä½", "łb"],
            &["a\\xe4", "\\xbd\\xa0", "\\xe4\\xbd", "\\xa0b"],
            &["a", "你", "", "你b"],
            &["a\u{fffd}", "\u{fffd}\u{fffd}", "\u{fffd}", "\u{fffd}b"],
        ),
        (
            "the end of one character and the beginning of the next",
            &[],
            &["ä½", "łð", "ŁĺĢ"],
            &["\\xe4\\xbd", "\\xa0\\xf0", "\\x9f\\x98\\x80"],
            &["", "你", "😀"],
            &["\u{fffd}", "\u{fffd}\u{fffd}", "\u{fffd}\u{fffd}\u{fffd}"],
        ),
        (
            "half a character of the prompt",
            &["ä½"],
            &["ł"],
            &["\\xa0"],
            &["你"],
            &["\u{fffd}"],
        ),
        (
            "a hidden special in between",
            &[],
            &["ä", "<s>", "½ł"],
            &["\\xe4", "<s>", "\\xbd\\xa0"],
            &["", "<s>", "你"],
            &["\u{fffd}", "<s>", "\u{fffd}\u{fffd}"],
        ),
        (
            "an unknown id in between",
            &["ä"],
            &["#9999", "½ł"],
            &["", "\\xbd\\xa0"],
            &["", "你"],
            &["", "\u{fffd}\u{fffd}"],
        ),
        (
            "a broken character",
            &[],
            &["ä", "a", "ÿ"],
            &["\\xe4", "a", "\\xff"],
            &["", "a", ""],
            &["\u{fffd}", "a", "\u{fffd}"],
        ),
        (
            "what only looks like the end of one",
            &[],
            &["ä", "Ã©"],
            &["\\xe4", "é"],
            &["", "é"],
            &["\u{fffd}", "é"],
        ),
        (
            "a genuine U+FFFD",
            &[],
            &["ï¿½", "ï¿", "½ł"],
            &["\u{fffd}", "\\xef\\xbf", "\\xbd\\xa0"],
            &["\u{fffd}", "", "\u{fffd}"],
            &["\u{fffd}", "\u{fffd}", "\u{fffd}\u{fffd}"],
        ),
        (
            "an added token",
            &[],
            &["café"],
            &["café"],
            &["café"],
            &["café"],
        ),
        (
            "nothing",
            &[],
            &["", "日本"],
            &["", "日本"],
            &["", "日本"],
            &["", "日本"],
        ),
    ];
    check(&sample, &skipping(), &rows);
    let rows: [Row; 1] = [(
        "a special shown in between ends it",
        &[],
        &["ä", "<s>", "½ł"],
        &["\\xe4", "<s>", "\\xbd\\xa0"],
        &["", "<s>", ""],
        &["\u{fffd}", "<s>", "\u{fffd}\u{fffd}"],
    )];
    check(&sample, &showing(), &rows);
}

#[test]
fn in_runs_of_byte_pieces() {
    let sample = bytes_and_pieces();
    let rows: [Row; 11] = [
        (
            "the first blank",
            &[],
            &["▁b", "▁b"],
            &["b", " b"],
            &["b", " b"],
            &["b", " b"],
        ),
        (
            "behind a prompt",
            &["a"],
            &["▁b"],
            &[" b"],
            &[" b"],
            &[" b"],
        ),
        (
            "a marker alone",
            &[],
            &["▁", "▁b"],
            &["", " b"],
            &["", " b"],
            &["", " b"],
        ),
        (
            "a byte may be the first blank",
            &[],
            &["<0x20>", "<0x20>", "<0x41>"],
            &["", " ", "A"],
            &["", " ", "A"],
            &["", " ", "A"],
        ),
        (
            "a character of three",
            &[],
            &["<0xE4>", "<0xBD>", "<0xA0>", "a"],
            &["\\xe4", "\\xbd", "\\xa0", "a"],
            &["", "", "你", "a"],
            &["\u{fffd}", "\u{fffd}", "\u{fffd}", "a"],
        ),
        (
            "of which the prompt has two",
            &["<0xE4>", "<0xBD>"],
            &["<0xA0>"],
            &["\\xa0"],
            &["你"],
            &["\u{fffd}"],
        ),
        (
            "a hidden special does not end a run",
            &[],
            &["<0xE4>", "<0xBD>", "<s>", "<0xA0>"],
            &["\\xe4", "\\xbd", "<s>", "\\xa0"],
            &["", "", "<s>", "你"],
            &["\u{fffd}", "\u{fffd}", "<s>", "\u{fffd}"],
        ),
        (
            "an unknown id neither",
            &[],
            &["<0xE4>", "<0xBD>", "#9999", "<0xA0>"],
            &["\\xe4", "\\xbd", "", "\\xa0"],
            &["", "", "", "你"],
            &["\u{fffd}", "\u{fffd}", "", "\u{fffd}"],
        ),
        (
            "an empty piece does",
            &[],
            &["<0xE4>", "<0xBD>", "", "<0xA0>"],
            &["\\xe4", "\\xbd", "", "\\xa0"],
            &["", "", "", ""],
            &["\u{fffd}", "\u{fffd}", "", "\u{fffd}"],
        ),
        (
            "a hidden special at the start leaves the first blank to the next",
            &[],
            &["<s>", "▁b"],
            &["<s>", "b"],
            &["<s>", "b"],
            &["<s>", "b"],
        ),
        (
            "a piece that is U+FFFD",
            &[],
            &["\u{fffd}", "<0xEF>"],
            &["\u{fffd}", "\\xef"],
            &["\u{fffd}", ""],
            &["\u{fffd}", "\u{fffd}"],
        ),
    ];
    check(&sample, &skipping(), &rows);
    let rows: [Row; 1] = [(
        "a special shown at the start keeps it",
        &[],
        &["<s>", "▁b"],
        &["<s>", " b"],
        &["<s>", " b"],
        &["<s>", " b"],
    )];
    check(&sample, &showing(), &rows);
    let bytes = ["<0xE2>", "<0x96>", "<0x81>", "a", "▁"];
    let sample = Spec::new(
        sequence(&[byte_fallback(), fuse(), replace("▁", " ")]),
        &bytes,
        &[],
    )
    .load();
    let rows: [Row; 1] = [(
        "a character that a later step replaces",
        &[],
        &["<0xE2>", "<0x96>", "<0x81>", "▁"],
        &["\\xe2", "\\x96", "\\x81", " "],
        &["", "", " ", " "],
        &["\u{fffd}", "\u{fffd}", "\u{fffd}", " "],
    )];
    check(&sample, &skipping(), &rows);
}

/// Families whose tokens are whole characters: the same whatever becomes of fragments.
#[test]
fn in_text_of_pieces_and_words() {
    type Case = (
        Value,
        &'static [&'static str],
        &'static [&'static str],
        &'static [&'static str],
    );
    let pieces: &[&str] = &["▁in▁the", "▁the", "▁▁", "a", "▁"];
    let cases: [Case; 12] = [
        (
            metaspace("always"),
            pieces,
            &["▁in▁the", "▁the"],
            &["in the", " the"],
        ),
        (metaspace("always"), pieces, &["▁▁", "a"], &[" ", "a"]),
        (
            metaspace("always"),
            pieces,
            &["<s>", "▁the"],
            &["<s>", "the"],
        ),
        (metaspace("never"), pieces, &["▁the"], &[" the"]),
        (
            wordpiece(true),
            WORDS,
            &["do", "n't", "."],
            &["do", "n't", "."],
        ),
        (
            wordpiece(true),
            WORDS,
            &["hello", "##ing", "world", "!"],
            &["hello", "ing", " world", "!"],
        ),
        (
            wordpiece(false),
            WORDS,
            &["hello", ".", "world"],
            &["hello", " .", " world"],
        ),
        (
            wordpiece(false),
            WORDS,
            &["<s>", "hello", "<s>"],
            &["<s>", "hello", " <s>"],
        ),
        (
            bpe_decoder(),
            SUFFIXED,
            &["lo", "w</w>", "lo", "w</w>"],
            &["lo", "w", " lo", "w"],
        ),
        (
            bpe_decoder(),
            SUFFIXED,
            &["low</w>", "<s>", "lo"],
            &["low", " <s>", " lo"],
        ),
        (
            bpe_decoder(),
            SUFFIXED,
            &["low</w>", "", "lo"],
            &["low", " ", "lo"],
        ),
        (
            Value::Null,
            WORDS,
            &["hello", "world", "##ing"],
            &["hello", " world", " ##ing"],
        ),
    ];
    for (decoder, vocabulary, tokens, expected) in cases {
        let sample = Spec::new(decoder.clone(), vocabulary, &[("<s>", true)]).load();
        for fragments in ALL {
            let output = ids(&sample, tokens);
            let how = (&skipping(), fragments);
            assert_eq!(
                texts(&sample, how, &[], &output),
                expected,
                "{decoder} {tokens:?}"
            );
        }
    }
}

/// Decoded by windows: the new text of the window with the token behind it.
#[test]
fn in_text_of_windows() {
    let regex = json!({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"});
    let decoder = sequence(&[byte_fallback(), fuse(), regex]);
    let vocabulary = ["<0xE4>", "<0xBD>", "<0xA0>", "aa", "x"];
    let sample = Spec::new(decoder, &vocabulary, &[("<s>", true)]).load();
    assert_eq!(sample.loose.strategy_name(), "window");
    let rows: [Row; 3] = [
        (
            "text",
            &[],
            &["aa", "x"],
            &["b", "x"],
            &["b", "x"],
            &["b", "x"],
        ),
        (
            "a character of three",
            &[],
            &["<0xE4>", "<0xBD>", "<0xA0>", "x"],
            &["\u{fffd}", "\u{fffd}\u{fffd}", "你", "x"],
            &["", "", "你", "x"],
            &["\u{fffd}", "\u{fffd}\u{fffd}", "你", "x"],
        ),
        (
            "a hidden special, and an unknown id",
            &[],
            &["x", "<s>", "#9999", "aa"],
            &["x", "<s>", "", "b"],
            &["x", "<s>", "", "b"],
            &["x", "<s>", "", "b"],
        ),
    ];
    check(&sample, &skipping(), &rows);
}

/// Whether the end of text may take something off, which no left context knows.
fn trims_the_end(decoder: &Value) -> bool {
    let steps = decoder.get("decoders").and_then(Value::as_array);
    let own = decoder.get("stop").and_then(Value::as_u64);
    own.is_some_and(|stop| stop > 0) || steps.is_some_and(|steps| steps.iter().any(trims_the_end))
}

proptest! {
    #![proptest_config(cases(256))]

    /// With `empty`, the texts of the tokens of a sound text join to that text. A hidden special has
    /// its text all the same, and is left out.
    #[test]
    fn texts_join_to_the_text(
        spec in stopping_spec(), prompt in prop::collection::vec(any::<Index>(), 0..4),
        output in prop::collection::vec(any::<Index>(), 0..16), shows_special in any::<bool>(),
    ) {
        prop_assume!(!trims_the_end(&spec.decoder));
        let sample = spec.load();
        prop_assume!(sample.is_exact());
        let (prompt, ids) = (sample.pick(&prompt, true), sample.pick(&output, true));
        let decode = DecodeOptions { skip_special_tokens: !shows_special, ..skipping() };
        let text = common::decoded(&sample.loose, &prompt, &ids, &decode).text;
        let texts = texts(&sample, (&decode, Fragments::Empty), &prompt, &ids);
        let shown = ids.iter().zip(texts).filter(|(id, _)| shows_special || !sample.is_special(**id));
        let joined: String = shown.map(|(_, text)| text).collect();
        if !text.contains('\u{fffd}') {
            prop_assert_eq!(joined, text, "{} | {}", sample.words(&prompt), sample.words(&ids));
        }
    }

    /// A token before which nothing is pending, and behind it neither, has the text that it adds.
    #[test]
    fn a_whole_token_has_what_it_adds(
        spec in stopping_spec(), prompt in prop::collection::vec(any::<Index>(), 0..4),
        output in prop::collection::vec(any::<Index>(), 0..8), fragments in select(ALL.to_vec()),
    ) {
        prop_assume!(!trims_the_end(&spec.decoder));
        let sample = spec.load();
        prop_assume!(sample.is_exact());
        let (prompt, ids) = (sample.pick(&prompt, true), sample.pick(&output, true));
        let decode = skipping();
        let twin = Reference::new(&sample, &decode, Deviations::ALL);
        let texts = texts(&sample, (&decode, fragments), &prompt, &ids);
        for (at, text) in texts.iter().enumerate() {
            let (before, behind) = (&ids[..at], &ids[..=at]);
            let pending = [before, behind].map(|ids| twin.incomplete(&prompt, ids));
            let [had, has] = [before, behind].map(|ids| twin.settled(&prompt, ids));
            let added = has.strip_prefix(had.as_str()).unwrap();
            let sound = fragments == Fragments::Replacement || !added.contains('\u{fffd}');
            if pending == [0, 0] && sound && !sample.is_special(ids[at]) {
                prop_assert_eq!(text, added, "{} of {} | {}", at, sample.words(&prompt), sample.words(&ids));
            }
        }
    }

    /// Only what is to the left matters: not how the ids come, nor whether they are a prompt's, nor
    /// which of several tokens was sampled. The bytes are the token's own anywhere.
    #[test]
    fn only_what_is_to_the_left_matters(
        spec in stopping_spec(), prompt in prop::collection::vec(any::<Index>(), 0..4),
        output in prop::collection::vec(any::<Index>(), 1..12), other in any::<Index>(),
        sizes in prop::collection::vec(0..6usize, 1..5), fragments in select(ALL.to_vec()),
        hides in any::<bool>(), at in any::<Index>(),
    ) {
        let sample = spec.load();
        prop_assume!(sample.is_exact());
        let (prompt, ids) = (sample.pick(&prompt, true), sample.pick(&output, true));
        let other = sample.pick(&[other], true)[0];
        let decode = DecodeOptions { skip_special_tokens: hides, ..skipping() };
        let how = (&decode, fragments);
        let words = format!("{} | {}", sample.words(&prompt), sample.words(&ids));
        let one_by_one = sampled(&sample, how, &prompt, &ids, (&[1], &[other]));
        prop_assert_eq!(one_by_one.len(), ids.len());
        prop_assert_eq!(&one_by_one, &sampled(&sample, how, &prompt, &ids, (&sizes, &[other])), "{}", words);
        for (position, &id) in one_by_one.iter().zip(&ids) {
            for (entry, id) in [(&position.sampled, id), (&position.top[0], other)] {
                prop_assert_eq!(entry.token_id, id);
                let bytes = sample.loose.token_bytes(id).unwrap();
                prop_assert_eq!(entry.bytes(), bytes.as_deref().unwrap_or_default());
            }
        }
        // The alternative, had it been sampled.
        let at = at.index(ids.len());
        let instead = [&ids[..at], &[other]].concat();
        let had_it = texts(&sample, how, &prompt, &instead).pop().unwrap();
        prop_assert_eq!(one_by_one[at].top[0].text(), had_it, "{} {}", at, words);
        // The same tokens, all of a prompt.
        let all = [prompt.clone(), ids].concat();
        let of_prompt = prompt_texts(&sample, how, &all).split_off(prompt.len());
        let sampled: Vec<&str> = one_by_one.iter().map(|position| position.sampled.text()).collect();
        prop_assert_eq!(of_prompt, sampled, "{}", words);
    }
}

/// Strip steps take characters off the text, not off tokens: the texts of tokens follow. Bytes that
/// turn out to be no character are text too, behind which nothing is taken off.
#[test]
fn what_the_start_of_text_takes_off() {
    let one = sequence(&[replace("▁", " "), byte_fallback(), fuse(), strip(' ', 1, 0)]);
    let two = sequence(&[replace("▁", " "), byte_fallback(), fuse(), strip(' ', 2, 0)]);
    let marker = sequence(&[byte_fallback(), fuse(), strip('▁', 1, 0)]);
    let words = sequence(&[bpe_decoder(), fuse(), strip(' ', 1, 0)]);
    let cases: [(Value, &[&str], &[&str]); 8] = [
        (two.clone(), &["▁", "▁▁▁", "a"], &["", "  ", "a"]),
        (two, &["▁▁▁", "▁▁▁"], &[" ", "   "]),
        (marker.clone(), &["▁▁", "▁"], &["▁", "▁"]),
        (words.clone(), &["low</w>", "lo"], &["low", " lo"]),
        (
            words,
            &["</w>", "lo", "w</w>", "lo"],
            &["", "lo", "w", " lo"],
        ),
        (
            marker,
            &["<0xE2>", "<0x96>", "<0x81>", "a"],
            &["", "", "", "a"],
        ),
        (one.clone(), &["<0xE4>", "▁b"], &["", " b"]),
        (one, &["<0xE4>", "<0x20>"], &["", " "]),
    ];
    let mut wrong = Vec::new();
    for (decoder, tokens, expected) in cases {
        let sample = Spec::new(decoder.clone(), tokens, &[]).load();
        let output = ids(&sample, tokens);
        let text = common::decoded(&sample.loose, &[], &output, &skipping()).text;
        if sample.is_exact() && !text.contains('\u{fffd}') {
            assert_eq!(expected.concat(), text, "{decoder} {tokens:?}: the row");
        }
        let texts = texts(&sample, (&skipping(), Fragments::Empty), &[], &output);
        if texts != expected {
            wrong.push(format!(
                "{decoder} {tokens:?} of {text:?}: {texts:?}, not {expected:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A byte tokenizer of every byte: what a byte is called does not depend on its neighbours.
#[test]
fn every_byte() {
    let sample = bytes_and_words();
    let how = (&skipping(), Fragments::OpenAi);
    for byte in 0..=255u8 {
        let own = texts(&sample, how, &[], &[byte.into(), 0xe4, byte.into()]);
        let expected = if byte.is_ascii() {
            char::from(byte).to_string()
        } else {
            format!("\\x{byte:02x}")
        };
        assert_eq!([&own[0], &own[2]], [&expected; 2]);
    }
}
