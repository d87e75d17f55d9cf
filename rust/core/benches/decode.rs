//! What a token costs: in runs, one by one, in a whole text, where decoders of windows are slow, and in
//! many requests at once with their stops.
//!
//! `gather` is the floor: a loop that copies the same bytes and does nothing else.
#![allow(clippy::expect_used, reason = "a bench may fail")]
#![allow(missing_docs, reason = "criterion's macro writes functions without")]

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use detok_core::{
    BatchDecoder, BatchRequest, DecodeOptions, DecodeStream, EngineUpdate, Error, EventOptions,
    Fragments, PositionLogprobs, RequestDecoder, Slot, StopStrings, StreamOptions,
    TextDecodeOptions, TokenId, TokenLogprob, Tokenizer, from_tokenizer_json,
};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;

/// Tokens of one measured run.
const RUN: usize = 4096;
/// Tokens of the runs that make decoders of windows slow.
const LONG_RUN: usize = 10_000;
const VOCABULARY: usize = 32_000;
/// Ids of a prompt that must not be read whole.
const LONG_PROMPT: usize = 1_000_000;
/// Requests of a batch.
const STREAMS: usize = 1_000;

/// Numbers that look random and are the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// A byte in the byte alphabet of GPT-2.
fn spell(bytes: &[u8]) -> String {
    let letter = |&byte: &u8| {
        let code = match byte {
            0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u32::from(byte),
            0x00..=0x20 => u32::from(byte) + 0x100,
            0x7f..=0xa0 => u32::from(byte) - 0x7f + 0x121,
            0xad => 0x143,
        };
        char::from_u32(code).expect("the alphabet is below U+0144")
    };
    bytes.iter().map(letter).collect()
}

/// A byte-level vocabulary of a usual size and shape, and streams over it.
struct Setup {
    tokenizer: Arc<Tokenizer>,
    tokens: Vec<Vec<u8>>,
    special: TokenId,
    /// Words of ASCII.
    english: Vec<TokenId>,
    /// Also CJK, emoji and, for 15 % of the tokens, parts of their characters.
    mixed: Vec<TokenId>,
}

impl Setup {
    fn new() -> Self {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        let mut seen: HashSet<Vec<u8>> = tokens.iter().cloned().collect();
        let mut words = Vec::new();
        let mut wide = Vec::new();
        while tokens.len() < VOCABULARY {
            let is_word = random.below(5) < 4;
            let token = if is_word {
                word(&mut random)
            } else {
                piece(&mut random)
            };
            if seen.insert(token.clone()) {
                let kind = if is_word { &mut words } else { &mut wide };
                kind.push(tokens.len() as TokenId);
                tokens.push(token);
            }
        }
        let english = (0..RUN).map(|_| *random.pick(&words)).collect();
        let mut mixed = Vec::with_capacity(RUN + 4);
        while mixed.len() < RUN {
            match random.below(100) {
                // A character in three tokens: 18 of 112 ids.
                0..6 => {
                    let character = ['你', '界', '語', '한'][random.below(4)];
                    let mut bytes = [0; 4];
                    let parts = character.encode_utf8(&mut bytes).bytes();
                    mixed.extend(parts.map(TokenId::from));
                }
                6..30 => mixed.push(*random.pick(&wide)),
                _ => mixed.push(*random.pick(&words)),
            }
        }
        mixed.truncate(RUN);
        let special = tokens.len() as TokenId;
        let loaded = from_tokenizer_json(json(&tokens).as_bytes(), false).expect("loads");
        Self {
            tokenizer: Arc::new(loaded.tokenizer),
            tokens,
            special,
            english,
            mixed,
        }
    }

    fn open(&self, prompt: &[TokenId], keep_output: bool) -> DecodeStream {
        let options = StreamOptions {
            keep_output,
            ..StreamOptions::default()
        };
        DecodeStream::open::<Error>(Arc::clone(&self.tokenizer), prompt, options).expect("opens")
    }
}

/// One to twelve letters, most with a blank before them.
fn word(random: &mut Random) -> Vec<u8> {
    let mut word = Vec::new();
    if random.below(3) > 0 {
        word.push(b' ');
    }
    for _ in 0..=random.below(11) {
        word.push(*random.pick(b"etaoinshrdlucmfwypvbgkjqxzETAS'.,-0123"));
    }
    word
}

