//! Where a text ends: tables of stops, and the laws of a generation with stops, over the events of a
//! request. The twin is `common::generation`.
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

use common::generation::{
    End, Run, Wishes, end, outcome, request, run, stopping_spec, updates, wish_picks,
};
use common::sample::bytes_and_words;
use common::{cases, continuing, cut, joined, skipping, text, visible, zero};
use detok_core::{
    BatchDecoder, BatchRequest, DecodedText, EngineUpdate, Error, Event, FinishKind,
    MAX_STOP_BYTES, Stop, StopMatch, StopStrings, TextDecodeOptions, TokenAttribution, TokenId,
    TokenUsage, UnknownIds,
};
use proptest::prelude::*;
use proptest::sample::Index;
use std::fmt::Write;
use std::slice::from_ref;
use std::sync::Arc;

fn bytes(text: &str) -> Vec<TokenId> {
    text.bytes().map(TokenId::from).collect()
}

/// The text a request comes to, and which stop ended it.
fn ended(run: &Run) -> (String, Option<Stop>) {
    let text = run.chunks().iter().map(|chunk| &*chunk.text).collect();
    (text, run.finished().finish_reason.stop.clone())
}

fn string(stop: &str) -> Stop {
    Stop::String(stop.into())
}

/// Text of one token per byte, stops → what is left, and by which of them; the same however the ids
/// come, and with all of the text held back anyway.
#[test]
fn where_texts_end() {
    let included = |stops: &[&str]| Wishes {
        include_stop: true,
        ..Wishes::stopping_at(stops)
    };
    let from = |min_tokens, stops: &[&str]| Wishes {
        min_tokens,
        ..Wishes::stopping_at(stops)
    };
    let stopping = Wishes::stopping_at;
    let rows: [(&str, Wishes, &str, Option<&str>); 33] = [
        ("hello", stopping(&["e"]), "h", Some("e")),
        ("abcxyz", stopping(&["xyz"]), "abc", Some("xyz")),
        ("xhello", stopping(&["x"]), "", Some("x")),
        ("hello", stopping(&["z"]), "hello", None),
        ("hello", stopping(&[]), "hello", None),
        ("say hello world", stopping(&["lo"]), "say hel", Some("lo")),
        ("hello", stopping(&["ll", "lo"]), "he", Some("ll")),
        ("hello", stopping(&["lo", "ll"]), "he", Some("ll")),
        ("hello", included(&["ll"]), "hell", Some("ll")),
        ("hello", from(0, &["e"]), "h", Some("e")),
        ("hello", from(1, &["e"]), "h", Some("e")),
        ("hello", from(2, &["e"]), "hello", None),
        ("hello", from(3, &["e"]), "hello", None),
        ("greet", from(2, &["e"]), "gr", Some("e")),
        ("greet", from(3, &["e"]), "gre", Some("e")),
        // A partial match is remembered across the tokens that do not count.
        ("abcd", from(2, &["abc"]), "", Some("abc")),
        ("abcd", from(3, &["abc"]), "abcd", None),
        ("ababab", from(2, &["ab"]), "ab", Some("ab")),
        (
            " The user is a",
            stopping(&["a", "is"]),
            " The user ",
            Some("is"),
        ),
        (
            " The user is a",
            stopping(&["is", "a"]),
            " The user ",
            Some("is"),
        ),
        ("ab", stopping(&["ab", "b"]), "", Some("ab")),
        ("ab", stopping(&["b", "ab"]), "a", Some("b")),
        ("ab", stopping(&["ab", "ab"]), "", Some("ab")),
        ("abc", stopping(&["abc", "b"]), "a", Some("b")),
        ("say wor", stopping(&["wor", "say"]), "", Some("say")),
        ("say wor", stopping(&["xyz", "wor"]), "say ", Some("wor")),
        ("Answer\n\n", stopping(&["\n"]), "Answer", Some("\n")),
        ("你好世界", stopping(&["世界"]), "你好", Some("世界")),
        ("你好世界", included(&["好"]), "你好", Some("好")),
        ("abc.*", stopping(&[".*"]), "abc", Some(".*")),
        ("aaab", stopping(&["aab"]), "a", Some("aab")),
        // Half a character that the flush replaces is not searched.
        ("a", stopping(&["\u{fffd}"]), "a", None),
        ("", stopping(&["a"]), "", None),
    ];
    let sample = bytes_and_words();
    for (output, wishes, expected, stop) in rows {
        for sizes in [&[1][..], &[100], &[2, 0, 3]] {
            for (intermediate, min_bytes_to_buffer) in [(true, 0), (true, 32), (false, 0)] {
                let wishes = Wishes {
                    min_bytes_to_buffer,
                    ..wishes.clone()
                };
                let decoder = request(&sample.loose, &[], &wishes, intermediate);
                let run = run(decoder, &updates(&bytes(output), sizes, End::Length)).unwrap();
                let name = format!("{output:?}, {wishes:?}, updates of {sizes:?}");
                assert_eq!(
                    ended(&run),
                    (expected.to_owned(), stop.map(string)),
                    "{name}"
                );
                let kind = if stop.is_some() {
                    FinishKind::Stop
                } else {
                    FinishKind::Length
                };
                assert_eq!(run.finished().finish_reason.kind, kind, "{name}");
            }
        }
    }
}

