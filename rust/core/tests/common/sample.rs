//! Small tokenizers of every family, with members that make decoding hard.

use detok_core::{TokenId, Tokenizer, from_tokenizer_json};
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A `tokenizer.json` in parts, as proptest makes, shows and shrinks it.
#[derive(Clone)]
pub(crate) struct Spec {
    pub(crate) decoder: Value,
    /// Tokens, and how many ids are left free before each.
    pub(crate) vocabulary: Vec<(String, u32)>,
    /// Content and whether it is special.
    pub(crate) added: Vec<(String, bool)>,
}

/// A tokenizer loaded both ways, and the oracle: the `tokenizers` crate's own.
pub(crate) struct Sample {
    pub(crate) loose: Arc<Tokenizer>,
    pub(crate) strict: Arc<Tokenizer>,
    pub(crate) oracle: tokenizers::Tokenizer,
    /// Mapped ids, ascending.
    pub(crate) ids: Vec<TokenId>,
    /// Some ids that are not.
    pub(crate) unknown: Vec<TokenId>,
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vocabulary: BTreeMap<_, _> = self.vocabulary.iter().map(|(t, gap)| (t, gap)).collect();
        write!(
            f,
            "{}, vocabulary {vocabulary:?}, added {:?}",
            self.decoder, self.added
        )
    }
}

impl Spec {
    pub(crate) fn new(decoder: Value, vocabulary: &[&str], added: &[(&str, bool)]) -> Self {
        Self {
            decoder,
            vocabulary: vocabulary.iter().map(|t| ((*t).to_owned(), 0)).collect(),
            added: added.iter().map(|(t, s)| ((*t).to_owned(), *s)).collect(),
        }
    }

    fn json(&self, decoder: &Value) -> String {
        let mut vocabulary = BTreeMap::new();
        let mut next = 0;
        for (token, gap) in &self.vocabulary {
            vocabulary.entry(token.clone()).or_insert(next + gap);
            next += gap + 1;
        }
        let added: Vec<Value> = (vocabulary.len()..)
            .zip(&self.added)
            .map(|(id, (content, special))| {
                json!({
                    "id": id, "content": content, "special": special, "normalized": false,
                    "single_word": false, "lstrip": false, "rstrip": false,
                })
            })
            .collect();
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "decoder": decoder,
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"},
        })
        .to_string()
    }

    pub(crate) fn load(&self) -> Sample {
        let json = self.json(&self.decoder);
        let load = |strict| {
            let loaded = from_tokenizer_json(json.as_bytes(), strict).expect("loads");
            Arc::new(loaded.tokenizer)
        };
        let oracle: tokenizers::Tokenizer = self
            .json(&newer_form(&self.decoder))
            .parse()
            .expect("the crate loads it");
        let mut ids: Vec<TokenId> = oracle.get_vocab(true).into_values().collect();
        ids.sort_unstable();
        ids.dedup();
        let unknown = (0..64)
            .chain([1 << 20, 1 << 22, TokenId::MAX])
            .filter(|id| oracle.id_to_token(*id).is_none())
            .collect();
        Sample {
            loose: load(false),
            strict: load(true),
            oracle,
            ids,
            unknown,
        }
    }
}

impl Sample {
    pub(crate) fn is_exact(&self) -> bool {
        self.loose.strategy_reason().is_none()
    }

    /// Ids for random picks; one in eight is unknown to the tokenizer.
    pub(crate) fn pick(&self, picks: &[Index], with_unknown: bool) -> Vec<TokenId> {
        let pick = |pick: &Index| {
            let at = pick.index(self.ids.len() * 8);
            if with_unknown && at >= self.ids.len() * 7 && !self.unknown.is_empty() {
                self.unknown[at % self.unknown.len()]
            } else {
                self.ids[at % self.ids.len()]
            }
        };
        picks.iter().map(pick).collect()
    }

    /// The id of a token by its content.
    pub(crate) fn id(&self, token: &str) -> TokenId {
        self.oracle.token_to_id(token).expect(token)
    }

