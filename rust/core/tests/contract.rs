//! The attribution contract (A1 to A11), as tables of what is shown after each step.
#![allow(clippy::unwrap_used, reason = "a test may fail")]
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

use common::sample::{
    Sample, Spec, bpe_decoder, byte_fallback, byte_level, bytes_and_pieces, bytes_and_words, fuse,
    llama, metaspace, replace, sequence, strip, wordpiece,
};
use common::{continuing, cut, open, output, skipping, text, visible, zero};
use detok_core::{
    DecodeOptions, DecodeStream, DecodedText, Error, MaskRule, Pending, Shared, SpanIndex,
    StepText, StreamOptions, TokenId, Unit, UnknownIds, mask, offsets, spans,
};
use serde_json::Value;

fn nothing() -> DecodedText {
    DecodedText::default()
}

/// Pushes one by one; the chunk after each (empty: none), then the flush's.
fn replay(stream: &mut DecodeStream, ids: &[TokenId]) -> Vec<DecodedText> {
    let mut shown = Vec::new();
    for &id in ids {
        stream.push_token(id).unwrap();
        shown.push(stream.next_chunk().unwrap_or_default());
    }
    let (last, _) = stream.flush(None).unwrap();
    shown.push(last.unwrap_or_default());
    shown
}

fn options(decode: DecodeOptions, min_bytes_to_buffer: usize) -> StreamOptions {
    StreamOptions {
        decode,
        min_bytes_to_buffer,
        ..StreamOptions::default()
    }
}

fn showing() -> DecodeOptions {
    DecodeOptions {
        skip_special_tokens: false,
        ..skipping()
    }
}