/// One to three wide characters, or an emoji.
fn piece(random: &mut Random) -> Vec<u8> {
    let (first, count, longest) = match random.below(10) {
        0 => (0x1_f600, 64, 1),
        1..3 => (0x400, 64, 4),
        3..5 => (0xac00, 2048, 2),
        _ => (0x4e00, 4096, 3),
    };
    let text: String = (0..=random.below(longest))
        .filter_map(|_| char::from_u32(first + random.below(count) as u32))
        .collect();
    text.into_bytes()
}

fn json(tokens: &[Vec<u8>]) -> String {
    let mut vocabulary = String::new();
    for (id, token) in tokens.iter().enumerate() {
        let spelled = serde_json::to_string(&spell(token)).expect("a string");
        let comma = if id == 0 { "" } else { "," };
        write!(vocabulary, "{comma}{spelled}:{id}").expect("a string grows");
    }
    let special = tokens.len();
    format!(
        r#"{{"version": "1.0", "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "added_tokens": [{{"id": {special}, "content": "<s>", "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false}}],
        "decoder": {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}},
        "model": {{"type": "BPE", "vocab": {{{vocabulary}}}, "merges": []}}}}"#
    )
}

/// The bytes of the same tokens, copied end to end.
fn gather(setup: &Setup, ids: &[TokenId]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ids.len() * 8);
    for &id in ids {
        bytes.extend_from_slice(&setup.tokens[id as usize]);
    }
    bytes
}

fn runs(criterion: &mut Criterion) {
    let setup = Setup::new();
    for (name, ids) in [("english", &setup.english), ("mixed", &setup.mixed)] {
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(ids.len() as u64));
        group.bench_function("gather", |bencher| {
            bencher.iter(|| gather(&setup, black_box(ids)));
        });
        group.bench_function("decode", |bencher| {
            let options = DecodeOptions::default();
            bencher.iter(|| setup.tokenizer.decode(black_box(ids), &options));
        });
        for (name, keep_output) in [
            ("push_tokens", true),
            ("push_tokens, output not kept", false),
        ] {
            group.bench_function(name, |bencher| {
                bencher.iter_batched_ref(
                    || setup.open(&[], keep_output),
                    |stream| stream.push_tokens(black_box(ids)),
                    BatchSize::SmallInput,
                );
            });
        }
        group.bench_function("push_tokens and next_chunk", |bencher| {
            bencher.iter_batched_ref(
                || setup.open(&[], false),
                |stream| {
                    stream.push_tokens(black_box(ids)).expect("known ids");
                    stream.next_chunk()
                },
                BatchSize::SmallInput,
            );
        });
        group.bench_function("push_tokens and flush", |bencher| {
            bencher.iter_batched_ref(
                || setup.open(&[], true),
                |stream| {
                    stream.push_tokens(black_box(ids)).expect("known ids");
                    stream.flush(None)
                },
                BatchSize::SmallInput,
            );
        });
        for (name, keep_output) in [("step", true), ("step, output not kept", false)] {
            group.bench_function(name, |bencher| {
                bencher.iter_batched_ref(
                    || setup.open(&[], keep_output),
                    |stream| {
                        for &id in ids {
                            black_box(stream.step(black_box(id)).expect("a known id"));
                        }
                    },
                    BatchSize::SmallInput,
                );
            });
        }
        group.bench_function("push_token and next_chunk", |bencher| {
            bencher.iter_batched_ref(
                || setup.open(&[], false),
                |stream| {
                    for &id in ids {
                        stream.push_token(black_box(id)).expect("a known id");
                        black_box(stream.next_chunk());
                    }
                },
                BatchSize::SmallInput,
            );
        });
        group.finish();
    }
}