/// A token with several bytes: what it is cut to, and which token it is said to be.
#[test]
fn what_a_stop_leaves_of_tokens() {
    let sample = bytes_and_words();
    let [ok, abcd, ab, empty, special, half] =
        ["ok", "abcd", "ab", "", "<s>", "Ġä½łstop"].map(|token| sample.id(token));
    let [a, b, c] = [97, 98, 99];
    type Row = (
        &'static str,
        Vec<TokenId>,
        Wishes,
        DecodedText,
        (u64, u64, bool),
        Option<u64>,
    );
    let stopping = Wishes::stopping_at;
    let rows: [Row; 13] = [
        (
            "a token all of which goes",
            vec![ab, abcd],
            stopping(&["abcd"]),
            text("ab", &[visible(ab, 0), cut(zero(abcd, 2))]),
            (2, 1, true),
            Some(1),
        ),
        (
            "a token in the middle of which the stop begins",
            vec![abcd],
            stopping(&["cd"]),
            text("ab", &[cut(visible(abcd, 0))]),
            (2, 0, true),
            Some(0),
        ),
        (
            "a token that goes on behind the stop",
            vec![ok, abcd],
            stopping(&["b"]),
            text("oka", &[visible(ok, 0), cut(visible(abcd, 2))]),
            (3, 1, true),
            Some(1),
        ),
        (
            "the same with the stop in the text",
            vec![ok, abcd],
            Wishes {
                include_stop: true,
                ..stopping(&["b"])
            },
            text("okab", &[visible(ok, 0), cut(visible(abcd, 2))]),
            (4, 1, true),
            Some(1),
        ),
        (
            "nothing is lost if the stop is in the text and ends it",
            vec![a, b, c],
            Wishes {
                include_stop: true,
                ..stopping(&["abc"])
            },
            text("abc", &[visible(a, 0), visible(b, 1), visible(c, 2)]),
            (3, 2, false),
            None,
        ),
        (
            "across tokens, the first of which keeps text",
            vec![abcd, b, c],
            stopping(&["dbc"]),
            text(
                "abc",
                &[cut(visible(abcd, 0)), cut(zero(b, 3)), cut(zero(c, 3))],
            ),
            (3, 2, true),
            Some(0),
        ),
        (
            "across a hidden special, which stays where the cut is if it stood there",
            vec![a, special, b, c],
            stopping(&["bc"]),
            text(
                "a",
                &[
                    visible(a, 0),
                    zero(special, 1),
                    cut(zero(b, 1)),
                    cut(zero(c, 1)),
                ],
            ),
            (1, 3, true),
            Some(2),
        ),
        (
            "across a hidden special inside the stop, which moves",
            vec![a, b, special, c],
            stopping(&["bc"]),
            text(
                "a",
                &[
                    visible(a, 0),
                    cut(zero(b, 1)),
                    cut(zero(special, 1)),
                    cut(zero(c, 1)),
                ],
            ),
            (1, 3, true),
            Some(1),
        ),
        (
            "across an empty token and an unknown one",
            vec![a, b, empty, 9_999, c],
            stopping(&["bc"]),
            text(
                "a",
                &[
                    visible(a, 0),
                    cut(zero(b, 1)),
                    cut(zero(empty, 1)),
                    cut(zero(9_999, 1)),
                    cut(zero(c, 1)),
                ],
            ),
            (1, 4, true),
            Some(1),
        ),
        (
            "a character of three tokens",
            vec![a, 0xe4, 0xbd, 0xa0],
            stopping(&["你"]),
            text(
                "a",
                &[
                    visible(a, 0),
                    cut(zero(0xe4, 1)),
                    cut(zero(0xbd, 1)),
                    cut(zero(0xa0, 1)),
                ],
            ),
            (1, 3, true),
            Some(1),
        ),
        (
            "a character of several tokens before the stop",
            vec![0xe4, 0xbd, 0xa0, b],
            stopping(&["b"]),
            text(
                "你",
                &[
                    visible(0xe4, 0),
                    continuing(0xbd, 0),
                    continuing(0xa0, 0),
                    cut(zero(b, 3)),
                ],
            ),
            (3, 3, true),
            Some(3),
        ),
        (
            "U+FFFD that a token proves is text",
            vec![0xe4, a],
            stopping(&["\u{fffd}"]),
            text("", &[cut(zero(0xe4, 0)), cut(zero(a, 0))]),
            (0, 1, true),
            Some(0),
        ),
        (
            "a stop inside a token of other characters",
            vec![half, a],
            stopping(&["你s"]),
            text(" ", &[cut(visible(half, 0))]),
            (1, 0, true),
            Some(0),
        ),
    ];
    for (name, ids, wishes, expected, (byte_offset, token_index, cut), first_cut) in rows {
        for (intermediate, min_bytes_to_buffer) in [(false, 0), (true, 32)] {
            let wishes = Wishes {
                decode: skipping(),
                min_bytes_to_buffer,
                ..wishes.clone()
            };
            let decoder = request(&sample.loose, &[], &wishes, intermediate);
            let run = run(decoder, &updates(&ids, &[1], End::Length)).unwrap();
            assert_eq!(joined(&run.chunks()), expected, "{name}");
            let finished = run.finished();
            let found = StopMatch {
                stop: string(&wishes.stops[0]),
                byte_offset,
                token_index,
                cut,
            };
            assert_eq!(finished.stop_match.as_ref(), Some(&found), "{name}");
            assert_eq!(finished.first_cut_token, first_cut, "{name}");
        }
    }
}

