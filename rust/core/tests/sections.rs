//! Sections: a table of what is handed out after each push, and the laws. The slow twin of the
//! splitter is in Python, beside that of the decoder.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail")]
#![allow(
    clippy::items_after_statements,
    reason = "the type of a row stands above its table"
)]

mod common;

use common::{cases, open, text, visible, zero};
use detok_core::{
    DecodeOptions, DecodedText, Error, Event, FinishKind, FinishReason, Marker, MarkerPart,
    RequestDecoder, SectionSplitter, Sections, StopScope, StopStrings, StreamOptions,
    TextDecodeOptions, TokenId, Tokenizer, from_token_bytes,
};
use proptest::prelude::*;
use std::slice::from_ref;
use std::sync::Arc;

const THINK: TokenId = 256;
const END: TokenId = 257;
const OPEN: TokenId = 258;
const SEP: TokenId = 259;
const OTHER: TokenId = 260;
/// Tokens of ordinary text: a token that lies across the edge of a marker, in front and behind.
const INTO: TokenId = 261;
const OUT: TokenId = 262;

fn tokenizer() -> Arc<Tokenizer> {
    let mut tokens: Vec<Option<Vec<u8>>> = (0..=255).map(|byte| Some(vec![byte])).collect();
    let more = [
        "<think>",
        "</think>",
        "<|open|>",
        "<|sep|>",
        "<|other|>",
        "x<<",
        "<y",
    ];
    tokens.extend(more.map(|token| Some(token.as_bytes().to_vec())));
    let specials: Vec<TokenId> = (THINK..=OTHER).collect();
    Arc::new(from_token_bytes(tokens, &specials).unwrap().tokenizer)
}

fn part(text: &str) -> MarkerPart {
    MarkerPart::Text(text.into())
}

fn marker(name: &str, start: &[&str], end: &[&str]) -> Marker {
    let parts = |pattern: &[&str]| pattern.iter().map(|text| part(text)).collect();
    Marker::new(name, parts(start), vec![parts(end)], false, false).unwrap()
}

fn think() -> Marker {
    marker("reasoning", &["<think>"], &["</think>"])
}

/// Ids of a text: those of the special tokens in it, and its bytes.
fn ids(text: &str) -> Vec<TokenId> {
    let specials = [
        ("<think>", THINK),
        ("</think>", END),
        ("<|open|>", OPEN),
        ("<|sep|>", SEP),
        ("<|other|>", OTHER),
    ];
    let mut ids = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if let Some((name, id)) = specials.iter().find(|(name, _)| rest.starts_with(name)) {
            ids.push(*id);
            rest = &rest[name.len()..];
        } else {
            ids.extend(rest[..first.len_utf8()].bytes().map(TokenId::from));
            rest = &rest[first.len_utf8()..];
        }
    }
    ids
}

fn splitter(markers: &[Marker], prompt: &[TokenId]) -> SectionSplitter {
    let tokenizer = tokenizer();
    let sections = Arc::new(Sections::new(&tokenizer, markers).unwrap());
    SectionSplitter::open::<Error>(&tokenizer, sections, prompt).unwrap()
}

fn stream(skip: bool, held: usize) -> detok_core::DecodeStream {
    let options = StreamOptions {
        decode: DecodeOptions {
            skip_special_tokens: skip,
            ..DecodeOptions::default()
        },
        min_bytes_to_buffer: held,
        keep_output: false,
        ..StreamOptions::default()
    };
    open(&tokenizer(), &[], options)
}

/// What each push of a chunk gave; the finish last.
type Shown = Vec<Vec<(String, DecodedText)>>;

fn run(
    mut splitter: SectionSplitter,
    groups: &[Vec<TokenId>],
    skip: bool,
    held: usize,
) -> (Shown, Vec<(String, u64)>) {
    let mut stream = stream(skip, held);
    let mut shown = Vec::new();
    let named = |sections: Vec<detok_core::Section>| {
        let sections = sections.into_iter();
        sections
            .map(|section| (section.name.to_string(), section.decoded))
            .collect()
    };
    for ids in groups {
        stream.push_tokens(ids).unwrap();
        let chunk = stream.next_chunk().unwrap_or_default();
        shown.push(named(splitter.push(&chunk).unwrap()));
    }
    let last = stream.flush(None).unwrap().0.unwrap_or_default();
    shown.push(named(splitter.push(&last).unwrap()));
    shown.push(named(splitter.finish().unwrap()));
    assert!(matches!(splitter.push(&last), Err(Error::Ended(_))));
    let counts = splitter.token_counts().into_iter();
    (
        shown,
        counts
            .map(|(name, count)| (name.to_owned(), count))
            .collect(),
    )
}

