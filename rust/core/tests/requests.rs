//! One request as events: the rows of the contract, prompts, ends, and what fails without a trace.
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
    End, Wishes, end, logprobs_of, request, run, stopping_spec, updates, wish_picks,
};
use common::sample::{Sample, bytes_and_words};
use common::{cases, continuing, joined, skipping, text, visible, zero};
use detok_core::{
    DecodeOptions, DecodedText, Ended, EngineUpdate, Error, Event, EventOptions, Events,
    FinishKind, FinishReason, GivenLogprobs, RequestDecoder, Stop, TokenId, TokenLogprob,
    TokenUsage, UnknownIds, prompt_positions,
};
use proptest::prelude::*;
use proptest::sample::Index;
use std::sync::Arc;

fn update(ids: &[TokenId]) -> EngineUpdate {
    EngineUpdate {
        token_ids: ids.into(),
        ..EngineUpdate::default()
    }
}

fn last(ids: &[TokenId], kind: FinishKind, stop: Option<Stop>) -> EngineUpdate {
    EngineUpdate {
        finish_reason: Some(FinishReason { kind, stop }),
        ..update(ids)
    }
}

fn length(ids: &[TokenId]) -> EngineUpdate {
    last(ids, FinishKind::Length, None)
}

/// Without a prompt of its own.
fn promptless(sample: &Sample) -> RequestDecoder {
    let (tokenizer, options) = (Arc::clone(&sample.loose), Wishes::default().options());
    RequestDecoder::open(
        tokenizer,
        None,
        options,
        "r1".into(),
        EventOptions::default(),
    )
    .unwrap()
}

fn nothing() -> DecodedText {
    DecodedText::default()
}

