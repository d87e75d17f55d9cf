//! The slow, obvious twin: every byte carries the token it came from, everything is decoded
//! from the start each time. Steps that need no streaming are the `tokenizers` crate's own.

use super::sample::Sample;
use detok_core::{DecodeOptions, DecodedText, TokenAttribution, TokenId};
use std::collections::HashMap;
use tokenizers::{Decoder, DecoderWrapper};

/// Which of the stated deviations from the crate are made.
#[derive(Clone, Copy)]
pub(crate) struct Deviations {
    /// D1: whole characters of a broken byte run stay.
    pub(crate) runs: bool,
    /// D2 and D3: added tokens are literal, inner markers stay.
    pub(crate) spelling: bool,
}

impl Deviations {
    pub(crate) const ALL: Self = Self {
        runs: true,
        spelling: true,
    };
    /// A stream of a tokenizer loaded strictly.
    pub(crate) const STRICT_STREAM: Self = Self {
        runs: true,
        spelling: false,
    };
    pub(crate) const NONE: Self = Self {
        runs: false,
        spelling: false,
    };
}

/// A byte's origin: the index of its token, and which byte of the token it is.
type Origin = (usize, usize);

/// A character of text, and the bytes it was made of.
#[derive(Clone, Debug)]
struct Char {
    text: char,
    origins: Vec<Origin>,
    /// It stands for bytes that are not UTF-8.
    replaced: bool,
}

/// A shown token: its index among prompt and output, and its string at this step.
#[derive(Clone, Debug)]
struct Piece {
    index: usize,
    text: String,
    added: bool,
}

/// Text up to a point: what is certain, and the beginning of a character behind it.
#[derive(Default)]
struct Joined {
    chars: Vec<Char>,
    tail: Vec<Origin>,
    tail_bytes: Vec<u8>,
}

pub(crate) struct Reference<'s> {
    sample: &'s Sample,
    options: DecodeOptions,
    deviations: Deviations,
    /// Steps in order, sequences flattened; `None`: no decoder.
    steps: Option<Vec<DecoderWrapper>>,
}

impl<'s> Reference<'s> {
    pub(crate) fn new(sample: &'s Sample, options: &DecodeOptions, deviations: Deviations) -> Self {
        Self {
            sample,
            options: options.clone(),
            deviations,
            steps: sample.oracle.get_decoder().map(|decoder| {
                let mut steps = Vec::new();
                flatten(decoder, &mut steps);
                steps
            }),
        }
    }

    /// The text of `ids` behind nothing.
    pub(crate) fn text(&self, ids: &[TokenId]) -> String {
        self.finished(ids, &[]).iter().map(|c| c.text).collect()
    }

    /// Everything a stream gives for `output` behind `prompt`.
    pub(crate) fn expected(&self, prompt: &[TokenId], output: &[TokenId]) -> DecodedText {
        let ids = [prompt, output].concat();
        let full = self.finished(&ids, &[]);
        let before = self.prompt_chars(prompt, &ids, &[]);
        let generated = full.get(before..).unwrap_or_default();
        let mut floor = 0;
        let mut records = Vec::new();
        for (at, &token_id) in output.iter().enumerate() {
            let index = prompt.len() + at;
            let record = visible_record(token_id, index, generated).unwrap_or_else(|| {
                let settled = self.settled(prompt, &output[..=at]).len() as u32;
                TokenAttribution::zero_width(token_id, settled.max(floor))
            });
            floor = record.anchor.byte_offset();
            records.push(record);
        }
        let text = generated.iter().map(|c| c.text).collect();
        DecodedText::new(text, records.into()).expect("records fit the text")
    }

    /// The text after `prompt` and `output`, if strings of `continuation` came as tokens too.
    pub(crate) fn continued(
        &self,
        prompt: &[TokenId],
        output: &[TokenId],
        more: &[&str],
    ) -> String {
        let ids = [prompt, output].concat();
        let full = self.finished(&ids, more);
        let before = self.prompt_chars(prompt, &ids, more);
        full.iter().skip(before).map(|c| c.text).collect()
    }