/// Text by section, token by token; `|` stands between pushes.
fn told(marker: &Marker, prompt: &str, text: &str, skip: bool) -> String {
    let groups: Vec<_> = ids(text).into_iter().map(|id| vec![id]).collect();
    let (shown, _) = run(splitter(from_ref(marker), &ids(prompt)), &groups, skip, 0);
    let push = |sections: &Vec<(String, DecodedText)>| {
        let sections = sections.iter();
        let sections = sections.map(|(name, decoded)| format!("{}:{}", &name[..1], decoded.text));
        sections.collect::<Vec<_>>().join(" ")
    };
    shown.iter().map(push).collect::<Vec<_>>().join("|")
}

#[test]
fn what_each_token_gives() {
    let text_marker = marker("note", &["(("], &["))"]);
    let pattern = marker("reasoning", &["<|open|>", "t", "<|sep|>"], &["</think>"]);
    let reopening = Marker {
        reopen: true,
        ..think()
    };
    let keeping = Marker {
        keep_markers: true,
        ..think()
    };
    type Row<'r> = (&'r Marker, &'r str, &'r str, &'r str);
    let think = think();
    let rows: [Row<'_>; 17] = [
        (&think, "", "<think>ab</think>c", "|r:a|r:b||c:c||"),
        // What only looks like the token is text at once.
        (&think, "", "<thin", "c:<|c:t|c:h|c:i|c:n||"),
        (&think, "", "a<think>b", "c:a||r:b||"),
        // A start opens once, an end without a start is hidden text like any other special.
        (&think, "", "<think></think><think>a", "||c:|c:a||"),
        (&reopening, "", "<think></think><think>a", "|||r:a||"),
        (&keeping, "", "<think>a</think>b", "r:|r:a|r:|c:b||"),
        // A marker of text waits as long as it may be one.
        (
            &text_marker,
            "",
            "a(b((c)d))e",
            "c:a||c:(b|||n:c||n:)d|||c:e||",
        ),
        (&text_marker, "", "((a)", "||n:a|||n:)"),
        // A pattern of ids and text, and what begins like it.
        (&pattern, "", "<|open|>t<|sep|>a", "|||r:a||"),
        (&pattern, "", "<|open|>u<|sep|>a", "|c:u|c:|c:a||"),
        (&pattern, "", "<|open|><|open|>t<|sep|>a", "|c:|||r:a||"),
        // Where the prompt leaves it.
        (&think, "<think>\n", "a</think>b", "r:a||c:b||"),
        (&think, "<think>\n</think>\n", "<think>b", "c:|c:b||"),
        (&think, "<think>\n<|other|>", "a", "c:a||"),
        (&text_marker, "(", "(a", "|n:a||"),
        (&text_marker, "(", "a", "c:a||"),
        (&pattern, "<|open|>", "t<|sep|>a", "||r:a||"),
    ];
    for (marker, prompt, text, expected) in rows {
        assert_eq!(
            told(marker, prompt, text, true),
            expected,
            "{prompt:?} {text:?}"
        );
    }
    assert_eq!(
        told(&think, "", "a<think>b</think>c", false),
        "c:a||r:b||c:c||"
    );
}