/// The rows of the attribution contract, each update's text and records beside what was sampled.
#[test]
fn what_each_update_gives() {
    let sample = bytes_and_words();
    let [special, abcd, ab, empty] = ["<s>", "abcd", "ab", ""].map(|token| sample.id(token));
    let [o, k, a, b, bang] = [111, 107, 97, 98, 33];
    let unknown = 9_999;
    let hidden = || Wishes {
        decode: skipping(),
        ..Wishes::default()
    };
    let shown = || Wishes {
        decode: DecodeOptions {
            skip_special_tokens: false,
            ..skipping()
        },
        ..Wishes::default()
    };
    let holding = |min_bytes_to_buffer, stops: &[&str]| Wishes {
        min_bytes_to_buffer,
        ..Wishes::stopping_at(stops)
    };
    let you = || [visible(0xe4, 0), continuing(0xbd, 0), continuing(0xa0, 0)];
    type Row<'r> = (
        &'static str,
        &'r [TokenId],
        Vec<EngineUpdate>,
        Wishes,
        Vec<DecodedText>,
        u64,
    );
    let rows: Vec<Row<'_>> = vec![
        (
            "one each",
            &[],
            vec![update(&[o]), length(&[k])],
            hidden(),
            vec![text("o", &[visible(o, 0)]), text("k", &[visible(k, 0)])],
            2,
        ),
        (
            "a character of three tokens",
            &[],
            vec![
                update(&[0xe4]),
                update(&[0xbd]),
                update(&[0xa0]),
                length(&[]),
            ],
            hidden(),
            vec![nothing(), nothing(), text("你", &you()), nothing()],
            3,
        ),
        (
            "two clocks",
            &[],
            vec![update(&[0xe4]), length(&[0xbd, 0xa0])],
            hidden(),
            vec![nothing(), text("你", &you())],
            3,
        ),
        (
            "a token split by the hold-back leaves once",
            &[],
            vec![update(&[abcd]), length(&[])],
            holding(2, &[]),
            vec![text("ab", &[visible(abcd, 0)]), text("cd", &[])],
            1,
        ),
        (
            "a hidden special",
            &[],
            vec![update(&[a]), update(&[special]), length(&[b])],
            hidden(),
            vec![
                text("a", &[visible(a, 0)]),
                text("", &[zero(special, 0)]),
                text("b", &[visible(b, 0)]),
            ],
            3,
        ),
        (
            "a hidden special between the parts of a character",
            &[],
            vec![update(&[0xe4, special, 0xbd]), length(&[0xa0])],
            hidden(),
            vec![
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
            ],
            4,
        ),
        (
            "a special shown",
            &[],
            vec![length(&[special])],
            shown(),
            vec![text("<s>", &[visible(special, 0)])],
            1,
        ),
        (
            "a token of nothing",
            &[],
            vec![length(&[empty])],
            hidden(),
            vec![text("", &[zero(empty, 0)])],
            1,
        ),
        (
            "an unfinished character at the end",
            &[],
            vec![update(&[0xe4]), length(&[0xbd])],
            hidden(),
            vec![
                nothing(),
                text("\u{fffd}", &[visible(0xe4, 0), continuing(0xbd, 0)]),
            ],
            2,
        ),
        (
            "a stop in a token of its own, all held back",
            &[],
            vec![update(&[ab]), length(&[abcd])],
            holding(32, &["abcd"]),
            vec![
                nothing(),
                text("ab", &[visible(ab, 0), common::cut(zero(abcd, 2))]),
            ],
            2,
        ),
        (
            "a stop at the end of a token, all held back",
            &[],
            vec![length(&[abcd])],
            holding(32, &["cd"]),
            vec![text("ab", &[common::cut(visible(abcd, 0))])],
            1,
        ),
        (
            "behind a prompt",
            &[72, 105],
            vec![length(&[bang])],
            hidden(),
            vec![text("!", &[visible(bang, 0)])],
            1,
        ),
        (
            "behind half a character of the prompt",
            &[0xe4, 0xbd],
            vec![length(&[0xa0])],
            hidden(),
            vec![text("你", &[continuing(0xa0, 0)])],
            1,
        ),
        (
            "unknown ids",
            &[],
            vec![length(&[unknown, a, unknown, b])],
            hidden(),
            vec![text(
                "ab",
                &[
                    zero(unknown, 0),
                    visible(a, 0),
                    zero(unknown, 1),
                    visible(b, 1),
                ],
            )],
            4,
        ),
        (
            "an end of sequence has no text",
            &[],
            vec![last(&[a, bang], FinishKind::Stop, Some(Stop::Token(bang)))],
            hidden(),
            vec![text("a", &[visible(a, 0)])],
            2,
        ),
        (
            "an empty update",
            &[],
            vec![update(&[]), length(&[])],
            hidden(),
            vec![nothing(), nothing()],
            0,
        ),
    ];
    for (name, prompt, updates, wishes, chunks, usage) in rows {
        let run = run(request(&sample.loose, prompt, &wishes, true), &updates).unwrap();
        assert_eq!(&run.start.prompt_token_ids[..], prompt, "{name}");
        assert_eq!(run.chunks(), chunks, "{name}");
        for (delta, update) in run.deltas.iter().zip(&updates) {
            assert_eq!(delta.sampled.token_ids, update.token_ids, "{name}");
            assert_eq!(delta.sampled.logprobs, None, "{name}");
        }
        let expected = TokenUsage {
            prompt_token_count: prompt.len() as u64,
            output_token_count: usage,
            cached_token_count: 0,
        };
        assert_eq!(run.finished().usage, expected, "{name}");
        // All at the end: the same, joined.
        let at_end = self::run(request(&sample.loose, prompt, &wishes, false), &updates).unwrap();
        assert_eq!(at_end.chunks(), [joined(&chunks)], "{name}");
        assert_eq!(at_end.sampled(), run.sampled(), "{name}");
        assert_eq!(at_end.finished(), run.finished(), "{name}");
    }
}