#[test]
fn values_are_moved_and_joined() {
    type Row = (&'static str, DecodedText, DecodedText, DecodedText);
    let rows: [Row; 4] = [
        (
            "offsets move by the text before",
            text("a", &[visible(1, 0)]),
            text(
                "你",
                &[visible(2, 0), visible(3, 0), visible(4, 0), zero(5, 3)],
            ),
            text(
                "a你",
                &[
                    visible(1, 0),
                    visible(2, 1),
                    visible(3, 1),
                    visible(4, 1),
                    zero(5, 4),
                ],
            ),
        ),
        (
            "to nothing",
            nothing(),
            text("a", &[visible(1, 0)]),
            text("a", &[visible(1, 0)]),
        ),
        (
            "records without text are not nothing",
            text("", &[zero(1, 0)]),
            text("a", &[visible(2, 0)]),
            text("a", &[zero(1, 0), visible(2, 0)]),
        ),
        (
            "nothing",
            text("a", &[visible(1, 0)]),
            nothing(),
            text("a", &[visible(1, 0)]),
        ),
    ];
    for (name, mut first, second, expected) in rows {
        first.append(&second).unwrap();
        assert_eq!(first, expected, "{name}");
    }
}

#[test]
fn what_is_shown_after_each_step() {
    let sample = bytes_and_words();
    let [special, ok, abcd, empty, half_stop] =
        ["<s>", "ok", "abcd", "", "Ġä½łstop"].map(|token| sample.id(token));
    let [o, k, a, b] = [111, 107, 97, 98];
    let unknown = 9_999;
    let hidden = skipping;
    type Row = (&'static str, Vec<TokenId>, StreamOptions, Vec<DecodedText>);
    let rows: [Row; 18] = [
        (
            "one each",
            vec![o, k],
            options(hidden(), 0),
            vec![
                text("o", &[visible(o, 0)]),
                text("k", &[visible(k, 0)]),
                nothing(),
            ],
        ),
        (
            "a character of three tokens",
            vec![0xe4, 0xbd, 0xa0],
            options(hidden(), 0),
            vec![
                nothing(),
                nothing(),
                text(
                    "你",
                    &[visible(0xe4, 0), continuing(0xbd, 0), continuing(0xa0, 0)],
                ),
                nothing(),
            ],
        ),
        (
            "a token split by the hold-back leaves once",
            vec![abcd],
            options(hidden(), 2),
            vec![text("ab", &[visible(abcd, 0)]), text("cd", &[])],
        ),
        (
            "a hidden special has a chunk of its own",
            vec![a, special, b],
            options(hidden(), 0),
            vec![
                text("a", &[visible(a, 0)]),
                text("", &[zero(special, 0)]),
                text("b", &[visible(b, 0)]),
                nothing(),
            ],
        ),
        (
            "a hidden special between the parts of a character",
            vec![0xe4, special, 0xbd, 0xa0],
            options(hidden(), 0),
            vec![
                nothing(),
                nothing(),
                nothing(),
                text(
                    "你",
                    &[
                        visible(0xe4, 0),
                        zero(special, 0),
                        continuing(0xbd, 0),
                        continuing(0xa0, 0),
                    ],
                ),
                nothing(),
            ],
        ),
        (
            "a special shown",
            vec![special],
            options(showing(), 0),
            vec![text("<s>", &[visible(special, 0)]), nothing()],
        ),
        (
            "a special kept by id, the other hidden",
            vec![special, sample.id("<tool>")],
            options(
                DecodeOptions {
                    keep_special_tokens: Some([special].into()),
                    ..hidden()
                },
                0,
            ),
            vec![
                text("<s>", &[visible(special, 0)]),
                text("", &[zero(sample.id("<tool>"), 0)]),
                nothing(),
            ],
        ),
        (
            "a token of nothing",
            vec![empty],
            options(hidden(), 0),
            vec![text("", &[zero(empty, 0)]), nothing()],
        ),
        (
            "an unfinished character at the end",
            vec![0xe4, 0xbd],
            options(hidden(), 0),
            vec![
                nothing(),
                nothing(),
                text("\u{fffd}", &[visible(0xe4, 0), continuing(0xbd, 0)]),
            ],
        ),
        (
            "unknown ids",
            vec![unknown, 72, unknown, 101],
            options(hidden(), 0),
            vec![
                text("", &[zero(unknown, 0)]),
                text("H", &[visible(72, 0)]),
                text("", &[zero(unknown, 0)]),
                text("e", &[visible(101, 0)]),
                nothing(),
            ],
        ),
        (
            "unknown ids join the parts of a character",
            vec![0xe4, unknown, 0xbd, 0xa0],
            options(hidden(), 0),
            vec![
                nothing(),
                nothing(),
                nothing(),
                text(
                    "你",
                    &[
                        visible(0xe4, 0),
                        zero(unknown, 0),
                        continuing(0xbd, 0),
                        continuing(0xa0, 0),
                    ],
                ),
                nothing(),
            ],
        ),
        (
            "a broken character leaves with the byte that proves it",
            vec![0xe4, a],
            options(hidden(), 0),
            vec![
                nothing(),
                text("\u{fffd}a", &[visible(0xe4, 0), visible(a, 3)]),
                nothing(),
            ],
        ),
        (
            "a stray byte leaves at once",
            vec![0xbd, 0xff],
            options(hidden(), 0),
            vec![
                text("\u{fffd}", &[visible(0xbd, 0)]),
                text("\u{fffd}", &[visible(0xff, 0)]),
                nothing(),
            ],
        ),
        (
            "a genuine U+FFFD is a character",
            vec![sample.id("ï¿½"), 0xef, 0xbf, 0xbd],
            options(hidden(), 0),
            vec![
                text("\u{fffd}", &[visible(sample.id("ï¿½"), 0)]),
                nothing(),
                nothing(),
                text(
                    "\u{fffd}",
                    &[visible(0xef, 0), continuing(0xbf, 0), continuing(0xbd, 0)],
                ),
                nothing(),
            ],
        ),
        (
            "two tokens and an emoji: the second has its own text too",
            vec![0xf0, 0x9f, 0x98, 0x80, a],
            options(hidden(), 0),
            vec![
                nothing(),
                nothing(),
                nothing(),
                text(
                    "😀",
                    &[
                        visible(0xf0, 0),
                        continuing(0x9f, 0),
                        continuing(0x98, 0),
                        continuing(0x80, 0),
                    ],
                ),
                text("a", &[visible(a, 0)]),
                nothing(),
            ],
        ),
        (
            "the hold-back does not cut a character",
            vec![half_stop],
            options(hidden(), 6),
            vec![text(" ", &[visible(half_stop, 0)]), text("你stop", &[])],
        ),
        (
            "held back, a zero-width record leaves with the text before it",
            vec![ok, special, abcd],
            options(hidden(), 4),
            vec![
                nothing(),
                nothing(),
                text("ok", &[visible(ok, 0), zero(special, 2)]),
                text("abcd", &[visible(abcd, 0)]),
            ],
        ),
        (
            "more held back than there is",
            vec![ok],
            options(hidden(), 100),
            vec![nothing(), text("ok", &[visible(ok, 0)])],
        ),
    ];
    for (name, ids, options, expected) in rows {
        let mut stream = open(&sample.loose, &[], options);
        assert_eq!(replay(&mut stream, &ids), expected, "{name}");
    }
}

/// Byte pieces: each byte that is no character has a U+FFFD of its own; a shown token ends a run,
/// also an empty one, a hidden one does not.
#[test]
fn byte_pieces_after_each_step() {
    let sample = bytes_and_pieces();
    let [a, b, marker, empty, special] = ["a", "▁b", "▁", "", "<s>"].map(|token| sample.id(token));
    type Row = (&'static str, Vec<TokenId>, Vec<DecodedText>);
    let rows: [Row; 9] = [
        (
            "D1: whole characters leave at once and stay",
            vec![0xe4, 0xbd, 0xa0, 0xff],
            vec![
                nothing(),
                nothing(),
                text(
                    "你",
                    &[visible(0xe4, 0), continuing(0xbd, 0), continuing(0xa0, 0)],
                ),
                text("\u{fffd}", &[visible(0xff, 0)]),
                nothing(),
            ],
        ),
        (
            "D1: each byte its own",
            vec![0xe4, 0xbd, a],
            vec![
                nothing(),
                nothing(),
                text(
                    "\u{fffd}\u{fffd}a",
                    &[visible(0xe4, 0), visible(0xbd, 3), visible(a, 6)],
                ),
                nothing(),
            ],
        ),
        (
            "an unfinished character at the end",
            vec![0xe4, 0xbd],
            vec![
                nothing(),
                nothing(),
                text("\u{fffd}\u{fffd}", &[visible(0xe4, 0), visible(0xbd, 3)]),
            ],
        ),
        (
            "hidden between the parts",
            vec![0xe4, special, 0xbd, 0xa0],
            vec![
                nothing(),
                nothing(),
                nothing(),
                text(
                    "你",
                    &[
                        visible(0xe4, 0),
                        zero(special, 0),
                        continuing(0xbd, 0),
                        continuing(0xa0, 0),
                    ],
                ),
                nothing(),
            ],
        ),
        (
            "an empty piece ends the run",
            vec![0xe4, empty, 0xbd],
            vec![
                nothing(),
                text("\u{fffd}", &[visible(0xe4, 0), zero(empty, 3)]),
                text("\u{fffd}", &[visible(0xbd, 0)]),
                nothing(),
            ],
        ),
        (
            "the first blank is stripped",
            vec![b, b],
            vec![
                text("b", &[visible(b, 0)]),
                text(" b", &[visible(b, 0)]),
                nothing(),
            ],
        ),
        (
            "a stripped marker has no width",
            vec![marker, b],
            vec![
                text("", &[zero(marker, 0)]),
                text(" b", &[visible(b, 0)]),
                nothing(),
            ],
        ),
        (
            "behind a shown token nothing is stripped",
            vec![a, b],
            vec![
                text("a", &[visible(a, 0)]),
                text(" b", &[visible(b, 0)]),
                nothing(),
            ],
        ),
        (
            "a byte may be the blank that is stripped",
            vec![0x20, 0x20],
            vec![
                text("", &[zero(0x20, 0)]),
                text(" ", &[visible(0x20, 0)]),
                nothing(),
            ],
        ),
    ];
    for (name, ids, expected) in rows {
        let mut stream = open(&sample.loose, &[], options(skipping(), 0));
        assert_eq!(replay(&mut stream, &ids), expected, "{name}");
    }
    let mut stream = open(&sample.loose, &[], options(showing(), 0));
    let shown = replay(&mut stream, &[special, b]);
    assert_eq!(
        shown[1].text, " b",
        "a shown <s> keeps the blank of the next piece"
    );
}

/// Every family: what is shown after each token, the end included.
#[test]
fn families_after_each_step() {
    type Row = (
        &'static str,
        Value,
        &'static [&'static str],
        &'static [&'static str],
    );
    let rows: [Row; 18] = [
        (
            "byte level",
            byte_level(),
            &["Ġthe", "Ġ", "a"],
            &[" the", " ", "a", ""],
        ),
        ("D2", byte_level(), &["café", "č"], &["café", "č", ""]),
        (
            "literal where not of the alphabet",
            byte_level(),
            &["a｜", "日本"],
            &["a｜", "日本", ""],
        ),
        (
            "Metaspace",
            metaspace("first"),
            &["▁the", "▁the"],
            &["the", " the", ""],
        ),
        (
            "Metaspace, never",
            metaspace("never"),
            &["▁the", "▁the"],
            &[" the", " the", ""],
        ),
        (
            "D3",
            metaspace("always"),
            &["▁in▁the", "▁in▁the"],
            &["in the", " in the", ""],
        ),
        (
            "Metaspace, a marker alone",
            metaspace("always"),
            &["▁", "▁the"],
            &["", " the", ""],
        ),
        (
            "Metaspace, first is an empty piece",
            metaspace("always"),
            &["", "▁the"],
            &["", " the", ""],
        ),
        (
            "WordPiece",
            wordpiece(false),
            &["hello", "##ing", ".", "do"],
            &["hello", "ing", " .", " do", ""],
        ),
        (
            "WordPiece, cleaned up",
            wordpiece(true),
            &["hello", "##ing", ".", "do", "n't"],
            &["hello", "ing", ".", " do", "n't", ""],
        ),
        (
            "WordPiece, a continuation first",
            wordpiece(true),
            &["##ing", "##ing"],
            &["##ing", "ing", ""],
        ),
        (
            "BPEDecoder",
            bpe_decoder(),
            &["lo", "w</w>", "lo", "w</w>"],
            &["lo", "w", " lo", "w", ""],
        ),
        (
            "no decoder",
            Value::Null,
            &["a", "b", ""],
            &["a", " b", " ", ""],
        ),
        (
            "byte fallback",
            llama(),
            &["▁the", "<0xC3>", "<0xA9>", "▁the"],
            &["the", "", "é", " the", ""],
        ),
        (
            "replaced behind the bytes",
            sequence(&[byte_fallback(), fuse(), replace("▁", " ")]),
            &["<0xE2>", "<0x96>", "<0x81>", "▁the"],
            &["", "", " ", " the", ""],
        ),
        (
            "blanks made after joining",
            sequence(&[byte_fallback(), fuse(), replace(" ", "__")]),
            &["<0x41>", "<0x20>", "b "],
            &["A", "__", "b__", ""],
        ),
        (
            "taken off the end",
            sequence(&[replace("▁", " "), byte_fallback(), fuse(), strip(' ', 0, 1)]),
            &["▁a▁", "▁", "b", "▁"],
            &[" a", " ", " b", "", ""],
        ),
        (
            "a blank that the unfinished character behind it makes certain",
            sequence(&[replace("▁", " "), byte_fallback(), fuse(), strip(' ', 0, 1)]),
            &["a▁", "<0xE4>"],
            &["a", " ", "\u{fffd}"],
        ),
    ];
    for (name, decoder, tokens, expected) in rows {
        let mut vocabulary: Vec<&str> = Vec::new();
        for &token in tokens {
            if !vocabulary.contains(&token) {
                vocabulary.push(token);
            }
        }
        let added: Vec<(&str, bool)> = match name {
            "D2" => vocabulary.drain(..).map(|token| (token, false)).collect(),
            _ => Vec::new(),
        };
        let sample = Spec::new(decoder, &vocabulary, &added).load();
        assert_eq!(sample.loose.strategy_reason(), None, "{name}");
        let ids: Vec<TokenId> = tokens.iter().map(|token| sample.id(token)).collect();
        let mut stream = open(&sample.loose, &[], options(skipping(), 0));
        let shown = replay(&mut stream, &ids);
        let texts: Vec<&str> = shown.iter().map(|chunk| chunk.text.as_str()).collect();
        assert_eq!(texts, expected, "{name}");
    }
}

/// The blank between words is the later word's.
#[test]
fn the_blank_is_the_later_tokens() {
    for decoder in [wordpiece(true), Value::Null] {
        let sample = Spec::new(decoder, &["a", "b"], &[]).load();
        let all = common::decoded(&sample.loose, &[], &[0, 1], &skipping());
        assert_eq!(all, text("a b", &[visible(0, 0), visible(1, 1)]));
    }
    let sample = Spec::new(bpe_decoder(), &["a</w>", "", "b"], &[("<s>", true)]).load();
    let special = sample.id("<s>");
    let all = common::decoded(&sample.loose, &[], &[0, special, 1, 2], &skipping());
    assert_eq!(
        all,
        text(
            "a b",
            &[
                visible(0, 0),
                zero(special, 1),
                visible(1, 1),
                visible(2, 2)
            ]
        )
    );
}

/// What the prompt means for the first text: the prompt never appears.
#[test]
fn behind_a_prompt() {
    let words = bytes_and_words();
    let pieces = bytes_and_pieces();
    let special = words.id("<s>");
    let unknown = 9_999;
    let bytes = |text: &str| -> Vec<TokenId> { text.bytes().map(TokenId::from).collect() };
    let [b, marker] = ["▁b", "▁"].map(|token| pieces.id(token));
    type Row<'s> = (
        &'static str,
        &'s Sample,
        Vec<TokenId>,
        Vec<TokenId>,
        DecodedText,
    );
    let rows: [Row<'_>; 21] = [
        (
            "seeded",
            &words,
            bytes("Hi"),
            bytes("!"),
            text("!", &[visible(33, 0)]),
        ),
        (
            "unknown id",
            &words,
            [bytes("abc"), vec![unknown], bytes("Hi")].concat(),
            bytes("!"),
            text("!", &[visible(33, 0)]),
        ),
        (
            "nothing but unknown ids",
            &words,
            vec![unknown],
            bytes("!"),
            text("!", &[visible(33, 0)]),
        ),
        (
            "half a character, completed",
            &words,
            vec![0xe4, 0xbd],
            vec![0xa0],
            text("你", &[continuing(0xa0, 0)]),
        ),
        (
            "behind text",
            &words,
            [bytes("ab"), vec![0xe4, 0xbd]].concat(),
            vec![0xa0],
            text("你", &[continuing(0xa0, 0)]),
        ),
        (
            "unknown id before the half",
            &words,
            vec![unknown, 0xe4, 0xbd],
            vec![0xa0],
            text("你", &[continuing(0xa0, 0)]),
        ),
        (
            "unknown ids behind the half",
            &words,
            [vec![0xe4, 0xbd], vec![unknown; 6]].concat(),
            vec![0xa0],
            text("你", &[continuing(0xa0, 0)]),
        ),
        (
            "unknown and hidden ids between the halves",
            &words,
            vec![0xe4, unknown, special, 0xbd, special],
            vec![0xa0],
            text("你", &[continuing(0xa0, 0)]),
        ),
        (
            "three bytes of four",
            &words,
            vec![0xf0, 0x9f, 0x98],
            vec![0x80],
            text("😀", &[continuing(0x80, 0)]),
        ),
        (
            "hidden between prompt and rest",
            &words,
            vec![0xe4, 0xbd],
            vec![special, 0xa0],
            text("你", &[zero(special, 0), continuing(0xa0, 0)]),
        ),
        (
            "broken: the U+FFFD is the prompt's",
            &words,
            vec![0xe4],
            bytes("a"),
            text("a", &[visible(97, 0)]),
        ),
        (
            "broken by the second part",
            &words,
            vec![0xe4],
            vec![0xbd, 97],
            text("a", &[zero(0xbd, 0), visible(97, 0)]),
        ),
        (
            "broken at the end",
            &words,
            vec![0xe4],
            vec![0xbd],
            text("", &[zero(0xbd, 0)]),
        ),
        (
            "nothing pushed",
            &words,
            vec![0xe4, 0xbd],
            vec![],
            nothing(),
        ),
        (
            "byte pieces: each byte its own",
            &pieces,
            vec![0xe4],
            vec![0xbd, b],
            text("\u{fffd} b", &[visible(0xbd, 0), visible(b, 3)]),
        ),
        (
            "byte pieces at the end",
            &pieces,
            vec![0xe4],
            vec![0xbd],
            text("\u{fffd}", &[visible(0xbd, 0)]),
        ),
        (
            "byte pieces: completed",
            &pieces,
            vec![0xe4, 0xbd],
            vec![0xa0],
            text("你", &[continuing(0xa0, 0)]),
        ),
        (
            "the blank is kept behind text",
            &pieces,
            vec![b],
            vec![b],
            text(" b", &[visible(b, 0)]),
        ),
        (
            "the marker in the prompt took the strip",
            &pieces,
            vec![marker],
            vec![b],
            text(" b", &[visible(b, 0)]),
        ),
        (
            "a hidden prompt is no text",
            &pieces,
            vec![pieces.id("<s>")],
            vec![b],
            text("b", &[visible(b, 0)]),
        ),
        (
            "half a blank is none",
            &pieces,
            vec![0xe2, 0x96],
            vec![0x81],
            text("▁", &[continuing(0x81, 0)]),
        ),
    ];
    for (name, sample, prompt, ids, expected) in rows {
        let all = common::decoded(&sample.loose, &prompt, &ids, &skipping());
        assert_eq!(all, expected, "{name}");
        let mut stream = open(&sample.loose, &prompt, options(skipping(), 0));
        let chunks = replay(&mut stream, &ids);
        assert_eq!(common::joined(&chunks), expected, "{name}, step by step");
    }
}