    /// Tokens by their content, for messages.
    pub(crate) fn words(&self, ids: &[TokenId]) -> String {
        let word = |id: &TokenId| match self.spelled(*id) {
            Some((token, added)) => format!("{token:?}{}", if added { "+" } else { "" }),
            None => format!("({id})"),
        };
        ids.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn is_special(&self, id: TokenId) -> bool {
        let added = self.oracle.get_added_vocabulary();
        self.spelled(id)
            .is_some_and(|(token, _)| added.is_special_token(&token))
    }

    /// A mapped token as its decoder is given it, and whether it was added.
    pub(crate) fn spelled(&self, id: TokenId) -> Option<(String, bool)> {
        let added = self.oracle.get_added_vocabulary();
        match added.simple_id_to_token(id) {
            Some(token) => Some((token, true)),
            None => self.oracle.id_to_token(id).map(|token| (token, false)),
        }
    }
}

/// The old `Metaspace` with `add_prefix_space: false` alone is one the crate no longer reads.
fn newer_form(decoder: &Value) -> Value {
    let mut decoder = decoder.clone();
    if let Some(steps) = decoder.get_mut("decoders").and_then(Value::as_array_mut) {
        for step in steps {
            *step = newer_form(step);
        }
    }
    if decoder.get("add_prefix_space") == Some(&Value::Bool(false)) {
        decoder["prepend_scheme"] = "never".into();
    }
    decoder
}

/// A byte-level tokenizer of every byte (the id is the byte) and a few words.
pub(crate) fn bytes_and_words() -> Sample {
    let alphabet: Vec<String> = (0..=255u8).map(spelled).collect();
    let mut tokens: Vec<&str> = alphabet.iter().map(String::as_str).collect();
    tokens.extend(["ok", "abcd", "ab", "", "Ġä½łstop", "ä½łå¥½", "ï¿½", "a｜"]);
    Spec::new(byte_level(), &tokens, &[("<s>", true), ("<tool>", true)]).load()
}

/// A byte in the byte alphabet of GPT-2.
fn spelled(byte: u8) -> String {
    let code = match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u32::from(byte),
        0x00..=0x20 => u32::from(byte) + 0x100,
        0x7f..=0xa0 => u32::from(byte) - 0x7f + 0x121,
        0xad => 0x143,
    };
    char::from_u32(code)
        .expect("below the surrogates")
        .to_string()
}

/// `Replace, ByteFallback, Fuse, Strip` over every byte (the id is the byte) and a few pieces.
pub(crate) fn bytes_and_pieces() -> Sample {
    let bytes: Vec<String> = (0..=255u8).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut tokens: Vec<&str> = bytes.iter().map(String::as_str).collect();
    tokens.extend(["a", "▁b", "▁", "", "\u{fffd}"]);
    Spec::new(llama(), &tokens, &[("<s>", true)]).load()
}

pub(crate) fn byte_level() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
}

pub(crate) fn sequence(steps: &[Value]) -> Value {
    json!({"type": "Sequence", "decoders": steps})
}

pub(crate) fn replace(from: &str, to: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": from}, "content": to})
}

pub(crate) fn byte_fallback() -> Value {
    json!({"type": "ByteFallback"})
}

pub(crate) fn fuse() -> Value {
    json!({"type": "Fuse"})
}

pub(crate) fn strip(content: char, start: usize, stop: usize) -> Value {
    json!({"type": "Strip", "content": content, "start": start, "stop": stop})
}

pub(crate) fn metaspace(scheme: &str) -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true})
}

pub(crate) fn old_metaspace(add_prefix_space: bool) -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "add_prefix_space": add_prefix_space})
}

pub(crate) fn wordpiece(cleanup: bool) -> Value {
    json!({"type": "WordPiece", "prefix": "##", "cleanup": cleanup})
}

pub(crate) fn bpe_decoder() -> Value {
    json!({"type": "BPEDecoder", "suffix": "</w>"})
}

/// `Replace, ByteFallback, Fuse, Strip`: Llama 2 and its kin.
pub(crate) fn llama() -> Value {
    sequence(&[replace("▁", " "), byte_fallback(), fuse(), strip(' ', 1, 0)])
}