/// A record that left cannot change: `first_cut_token` names the token all the same.
#[test]
fn a_token_whose_record_left_lost_text() {
    let sample = bytes_and_words();
    let [abcd, x] = [sample.id("abcd"), 120];
    let rows: [(&str, &[TokenId], &str, &[TokenAttribution], Option<u64>); 4] = [
        (
            "its end goes",
            &[abcd, x],
            "abc",
            &[cut(zero(x, 0))],
            Some(0),
        ),
        (
            "nothing of it goes",
            &[abcd, x],
            "abcd",
            &[cut(zero(x, 1))],
            Some(1),
        ),
        (
            "with a hidden token between",
            &[abcd, sample.id("<s>"), x],
            "ab",
            &[cut(zero(sample.id("<s>"), 0)), cut(zero(x, 0))],
            Some(0),
        ),
        (
            "behind one that lost nothing",
            &[x, abcd, x],
            "xabc",
            &[cut(zero(x, 0))],
            Some(1),
        ),
    ];
    for (name, ids, expected, last_records, first_cut) in rows {
        let whole: String = ids
            .iter()
            .map(|&id| match id {
                120 => "x",
                id if id == abcd => "abcd",
                _ => "",
            })
            .collect();
        // With a stop that is what the cut takes off, and one that holds back just as much.
        let stop = whole.strip_prefix(expected).unwrap();
        let wishes = Wishes::stopping_at(&[stop, "d!"]);
        let decoder = request(&sample.loose, &[], &wishes, true);
        let run = run(decoder, &updates(ids, &[1], End::Length)).unwrap();
        assert_eq!(joined(&run.chunks()).text, expected, "{name}");
        assert_eq!(
            run.chunks().last().unwrap().attributions[..],
            *last_records,
            "{name}"
        );
        assert_eq!(run.finished().first_cut_token, first_cut, "{name}");
    }
}

