//! The slow, obvious twin of a generation with stops: everything is decoded from the start after each
//! token, every stop is tried at every place. And what drives the core's own with the same tokens.

use super::reference::{Deviations, Reference};
use super::sample::{Sample, Spec, byte_level, compiled_spec};
use detok_core::{
    DecodeOptions, DecodedText, EngineUpdate, Error, Event, EventOptions, FinishKind, FinishReason,
    Finished, Fragments, PositionLogprobs, RequestDecoder, Shared, Start, Stop, StopMatch,
    StopStrings, TextDecodeOptions, TextDelta, TokenAttribution, TokenId, TokenLogprob, Tokenizer,
    Unit, UnknownIds, spans,
};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::sync::Arc;

/// What a request wants of its text, in a form that proptest shows and a twin can read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wishes {
    pub(crate) decode: DecodeOptions,
    pub(crate) stops: Vec<String>,
    pub(crate) stop_token_ids: Vec<TokenId>,
    pub(crate) include_stop: bool,
    pub(crate) min_tokens: u64,
    pub(crate) min_bytes_to_buffer: usize,
    pub(crate) fragments: Fragments,
}

impl Wishes {
    pub(crate) fn stopping_at(stops: &[&str]) -> Self {
        Self {
            stops: stops.iter().map(|stop| (*stop).to_owned()).collect(),
            ..Self::default()
        }
    }

    pub(crate) fn options(&self) -> Arc<TextDecodeOptions> {
        let mut stop_token_ids = self.stop_token_ids.clone();
        stop_token_ids.sort_unstable();
        Arc::new(TextDecodeOptions {
            decode: self.decode.clone(),
            stop: StopStrings::new(&self.stops).expect("legal").map(Arc::new),
            scope: None,
            stop_token_ids: stop_token_ids.into(),
            include_stop: self.include_stop,
            min_tokens: self.min_tokens,
            min_bytes_to_buffer: self.min_bytes_to_buffer,
            fragments: self.fragments,
        })
    }

    /// Bytes at the end of the text that may still become a stop, by trying every suffix.
    fn held(&self, text: &str) -> usize {
        if self.include_stop {
            return 0;
        }
        let begins = |len: &usize| {
            let suffix = &text.as_bytes()[text.len() - len..];
            let begins = |stop: &String| stop.len() > *len && stop.as_bytes().starts_with(suffix);
            self.stops.iter().any(begins)
        };
        (1..=text.len()).rev().find(begins).unwrap_or(0)
    }

    /// How much of a text may be out.
    fn cut_off(&self, text: &str) -> usize {
        let held = self.held(text).max(self.min_bytes_to_buffer);
        let limit = text.len().saturating_sub(held);
        (0..=limit)
            .rev()
            .find(|&at| text.is_char_boundary(at))
            .unwrap_or(0)
    }

    /// The stop that is complete first in the bytes behind `searched`, and where it ends.
    fn completion(&self, text: &str, searched: usize) -> Option<(&str, usize)> {
        (searched + 1..=text.len()).find_map(|end| {
            let ends = |stop: &&String| text.as_bytes()[..end].ends_with(stop.as_bytes());
            Some((self.stops.iter().find(ends)?.as_str(), end))
        })
    }
}

/// What a generation must come to, as if everything had been handed out at its end.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) decoded: DecodedText,
    pub(crate) stop_match: Option<StopMatch>,
    /// Ids that count.
    pub(crate) kept: usize,
    pub(crate) first_cut_token: Option<u64>,
    /// Bytes that are out after each id that did not end it.
    pub(crate) shown: Vec<usize>,
}