    /// Text that no continuation can change.
    pub(crate) fn settled(&self, prompt: &[TokenId], output: &[TokenId]) -> String {
        let ids = [prompt, output].concat();
        let joined = self.joined(&self.pieces(&ids, &[]));
        let (start, stop) = self.text_strip();
        let mut chars = joined.chars;
        strip_start(&mut chars, start);
        if let Some((content, count)) = stop {
            // What the end of text may still take off.
            let run = chars.iter().rev().take_while(|c| c.text == content).count();
            let mut own = [0; 4];
            let to_come = content.encode_utf8(&mut own).as_bytes();
            let withheld = if joined.tail_bytes.is_empty() {
                run.min(count)
            } else if to_come.starts_with(&joined.tail_bytes) {
                run.min(count.saturating_sub(1))
            } else {
                0
            };
            chars.truncate(chars.len() - withheld);
        }
        let before = self.prompt_chars(prompt, &ids, &[]);
        chars.iter().skip(before).map(|c| c.text).collect()
    }

    /// Bytes of an unfinished character after these ids.
    pub(crate) fn incomplete(&self, prompt: &[TokenId], output: &[TokenId]) -> usize {
        let ids = [prompt, output].concat();
        self.joined(&self.pieces(&ids, &[])).tail_bytes.len()
    }

    /// How many characters of the text of `ids` are the prompt's: those of its own text, but for
    /// U+FFFD of an unfinished end that later tokens complete.
    fn prompt_chars(&self, prompt: &[TokenId], ids: &[TokenId], more: &[&str]) -> usize {
        let alone = self.finished(prompt, &[]).len();
        let tail = self.joined(&self.pieces(prompt, &[])).tail;
        let Some(first) = tail.first() else {
            return alone;
        };
        let broken = self
            .finished(ids, more)
            .iter()
            .any(|c| c.replaced && c.origins.contains(first));
        if broken {
            return alone;
        }
        let own = self.finished(prompt, &[]);
        let unfinished = own
            .iter()
            .filter(|c| c.origins.iter().any(|origin| tail.contains(origin)))
            .count();
        alone - unfinished
    }

    fn finished(&self, ids: &[TokenId], more: &[&str]) -> Vec<Char> {
        let joined = self.joined(&self.pieces(ids, more));
        let mut chars = joined.chars;
        if !joined.tail.is_empty() {
            let replacement = |origins: &[Origin]| Char {
                text: '\u{fffd}',
                origins: origins.to_vec(),
                replaced: true,
            };
            if self.has_runs() {
                chars.extend(joined.tail.chunks(1).map(replacement));
            } else {
                chars.push(replacement(&joined.tail));
            }
        }
        let (start, stop) = self.text_strip();
        strip_start(&mut chars, start);
        if let Some((content, count)) = stop {
            for _ in 0..count {
                if chars.last().is_some_and(|c| c.text == content) {
                    chars.pop();
                }
            }
        }
        chars
    }

    fn pieces(&self, ids: &[TokenId], more: &[&str]) -> Vec<Piece> {
        let kept = self.options.keep_special_tokens.as_deref().unwrap_or(&[]);
        let mut pieces = Vec::new();
        for (index, &id) in ids.iter().enumerate() {
            let hidden = self.options.skip_special_tokens
                && self.sample.is_special(id)
                && !kept.contains(&id);
            if let (Some((text, added)), false) = (self.sample.spelled(id), hidden) {
                pieces.push(Piece { index, text, added });
            }
        }
        for (at, text) in more.iter().enumerate() {
            pieces.push(Piece {
                index: ids.len() + at,
                text: (*text).to_owned(),
                added: false,
            });
        }
        pieces
    }

    fn has_runs(&self) -> bool {
        let is_run = |step: &DecoderWrapper| matches!(step, DecoderWrapper::ByteFallback(_));
        self.steps
            .as_ref()
            .is_some_and(|steps| steps.iter().any(is_run))
    }

    /// Steps that see one string per token, and those behind.
    fn split_steps(&self) -> (&[DecoderWrapper], &[DecoderWrapper]) {
        let steps = self.steps.as_deref().unwrap_or_default();
        let joins = |step: &DecoderWrapper| {
            matches!(
                step,
                DecoderWrapper::Fuse(_)
                    | DecoderWrapper::ByteFallback(_)
                    | DecoderWrapper::ByteLevel(_)
            )
        };
        steps.split_at(steps.iter().position(joins).unwrap_or(steps.len()))
    }

    /// What `Strip` takes off the text as a whole: at its start and at its end.
    #[expect(clippy::type_complexity, reason = "two of the same")]
    fn text_strip(&self) -> (Option<(char, usize)>, Option<(char, usize)>) {
        let (_, behind) = self.split_steps();
        let found = behind.iter().find_map(|step| match step {
            DecoderWrapper::Strip(strip) => Some(strip),
            _ => None,
        });
        let Some(strip) = found else {
            return (None, None);
        };
        (
            (strip.start > 0).then_some((strip.content, strip.start)),
            (strip.stop > 0).then_some((strip.content, strip.stop)),
        )
    }