/// What is out after each token: all but the longest suffix that may become a stop.
#[test]
fn what_is_held_back() {
    let sample = bytes_and_words();
    let rows: [(&str, Wishes, &[&str]); 8] = [
        ("abab", Wishes::stopping_at(&["abc"]), &["", "", "ab", "ab"]),
        ("abx", Wishes::stopping_at(&["abc"]), &["", "", "abx"]),
        ("aab", Wishes::stopping_at(&["abc", "bx"]), &["", "a", "a"]),
        // Without the constant of the longest stop less one.
        ("xyz", Wishes::stopping_at(&["abcdef"]), &["x", "xy", "xyz"]),
        (
            "xyz",
            Wishes {
                min_bytes_to_buffer: 1,
                ..Wishes::stopping_at(&["z!"])
            },
            &["", "x", "xy"],
        ),
        // A whole stop that did not count is no beginning of itself, but may be of another.
        (
            "ab",
            Wishes {
                min_tokens: 2,
                ..Wishes::stopping_at(&["ab"])
            },
            &["", "ab"],
        ),
        (
            "ab",
            Wishes {
                min_tokens: 2,
                ..Wishes::stopping_at(&["ab", "abc"])
            },
            &["", ""],
        ),
        (
            "ab",
            Wishes {
                include_stop: true,
                ..Wishes::stopping_at(&["abc"])
            },
            &["a", "ab"],
        ),
    ];
    for (output, wishes, shown) in rows {
        let mut decoder = request(&sample.loose, &[], &wishes, true);
        let mut out = String::new();
        for (id, shown) in bytes(output).into_iter().zip(shown) {
            let update = EngineUpdate {
                token_ids: [id].as_slice().into(),
                ..EngineUpdate::default()
            };
            for event in decoder.push(&update).unwrap() {
                if let Event::TextDelta(delta) = event {
                    out.push_str(&delta.decoded.text);
                }
            }
            assert_eq!(out, *shown, "{output:?} {wishes:?}");
        }
    }
}