/// Decoders that compile, with the members their family is fed with.
pub(crate) fn compiled_decoders() -> Vec<(Value, &'static [&'static str])> {
    let nested = |steps: &[Value]| sequence(&[sequence(steps), fuse()]);
    let mut decoders: Vec<(Value, &'static [&'static str])> = Vec::new();
    for decoder in [
        byte_level(),
        sequence(&[byte_level()]),
        nested(&[byte_level()]),
        sequence(&[replace("~", "Ġ"), byte_level(), fuse()]),
        sequence(&[byte_level(), strip(' ', 1, 0)]),
        sequence(&[byte_level(), strip(' ', 2, 1)]),
    ] {
        decoders.push((decoder, BYTE_LEVEL));
    }
    for decoder in [
        llama(),
        sequence(&[replace("▁", " "), byte_fallback(), fuse()]),
        sequence(&[byte_fallback(), fuse(), replace("▁", " ")]),
        sequence(&[byte_fallback(), replace("▁", " "), fuse()]),
        sequence(&[
            byte_fallback(),
            fuse(),
            replace("▁", " "),
            replace(" ", "__"),
        ]),
        sequence(&[byte_fallback(), fuse(), replace("▁", ""), strip('a', 2, 0)]),
        sequence(&[byte_fallback(), fuse()]),
        byte_fallback(),
        nested(&[replace("▁", " "), byte_fallback()]),
        sequence(&[replace("▁", " "), byte_fallback(), fuse(), strip(' ', 0, 1)]),
        sequence(&[replace("▁", " "), byte_fallback(), fuse(), strip(' ', 2, 2)]),
        sequence(&[byte_fallback(), fuse(), strip('▁', 1, 1)]),
        sequence(&[strip('▁', 1, 0), byte_fallback(), fuse()]),
        sequence(&[metaspace("always"), byte_fallback(), fuse()]),
        sequence(&[replace("▁", " "), fuse(), strip(' ', 1, 0)]),
        replace("▁", " "),
    ] {
        decoders.push((decoder, BYTE_FALLBACK));
    }
    for decoder in [
        metaspace("always"),
        metaspace("first"),
        metaspace("never"),
        old_metaspace(true),
        old_metaspace(false),
        nested(&[metaspace("first")]),
        sequence(&[replace("~", "▁"), metaspace("always"), strip(' ', 1, 0)]),
    ] {
        decoders.push((decoder, PIECES));
    }
    for decoder in [
        wordpiece(true),
        wordpiece(false),
        nested(&[wordpiece(true)]),
        sequence(&[wordpiece(false), replace("▁", "")]),
    ] {
        decoders.push((decoder, WORDS));
    }
    for decoder in [
        bpe_decoder(),
        sequence(&[bpe_decoder(), fuse()]),
        nested(&[replace("▁", ""), bpe_decoder()]),
    ] {
        decoders.push((decoder, SUFFIXED));
    }
    decoders.push((Value::Null, WORDS));
    decoders
}

/// Spelled in the byte alphabet; the comments say which bytes.
pub(crate) const BYTE_LEVEL: &[&str] = &[
    "a", "Ġthe", "Ġ", "Ċ", // a, blank the, blank, newline
    "ä", "½", "ł", "ä½", "½ł", "ä½ł", // E4, BD, A0 and their joins: 你
    "Ã", "©", "Ã©", // C3, A9: é
    "ð", "Ł", "ĺ", "Ģ", "ðŁĺ", "ðŁ", // F0, 9F, 98, 80: an emoji in parts
    "ÿ", "À", "ï¿½", "ï¿",
    "ï", // FF, C0: never UTF-8; EF BF BD: a genuine U+FFFD, and its head
    "aä", "łb", "ÿä½", "łð", // text and parts of characters in one token
    "í", "à", "ô", // ED, E0, F4: what may follow is restricted
    "", "a｜", "日本", "\u{fffd}", "~", // empty; not of the alphabet, so literal
];