    /// The strings of tokens after the steps that keep one per token, blanks with the later one.
    fn spelled(&self, pieces: &[Piece]) -> Vec<String> {
        let Some(_) = self.steps else {
            let blank = |(at, piece): (usize, &Piece)| match at {
                0 => piece.text.clone(),
                _ => format!(" {}", piece.text),
            };
            return pieces.iter().enumerate().map(blank).collect();
        };
        let (steps, _) = self.split_steps();
        let full = self.chain(steps, pieces);
        if !steps
            .iter()
            .any(|step| matches!(step, DecoderWrapper::BPE(_)))
        {
            return full;
        }
        let mut spelled: Vec<String> = Vec::new();
        let mut blank = "";
        for (at, text) in full.iter().enumerate() {
            let as_last = self.chain(steps, &pieces[..=at]).pop().expect("not empty");
            let owed = text
                .strip_prefix(as_last.as_str())
                .expect("a blank behind it");
            spelled.push(format!("{blank}{as_last}"));
            blank = if owed.is_empty() { "" } else { " " };
        }
        spelled
    }

    fn chain(&self, steps: &[DecoderWrapper], pieces: &[Piece]) -> Vec<String> {
        let mut strings: Vec<String> = pieces.iter().map(|piece| piece.text.clone()).collect();
        for step in steps {
            strings = match step {
                DecoderWrapper::Metaspace(metaspace) if self.deviations.spelling => {
                    let marker = metaspace.get_replacement();
                    let keeps = metaspace.get_prepend_scheme()
                        == tokenizers::pre_tokenizers::metaspace::PrependScheme::Never;
                    let spell = |(at, text): (usize, String)| match text.strip_prefix(marker) {
                        Some(rest) if at == 0 && !keeps => rest.replace(marker, " "),
                        _ => text.replace(marker, " "),
                    };
                    strings.into_iter().enumerate().map(spell).collect()
                }
                DecoderWrapper::BPE(_) if strings.is_empty() => strings,
                step => step.decode_chain(strings).expect("the crate's step"),
            };
        }
        strings
    }

    fn joined(&self, pieces: &[Piece]) -> Joined {
        let strings = self.spelled(pieces);
        let (_, behind) = self.split_steps();
        let mut joined = Joined::default();
        match behind.first() {
            Some(DecoderWrapper::ByteLevel(_)) => {
                let alphabet = alphabet();
                let mut bytes = Vec::new();
                for (piece, text) in pieces.iter().zip(&strings) {
                    let spelled = text.chars().map(|c| alphabet.get(&c).copied());
                    let own = match spelled.collect::<Option<Vec<u8>>>() {
                        Some(own) if !(piece.added && self.deviations.spelling) => own,
                        _ => text.clone().into_bytes(),
                    };
                    bytes.extend(
                        own.into_iter()
                            .enumerate()
                            .map(|(n, byte)| (byte, (piece.index, n))),
                    );
                }
                joined.push_lossy(&bytes, true);
            }
            Some(DecoderWrapper::ByteFallback(_)) => {
                let mut run = Vec::new();
                for (piece, text) in pieces.iter().zip(&strings) {
                    if let Some(byte) = byte_of(text) {
                        run.push((byte, (piece.index, 0)));
                    } else {
                        joined.push_run(&std::mem::take(&mut run), self.deviations.runs, false);
                        joined.push_text(text, piece.index);
                    }
                }
                joined.push_run(&run, self.deviations.runs, true);
            }
            _ => {
                for (piece, text) in pieces.iter().zip(&strings) {
                    joined.push_text(text, piece.index);
                }
            }
        }
        for step in behind {
            if let DecoderWrapper::Replace(_) = step {
                joined.replace(step);
            }
        }
        joined
    }
}

impl Joined {
    fn push_text(&mut self, text: &str, index: usize) {
        for (at, character) in text.char_indices() {
            self.chars.push(Char {
                text: character,
                origins: (at..at + character.len_utf8())
                    .map(|n| (index, n))
                    .collect(),
                replaced: false,
            });
        }
    }