/// Stop token ids end a request when they are sampled: text, records, kept ids, and the match.
#[test]
fn stop_token_ids() {
    let sample = bytes_and_words();
    let special = sample.id("<s>");
    let [a, b, e4] = [97, 98, 0xe4];
    let at = |ids: &[TokenId]| Wishes {
        stop_token_ids: ids.to_vec(),
        ..Wishes::default()
    };
    let included = |ids: &[TokenId]| Wishes {
        include_stop: true,
        ..at(ids)
    };
    type Row = (
        &'static str,
        Vec<TokenId>,
        Wishes,
        DecodedText,
        Option<(u64, u64)>,
    );
    let rows: [Row; 11] = [
        (
            "not pushed",
            vec![a, b, a],
            at(&[b]),
            text("a", &[visible(a, 0)]),
            Some((1, 1)),
        ),
        (
            "pushed if included",
            vec![a, b, a],
            included(&[b]),
            text("ab", &[visible(a, 0), visible(b, 1)]),
            Some((2, 1)),
        ),
        (
            "hidden, if included",
            vec![a, special],
            included(&[special]),
            text("a", &[visible(a, 0), zero(special, 1)]),
            Some((1, 1)),
        ),
        (
            "never unknown",
            vec![a, 9_999],
            at(&[9_999]),
            text("a", &[visible(a, 0)]),
            Some((1, 1)),
        ),
        (
            "the first of all",
            vec![b],
            at(&[a, b]),
            text("", &[]),
            Some((0, 0)),
        ),
        (
            "half a character is flushed",
            vec![e4, a],
            at(&[a]),
            text("\u{fffd}", &[visible(e4, 0)]),
            Some((3, 1)),
        ),
        (
            "among the first that do not count",
            vec![b, a, b, a],
            Wishes {
                min_tokens: 2,
                ..at(&[b])
            },
            text("ba", &[visible(b, 0), visible(a, 1)]),
            Some((2, 2)),
        ),
        (
            "never counted",
            vec![b, a],
            Wishes {
                min_tokens: 2,
                ..at(&[b])
            },
            text("ba", &[visible(b, 0), visible(a, 1)]),
            None,
        ),
        (
            "what was held back comes out",
            vec![a, b],
            Wishes {
                stops: vec!["ax".into()],
                ..at(&[b])
            },
            text("a", &[visible(a, 0)]),
            Some((1, 1)),
        ),
        (
            "judged before there is text: no stop string is completed by it",
            vec![a, b],
            Wishes {
                stops: vec!["ab".into()],
                ..included(&[b])
            },
            text("ab", &[visible(a, 0), visible(b, 1)]),
            Some((2, 1)),
        ),
        (
            "a stop string before it wins",
            vec![a, b],
            Wishes {
                stops: vec!["a".into()],
                ..at(&[b])
            },
            text("", &[cut(zero(a, 0))]),
            None,
        ),
    ];
    for (name, ids, wishes, expected, at) in rows {
        for sizes in [&[1][..], &[9]] {
            let decoder = request(&sample.loose, &[], &wishes, true);
            let run = run(decoder, &updates(&ids, sizes, End::Length)).unwrap();
            assert_eq!(joined(&run.chunks()), expected, "{name}");
            let finished = run.finished();
            let kept = at.map(|(byte_offset, token_index)| {
                let stop = Stop::Token(ids[token_index as usize]);
                let found = StopMatch {
                    stop: stop.clone(),
                    byte_offset,
                    token_index,
                    cut: false,
                };
                assert_eq!(finished.stop_match, Some(found), "{name}");
                assert_eq!(finished.finish_reason.stop, Some(stop), "{name}");
                assert_eq!(finished.first_cut_token, None, "{name}");
                token_index as usize + 1
            });
            if let Some(kept) = kept {
                assert_eq!(run.sampled(), ids[..kept], "{name}");
                assert_eq!(finished.usage.output_token_count, kept as u64, "{name}");
            }
        }
    }
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0..6usize, 1..6)
}

fn picks(most: usize) -> impl Strategy<Value = Vec<Index>> {
    prop::collection::vec(any::<Index>(), 0..=most)
}