#[test]
fn records_go_with_their_tokens() {
    type Row<'r> = (&'r [TokenId], &'r [(&'r str, DecodedText)], [u64; 3]);
    let byte = |byte: u8| TokenId::from(byte);
    let rows: [Row<'_>; 4] = [
        // Half a character whose rest comes behind the marker: the character stays before it.
        (
            &[0xe4, THINK, 0xbd, 0xa0, byte(b'!')],
            &[
                ("content", text("你", &[visible(0xe4, 0)])),
                (
                    "r",
                    text("!", &[zero(0xbd, 0), zero(0xa0, 0), visible(byte(b'!'), 0)]),
                ),
            ],
            [1, 3, 1],
        ),
        // Without text, before and behind.
        (
            &[OTHER, THINK, OTHER],
            &[
                ("content", text("", &[zero(OTHER, 0)])),
                ("r", text("", &[zero(OTHER, 0)])),
            ],
            [1, 1, 1],
        ),
        // A token belongs to the side of its first byte.
        (
            &[THINK, INTO, OTHER, OUT],
            &[
                ("r", text("x", &[visible(INTO, 0)])),
                ("content", text("y", &[])),
            ],
            [0, 1, 3],
        ),
        // Begun and not completed.
        (
            &[THINK, INTO],
            &[("r", text("x<<", &[visible(INTO, 0)]))],
            [0, 1, 1],
        ),
    ];
    for (ids, expected, counts) in rows {
        let markers = [marker("r", &["<think>"], &["<<<"])];
        let (shown, counted) = run(splitter(&markers, &[]), &[ids.to_vec()], true, 0);
        let shown: Vec<_> = shown.into_iter().flatten().collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(name, decoded)| ((*name).to_owned(), decoded.clone()))
            .collect();
        assert_eq!(joined_runs(&shown), expected, "{ids:?}");
        let [content, reasoning, of_markers] = counts;
        let expected = [
            ("content", content),
            ("r", reasoning),
            ("markers", of_markers),
        ];
        assert_eq!(
            counted,
            expected.map(|(name, count)| (name.to_owned(), count))
        );
    }
}

/// Pieces of one name in a row as one.
fn joined_runs(shown: &[(String, DecodedText)]) -> Vec<(String, DecodedText)> {
    let mut runs: Vec<(String, DecodedText)> = Vec::new();
    for (name, decoded) in shown {
        match runs.last_mut() {
            Some((last, text)) if last == name => text.append(decoded).unwrap(),
            _ => runs.push((name.clone(), decoded.clone())),
        }
    }
    runs
}

#[test]
fn refuses_markers_that_cannot_work() {
    let tokenizer = tokenizer();
    let refused = |markers: &[Marker]| {
        let error = Sections::new(&tokenizer, markers).unwrap_err();
        let is_of_markers = matches!(
            error,
            Error::BadMarker(_) | Error::UnknownMarkerToken { .. }
        );
        assert!(is_of_markers, "{error}");
    };
    // An id that the tokenizer does not have, and one that is a part of a character.
    for id in [1_000, 0xe4] {
        let pattern = vec![MarkerPart::Id(id)];
        refused(&[Marker::new("r", pattern.clone(), vec![], false, false).unwrap()]);
        let also_end = vec![vec![part("a")], pattern];
        let error = Sections::new(
            &tokenizer,
            &[Marker::new("r", vec![part("b")], also_end, false, false).unwrap()],
        );
        let told = error.unwrap_err().to_string();
        assert!(
            told.contains(&format!(
                "part 0 of also_end[0] of marker \"r\" is token id {id}"
            )),
            "{told}"
        );
    }
    refused(&[think(), marker("other", &["<think>"], &["x"])]);
    let long = "a".repeat(detok_core::MAX_MARKER_BYTES + 1);
    refused(&[marker("r", &[&long], &["x"])]);
    for (name, start) in [("", "a"), ("markers", "a"), ("r", "")] {
        assert!(Marker::new(name, vec![part(start)], vec![], false, false).is_err());
    }
    let sections = Arc::new(Sections::new(&tokenizer, &[think()]).unwrap());
    assert!(SectionSplitter::open_in(Arc::clone(&sections), "other").is_err());
    let inside = SectionSplitter::open_in(sections, "reasoning").unwrap();
    assert_eq!(&**inside.section_name(), "reasoning");
}

fn any_markers() -> impl Strategy<Value = Vec<Marker>> {
    let pool = vec![
        think(),
        marker("a", &["<|open|>", "t", "<|sep|>"], &["<|sep|>"]),
        marker("b", &["<<"], &["<y"]),
        marker("b", &["ta"], &["</think>"]),
        marker("content", &["tt"], &["ta"]),
        marker("c", &["<|open|>"], &["<think>"]),
        marker("d", &["x", "<|sep|>"], &["<|open|>", "<|open|>"]),
    ];
    let flags = prop::collection::vec(any::<(bool, bool)>(), pool.len());
    let some = prop::sample::subsequence(pool.clone(), 1..=pool.len());
    (some, flags).prop_map(|(markers, flags)| {
        let flagged = markers.into_iter().zip(flags);
        flagged
            .map(|(marker, (reopen, keep_markers))| Marker {
                reopen,
                keep_markers,
                ..marker
            })
            .collect()
    })
}