/// Where a decoder of windows takes longer with every token.
fn growth(criterion: &mut Criterion) {
    let setup = Setup::new();
    let text: Vec<TokenId> = setup
        .english
        .iter()
        .copied()
        .cycle()
        .take(LONG_RUN)
        .collect();
    let mut group = criterion.benchmark_group("10,000 steps");
    group.throughput(Throughput::Elements(LONG_RUN as u64));
    for (name, ids) in [
        ("text", text),
        ("lone continuation bytes", vec![0x80; LONG_RUN]),
        ("hidden specials", vec![setup.special; LONG_RUN]),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter_batched_ref(
                || setup.open(&[], true),
                |stream| {
                    for &id in &ids {
                        black_box(stream.step(black_box(id)).expect("a known id"));
                    }
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn prompts(criterion: &mut Criterion) {
    let setup = Setup::new();
    let long: Vec<TokenId> = setup
        .mixed
        .iter()
        .copied()
        .cycle()
        .take(LONG_PROMPT)
        .collect();
    let half = [&long[..], &[0xe4, 0xbd]].concat();
    let cases = [
        ("no prompt", &[][..]),
        ("1,000,000 ids", &long),
        ("half a character at its end", &half),
    ];
    let mut group = criterion.benchmark_group("open a stream");
    for (name, prompt) in cases {
        group.bench_function(name, |bencher| {
            bencher.iter_with_large_drop(|| setup.open(black_box(prompt), true));
        });
    }
    group.finish();
    let mut group = criterion.benchmark_group("open and first token");
    for (name, prompt) in cases {
        group.bench_function(name, |bencher| {
            bencher.iter_with_large_drop(|| {
                let mut stream = setup.open(black_box(prompt), true);
                stream.push_token(0xa0).expect("a known id");
                stream
            });
        });
    }
    group.finish();
}

/// Lists of stops by name; no text of the vocabulary completes one of them.
fn stop_lists() -> Vec<(String, Vec<String>)> {
    let usual = ["</s>", "<|im_end|>", "\n\nUser:", "###"];
    let of_usual = |count: usize| {
        let more = (0..).map(|n| format!("<|stop {n}|>"));
        let all = usual.iter().map(|&stop| stop.to_owned()).chain(more);
        all.take(count).collect()
    };
    // These begin as words of the text do, so that much of it is held back for a while.
    let mut random = Random(0xb5ad_4ece_da1c_e2a9);
    let mut like_words = |count: usize| {
        let like_word = |_| format!("{}|", String::from_utf8_lossy(&word(&mut random)));
        (0..count).map(like_word).collect()
    };
    vec![
        ("no stops".into(), Vec::new()),
        ("1 stop".into(), of_usual(1)),
        ("4 stops".into(), of_usual(4)),
        ("4,096 stops".into(), of_usual(4096)),
        ("1 stop like a word".into(), like_words(1)),
        ("4,096 stops like words".into(), like_words(4096)),
    ]
}

fn stopping_at(stops: &[String]) -> Arc<TextDecodeOptions> {
    Arc::new(TextDecodeOptions {
        stop: StopStrings::new(stops).expect("legal").map(Arc::new),
        fragments: Fragments::Empty,
        ..TextDecodeOptions::default()
    })
}

/// One token for each of many requests, step after step.
fn batches(criterion: &mut Criterion) {
    let setup = Setup::new();
    let slots: Vec<Slot> = (0..STREAMS as Slot).collect();
    for (text, ids) in [("english", &setup.english), ("mixed", &setup.mixed)] {
        let steps: Vec<Vec<TokenId>> = (0..64)
            .map(|step| {
                (0..STREAMS)
                    .map(|slot| ids[(slot * 61 + step) % ids.len()])
                    .collect()
            })
            .collect();
        let mut group = criterion.benchmark_group(format!("a step of 1,000 requests, {text}"));
        group.throughput(Throughput::Elements(STREAMS as u64));
        group.bench_function("gather", |bencher| {
            let mut steps = steps.iter().cycle();
            bencher.iter(|| gather(&setup, black_box(steps.next().expect("a cycle"))));
        });
        for (name, stops) in stop_lists() {
            let options = stopping_at(&stops);
            for token_texts in [false, true] {
                let mut batch = BatchDecoder::new(Arc::clone(&setup.tokenizer));
                for _ in 0..STREAMS {
                    let (tokenizer, options) = (Arc::clone(&setup.tokenizer), Arc::clone(&options));
                    let none: &[TokenId] = &[];
                    let request = BatchRequest::open::<Error>(tokenizer, none, options);
                    batch
                        .add(request.expect("opens"))
                        .expect("its own tokenizer");
                }
                let with = if token_texts { ", token texts" } else { "" };
                group.bench_function(format!("{name}{with}"), |bencher| {
                    let mut steps = steps.iter().cycle();
                    bencher.iter(|| {
                        let ids = steps.next().expect("a cycle");
                        let output = batch.step(&slots, black_box(ids), None, token_texts, 1);
                        output.expect("all in use")
                    });
                });
                let mut output = batch.finish(&slots).expect("all in use");
                assert!(output.take_errors().is_empty(), "no request has ended");
            }
        }
        group.finish();
    }
}

/// Thousands of requests in one step, alone and in threads.
fn threads(criterion: &mut Criterion) {
    let setup = Setup::new();
    let mut group = criterion.benchmark_group("a step of 4 tokens each");
    for requests in [4_096_usize, 16_384] {
        let slots: Vec<Slot> = (0..requests as Slot).collect();
        let counts = vec![4; requests];
        let ids: Vec<TokenId> = setup
            .mixed
            .iter()
            .copied()
            .cycle()
            .take(requests * 4)
            .collect();
        let options = stopping_at(&["</s>".to_owned()]);
        group.throughput(Throughput::Elements(ids.len() as u64));
        for threads in [1, 2] {
            let mut batch = BatchDecoder::new(Arc::clone(&setup.tokenizer));
            for _ in &slots {
                let (tokenizer, options) = (Arc::clone(&setup.tokenizer), Arc::clone(&options));
                let none: &[TokenId] = &[];
                let request = BatchRequest::open::<Error>(tokenizer, none, options);
                batch
                    .add(request.expect("opens"))
                    .expect("its own tokenizer");
            }
            group.bench_function(
                format!("{requests} requests, {threads} threads"),
                |bencher| {
                    bencher
                        .iter(|| batch.step(&slots, black_box(&ids), Some(&counts), true, threads));
                },
            );
        }
    }
    group.finish();
}

/// One request, one token in each update; the update is built as well.
fn requests(criterion: &mut Criterion) {
    let setup = Setup::new();
    let mut group = criterion.benchmark_group("updates of a request");
    group.throughput(Throughput::Elements(RUN as u64));
    for (name, stops) in stop_lists().into_iter().take(4) {
        let options = stopping_at(&stops);
        for (with, alternatives) in [
            ("", None),
            (", logprobs", Some(0)),
            (", 5 alternatives", Some(5)),
        ] {
            let open = || {
                let (tokenizer, options) = (Arc::clone(&setup.tokenizer), Arc::clone(&options));
                let prompt = Some([].into());
                RequestDecoder::open(
                    tokenizer,
                    prompt,
                    options,
                    String::new(),
                    EventOptions::default(),
                )
                .expect("opens")
            };
            group.bench_function(format!("{name}{with}"), |bencher| {
                bencher.iter_batched_ref(
                    open,
                    |decoder| {
                        for &id in &setup.mixed {
                            let update = EngineUpdate {
                                token_ids: [id].as_slice().into(),
                                logprobs: alternatives.map(|count| vec![logprobs_of(id, count)]),
                                ..EngineUpdate::default()
                            };
                            black_box(decoder.push(&update).expect("known ids"));
                        }
                    },
                    BatchSize::SmallInput,
                );
            });
        }
    }
    group.finish();
}

fn logprobs_of(id: TokenId, alternatives: u32) -> PositionLogprobs {
    let entry = |id: TokenId| TokenLogprob::new(id, -1.5, Some(1));
    PositionLogprobs {
        sampled: entry(id),
        top: (0..alternatives)
            .map(|n| entry((id + n) % VOCABULARY as TokenId))
            .collect(),
    }
}

/// What stops cost before the first token.
fn stops(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("compile stops");
    let many: Vec<String> = (0..100_000).map(|n| format!("<|stop {n}|>")).collect();
    for (name, stops) in stop_lists()
        .into_iter()
        .skip(1)
        .chain([("100,000 stops".into(), many)])
    {
        group.bench_function(name, |bencher| {
            bencher.iter(|| StopStrings::new(black_box(&stops)));
        });
    }
    group.finish();
}

criterion_group! {
    name = layers;
    config = Criterion::default().sample_size(20);
    targets = batches, threads, requests, stops
}
criterion_group!(benches, runs, growth, prompts);
criterion_main!(benches, layers);