proptest! {
    #![proptest_config(cases(256))]

    /// **cuts** over events: any grouping of the same ids into updates gives the same text, records
    /// (but for `cut` of records already sent), stop decision, kept and dropped ids, usage.
    /// **earliest**: after each update exactly the text less the longest beginning of a stop is out.
    #[test]
    fn cuts_and_earliest(
        spec in stopping_spec(), prompt in picks(4), output in picks(20), wishes in wish_picks(),
        sizes in sizes(), end in end(), intermediate in prop::bool::weighted(0.8),
    ) {
        let sample = spec.load();
        prop_assume!(sample.is_exact());
        let (prompt, ids) = (sample.pick(&prompt, true), sample.pick(&output, true));
        let wishes = wishes.of(&sample, &prompt, &ids, UnknownIds::Skip);
        let silent = end.is_silent(&wishes);
        let expected = outcome(&sample, &wishes, &prompt, &ids, silent);
        let updates = updates(&ids, &sizes, end);
        let run = run(request(&sample.loose, &prompt, &wishes, intermediate), &updates).unwrap();
        let chunks = run.chunks();
        let finished = run.finished();
        let words = format!("{} | {}", sample.words(&prompt), sample.words(&ids));

        let got = joined(&chunks);
        prop_assert_eq!(&got.text, &expected.decoded.text, "{}", words);
        prop_assert_eq!(&finished.stop_match, &expected.stop_match, "{}", words);
        prop_assert_eq!(finished.first_cut_token, expected.first_cut_token, "{}", words);
        let sent = got.attributions.len() - chunks.last().unwrap().attributions.len();
        prop_assert_eq!(got.attributions.len(), expected.decoded.attributions.len());
        for (at, (got, expected)) in got.attributions.iter().zip(&expected.decoded.attributions).enumerate() {
            let cut = if at < sent { false } else { expected.cut };
            prop_assert_eq!(*got, TokenAttribution { cut, ..*expected }, "record {}: {}", at, words);
        }

        let (kept, behind) = ids.split_at(expected.kept);
        prop_assert_eq!(run.sampled(), kept);
        let pushed: usize = updates.iter().take(run.updates).map(|update| update.token_ids.len()).sum();
        if expected.stop_match.is_some() {
            prop_assert_eq!(&finished.dropped_token_ids, &behind[..pushed - kept.len()]);
        } else {
            prop_assert_eq!(finished.dropped_token_ids.len(), 0);
        }
        let own = expected.stop_match.as_ref().map(|found| found.stop.clone());
        let reason = end.reason(ids.last().copied());
        prop_assert_eq!(finished.finish_reason.kind, if own.is_some() { FinishKind::Stop } else { reason.kind });
        prop_assert_eq!(&finished.finish_reason.stop, &own.or(reason.stop));
        let cached = updates.iter().take(run.updates).map(|update| update.cached_token_count);
        prop_assert_eq!(finished.usage, TokenUsage {
            prompt_token_count: prompt.len() as u64,
            output_token_count: kept.len() as u64,
            cached_token_count: cached.max().unwrap_or(0),
        });
        prop_assert_eq!(run.deltas.len(), if intermediate { run.updates } else { 1 });

        if intermediate {
            let (mut tokens, mut out) = (0, 0);
            for (delta, update) in run.deltas.iter().zip(&updates) {
                tokens += update.token_ids.len();
                out += delta.decoded.text.len();
                prop_assert_eq!(delta.finished.is_some(), std::ptr::eq(delta, run.deltas.last().unwrap()));
                if delta.finished.is_none() {
                    let shown = tokens.checked_sub(1).map_or(0, |at| expected.shown[at]);
                    prop_assert_eq!(out, shown, "after {} of {}", tokens, words);
                }
            }
        }
    }

    /// **bounded**: less is held than the longest stop has, or than is wanted.
    #[test]
    fn bounded(spec in stopping_spec(), output in picks(20), wishes in wish_picks()) {
        let sample = spec.load();
        prop_assume!(sample.is_exact());
        let ids = sample.pick(&output, true);
        let wishes = wishes.of(&sample, &[], &ids, UnknownIds::Skip);
        let mut batch = BatchDecoder::new(Arc::clone(&sample.loose));
        let none: &[TokenId] = &[];
        let request = BatchRequest::open::<Error>(Arc::clone(&sample.loose), none, wishes.options()).unwrap();
        let slot = batch.add(request).unwrap();
        let longest = wishes.stops.iter().map(String::len).max().unwrap_or(0);
        // What a decoder withholds at the end of text is not what a stop holds.
        let withheld = 8;
        // A hold-back that falls into a character holds all of it.
        let most = longest.saturating_sub(1).max(wishes.min_bytes_to_buffer + 3) + withheld;
        for &id in &ids {
            if !batch.step(&[slot], &[id], None, false, 1).unwrap().stopped().is_empty() {
                break;
            }
            let pending = batch.pending(slot).unwrap();
            prop_assert!(pending.incomplete_bytes <= 3);
            prop_assert!(pending.held_bytes <= most, "{:?} {:?}", pending, wishes);
        }
    }
}