/// `last_is_silent`: the last id is the engine's end of the text, and no part of it.
pub(crate) fn outcome(
    sample: &Sample,
    wishes: &Wishes,
    prompt: &[TokenId],
    ids: &[TokenId],
    last_is_silent: bool,
) -> Outcome {
    let reference = Reference::new(sample, &wishes.decode, Deviations::ALL);
    let mut pushed = Vec::new();
    let mut shown = Vec::new();
    let mut searched = 0;
    for (index, &id) in ids.iter().enumerate() {
        let counts = index as u64 >= wishes.min_tokens;
        if counts && wishes.stop_token_ids.contains(&id) {
            if wishes.include_stop {
                pushed.push(id);
            }
            let decoded = reference.expected(prompt, &pushed);
            let stop_match = StopMatch {
                stop: Stop::Token(id),
                byte_offset: decoded.text.len() as u64,
                token_index: index as u64,
                cut: false,
            };
            return Outcome {
                decoded,
                stop_match: Some(stop_match),
                kept: index + 1,
                first_cut_token: None,
                shown,
            };
        }
        if !(last_is_silent && index + 1 == ids.len()) {
            pushed.push(id);
        }
        let text = reference.settled(prompt, &pushed);
        if let Some((stop, end)) = wishes.completion(&text, searched).filter(|_| counts) {
            let kept = if wishes.include_stop { 0 } else { stop.len() };
            let at = end - kept;
            let decoded = truncated(&reference.expected(prompt, &pushed), at);
            let records = &decoded.attributions;
            return Outcome {
                stop_match: Some(StopMatch {
                    stop: Stop::String(stop.into()),
                    byte_offset: at as u64,
                    token_index: index as u64,
                    cut: records[index].cut,
                }),
                kept: index + 1,
                first_cut_token: records.iter().position(|r| r.cut).map(|at| at as u64),
                shown,
                decoded,
            };
        }
        searched = text.len();
        shown.push(wishes.cut_off(&text));
    }
    Outcome {
        decoded: reference.expected(prompt, &pushed),
        stop_match: None,
        kept: ids.len(),
        first_cut_token: None,
        shown,
    }
}

/// A7, from the definition.
fn truncated(whole: &DecodedText, at: usize) -> DecodedText {
    let touched = spans(whole, Unit::Byte, Shared::Touch);
    let records = whole.attributions.iter().zip(touched).map(|(was, span)| {
        let place = was.anchor.byte_offset() as usize;
        let lost_all = was.anchor.is_visible() && place >= at && at < whole.text.len();
        let moved = lost_all || place > at;
        let shortened = was.anchor.is_visible() && span.end > at;
        let record = if moved {
            TokenAttribution::zero_width(was.token_id, at as u32)
        } else {
            *was
        };
        TokenAttribution {
            cut: moved || shortened,
            ..record
        }
    });
    super::text(&whole.text[..at], &records.collect::<Vec<_>>())
}

/// How an engine ends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Length,
    /// An end of sequence.
    Stop,
    /// At the id it sampled last, or at another.
    StopToken {
        at_last: bool,
    },
    StopString,
}

impl End {
    pub(crate) fn reason(self, last: Option<TokenId>) -> FinishReason {
        let (kind, stop) = match self {
            Self::Length => (FinishKind::Length, None),
            Self::Stop => (FinishKind::Stop, None),
            Self::StopToken { at_last } => {
                let id = last.filter(|_| at_last).unwrap_or(TokenId::MAX - 1);
                (FinishKind::Stop, Some(Stop::Token(id)))
            }
            Self::StopString => (FinishKind::Stop, Some(Stop::String("</s>".into()))),
        };
        FinishReason { kind, stop }
    }

    pub(crate) fn is_silent(self, wishes: &Wishes) -> bool {
        matches!(self, Self::Stop | Self::StopToken { at_last: true }) && !wishes.include_stop
    }
}

pub(crate) fn end() -> impl Strategy<Value = End> {
    select(vec![
        End::Length,
        End::Stop,
        End::StopToken { at_last: true },
        End::StopToken { at_last: false },
        End::StopString,
    ])
}

/// The ids in updates of these sizes, around and around; the last has an id if there is one.
pub(crate) fn updates(ids: &[TokenId], sizes: &[usize], end: End) -> Vec<EngineUpdate> {
    let mut updates = Vec::new();
    let mut left = ids;
    for &size in sizes.iter().chain([&1]).cycle() {
        let (run, behind) = left.split_at(size.min(left.len()));
        left = behind;
        updates.push(EngineUpdate {
            token_ids: run.into(),
            cached_token_count: (updates.len() * 7 % 5) as u64,
            ..EngineUpdate::default()
        });
        if left.is_empty() {
            break;
        }
    }
    if let Some(last) = updates.last_mut() {
        last.finish_reason = Some(end.reason(ids.last().copied()));
    }
    updates
}

