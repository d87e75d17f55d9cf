//! The window strategy: seeding, anchors, its bound, and what becomes of a source's errors.
#![allow(clippy::unwrap_used, reason = "a test may fail")]
#![allow(
    clippy::items_after_statements,
    reason = "the type of a row stands above its table"
)]

mod common;

use common::{cases, open, output, visible, zero};
use detok_core::{
    DecodeOptions, DecodeStream, DecodedText, Encoder, Error, SAFE_SUFFIX_MAX, SAFE_SUFFIX_MIN,
    SourceError, StreamOptions, TokenAttribution, TokenId, Tokenizer, UnknownIds, WINDOW_LIMIT,
    WindowSource,
};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;

/// Hidden or shown as `<s>`.
const SPECIAL: TokenId = 300;
/// Known, and decodes to nothing.
const EMPTY: TokenId = 301;
/// A whole word in one token.
const WORD: TokenId = 302;
/// Ids from here on are unknown, and decoding them fails.
const UNKNOWN: TokenId = 10_000;

/// An id below 256 is that byte. Every decode is written down.
#[derive(Default)]
struct Bytes {
    calls: Mutex<Vec<Vec<TokenId>>>,
    /// Answers to whole id lists, in place of the bytes.
    scripted: HashMap<Vec<TokenId>, &'static str>,
    /// The n-th decode fails.
    fails_at: Mutex<Option<usize>>,
}