fn any_ids() -> impl Strategy<Value = Vec<TokenId>> {
    let special = (THINK..=OUT).boxed();
    let byte = prop::sample::select(b"ta<y>x\xe4\xbd\xa0".to_vec()).prop_map(TokenId::from);
    prop::collection::vec(prop_oneof![special, byte], 0..24)
}

/// Runs of so many ids each, one each behind them.
fn groups(ids: &[TokenId], sizes: &[usize]) -> Vec<Vec<TokenId>> {
    let mut groups = Vec::new();
    let mut left = ids;
    for &size in sizes.iter().chain([&1]).cycle() {
        let (group, behind) = left.split_at(size.min(left.len()));
        groups.push(group.to_vec());
        left = behind;
        if left.is_empty() {
            return groups;
        }
    }
    groups
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn cuts_change_nothing(
        markers in any_markers(),
        prompt in any_ids(),
        ids in any_ids(),
        cuts in prop::collection::vec(0..24_usize, 0..6),
        held in 0..8_usize,
        skip: bool,
    ) {
        let groups = groups(&ids, &cuts);
        let whole = run(splitter(&markers, &prompt), from_ref(&ids), skip, 0);
        let parts = run(splitter(&markers, &prompt), &groups, skip, held);
        let sum: u64 = parts.1.iter().map(|(_, count)| count).sum();
        prop_assert_eq!(sum, ids.len() as u64);
        prop_assert_eq!(&whole.1, &parts.1);
        let runs = |shown: &Shown| joined_runs(&shown.concat());
        prop_assert_eq!(runs(&whole.0), runs(&parts.0));
        for (_, decoded) in parts.0.concat() {
            let DecodedText { text, attributions } = decoded.clone();
            prop_assert!(!decoded.is_empty());
            prop_assert_eq!(DecodedText::new(text, attributions).unwrap(), decoded);
        }
    }

    #[test]
    fn stops_in_a_section_do_not_depend_on_cuts(
        markers in any_markers(),
        prompt in any_ids(),
        ids in any_ids(),
        cuts in prop::collection::vec(0..24_usize, 0..6),
        stops in prop::collection::vec("[ta<y>x]{1,3}", 1..4),
        scope in any::<prop::sample::Index>(),
        include_stop: bool,
        skip: bool,
    ) {
        let tokenizer = tokenizer();
        let sections = Arc::new(Sections::new(&tokenizer, &markers).unwrap());
        let section = scope.index(sections.names().len());
        let options = Arc::new(TextDecodeOptions {
            decode: DecodeOptions { skip_special_tokens: skip, ..DecodeOptions::default() },
            stop: StopStrings::new(&stops).unwrap().map(Arc::new),
            scope: Some(StopScope { sections, section }),
            include_stop,
            ..TextDecodeOptions::default()
        });
        let outcome = |groups: &[Vec<TokenId>]| {
            let mut decoder = RequestDecoder::open(
                Arc::clone(&tokenizer),
                Some(prompt.clone().into()),
                Arc::clone(&options),
                String::new(),
                detok_core::EventOptions::default(),
            ).unwrap();
            let mut text = DecodedText::default();
            let mut sampled = Vec::new();
            for (at, ids) in groups.iter().enumerate() {
                let is_last = at + 1 == groups.len();
                let update = detok_core::EngineUpdate {
                    token_ids: ids.as_slice().into(),
                    finish_reason: is_last.then_some(FinishReason { kind: FinishKind::Length, stop: None }),
                    ..detok_core::EngineUpdate::default()
                };
                for event in decoder.push(&update).unwrap() {
                    let Event::TextDelta(delta) = event else { continue };
                    text.append(&delta.decoded).unwrap();
                    sampled.extend_from_slice(&delta.sampled.token_ids);
                    if let Some(finished) = delta.finished {
                        return (text.text, sampled, finished.finish_reason, finished.stop_match);
                    }
                }
            }
            unreachable!("the last update ends the request")
        };
        let groups = groups(&ids, &cuts);
        prop_assert_eq!(outcome(from_ref(&ids)), outcome(&groups));
    }
}