/// The sampled token, and alternatives at its place; the numbers say which they are.
pub(crate) fn logprobs_of(sampled: TokenId, top: &[TokenId]) -> PositionLogprobs {
    let entry = |id: TokenId| TokenLogprob::new(id, -f64::from(id), Some(u64::from(id)));
    PositionLogprobs {
        sampled: entry(sampled),
        top: top.iter().map(|&id| entry(id)).collect(),
    }
}

/// All that a request gave.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) start: Start,
    pub(crate) deltas: Vec<TextDelta>,
    /// How many updates that took.
    pub(crate) updates: usize,
}

impl Run {
    pub(crate) fn chunks(&self) -> Vec<DecodedText> {
        let chunks = self.deltas.iter();
        chunks
            .map(|delta| DecodedText::clone(&delta.decoded))
            .collect()
    }

    pub(crate) fn sampled(&self) -> Vec<TokenId> {
        let sampled = self.deltas.iter();
        sampled
            .flat_map(|delta| delta.sampled.token_ids.clone())
            .collect()
    }

    pub(crate) fn logprobs(&self) -> Vec<PositionLogprobs> {
        let sampled = self.deltas.iter();
        sampled
            .flat_map(|delta| delta.sampled.logprobs.iter().flat_map(|all| all.to_vec()))
            .collect()
    }

    /// Texts of the sampled tokens, where they were asked for.
    pub(crate) fn token_texts(&self, tokenizer: &Tokenizer) -> Option<Vec<String>> {
        let deltas = self.deltas.iter();
        let texts = deltas.map(|delta| {
            let texts = delta.sampled.texts(tokenizer.table())?;
            Some(texts.map(|sampled| sampled.text().into_owned()).collect())
        });
        texts
            .collect::<Option<Vec<Vec<_>>>>()
            .map(|texts| texts.concat())
    }

    pub(crate) fn finished(&self) -> &Finished {
        let last = self.deltas.last().expect("an event");
        last.finished.as_ref().expect("the last event")
    }
}

pub(crate) fn request(
    tokenizer: &Arc<Tokenizer>,
    prompt: &[TokenId],
    wishes: &Wishes,
    intermediate: bool,
) -> RequestDecoder {
    let tokenizer = Arc::clone(tokenizer);
    let prompt = Some(prompt.into());
    RequestDecoder::open(
        tokenizer,
        prompt,
        wishes.options(),
        "r1".into(),
        EventOptions {
            intermediate,
            token_texts: true,
        },
    )
    .expect("opens")
}

/// Pushes updates until the request ends.
pub(crate) fn run(mut decoder: RequestDecoder, updates: &[EngineUpdate]) -> Result<Run, Error> {
    let mut start = None;
    let mut deltas = Vec::new();
    let mut pushed = 0;
    for (at, update) in updates.iter().enumerate() {
        if decoder.is_finished() {
            break;
        }
        assert!(decoder.close().is_err(), "not before the end");
        pushed += 1;
        for event in decoder.push(update)? {
            match event {
                Event::Start(event) => {
                    assert_eq!((at, deltas.len()), (0, 0), "the start comes first");
                    assert!(start.replace(event).is_none(), "and once");
                }
                Event::TextDelta(event) => deltas.push(event),
            }
        }
    }
    assert!(decoder.is_finished());
    decoder.close().expect("has ended");
    let behind = decoder.push(&EngineUpdate::default());
    assert!(matches!(behind, Err(Error::Ended(_))), "{behind:?}");
    let run = Run {
        start: start.expect("a start"),
        deltas,
        updates: pushed,
    };
    let own = run.finished().stop_match.as_ref().map(|found| &found.stop);
    assert_eq!(decoder.abort_cause(), own);
    Ok(run)
}

/// Stops that are met: parts of what the text will be, some with another character behind.
#[derive(Clone, Debug)]
pub(crate) struct StopPick {
    start: Index,
    characters: usize,
    behind: Option<&'static str>,
}