/// Whether the last id is text, by what the engine says of its end.
#[test]
fn ends_of_the_engine() {
    let sample = bytes_and_words();
    let [a, b, special] = [97, 98, sample.id("<s>")];
    let by = |stop: Stop| (FinishKind::Stop, Some(stop));
    let included = || Wishes {
        include_stop: true,
        ..Wishes::default()
    };
    let stopping = |ids: &[TokenId]| Wishes {
        stop_token_ids: ids.to_vec(),
        ..Wishes::default()
    };
    type Row = (
        Vec<TokenId>,
        (FinishKind, Option<Stop>),
        Wishes,
        &'static str,
        Option<Stop>,
        bool,
    );
    let rows: Vec<Row> = vec![
        (
            vec![a, b],
            (FinishKind::Length, None),
            Wishes::default(),
            "ab",
            None,
            false,
        ),
        (
            vec![a, b],
            (FinishKind::Abort, None),
            Wishes::default(),
            "ab",
            None,
            false,
        ),
        (
            vec![a, b],
            (FinishKind::Repetition, None),
            Wishes::default(),
            "ab",
            None,
            false,
        ),
        (
            vec![a, b],
            (FinishKind::Stop, None),
            Wishes::default(),
            "a",
            None,
            false,
        ),
        (
            vec![a, b],
            by(Stop::Token(b)),
            Wishes::default(),
            "a",
            Some(Stop::Token(b)),
            false,
        ),
        (
            vec![a, b],
            by(Stop::Token(a)),
            Wishes::default(),
            "ab",
            Some(Stop::Token(a)),
            false,
        ),
        (
            vec![a, b],
            by(Stop::String("b".into())),
            Wishes::default(),
            "ab",
            Some(Stop::String("b".into())),
            false,
        ),
        (
            vec![a, b],
            (FinishKind::Stop, None),
            included(),
            "ab",
            None,
            false,
        ),
        (
            vec![a, special],
            (FinishKind::Stop, None),
            included(),
            "a",
            None,
            false,
        ),
        // Not pushed, so never unknown.
        (
            vec![a, 9_999],
            (FinishKind::Stop, None),
            Wishes::default(),
            "a",
            None,
            false,
        ),
        // Not pushed, so no stop string is complete.
        (
            vec![a, b],
            (FinishKind::Stop, None),
            Wishes::stopping_at(&["b"]),
            "a",
            None,
            false,
        ),
        (
            vec![],
            (FinishKind::Stop, None),
            Wishes::default(),
            "",
            None,
            false,
        ),
        // Its own stops win.
        (
            vec![a, b],
            (FinishKind::Stop, None),
            stopping(&[b]),
            "a",
            Some(Stop::Token(b)),
            true,
        ),
        (
            vec![a, b],
            (FinishKind::Length, None),
            stopping(&[a]),
            "",
            Some(Stop::Token(a)),
            true,
        ),
        (
            vec![a, b],
            (FinishKind::Length, None),
            Wishes::stopping_at(&["a"]),
            "",
            Some(Stop::String("a".into())),
            true,
        ),
        // Unless they do not count yet.
        (
            vec![a, b],
            (FinishKind::Stop, None),
            Wishes {
                min_tokens: 2,
                ..stopping(&[b])
            },
            "a",
            None,
            false,
        ),
    ];
    for (ids, (kind, stop), wishes, expected, found, own) in rows {
        for intermediate in [true, false] {
            let decoder = request(&sample.loose, &[], &wishes, intermediate);
            let name = format!("{ids:?} {kind:?} {stop:?} {wishes:?}");
            let run = run(decoder, &[last(&ids, kind, stop.clone())]).unwrap();
            let finished = run.finished();
            assert_eq!(joined(&run.chunks()).text, expected, "{name}");
            assert_eq!(finished.stop_match.is_some(), own, "{name}");
            let kind = if own { FinishKind::Stop } else { kind };
            assert_eq!(
                finished.finish_reason,
                FinishReason {
                    kind,
                    stop: found.clone()
                },
                "{name}"
            );
            let kept = run.sampled();
            assert_eq!(
                [&kept[..], &finished.dropped_token_ids].concat(),
                ids,
                "{name}"
            );
            assert_eq!(
                finished.usage.output_token_count,
                kept.len() as u64,
                "{name}"
            );
        }
    }
}