pub(crate) const BYTE_FALLBACK: &[&str] = &[
    "<0x41>",
    "<0xE4>",
    "<0xBD>",
    "<0xA0>",
    "<0xE2>",
    "<0x96>",
    "<0x81>",
    "<0xFF>",
    "<0xEF>",
    "<0xBF>",
    "<0x20>",
    "<0xF0>",
    "<0x9F>",
    "<0x98>",
    "<0x80>",
    "<0xe4>",
    "<0x+1>",
    "<0xZZ>",
    "▁",
    "▁▁",
    "▁▁▁",
    "▁in▁the",
    "▁the",
    "a",
    "aa",
    "你",
    "\u{fffd}",
    "",
    " ",
    "b ",
    "x▁",
    "▁ ",
    "<0x41>x",
    "<s>",
];

pub(crate) const PIECES: &[&str] = &[
    "▁",
    "▁▁",
    "▁in▁the",
    "▁the",
    "a",
    "x▁",
    "你",
    "▁你",
    "\u{fffd}",
    "",
    " ",
    " a",
    "~",
    "~b",
    "<0xE4>",
    "<0x41>",
    "é",
];

pub(crate) const WORDS: &[&str] = &[
    "hello", "##ing", "##", "world", ".", ",", "##.", "!", "?", "do", "n't", "##n't", "'s", "'m",
    "'", " .", "", "你", "▁", "a b", " ' ", "\u{fffd}", "##你", " do not",
];

pub(crate) const SUFFIXED: &[&str] = &[
    "low</w>",
    "lo",
    "w</w>",
    "</w>",
    "",
    "你</w>",
    "a b</w>",
    ".</w>",
    "\u{fffd}",
    "\u{fffd}</w>",
    " ",
    "▁x</w>",
];

/// Content of added tokens: byte alphabet and not, marked, like other families' members.
const ADDED: &[&str] = &[
    "<s>",
    "<|end|>",
    "café",
    "č",
    "Ġx",
    "ł",
    "\u{fffd}",
    " ",
    "  ",
    "▁",
    "▁y",
    "▁in▁the",
    "##y",
    "<0xE4>",
    "<0xA0>",
    "é",
    "zz</w>",
    "a",
    "<pad> ",
    "\n",
    "你",
];

fn spec_for(decoder: Value, members: &'static [&'static str]) -> impl Strategy<Value = Spec> {
    let gap = prop_oneof![12 => Just(0), 2 => 1..4u32, 1 => Just(1 << 21)];
    let vocabulary = (
        subsequence(members, members.len() / 2..=members.len()).prop_shuffle(),
        prop::collection::vec(gap, members.len()),
    );
    let added = prop::collection::vec((select(ADDED), any::<bool>()), 0..5);
    (vocabulary, added).prop_map(move |((tokens, gaps), added)| Spec {
        decoder: decoder.clone(),
        vocabulary: tokens
            .into_iter()
            .map(str::to_owned)
            .zip(at_most_one_far(gaps))
            .collect(),
        added: added
            .into_iter()
            .map(|(token, special)| (token.to_owned(), special))
            .collect(),
    })
}

/// One stray id is enough, and keeps ids small enough to list.
fn at_most_one_far(gaps: Vec<u32>) -> Vec<u32> {
    let mut seen = false;
    gaps.into_iter()
        .map(|gap| {
            if gap > 4 && std::mem::replace(&mut seen, true) {
                0
            } else {
                gap
            }
        })
        .collect()
}

/// A random tokenizer that compiles.
pub(crate) fn compiled_spec() -> impl Strategy<Value = Spec> {
    select(compiled_decoders()).prop_flat_map(|(decoder, members)| spec_for(decoder, members))
}

/// A random tokenizer whose decoder may be any sequence of steps; many are decoded by windows.
pub(crate) fn any_spec() -> impl Strategy<Value = Spec> {
    let step = select(vec![
        byte_level(),
        replace("▁", " "),
        replace("a", ""),
        replace("<0x", "<"),
        json!({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"}),
        json!({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true}),
        byte_fallback(),
        fuse(),
        strip(' ', 1, 0),
        strip('a', 0, 2),
        metaspace("first"),
        wordpiece(true),
        bpe_decoder(),
    ]);
    let members = select(vec![BYTE_LEVEL, BYTE_FALLBACK, PIECES, WORDS, SUFFIXED]);
    let composed = (prop::collection::vec(step, 0..5), members)
        .prop_flat_map(|(steps, members)| spec_for(sequence(&steps), members));
    prop_oneof![composed, compiled_spec()]
}