impl WindowSource for Bytes {
    fn decode(&self, ids: &[TokenId], skip_special_tokens: bool) -> Result<String, SourceError> {
        self.calls.lock().unwrap().push(ids.to_vec());
        let mut fails_at = self.fails_at.lock().unwrap();
        if let Some(left) = fails_at.as_mut() {
            if *left == 0 {
                *fails_at = None;
                return Err("the source is out of order".into());
            }
            *left -= 1;
        }
        if let Some(text) = self.scripted.get(ids) {
            return Ok((*text).to_owned());
        }
        let mut bytes = Vec::new();
        for &id in ids {
            match id {
                SPECIAL if skip_special_tokens => {}
                SPECIAL => bytes.extend_from_slice(b"<s>"),
                EMPTY => {}
                WORD => bytes.extend_from_slice(b"word"),
                UNKNOWN.. => return Err(format!("unknown id {id}").into()),
                id => bytes.push(u8::try_from(id)?),
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn id_to_token(&self, id: TokenId) -> Result<Option<String>, SourceError> {
        Ok((id < UNKNOWN).then(|| id.to_string()))
    }

    fn is_special(&self, id: TokenId) -> Result<bool, SourceError> {
        Ok(id == SPECIAL)
    }

    fn token_to_id(&self, _token: &str) -> Result<Option<TokenId>, SourceError> {
        Err("cannot tell".into())
    }

    fn vocab_size(&self) -> Result<u64, SourceError> {
        Ok(u64::from(UNKNOWN))
    }

    fn special_token_ids(&self) -> Result<Vec<TokenId>, SourceError> {
        Ok(vec![SPECIAL])
    }
}

/// A source and the tokenizer that decodes by its windows.
struct Bench {
    source: Arc<Bytes>,
    tokenizer: Arc<Tokenizer>,
}

impl Bench {
    fn new(source: Bytes) -> Self {
        let source = Arc::new(source);
        let encoder = Encoder::Missing("no encoder".into());
        let shared: Arc<dyn WindowSource> = Arc::<Bytes>::clone(&source);
        let tokenizer = Tokenizer::from_window_source(shared, "a test".into(), encoder);
        Self {
            source,
            tokenizer: Arc::new(tokenizer),
        }
    }

    fn open(&self, prompt: &[TokenId]) -> DecodeStream {
        open(&self.tokenizer, prompt, StreamOptions::default())
    }

    fn decodes(&self) -> usize {
        self.source.calls.lock().unwrap().len()
    }

    fn take_calls(&self) -> Vec<Vec<TokenId>> {
        std::mem::take(&mut self.source.calls.lock().unwrap())
    }

    fn fail_at(&self, nth: usize) {
        *self.source.fails_at.lock().unwrap() = Some(nth);
    }
}

fn bytes(text: &str) -> Vec<TokenId> {
    text.bytes().map(TokenId::from).collect()
}

/// What each push shows, and the flush last.
fn replay(stream: &mut DecodeStream, ids: &[TokenId]) -> Vec<String> {
    let mut shown = Vec::new();
    for &id in ids {
        stream.push_token(id).unwrap();
        shown.push(
            stream
                .next_chunk()
                .map_or_else(String::new, |chunk| chunk.text),
        );
    }
    let (last, _) = stream.flush(None).unwrap();
    shown.push(last.map_or_else(String::new, |chunk| chunk.text));
    shown
}

#[test]
fn constants_are_the_seeds() {
    assert_eq!((SAFE_SUFFIX_MIN, SAFE_SUFFIX_MAX, WINDOW_LIMIT), (4, 6, 32));
    let bench = Bench::new(Bytes::default());
    assert_eq!(bench.tokenizer.strategy_name(), "window");
    assert_eq!(bench.tokenizer.strategy_reason(), Some("a test"));
}

/// Prompt, tokens, and what is shown after each and at the flush.
#[test]
fn text_after_each_step() {
    type Row = (
        &'static str,
        Vec<TokenId>,
        Vec<TokenId>,
        &'static [&'static str],
    );
    let rows: [Row; 17] = [
        (
            "split character",
            vec![],
            vec![0xe4, 0xbd, 0xa0],
            &["", "", "你", ""],
        ),
        ("ASCII", vec![], bytes("a"), &["a", ""]),
        (
            "half a character at the flush",
            vec![],
            vec![0xe4, 0xbd],
            &["", "", "\u{fffd}"],
        ),
        ("hidden special", vec![], vec![SPECIAL], &["", ""]),
        ("a token of nothing", vec![], vec![EMPTY], &["", ""]),
        (
            "special between halves",
            vec![],
            vec![0xe4, SPECIAL, 0xbd, 0xa0],
            &["", "", "", "你", ""],
        ),
        ("seeded prompt", bytes("Hi"), bytes("!"), &["!", ""]),
        (
            "long prompt",
            bytes("a long prompt"),
            bytes("!?"),
            &["!", "?", ""],
        ),
        (
            "unknown id in the prompt",
            [bytes("abc"), vec![UNKNOWN], bytes("Hi")].concat(),
            bytes("!"),
            &["!", ""],
        ),
        (
            "only unknown ids in the prompt",
            vec![UNKNOWN],
            bytes("!"),
            &["!", ""],
        ),
        ("many of them", vec![UNKNOWN; 50], bytes("!"), &["!", ""]),
        (
            "unknown id before half a character",
            vec![UNKNOWN, 0xe4, 0xbd],
            vec![0xa0],
            &["你", ""],
        ),
        (
            "unknown ids after half a character",
            [vec![0xe4, 0xbd], vec![UNKNOWN; 6]].concat(),
            vec![0xa0],
            &["你", ""],
        ),
        (
            "half a character behind text",
            [bytes("ab"), vec![0xe4, 0xbd]].concat(),
            vec![0xa0],
            &["你", ""],
        ),
        (
            "half a character behind long text",
            [bytes("a long prompt"), vec![0xe4, 0xbd]].concat(),
            vec![0xa0],
            &["你", ""],
        ),
        (
            "nothing pushed, half a character in the prompt",
            vec![0xe4, 0xbd],
            vec![],
            &[""],
        ),
        ("nothing pushed, long prompt", vec![97; 7001], vec![], &[""]),
    ];
    for (name, prompt, ids, expected) in rows {
        let bench = Bench::new(Bytes::default());
        assert_eq!(replay(&mut bench.open(&prompt), &ids), expected, "{name}");
    }
}

/// Suffixes of 4, 5, 6 ids are tried, never the whole prompt; then the whole of what is read.
#[test]
fn seeding_reads_suffixes() {
    let half = |at_end: usize| {
        let mut prompt = vec![97; 20];
        let len = prompt.len();
        prompt[len - at_end] = 0xbd;
        prompt
    };
    type Row = (&'static str, Vec<TokenId>, &'static [usize]);
    let rows: [Row; 9] = [
        ("no prompt", vec![], &[]),
        ("no more than four", vec![97; 4], &[4]),
        ("the shortest will do", vec![97; 5], &[4]),
        ("also of a long prompt", vec![97; 1000], &[4]),
        // The stray byte is in each suffix.
        ("a stray byte in the last", half(1), &[4, 5, 6, 20]),
        ("a stray byte in the last four", half(4), &[4, 5, 6, 20]),
        ("before them", half(5), &[4]),
        (
            "unknown ids are passed over",
            [vec![97; 20], vec![UNKNOWN; 200]].concat(),
            &[4],
        ),
        (
            "the window is all that is read",
            vec![0xbd; 1000],
            &[4, 5, 6, 32],
        ),
    ];
    for (name, prompt, expected) in rows {
        let bench = Bench::new(Bytes::default());
        bench.open(&prompt);
        let read: Vec<usize> = bench.take_calls().iter().map(Vec::len).collect();
        assert_eq!(read, expected, "{name}");
    }
}

/// A10: tokens that wait for one piece of text all stand at its start.
#[test]
fn anchors_stand_at_the_piece() {
    type Row = (
        &'static str,
        Vec<TokenId>,
        &'static str,
        Vec<TokenAttribution>,
    );
    let rows: [Row; 8] = [
        (
            "one each",
            bytes("ok"),
            "ok",
            vec![visible(111, 0), visible(107, 1)],
        ),
        (
            "a shared character",
            vec![0xe4, 0xbd, 0xa0],
            "你",
            vec![visible(0xe4, 0), visible(0xbd, 0), visible(0xa0, 0)],
        ),
        (
            "hidden special",
            vec![97, SPECIAL, 98],
            "ab",
            vec![visible(97, 0), zero(SPECIAL, 1), visible(98, 1)],
        ),
        (
            "hidden between halves",
            vec![0xe4, SPECIAL, 0xbd, 0xa0],
            "你",
            vec![
                visible(0xe4, 0),
                zero(SPECIAL, 0),
                visible(0xbd, 0),
                visible(0xa0, 0),
            ],
        ),
        (
            "nothing, then text",
            vec![EMPTY, 97],
            "a",
            vec![visible(EMPTY, 0), visible(97, 0)],
        ),
        (
            "nothing at the end",
            vec![97, EMPTY],
            "a",
            vec![visible(97, 0), zero(EMPTY, 1)],
        ),
        (
            "half a character",
            vec![0xe4, 0xbd],
            "\u{fffd}",
            vec![visible(0xe4, 0), visible(0xbd, 0)],
        ),
        (
            "skipped unknown id",
            vec![97, UNKNOWN],
            "a",
            vec![visible(97, 0), zero(UNKNOWN, 1)],
        ),
    ];
    let options = DecodeOptions {
        unknown_ids: UnknownIds::Skip,
        ..DecodeOptions::default()
    };
    for (name, ids, text, records) in rows {
        let bench = Bench::new(Bytes::default());
        let all = bench
            .tokenizer
            .decode_attributed(&ids, &[], &options)
            .unwrap();
        let offsets = |records: &[TokenAttribution]| -> Vec<_> {
            records.iter().map(|r| (r.token_id, r.anchor)).collect()
        };
        assert_eq!(all.text, text, "{name}");
        assert_eq!(offsets(&all.attributions), offsets(&records), "{name}");
    }
}

/// Text that ends in U+FFFD waits, but no longer than the window.
#[test]
fn bounded() {
    let bench = Bench::new(Bytes::default());
    let mut stream = bench.open(&[]);
    let mut waited = 0;
    let mut most = 0;
    for _ in 0..1000 {
        let settled = stream.push_token(0xbd).unwrap();
        waited = if settled > 0 { 0 } else { waited + 1 };
        most = most.max(waited);
        assert!(stream.pending().waiting_tokens < WINDOW_LIMIT);
    }
    assert_eq!(most, WINDOW_LIMIT - 1);
    let longest = bench.take_calls().iter().map(Vec::len).max();
    assert!(longest <= Some(2 * WINDOW_LIMIT), "{longest:?}");
    let (_, all) = stream.flush(None).unwrap();
    assert_eq!(all.text, "\u{fffd}".repeat(1000));
    assert_eq!(all.attributions.len(), 1000);
}

/// Hidden special tokens never enter the window, and tokens of nothing do not fill it.
#[test]
fn what_gives_no_text_costs_no_more() {
    for id in [SPECIAL, EMPTY] {
        let bench = Bench::new(Bytes::default());
        let mut stream = bench.open(&[]);
        for _ in 0..1000 {
            stream.push_token(id).unwrap();
        }
        let longest = bench.take_calls().iter().map(Vec::len).max().unwrap_or(0);
        assert!(longest <= 2 * WINDOW_LIMIT, "{id}: {longest}");
        stream.push_token(97).unwrap();
        let (_, all) = stream.flush(None).unwrap();
        assert_eq!((all.text.as_str(), all.attributions.len()), ("a", 1001));
    }
}

/// Two decodes for a token that gives text, one for a token that waits.
#[test]
fn decodes_are_counted() {
    let bench = Bench::new(Bytes::default());
    let mut stream = bench.open(&bytes("prompt"));
    for (name, id, most) in [
        ("text", 97, 2),
        ("half", 0xe4, 1),
        ("more of it", 0xbd, 1),
        ("the whole", 0xa0, 2),
        ("a word", WORD, 2),
        ("hidden", SPECIAL, 0),
    ] {
        bench.take_calls();
        stream.push_token(id).unwrap();
        assert!(bench.decodes() <= most, "{name}: {}", bench.decodes());
    }
    bench.take_calls();
    stream.push_tokens(&[97; 500]).unwrap();
    assert!(bench.decodes() <= 1000);
    assert!(bench.take_calls().iter().all(|ids| ids.len() <= 8));
    stream.flush(None).unwrap();
    assert_eq!(bench.decodes(), 0, "nothing waits, so nothing is decoded");
}

/// A source that rewrites earlier text, grows shorter, or both, breaks no character and no order.
#[test]
fn a_source_that_rewrites_earlier_text() {
    let mut source = Bytes::default();
    source.scripted.insert(vec![1], "abc");
    source.scripted.insert(vec![1, 2], "ab");
    source.scripted.insert(vec![1, 2, 3], "🎉d");
    source.scripted.insert(vec![2, 3], "x");
    let bench = Bench::new(source);
    let mut stream = bench.open(&[]);
    assert_eq!(stream.push_token(1).unwrap(), 3);
    assert_eq!(stream.push_token(2).unwrap(), 0);
    assert!(stream.push_token(3).unwrap() > 0);
    let (_, all) = stream.flush(None).unwrap();
    assert!(all.text.starts_with("abc"), "{:?}", all.text);
    assert_eq!(all.attributions.len(), 3);
    assert!(DecodedText::new(all.text, all.attributions).is_ok());
}

/// **atomic**: wherever the source fails, the stream is as it was.
#[test]
fn errors_of_the_source_change_nothing() {
    for nth in 0..8 {
        let bench = Bench::new(Bytes::default());
        let mut stream = bench.open(&bytes("prompt"));
        stream.push_tokens(&[97, 0xe4, 0xbd]).unwrap();
        let before = (stream.pending(), output(&mut stream));
        bench.fail_at(nth);
        let run = [0xa0, SPECIAL, 98, WORD, 0xe4];
        let failed = stream.push_tokens(&run).is_err();
        if failed {
            assert_eq!((stream.pending(), output(&mut stream)), before);
            assert_eq!(stream.token_count(), 3, "{nth}");
            stream.push_tokens(&run).unwrap();
        }
        *bench.source.fails_at.lock().unwrap() = None;
        bench.fail_at(0);
        assert!(
            stream.flush(None).is_err(),
            "half a character is decoded again"
        );
        let (_, all) = stream.flush(None).unwrap();
        assert_eq!(all.text, "a你bword\u{fffd}", "{nth}");
        assert_eq!(all.attributions.len(), 8);
    }
}

#[test]
fn unknown_ids_are_named_before_anything_changes() {
    let bench = Bench::new(Bytes::default());
    let mut stream = bench.open(&[]);
    let error = stream.push_tokens(&[97, 98, UNKNOWN]).unwrap_err();
    assert!(matches!(
        error,
        Error::UnknownToken {
            id: UNKNOWN,
            index: 2,
            vocab_size: Some(10_000)
        }
    ));
    assert_eq!(
        (output(&mut stream), stream.token_count()),
        (String::new(), 0)
    );
    assert_eq!(replay(&mut stream, &bytes("ab")), ["a", "b", ""]);
}

/// A seed that cannot be read is an error of `open` and of `reset`, which changes nothing.
#[test]
fn a_prompt_that_fails() {
    let bench = Bench::new(Bytes::default());
    let mut stream = bench.open(&[]);
    stream.push_token(97).unwrap();
    bench.fail_at(0);
    assert!(matches!(
        stream.reset::<Error>(&[97u32, 98][..]),
        Err(Error::Source(_))
    ));
    assert_eq!(output(&mut stream), "a");
    bench.fail_at(0);
    let tokenizer = Arc::clone(&bench.tokenizer);
    let opened = DecodeStream::open::<Error>(tokenizer, &[97u32][..], StreamOptions::default());
    assert!(matches!(opened, Err(Error::Source(_))));
}

/// One-shot decoding is the source's own, less what is hidden or skipped.
#[test]
fn decode_is_the_sources() {
    let bench = Bench::new(Bytes::default());
    let ids = [97, SPECIAL, 0xe4, 98];
    let hiding = DecodeOptions::default();
    let showing = DecodeOptions {
        skip_special_tokens: false,
        ..hiding.clone()
    };
    let keeping = DecodeOptions {
        keep_special_tokens: Some(Arc::new([SPECIAL])),
        ..hiding.clone()
    };
    assert_eq!(bench.tokenizer.decode(&ids, &hiding).unwrap(), "a\u{fffd}b");
    assert_eq!(
        bench.tokenizer.decode(&ids, &showing).unwrap(),
        "a<s>\u{fffd}b"
    );
    assert_eq!(
        bench.tokenizer.decode(&ids, &keeping).unwrap(),
        "a<s>\u{fffd}b"
    );
    assert!(bench.tokenizer.decode(&[UNKNOWN], &hiding).is_err());
    assert!(bench.tokenizer.fingerprint().is_err());
    assert!(bench.tokenizer.to_bytes().is_err());
}

proptest! {
    #![proptest_config(cases(128))]

    /// Streams of whole characters decode as one, whatever the calls and wherever chunks leave.
    #[test]
    fn text_of_whole_characters(
        prompt in "[ab你🎉é]{0,12}", output in "[ab你🎉é]{0,12}", size in 1..5usize, held in 0..6usize,
    ) {
        let bench = Bench::new(Bytes::default());
        let options = StreamOptions { min_bytes_to_buffer: held, ..StreamOptions::default() };
        let mut stream = open(&bench.tokenizer, &bytes(&prompt), options);
        let mut chunks = Vec::new();
        for run in bytes(&output).chunks(size) {
            stream.push_tokens(run).unwrap();
            chunks.extend(stream.next_chunk());
        }
        let (last, all) = stream.flush(None).unwrap();
        chunks.extend(last);
        prop_assert_eq!(&all.text, &output);
        prop_assert_eq!(common::joined(&chunks), all);
    }
}