/// The prompt comes with the decoder or with the first update.
#[test]
fn prompts() {
    let sample = bytes_and_words();
    let told = |ids: &[TokenId], prompt: &[TokenId]| EngineUpdate {
        prompt_token_ids: Some(prompt.into()),
        ..update(ids)
    };
    let own = |prompt: &[TokenId]| request(&sample.loose, prompt, &Wishes::default(), true);
    let none: Vec<TokenId> = Vec::new();
    let started = |events: &Events| match &events[0] {
        Event::Start(start) => start.prompt_token_ids.to_vec(),
        event @ Event::TextDelta(_) => panic!("{event:?}"),
    };
    assert_eq!(started(&own(&[72]).push(&update(&[97])).unwrap()), [72]);
    assert_eq!(
        started(&own(&[72]).push(&told(&[97], &[72])).unwrap()),
        [72]
    );
    assert_eq!(
        started(&promptless(&sample).push(&told(&[97], &[72])).unwrap()),
        [72]
    );
    assert_eq!(
        started(&promptless(&sample).push(&told(&[97], &[])).unwrap()),
        none
    );

    let mut decoder = own(&[72]);
    let refused = decoder.push(&told(&[97], &[73])).unwrap_err();
    assert!(matches!(refused, Error::BadUpdate(_)), "{refused}");
    assert_eq!(
        started(&decoder.push(&update(&[97])).unwrap()),
        [72],
        "nothing had changed"
    );
    // Later it is not looked at.
    assert_eq!(decoder.push(&told(&[97], &[73])).unwrap().len(), 1);

    let mut decoder = promptless(&sample);
    let refused = decoder.push(&update(&[97])).unwrap_err();
    assert!(
        matches!(&refused, Error::Request { request_id, .. } if request_id == "r1"),
        "{refused}"
    );
    // An update that failed leaves no prompt behind.
    assert!(decoder.push(&told(&[9_999], &[0xe4])).is_err());
    let events = decoder.push(&told(&[0xbd, 0xa0], &[0xe4])).unwrap();
    assert_eq!(started(&events), [0xe4]);
    let Event::TextDelta(delta) = &events[1] else {
        panic!("{events:?}")
    };
    assert_eq!(delta.decoded.text, "你");

    // A prompt's own unknown ids are passed over.
    let mut decoder = own(&[9_999, 0xe4, 9_999]);
    let events = decoder.push(&length(&[0xbd, 0xa0])).unwrap();
    let Event::TextDelta(delta) = &events[1] else {
        panic!("{events:?}")
    };
    assert_eq!(delta.decoded.text, "你");
    assert_eq!(delta.finished.as_ref().unwrap().usage.prompt_token_count, 3);
}

#[test]
fn failures_name_the_request_and_change_nothing() {
    let sample = bytes_and_words();
    let mut decoder = request(&sample.loose, &[], &Wishes::stopping_at(&["b"]), true);
    decoder.push(&update(&[97])).unwrap();
    let refused = decoder
        .push(&last(&[98], FinishKind::Error, None))
        .unwrap_err();
    assert!(matches!(&refused, Error::Request { request_id, .. } if request_id == "r1"));
    assert!(!decoder.is_finished());
    let refused = decoder.close().unwrap_err();
    assert!(matches!(&refused, Error::Request { request_id, .. } if request_id == "r1"));
    let refused = decoder.push(&update(&[99, 9_999, 98])).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::UnknownToken {
                id: 9_999,
                index: 1,
                ..
            }
        ),
        "{refused}"
    );
    assert_eq!(decoder.abort_cause(), None);
    // Behind a stop nothing is looked at.
    let events = decoder.push(&update(&[99, 98, 9_999])).unwrap();
    let Event::TextDelta(delta) = &events[0] else {
        panic!("{events:?}")
    };
    assert_eq!(
        (&*delta.decoded.text, &delta.sampled.token_ids[..]),
        ("c", &[99, 98][..])
    );
    let finished = delta.finished.as_ref().unwrap();
    assert_eq!(finished.dropped_token_ids, [9_999]);
    assert_eq!(finished.usage.output_token_count, 3);
    assert!(decoder.is_finished());
    assert_eq!(decoder.abort_cause(), Some(&Stop::String("b".into())));
    decoder.close().unwrap();
    for update in [
        update(&[]),
        length(&[97]),
        last(&[], FinishKind::Error, None),
    ] {
        let refused = decoder.push(&update).unwrap_err();
        assert!(matches!(refused, Error::Ended(Ended::Request)), "{refused}");
    }
}