impl StopPick {
    pub(crate) fn of(&self, text: &str) -> String {
        let characters: Vec<char> = text.chars().collect();
        let start = self.start.index(characters.len() + 1);
        let part = characters.iter().skip(start).take(self.characters);
        let mut stop: String = part.collect();
        stop.push_str(self.behind.unwrap_or_default());
        if stop.is_empty() {
            stop.push('a');
        }
        stop
    }
}

fn stop_pick() -> impl Strategy<Value = StopPick> {
    let behind = prop::option::weighted(0.6, select(vec!["x", "a", " ", "你", "\u{fffd}"]));
    (any::<Index>(), 0..5usize, behind).prop_map(|(start, characters, behind)| StopPick {
        start,
        characters,
        behind,
    })
}

/// [`Wishes`] before there is a text to pick stops of.
#[derive(Clone, Debug)]
pub(crate) struct WishPicks {
    stops: Vec<StopPick>,
    many: usize,
    stop_token_ids: Vec<Index>,
    include_stop: bool,
    hide_special: bool,
    min_tokens: u64,
    min_bytes_to_buffer: usize,
    fragments: Fragments,
}

pub(crate) fn wish_picks() -> impl Strategy<Value = WishPicks> {
    let stop_token_ids = prop_oneof![
        3 => Just(Vec::new()),
        1 => prop::collection::vec(any::<Index>(), 1..3),
    ];
    let fragments = select(vec![
        Fragments::OpenAi,
        Fragments::Empty,
        Fragments::Replacement,
    ]);
    (
        prop::collection::vec(stop_pick(), 0..5),
        prop_oneof![3 => Just(0), 1 => Just(100usize)],
        stop_token_ids,
        prop::bool::weighted(0.3),
        prop::bool::weighted(0.8),
        prop_oneof![1 => Just(0), 1 => 0..8u64],
        prop_oneof![2 => Just(0), 1 => 0..7usize],
        fragments,
    )
        .prop_map(
            |(stops, many, stop_token_ids, include, hide, min_tokens, min_bytes, fragments)| {
                WishPicks {
                    stops,
                    many,
                    stop_token_ids,
                    include_stop: include,
                    hide_special: hide,
                    min_tokens,
                    min_bytes_to_buffer: min_bytes,
                    fragments,
                }
            },
        )
}

impl WishPicks {
    /// For a generation of these ids.
    pub(crate) fn of(
        &self,
        sample: &Sample,
        prompt: &[TokenId],
        ids: &[TokenId],
        unknown_ids: UnknownIds,
    ) -> Wishes {
        let decode = DecodeOptions {
            skip_special_tokens: self.hide_special,
            unknown_ids,
            ..DecodeOptions::default()
        };
        let lenient = DecodeOptions {
            unknown_ids: UnknownIds::Skip,
            ..decode.clone()
        };
        // A window's source may refuse them.
        let decoded = sample.loose.decode_attributed(ids, prompt, &lenient);
        let text = decoded.map_or_else(|_| String::new(), |decoded| decoded.text);
        let picked = self.stops.iter().map(|pick| pick.of(&text));
        // None of these is ever complete.
        let idle = (0..self.many).map(|n| format!("{}\u{1}{n}", "ab".repeat(n % 3)));
        Wishes {
            decode,
            stops: picked.chain(idle).collect(),
            stop_token_ids: sample.pick(&self.stop_token_ids, true),
            include_stop: self.include_stop,
            min_tokens: self.min_tokens,
            min_bytes_to_buffer: self.min_bytes_to_buffer,
            fragments: self.fragments,
        }
    }
}

/// Random tokenizers, and one of few letters, whose texts are full of stops that almost match.
pub(crate) fn stopping_spec() -> impl Strategy<Value = Spec> {
    let tokens = [
        "a", "b", "ab", "ba", "aab", "abba", "ä", "½", "ł", "ä½", "½ł", "łab", "aä", "", "Ġa", "ÿ",
    ];
    let letters = Spec::new(byte_level(), &tokens, &[("<s>", true), ("<a>", true)]);
    prop_oneof![1 => Just(letters), 2 => compiled_spec()]
}