fn only_stops(strings: &[impl AsRef<str>]) -> Arc<TextDecodeOptions> {
    Arc::new(TextDecodeOptions {
        stop: StopStrings::new(strings).unwrap().map(Arc::new),
        ..TextDecodeOptions::default()
    })
}

/// Stops at their limits. Each row pushes text that reaches the last byte of a stop, leaves it, and
/// comes back: what costs more than its bytes would not come to an end.
#[test]
fn limits() {
    let sample = bytes_and_words();
    let many: Vec<String> = (0..100_000).map(|n| format!("stop {n} here")).collect();
    let wide = "あ".repeat(10_000);
    let long = (0..1 << 17).fold(String::new(), |mut long, n| {
        write!(long, "{n:08x}").unwrap();
        long
    });
    let same = "a".repeat(1 << 20);
    let rows: [(&str, &[String], &str); 4] = [
        ("100,000 stops", &many, "stop 99999 here"),
        ("10,000 wide characters", from_ref(&wide), &wide),
        ("1 MiB", from_ref(&long), &long),
        // Each byte behind the first that does not fit may begin it anew.
        ("1 MiB of one letter", from_ref(&same), &same),
    ];
    for (name, stops, stop) in rows {
        let options = only_stops(stops);
        let tokenizer = Arc::clone(&sample.loose);
        let none: &[TokenId] = &[];
        let mut batch = BatchDecoder::new(Arc::clone(&tokenizer));
        let slot = batch
            .add(BatchRequest::open::<Error>(tokenizer, none, options).unwrap())
            .unwrap();
        let last = stop.chars().last().unwrap();
        let almost = &stop[..stop.len() - last.len_utf8()];
        let mut out = 0;
        let push = |batch: &mut BatchDecoder, text: &str| {
            let ids = bytes(text);
            // In small updates, so that what is held back is looked at many times.
            let mut out = 0;
            for run in ids.chunks(64) {
                let step = batch.step(&[slot], run, Some(&[run.len() as u32]), false, 1);
                out += step.unwrap().text(0).unwrap().len();
            }
            out
        };
        out += push(&mut batch, almost);
        assert_eq!(out, 0, "{name}");
        assert_eq!(
            batch.pending(slot).unwrap().held_bytes,
            almost.len(),
            "{name}"
        );
        out += push(&mut batch, "!");
        assert_eq!(out, almost.len() + 1, "{name}: all of it comes out");
        out += push(&mut batch, almost);
        assert_eq!(out, almost.len() + 1, "{name}");
        let mut buffer = [0; 4];
        let ids = bytes(last.encode_utf8(&mut buffer));
        let step = batch
            .step(&[slot], &ids, Some(&[ids.len() as u32]), false, 1)
            .unwrap();
        let (_, found) = &step.stopped()[0];
        assert_eq!(
            (&found.stop, found.byte_offset),
            (&string(stop), out as u64),
            "{name}"
        );
        assert_eq!(step.text(0), Some(""), "{name}");
    }
}

#[test]
fn stops_that_are_refused() {
    let refused = |stops: &[&str]| {
        let refused = StopStrings::new(stops).unwrap_err();
        assert!(matches!(refused, Error::BadStop(_)));
        refused.to_string()
    };
    assert!(refused(&["a", ""]).contains("stop[1]"));
    let half = "a".repeat(MAX_STOP_BYTES / 2 + 1);
    assert!(refused(&[&half, &half]).contains(&MAX_STOP_BYTES.to_string()));
    let most = "a".repeat(MAX_STOP_BYTES);
    let stops = StopStrings::new(&[&most]).unwrap().unwrap();
    assert_eq!(stops.strings().len(), 1);
}