/// Logprobs end where ids do, and alternatives stay in the engine's order.
#[test]
fn logprobs_are_aligned_with_what_was_sampled() {
    let sample = bytes_and_words();
    let told = |ids: &[TokenId]| EngineUpdate {
        logprobs: Some(
            ids.iter()
                .map(|&id| logprobs_of(id, &[id + 1, id]))
                .collect(),
        ),
        ..update(ids)
    };
    let entries = |top: &[TokenLogprob]| {
        let entries = top.iter();
        entries
            .map(|entry| (entry.token_id, entry.text().to_owned()))
            .collect::<Vec<_>>()
    };
    for intermediate in [true, false] {
        let decoder = request(
            &sample.loose,
            &[],
            &Wishes::stopping_at(&["bc"]),
            intermediate,
        );
        let run = run(decoder, &[told(&[97]), told(&[98, 99, 100])]).unwrap();
        let logprobs = run.logprobs();
        assert_eq!(run.sampled(), [97, 98, 99]);
        assert_eq!(logprobs.len(), 3, "dropped with their ids");
        for (position, id) in logprobs.iter().zip([97_u8, 98, 99]) {
            let (own, next) = (char::from(id).to_string(), char::from(id + 1).to_string());
            assert_eq!(position.sampled.text(), own);
            assert_eq!(position.sampled.bytes(), [id]);
            let top = vec![(u32::from(id) + 1, next), (u32::from(id), own)];
            assert_eq!(entries(&position.top), top);
            // As the engine gave them.
            assert!((position.sampled.logprob + f64::from(id)).abs() < f64::EPSILON);
            assert_eq!(position.sampled.rank, Some(u64::from(id)));
        }
    }
    // Also of ids that have no text.
    let silent = EngineUpdate {
        finish_reason: Some(End::Stop.reason(None)),
        ..told(&[97, 98])
    };
    let run = run(
        request(&sample.loose, &[], &Wishes::default(), true),
        &[silent],
    )
    .unwrap();
    assert_eq!(run.logprobs().len(), 2);
    assert_eq!(run.logprobs()[1].sampled.text(), "b");
}

/// Numbers are as given, and what is not a number equals itself.
#[test]
fn numbers_stay_as_given() {
    let sample = bytes_and_words();
    for logprob in [0.0, -0.0, f64::NAN, f64::NEG_INFINITY, f64::MIN_POSITIVE] {
        let mut given = logprobs_of(97, &[]);
        given.sampled.logprob = logprob;
        let updates = [EngineUpdate {
            logprobs: Some(vec![given.clone()]),
            ..length(&[97])
        }];
        let run = run(
            request(&sample.loose, &[], &Wishes::default(), true),
            &updates,
        )
        .unwrap();
        let sampled = &run.logprobs()[0].sampled;
        assert_eq!(sampled.logprob.to_bits(), logprob.to_bits());
        assert_eq!(sampled, &sampled.clone());
        assert_ne!(sampled, &given.sampled, "which has no text");
    }
}