/// The start of text in each family, behind a prompt of one token.
#[test]
fn the_first_token_is_the_prompts() {
    type Row = (Value, &'static str, &'static str, &'static str);
    let rows: [Row; 8] = [
        (metaspace("first"), "a", "▁the", " the"),
        (metaspace("first"), "▁", "▁the", " the"),
        (metaspace("first"), "", "▁the", " the"),
        (wordpiece(true), "a", "the", " the"),
        (wordpiece(true), "a", "##s", "s"),
        (Value::Null, "a", "the", " the"),
        (bpe_decoder(), "a</w>", "the</w>", " the"),
        (
            sequence(&[replace("▁", " "), byte_fallback(), fuse(), strip(' ', 2, 0)]),
            "▁",
            "▁▁x",
            " x",
        ),
    ];
    for (decoder, prompt, token, expected) in rows {
        let sample = Spec::new(decoder.clone(), &[prompt, token], &[]).load();
        let all = common::decoded(&sample.loose, &[0], &[1], &skipping());
        assert_eq!(all.text, expected, "{decoder} {prompt:?} {token:?}");
    }
}

/// A blank of the prompt that an unfinished character behind it kept from being taken off is in
/// decode(prompt), so it is not generated.
#[test]
fn a_withheld_blank_of_the_prompt_stays_there() {
    let decoder = sequence(&[replace("▁", " "), byte_fallback(), fuse(), strip(' ', 0, 1)]);
    let sample = Spec::new(decoder, &["a▁", "<0xE4>", "<0xBD>", "<0xA0>", "b"], &[]).load();
    let rows: [(&[TokenId], &[TokenId], &str); 4] = [
        (&[0], &[4], " b"),
        (&[0, 1], &[4], "b"),
        (&[0, 1], &[], ""),
        (&[0, 1], &[2, 3], "你"),
    ];
    for (prompt, ids, expected) in rows {
        let all = common::decoded(&sample.loose, prompt, ids, &skipping());
        assert_eq!(all.text, expected, "{prompt:?} {ids:?}");
    }
}

/// A7: a cut at the flush, and which tokens lost text.
#[test]
fn a_flush_that_cuts() {
    let sample = bytes_and_words();
    let [ab, abcd, special] = ["ab", "abcd", "<s>"].map(|token| sample.id(token));
    type Row = (&'static str, Vec<TokenId>, usize, DecodedText);
    let rows: [Row; 9] = [
        (
            "the second token is gone",
            vec![ab, abcd],
            2,
            text("ab", &[visible(ab, 0), cut(zero(abcd, 2))]),
        ),
        (
            "inside a token",
            vec![abcd],
            2,
            text("ab", &[cut(visible(abcd, 0))]),
        ),
        (
            "past the end",
            vec![abcd],
            9,
            text("abcd", &[visible(abcd, 0)]),
        ),
        (
            "at the end",
            vec![abcd, special],
            4,
            text("abcd", &[visible(abcd, 0), zero(special, 4)]),
        ),
        (
            "at a zero-width token",
            vec![ab, special, ab],
            2,
            text("ab", &[visible(ab, 0), zero(special, 2), cut(zero(ab, 2))]),
        ),
        (
            "before one",
            vec![ab, special],
            1,
            text("a", &[cut(visible(ab, 0)), cut(zero(special, 1))]),
        ),
        (
            "everything",
            vec![ab, special, ab],
            0,
            text(
                "",
                &[cut(zero(ab, 0)), cut(zero(special, 0)), cut(zero(ab, 0))],
            ),
        ),
        (
            "pending bytes are resolved first",
            vec![ab, 0xe4],
            2,
            text("ab", &[visible(ab, 0), cut(zero(0xe4, 2))]),
        ),
        (
            "and may stay",
            vec![ab, 0xe4],
            5,
            text("ab\u{fffd}", &[visible(ab, 0), visible(0xe4, 2)]),
        ),
    ];
    for (name, ids, at, expected) in rows {
        let mut stream = open(&sample.loose, &[], options(skipping(), 32));
        stream.push_tokens(&ids).unwrap();
        let (last, all) = stream.flush(Some(at)).unwrap();
        assert_eq!(all, expected, "{name}");
        assert_eq!(last.unwrap_or_default(), expected, "{name}");
    }
}

/// A cut that cannot be made, and calls after the flush, change nothing.
#[test]
fn refused_cuts_and_late_calls() {
    let sample = bytes_and_words();
    let mut stream = open(&sample.loose, &[], options(skipping(), 2));
    stream
        .push_tokens(&[97, 98, 0xe4, 0xbd, 0xa0, 0xe4])
        .unwrap();
    assert_eq!(stream.next_chunk().unwrap().text, "ab");
    let before = stream.pending();
    assert!(matches!(
        stream.flush(Some(1)),
        Err(Error::CutBeforeHandedOut {
            at: 1,
            handed_out: 2
        })
    ));
    assert!(matches!(
        stream.flush(Some(3)),
        Err(Error::CutInsideCharacter { at: 3 })
    ));
    assert!(matches!(
        stream.flush(Some(6)),
        Err(Error::CutInsideCharacter { at: 6 })
    ));
    assert_eq!(stream.pending(), before);
    let (last, all) = stream.flush(Some(5)).unwrap();
    assert_eq!(last.unwrap().text, "你");
    assert_eq!(all.text, "ab你");
    assert!(matches!(stream.flush(None), Err(Error::Finished)));
    assert!(matches!(stream.push_token(97), Err(Error::Finished)));
    assert!(matches!(stream.push_tokens(&[]), Err(Error::Finished)));
    assert!(matches!(stream.step(97), Err(Error::Finished)));
    assert_eq!(stream.next_chunk(), None);
    let none: &[TokenId] = &[];
    stream.reset::<Error>(none).unwrap();
    assert_eq!(replay(&mut stream, &[97, 98])[2].text, "ab");
}

#[test]
fn pending_says_what_is_withheld_and_why() {
    let sample = bytes_and_words();
    let special = sample.id("<s>");
    let mut stream = open(&sample.loose, &[], options(skipping(), 2));
    let pending = |incomplete_bytes, held_bytes, waiting_tokens| Pending {
        incomplete_bytes,
        held_bytes,
        waiting_tokens,
    };
    assert_eq!(stream.pending(), pending(0, 0, 0));
    let rows: [(TokenId, usize, Pending); 6] = [
        (97, 1, pending(0, 1, 0)),
        (0xe4, 0, pending(1, 1, 1)),
        (special, 0, pending(1, 1, 2)),
        (0xbd, 0, pending(2, 1, 3)),
        (0xa0, 3, pending(0, 4, 0)),
        (98, 1, pending(0, 5, 0)),
    ];
    for (id, settled, expected) in rows {
        assert_eq!(stream.push_token(id).unwrap(), settled, "{id}");
        assert_eq!(stream.pending(), expected, "{id}");
    }
    assert_eq!(stream.next_chunk().unwrap().text, "a");
    assert_eq!(stream.pending().held_bytes, 4);
    assert_eq!(stream.token_count(), 6);
    stream.flush(None).unwrap();
    assert_eq!(stream.pending(), pending(0, 0, 0));
    assert_eq!(stream.token_count(), 6);
}

#[test]
fn text_at_each_step() {
    let sample = bytes_and_words();
    let [special, ok] = ["<s>", "ok"].map(|token| sample.id(token));
    let given = |text: &'static str| StepText::Text(text);
    let rows: [(TokenId, StepText<'_>); 8] = [
        (ok, StepText::Token),
        (0xe4, StepText::Nothing),
        (special, StepText::Nothing),
        (0xbd, StepText::Nothing),
        (0xa0, given("你")),
        (special, StepText::Nothing),
        (0xe4, StepText::Nothing),
        (ok, given("\u{fffd}ok")),
    ];
    for keep_output in [true, false] {
        let options = StreamOptions {
            keep_output,
            ..options(skipping(), 0)
        };
        let mut stream = open(&sample.loose, &[], options);
        for (id, expected) in &rows {
            assert_eq!(&stream.step(*id).unwrap(), expected, "{id}");
        }
        assert_eq!(
            stream.next_chunk(),
            None,
            "records of a step count as handed out"
        );
        assert_eq!(stream.flush(None).unwrap().0, None);
    }
    let mut stream = open(&sample.loose, &[], options(skipping(), 1));
    assert_eq!(
        stream.step(ok).unwrap(),
        given("o"),
        "held back, a step is not the token's text"
    );
    assert_eq!(stream.step(ok).unwrap(), given("ko"));
}

#[test]
fn a_stream_that_keeps_nothing() {
    let sample = bytes_and_words();
    let options = StreamOptions {
        keep_output: false,
        ..options(skipping(), 0)
    };
    let mut stream = open(&sample.loose, &[], options);
    stream.push_tokens(&[97, 98]).unwrap();
    assert!(matches!(stream.output(), Err(Error::OutputNotKept)));
    assert_eq!(
        stream.next_chunk().unwrap(),
        text("ab", &[visible(97, 0), visible(98, 1)])
    );
    stream.push_tokens(&[99, 0xe4]).unwrap();
    let (last, all) = stream.flush(None).unwrap();
    assert_eq!(all, text("c\u{fffd}", &[visible(99, 0), visible(0xe4, 1)]));
    assert_eq!(last, Some(all));
}

/// The limit is on what a stream keeps, and is refused before anything changes.
#[test]
fn a_text_limit_of_a_few_bytes() {
    let sample = bytes_and_words();
    let ab = sample.id("ab");
    let limited = |keep_output| StreamOptions {
        text_limit: 8,
        keep_output,
        ..options(skipping(), 0)
    };
    let mut stream = open(&sample.loose, &[], limited(true));
    for _ in 0..4 {
        stream.step(ab).unwrap();
    }
    for _ in 0..2 {
        assert!(matches!(
            stream.step(ab),
            Err(Error::TextTooLong { limit: 8 })
        ));
        assert!(matches!(
            stream.push_token(ab),
            Err(Error::TextTooLong { limit: 8 })
        ));
        assert!(matches!(
            stream.push_tokens(&[ab, ab]),
            Err(Error::TextTooLong { limit: 8 })
        ));
    }
    assert_eq!(
        (output(&mut stream).as_str(), stream.token_count()),
        ("abababab", 4)
    );
    let (_, all) = stream.flush(None).unwrap();
    assert_eq!((all.text.len(), all.attributions.len()), (8, 4));

    let mut stream = open(&sample.loose, &[], limited(false));
    for _ in 0..100 {
        assert_eq!(stream.step(ab).unwrap(), StepText::Token);
    }
    for _ in 0..100 {
        stream.push_token(ab).unwrap();
        assert_eq!(stream.next_chunk().unwrap().text, "ab");
    }
}

/// A9: the spans of tokens that share characters, in every unit.
#[test]
fn spans_of_shared_characters() {
    let all = text(
        "a😀b",
        &[
            visible(1, 0),
            visible(2, 1),
            continuing(3, 1),
            zero(4, 1),
            continuing(5, 1),
            visible(6, 5),
        ],
    );
    let touch = |unit| spans(&all, unit, Shared::Touch);
    let own = |unit| spans(&all, unit, Shared::Own);
    assert_eq!(touch(Unit::Byte), [0..1, 1..5, 1..5, 1..1, 1..5, 5..6]);
    assert_eq!(touch(Unit::CodePoint), [0..1, 1..2, 1..2, 1..1, 1..2, 2..3]);
    assert_eq!(touch(Unit::Utf16), [0..1, 1..3, 1..3, 1..1, 1..3, 3..4]);
    assert_eq!(own(Unit::Byte), [0..1, 1..5, 5..5, 1..1, 5..5, 5..6]);
    assert_eq!(own(Unit::Utf16), [0..1, 1..3, 3..3, 1..1, 3..3, 3..4]);
    assert_eq!(offsets(&all, Unit::Utf16), [0, 1, 1, 1, 1, 3]);
    // The character's first byte lies in the prompt: the first record at it has it.
    let completed = text("你x", &[continuing(1, 0), visible(2, 3)]);
    assert_eq!(spans(&completed, Unit::Byte, Shared::Own), [0..3, 3..4]);
}

/// A11.
#[test]
fn from_text_to_tokens() {
    let all = text(
        "a你b",
        &[
            visible(1, 0),
            zero(2, 1),
            visible(3, 1),
            continuing(4, 1),
            visible(5, 4),
            zero(6, 5),
        ],
    );
    let index = SpanIndex::new(&all, Unit::CodePoint);
    let rows: [(usize, usize, std::ops::Range<usize>); 8] = [
        (0, 1, 0..1),
        (1, 2, 2..4),
        (0, 2, 0..4),
        (0, 3, 0..5),
        (2, 3, 4..5),
        (1, 1, 0..0),
        (3, 9, 0..0),
        (9, 10, 0..0),
    ];
    for (start, end, expected) in rows {
        let found = index.tokens_at(start, end).unwrap();
        if expected.is_empty() {
            assert!(found.is_empty(), "{start}..{end}");
        } else {
            assert_eq!(found, expected, "{start}..{end}");
        }
    }
    assert!(matches!(
        index.tokens_at(2, 1),
        Err(Error::ReversedRange { start: 2, end: 1 })
    ));

    let words = text("one two", &[visible(1, 0), visible(2, 2), zero(3, 7)]);
    let rows: [(&[(usize, usize)], MaskRule, [bool; 3]); 8] = [
        (&[(0, 2)], MaskRule::First, [true, false, false]),
        (&[(1, 3)], MaskRule::First, [false, true, false]),
        (&[(1, 3)], MaskRule::Any, [true, true, false]),
        (&[(0, 2)], MaskRule::All, [true, false, false]),
        (&[(3, 7)], MaskRule::Majority, [false, true, true]),
        (&[(2, 4), (4, 7)], MaskRule::All, [false, true, true]),
        (&[(7, 7)], MaskRule::First, [false, false, true]),
        (&[], MaskRule::Any, [false, false, false]),
    ];
    for (ranges, rule, expected) in rows {
        let found = mask(&words, ranges, Unit::CodePoint, rule).unwrap();
        assert_eq!(found, expected, "{ranges:?} {rule:?}");
    }
    assert!(mask(&words, &[(3, 1)], Unit::CodePoint, MaskRule::Any).is_err());
}

/// A8: one index splits the records.
#[test]
fn drained_prefixes() {
    let whole = || {
        text(
            "ab你",
            &[
                visible(1, 0),
                zero(2, 1),
                visible(3, 1),
                visible(4, 2),
                zero(5, 5),
            ],
        )
    };
    let rows: [(usize, usize); 5] = [(0, 0), (1, 2), (2, 3), (5, 5), (0, 0)];
    for (at, records) in rows {
        let mut rest = whole();
        let mut prefix = rest.drain_prefix(at).unwrap();
        assert_eq!(
            (prefix.text.len(), prefix.attributions.len()),
            (at, records)
        );
        prefix.append(&rest).unwrap();
        assert_eq!(prefix, whole());
    }
    for at in [3, 4, 6, usize::MAX] {
        let mut rest = whole();
        assert!(
            matches!(rest.drain_prefix(at), Err(Error::CutInsideCharacter { .. })),
            "{at}"
        );
        assert_eq!(rest, whole());
    }
}

/// Numbers of added tokens are the crate's: one after the other behind the vocabulary, those that
/// the vocabulary has keep its id.
#[test]
fn added_tokens_are_numbered_as_the_crate_does() {
    let mut spec = Spec::new(
        Value::Null,
        &["a", "b"],
        &[("b", false), ("<new>", true), ("<newer>", false)],
    );
    spec.vocabulary[1].1 = 9;
    let sample = spec.load();
    assert_eq!(
        ["b", "<new>", "<newer>"].map(|token| sample.id(token)),
        [10, 2, 3]
    );
    for &id in &sample.ids {
        let (token, _) = sample.spelled(id).unwrap();
        assert_eq!(
            sample.loose.id_to_token(id).unwrap().as_deref(),
            Some(token.as_str())
        );
    }
    assert_eq!(sample.loose.id_to_token(11).unwrap(), None);
}

#[test]
fn unknown_ids_are_refused_by_name_or_skipped() {
    let sample = bytes_and_words();
    let strict = DecodeOptions {
        unknown_ids: UnknownIds::Error,
        ..skipping()
    };
    let size = sample.loose.vocab_size().unwrap();
    for id in [9_999, TokenId::MAX] {
        let refused = sample.loose.decode(&[97, id], &strict).unwrap_err();
        assert!(
            matches!(refused, Error::UnknownToken { id: named, index: 1, vocab_size } if named == id && vocab_size == Some(size)),
            "{refused}"
        );
        assert_eq!(
            sample.loose.decode(&[97, id, 98], &skipping()).unwrap(),
            "ab"
        );
    }
}