    /// Bytes as UTF-8, one U+FFFD for each maximal part of a character.
    fn push_lossy(&mut self, bytes: &[(u8, Origin)], at_end: bool) {
        let raw: Vec<u8> = bytes.iter().map(|(byte, _)| *byte).collect();
        let origins =
            |from: usize, len: usize| bytes[from..from + len].iter().map(|b| b.1).collect();
        let mut at = 0;
        for chunk in raw.utf8_chunks() {
            for text in chunk.valid().chars() {
                self.chars.push(Char {
                    text,
                    origins: origins(at, text.len_utf8()),
                    replaced: false,
                });
                at += text.len_utf8();
            }
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            if at_end && at + invalid.len() == raw.len() && may_go_on(invalid) {
                self.tail = origins(at, invalid.len());
                self.tail_bytes = invalid.to_vec();
            } else {
                self.chars.push(Char {
                    text: '\u{fffd}',
                    origins: origins(at, invalid.len()),
                    replaced: true,
                });
            }
            at += invalid.len();
        }
    }

    /// A run of byte pieces. `streams` (D1): whole characters, and one U+FFFD for each other byte;
    /// else, if any byte is wrong, all are.
    fn push_run(&mut self, run: &[(u8, Origin)], streams: bool, at_end: bool) {
        let raw: Vec<u8> = run.iter().map(|(byte, _)| *byte).collect();
        let mut at = 0;
        while at < raw.len() {
            let whole = (1..=4).find_map(|len| {
                let text = std::str::from_utf8(raw.get(at..at + len)?).ok()?;
                Some((len, text.chars().next()?))
            });
            let whole = whole.filter(|_| streams || std::str::from_utf8(&raw).is_ok());
            if whole.is_none() && streams && at_end && may_go_on(&raw[at..]) {
                self.tail = run[at..].iter().map(|b| b.1).collect();
                self.tail_bytes = raw[at..].to_vec();
                return;
            }
            let (len, text) = whole.unwrap_or((1, '\u{fffd}'));
            self.chars.push(Char {
                text,
                origins: run[at..at + len].iter().map(|b| b.1).collect(),
                replaced: whole.is_none(),
            });
            at += len;
        }
    }

    /// Every character by itself, through the crate's step.
    fn replace(&mut self, step: &DecoderWrapper) {
        let mut chars = Vec::new();
        for character in std::mem::take(&mut self.chars) {
            let text = step
                .decode_chain(vec![character.text.to_string()])
                .expect("replaces");
            for (at, replacement) in text.concat().chars().enumerate() {
                chars.push(Char {
                    text: replacement,
                    origins: if at == 0 {
                        character.origins.clone()
                    } else {
                        Vec::new()
                    },
                    replaced: character.replaced,
                });
            }
        }
        self.chars = chars;
    }
}

/// A2, or `None` for a token of which no byte is left.
fn visible_record(token_id: TokenId, index: usize, chars: &[Char]) -> Option<TokenAttribution> {
    let mut offset = 0;
    for character in chars {
        if let Some(first) = character
            .origins
            .iter()
            .position(|origin| origin.0 == index)
        {
            return Some(TokenAttribution {
                continues_char: first > 0,
                ..TokenAttribution::visible(token_id, offset)
            });
        }
        offset += character.text.len_utf8() as u32;
    }
    None
}

fn strip_start(chars: &mut Vec<Char>, start: Option<(char, usize)>) {
    if let Some((content, count)) = start {
        let run = chars.iter().take_while(|c| c.text == content).count();
        chars.drain(..run.min(count));
    }
}

/// Whether more bytes may make a character of these.
fn may_go_on(bytes: &[u8]) -> bool {
    let mut longer = bytes.to_vec();
    for _ in bytes.len()..4 {
        for next in [0x80, 0x8f, 0x90, 0xa0, 0xbf] {
            longer.push(next);
            if std::str::from_utf8(&longer).is_ok() {
                return true;
            }
            if longer.len() < 4 && may_go_on(&longer) {
                return true;
            }
            longer.pop();
        }
    }
    false
}

fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// The byte alphabet of GPT-2: printable Latin-1 as it is, the rest from U+0100 on, in order.
fn alphabet() -> HashMap<char, u8> {
    let mut next = 0x100;
    let spell = |byte: u8| {
        let own = char::from(byte);
        let printable = ('!'..='~').contains(&own) || ('¡'..='¬').contains(&own) || own >= '®';
        if printable {
            return (own, byte);
        }
        let character = char::from_u32(next).expect("below the surrogates");
        next += 1;
        (character, byte)
    };
    (0..=255).map(spell).collect()
}

fn flatten(decoder: &DecoderWrapper, steps: &mut Vec<DecoderWrapper>) {
    match decoder {
        DecoderWrapper::Sequence(sequence) => {
            for decoder in sequence.get_decoders() {
                flatten(decoder, steps);
            }
        }
        other => steps.push(other.clone()),
    }
}