#[test]
fn logprobs_of_prompts_that_do_not_fit() {
    let told = |id| Some(GivenLogprobs::Told(logprobs_of(id, &[])));
    let among = |ids: &[TokenId]| {
        let entries = ids.iter().map(|&id| TokenLogprob::new(id, -1.0, None));
        Some(GivenLogprobs::Among(entries.collect()))
    };
    let rows: [(&[Option<GivenLogprobs>], bool); 7] = [
        (&[None, told(2)], true),
        (&[told(1), among(&[3, 2])], true),
        (&[None, None], true),
        (&[None], false),
        (&[None, None, None], false),
        (&[None, told(1)], false),
        (&[among(&[2]), None], false),
    ];
    let sample = bytes_and_words();
    for (given, fits) in rows {
        let positions = prompt_positions(&[1, 2], given);
        assert_eq!(positions.is_ok(), fits, "{given:?}");
        let mut decoder = request(&sample.loose, &[1, 2], &Wishes::default(), true);
        let first = EngineUpdate {
            prompt_logprobs: Some(given.to_vec()),
            ..update(&[97])
        };
        let pushed = decoder.push(&first);
        assert_eq!(pushed.is_ok(), fits, "{given:?}");
        if let Err(refused) = pushed {
            assert!(matches!(refused, Error::BadUpdate(_)), "{refused}");
            assert_eq!(
                decoder.push(&update(&[97])).unwrap().len(),
                2,
                "nothing had changed"
            );
        }
    }
}

proptest! {
    #![proptest_config(cases(192))]

    /// **atomic**: an update that fails changes nothing. Before each update one is tried that has an
    /// unknown id in it, and one that says that the engine failed.
    #[test]
    fn atomic(
        spec in stopping_spec(), prompt in prop::collection::vec(any::<Index>(), 0..4),
        output in prop::collection::vec(any::<Index>(), 0..16), wishes in wish_picks(),
        sizes in prop::collection::vec(0..6usize, 1..5), end in end(), at in any::<Index>(),
        intermediate in any::<bool>(), own_prompt in any::<bool>(),
    ) {
        let sample = spec.load();
        prop_assume!(sample.is_exact());
        let (prompt, ids) = (sample.pick(&prompt, true), sample.pick(&output, false));
        let wishes = wishes.of(&sample, &prompt, &ids, UnknownIds::Error);
        let mut updates = updates(&ids, &sizes, end);
        for update in &mut updates {
            let positions = update.token_ids.iter().map(|&id| logprobs_of(id, &[0, TokenId::MAX]));
            update.logprobs = Some(positions.collect());
        }
        let told = if own_prompt {
            None
        } else {
            updates[0].prompt_token_ids = Some(prompt.clone().into());
            Some(prompt.clone().into())
        };
        let open = || {
            let own = own_prompt.then(|| prompt.clone().into());
            let (tokenizer, options) = (Arc::clone(&sample.loose), wishes.options());
            RequestDecoder::open(tokenizer, own, options, "r1".into(), EventOptions { intermediate, token_texts: false }).unwrap()
        };
        let (mut decoder, mut untouched) = (open(), open());
        for update in &updates {
            let broken = EngineUpdate {
                finish_reason: Some(FinishReason { kind: FinishKind::Error, stop: None }),
                ..update.clone()
            };
            prop_assert!(decoder.push(&broken).is_err());
            let mut bad = update.clone();
            let index = at.index(bad.token_ids.len() + 1);
            bad.token_ids.insert(index, TokenId::MAX);
            bad.logprobs.as_mut().unwrap().insert(index, logprobs_of(TokenId::MAX, &[]));
            bad.prompt_token_ids.clone_from(&told);
            match decoder.push(&bad) {
                Err(Error::UnknownToken { id, index: named, .. }) => {
                    prop_assert_eq!((id, named), (TokenId::MAX, index));
                }
                Err(other) => prop_assert!(false, "{}", other),
                // A stop came first, or it was the silent last id.
                Ok(_) => {
                    prop_assert!(decoder.is_finished());
                    return Ok(());
                }
            }
            let events = untouched.push(update).unwrap();
            prop_assert_eq!(decoder.push(update).unwrap(), events);
            prop_assert_eq!(decoder.is_finished(), untouched.is_finished());
            prop_assert_eq!(decoder.abort_cause(), untouched.abort_cause());
            if decoder.is_finished() {
                break;
            }
        }
    }
}
