//! The decoder section of a `tokenizer.json` → a [`Program`] and the contribution of each token.
//!
//! A pipeline is a list of steps. As long as steps see one string per token, their work is done
//! here, once per token of the vocabulary. A step that joins strings ends that; of what may
//! follow, only what the decoder's small state can carry compiles.

use crate::program::{Family, Lead, Program, Repair, Trail};
use crate::table::{TokenFlags, TokenSpec};
use serde_json::{Value, json};
use std::borrow::Cow;
use tokenizers::DecoderWrapper;
use tokenizers::decoders::wordpiece::cleanup;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;

/// Why a pipeline does not compile, in words for `strategy_reason`.
pub(super) type Reason = String;

/// A step that works on the string of one token.
#[derive(Debug)]
enum TokenStep {
    Replace {
        from: String,
        to: String,
    },
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    Metaspace {
        marker: char,
        takes_first: bool,
    },
    WordPiece {
        prefix: String,
        cleans_up: bool,
    },
    Suffix(String),
    /// No decoder: strings are joined with blanks.
    Blank,
}

/// What a step must know of the token's place.
#[derive(Clone, Copy)]
struct Position {
    is_first: bool,
    is_last: bool,
}

/// A compiled pipeline, ready to be applied to each token.
#[derive(Debug)]
pub(super) struct Pipeline {
    steps: Vec<TokenStep>,
    byte_fallback: bool,
    byte_level: bool,
    /// Replacements of one character each, in order, made after bytes were joined.
    after_joining: Vec<(char, String)>,
    lead: Lead,
    trail: Option<Trail>,
    family: Family,
    strict: bool,
}

/// How far the strings of tokens have been joined.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Tokens,
    Runs,
    Joined,
}

/// The decoder section, checked by the `tokenizers` crate. `None` is no decoder.
pub(super) fn parse(section: Option<&Value>) -> Result<Option<DecoderWrapper>, serde_json::Error> {
    match section {
        None | Some(Value::Null) => Ok(None),
        Some(section) => {
            let mut section = section.clone();
            modernize(&mut section);
            serde_json::from_value(section).map(Some)
        }
    }
}

/// Words that files leave out, put in for the crate: those of version 2.0 omit what has a default,
/// and `Metaspace` once said only whether a blank is prepended.
fn modernize(step: &mut Value) {
    if let Some(steps) = step.get_mut("decoders").and_then(Value::as_array_mut) {
        steps.iter_mut().for_each(modernize);
    }
    let Some(step) = step.as_object_mut() else {
        return;
    };
    let defaults = match step.get("type").and_then(Value::as_str) {
        Some("ByteLevel") => json!({"add_prefix_space": true, "trim_offsets": true}),
        Some("WordPiece") => json!({"prefix": "##", "cleanup": true}),
        Some("BPEDecoder") => json!({"suffix": "</w>"}),
        Some("CTC") => json!({"pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true}),
        Some("Metaspace") if step.get("add_prefix_space") == Some(&Value::Bool(false)) => {
            json!({"replacement": "▁", "prepend_scheme": "never"})
        }
        Some("Metaspace") => json!({"replacement": "▁"}),
        _ => return,
    };
    for (word, default) in defaults.as_object().into_iter().flatten() {
        step.entry(word).or_insert_with(|| default.clone());
    }
}

impl Pipeline {
    /// Compiles, or says why it cannot.
    pub(super) fn compile(decoder: Option<&DecoderWrapper>, strict: bool) -> Result<Self, Reason> {
        let mut pipeline = Self {
            steps: Vec::new(),
            byte_fallback: false,
            byte_level: false,
            after_joining: Vec::new(),
            lead: Lead::Nothing,
            trail: None,
            family: Family::Plain,
            strict,
        };
        let mut steps = Vec::new();
        if let Some(decoder) = decoder {
            flatten(decoder, &mut steps);
        } else {
            pipeline.steps.push(TokenStep::Blank);
            pipeline.lead = Lead::FirstToken;
        }
        let mut stage = Stage::Tokens;
        for step in steps {
            stage = pipeline.add(step, stage)?;
        }
        let several = |to: &String| to.chars().nth(1).is_some();
        if pipeline.trail.is_some() && !pipeline.after_joining.is_empty()
            || matches!(pipeline.lead, Lead::Strip { .. })
                && pipeline.after_joining.iter().any(|(_, to)| several(to))
        {
            return Err("Strip of text behind a Replace of joined bytes cannot be compiled".into());
        }
        Ok(pipeline)
    }

    fn add(&mut self, step: &DecoderWrapper, stage: Stage) -> Result<Stage, Reason> {
        match (step, stage) {
            (DecoderWrapper::Fuse(_), _) => Ok(Stage::Joined),
            (DecoderWrapper::ByteFallback(_), Stage::Tokens) if !self.has_suffix() => {
                self.byte_fallback = true;
                self.family = Family::ByteFallback;
                Ok(Stage::Runs)
            }
            (DecoderWrapper::ByteLevel(_), Stage::Tokens) if !self.has_suffix() => {
                self.byte_level = true;
                self.family = Family::ByteLevel;
                Ok(Stage::Joined)
            }
            (DecoderWrapper::Replace(replace), _) => {
                let (from, to) = replacement(replace)?;
                self.add_replace(from, to, stage)?;
                Ok(stage)
            }
            (DecoderWrapper::Strip(strip), Stage::Tokens) => {
                let (content, start, stop) = (strip.content, strip.start, strip.stop);
                self.steps.push(TokenStep::Strip {
                    content,
                    start,
                    stop,
                });
                Ok(stage)
            }
            (DecoderWrapper::Strip(strip), Stage::Joined) => {
                self.strip_text(strip.content, strip.start, strip.stop)?;
                Ok(stage)
            }
            (DecoderWrapper::Metaspace(metaspace), Stage::Tokens) => {
                let takes_first = metaspace.get_prepend_scheme() != PrependScheme::Never;
                let marker = metaspace.get_replacement();
                self.steps.push(TokenStep::Metaspace {
                    marker,
                    takes_first,
                });
                self.family = Family::Metaspace;
                if takes_first {
                    self.lead = Lead::FirstToken;
                }
                Ok(stage)
            }
            (DecoderWrapper::WordPiece(wordpiece), Stage::Tokens) => {
                self.steps.push(TokenStep::WordPiece {
                    prefix: wordpiece.prefix.clone(),
                    cleans_up: wordpiece.cleanup,
                });
                self.family = Family::WordPiece;
                self.lead = Lead::FirstToken;
                Ok(stage)
            }
            (DecoderWrapper::BPE(bpe), Stage::Tokens) if !bpe.suffix.is_empty() => {
                self.steps.push(TokenStep::Suffix(bpe.suffix.clone()));
                self.family = Family::BpeSuffix;
                Ok(stage)
            }
            _ => Err(format!(
                "decoder step {} {}",
                step_name(step),
                stage.place()
            )),
        }
    }

    /// A blank that a later token decides on stands inside the string of the earlier one, where steps
    /// that read whole strings would see it.
    fn has_suffix(&self) -> bool {
        self.steps
            .iter()
            .any(|step| matches!(step, TokenStep::Suffix(_)))
    }

    fn add_replace(&mut self, from: String, to: String, stage: Stage) -> Result<(), Reason> {
        if stage == Stage::Tokens {
            if self.family == Family::Plain && self.steps.is_empty() {
                self.family = Family::Metaspace;
            }
            self.steps.push(TokenStep::Replace { from, to });
            return Ok(());
        }
        let mut characters = from.chars();
        let (Some(character), None) = (characters.next(), characters.next()) else {
            return Err(format!("Replace of {from:?} {}", stage.place()));
        };
        if self.byte_level || self.lead != Lead::Nothing || self.trail.is_some() {
            return Err(format!("Replace {}", stage.place()));
        }
        self.after_joining.push((character, to));
        Ok(())
    }

    /// `Strip` of the text as a whole: left before right.
    fn strip_text(&mut self, content: char, start: usize, stop: usize) -> Result<(), Reason> {
        // A replaced byte must not look like a stripped character.
        if self.lead != Lead::Nothing || self.trail.is_some() || content == '\u{fffd}' {
            return Err(format!("Strip {}", Stage::Joined.place()));
        }
        let count =
            |count: usize| u32::try_from(count).map_err(|_| format!("Strip of {count} characters"));
        if start > 0 {
            self.lead = Lead::Strip {
                content,
                count: count(start)?,
            };
        }
        if stop > 0 {
            self.trail = Some(Trail {
                content,
                count: count(stop)?,
            });
        }
        Ok(())
    }

    pub(super) fn is_strict(&self) -> bool {
        self.strict
    }

    pub(super) fn program(&self) -> Program {
        let mut after_joining: Vec<(char, String)> = Vec::new();
        for &(from, _) in &self.after_joining {
            if !after_joining.iter().any(|(known, _)| *known == from) {
                after_joining.push((from, self.replace_after_joining(&from.to_string())));
            }
        }
        Program {
            repair: if self.byte_fallback {
                Repair::EachByte
            } else {
                Repair::MaximalPart
            },
            pieces_end_runs: self.byte_fallback,
            lead: self.lead,
            trail: self.trail,
            after_joining,
            strict_runs: self.strict && self.byte_fallback,
            ..Program::bytes(self.family)
        }
    }

    fn replace_after_joining(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (from, to) in &self.after_joining {
            text = text.replace(*from, to);
        }
        text
    }

    /// The contribution of a token that the vocabulary spells `token`.
    pub(super) fn spec(&self, token: &str, flags: TokenFlags) -> Result<TokenSpec, Reason> {
        let at = |is_first, is_last| self.apply(token, Position { is_first, is_last });
        let text = at(false, true);
        let mut flags = flags;
        if at(false, false) != text {
            // All that may depend on a later token is one blank before it.
            if at(false, false) != format!("{text} ")
                || at(true, false) != format!("{} ", at(true, true))
            {
                return Err(format!("token {token:?} has its end-of-word suffix inside"));
            }
            flags = flags.with(TokenFlags::LEAVES_BLANK);
        }
        let first = at(true, true);
        if self.byte_fallback && fallback_byte(&first) != fallback_byte(&text) {
            return Err(format!(
                "token {token:?} is a byte in some places and none in others"
            ));
        }
        if self.byte_fallback
            && let Some(byte) = fallback_byte(&text)
        {
            return Ok(TokenSpec {
                bytes: vec![byte],
                flags: flags.with(TokenFlags::BYTE),
                ..TokenSpec::default()
            });
        }
        let literal = !self.strict && flags.has(TokenFlags::ADDED);
        let bytes = |text: &str| match alphabet_bytes(text) {
            Some(bytes) if self.byte_level && !literal => bytes,
            _ => self.replace_after_joining(text).into_bytes(),
        };
        Ok(TokenSpec {
            bytes: bytes(&text),
            first: (first != text).then(|| bytes(&first)),
            flags,
            ..TokenSpec::default()
        })
    }

    fn apply(&self, token: &str, position: Position) -> String {
        let mut text = Cow::Borrowed(token);
        for step in &self.steps {
            text = Cow::Owned(step.apply(&text, position, self.strict));
        }
        text.into_owned()
    }
}

impl TokenStep {
    fn apply(&self, text: &str, position: Position, strict: bool) -> String {
        match self {
            Self::Replace { from, to } => text.replace(from.as_str(), to),
            Self::Strip {
                content,
                start,
                stop,
            } => strip(text, *content, *start, *stop).to_owned(),
            Self::Metaspace {
                marker,
                takes_first,
            } => {
                let rest = match text.strip_prefix(*marker) {
                    _ if !(position.is_first && *takes_first) => text,
                    _ if strict => return text.replace(*marker, ""),
                    Some(rest) => rest,
                    None => text,
                };
                rest.replace(*marker, " ")
            }
            Self::WordPiece { prefix, cleans_up } => {
                let text = match text.strip_prefix(prefix.as_str()) {
                    _ if position.is_first => text.to_owned(),
                    Some(continuation) => continuation.to_owned(),
                    None => format!(" {text}"),
                };
                if *cleans_up { cleanup(&text) } else { text }
            }
            Self::Suffix(suffix) => {
                text.replace(suffix.as_str(), if position.is_last { "" } else { " " })
            }
            Self::Blank if position.is_first => text.to_owned(),
            Self::Blank => format!(" {text}"),
        }
    }
}

impl Stage {
    const fn place(self) -> &'static str {
        match self {
            Self::Tokens => "cannot be compiled",
            Self::Runs => "behind ByteFallback cannot be compiled",
            Self::Joined => "behind joined text cannot be compiled",
        }
    }
}

/// Up to `start` of `content` off the left, then up to `stop` off the right of what is left.
fn strip(text: &str, content: char, start: usize, stop: usize) -> &str {
    let mut text = text;
    for _ in 0..start {
        let Some(rest) = text.strip_prefix(content) else {
            break;
        };
        text = rest;
    }
    for _ in 0..stop {
        let Some(rest) = text.strip_suffix(content) else {
            break;
        };
        text = rest;
    }
    text
}

fn flatten<'d>(decoder: &'d DecoderWrapper, steps: &mut Vec<&'d DecoderWrapper>) {
    match decoder {
        DecoderWrapper::Sequence(sequence) => {
            sequence
                .get_decoders()
                .iter()
                .for_each(|decoder| flatten(decoder, steps));
        }
        other => steps.push(other),
    }
}

/// Pattern and content of a `Replace`; the crate keeps its pattern to itself, but writes it.
fn replacement(replace: &impl serde::Serialize) -> Result<(String, String), Reason> {
    let step = serde_json::to_value(replace).map_err(|error| error.to_string())?;
    let content = step
        .get("content")
        .and_then(Value::as_str)
        .unwrap_or_default();
    match step.pointer("/pattern/String").and_then(Value::as_str) {
        Some("") => Err("Replace of an empty pattern cannot be compiled".into()),
        Some(pattern) => Ok((pattern.to_owned(), content.to_owned())),
        None => Err("Replace by a regular expression cannot be compiled".into()),
    }
}

fn step_name(step: &DecoderWrapper) -> &'static str {
    match step {
        DecoderWrapper::BPE(_) => "BPEDecoder",
        DecoderWrapper::ByteLevel(_) => "ByteLevel",
        DecoderWrapper::WordPiece(_) => "WordPiece",
        DecoderWrapper::Metaspace(_) => "Metaspace",
        DecoderWrapper::CTC(_) => "CTC",
        DecoderWrapper::Sequence(_) => "Sequence",
        DecoderWrapper::Replace(_) => "Replace",
        DecoderWrapper::Fuse(_) => "Fuse",
        DecoderWrapper::Strip(_) => "Strip",
        DecoderWrapper::ByteFallback(_) => "ByteFallback",
    }
}

/// The byte that a piece like `<0x41>` stands for, as the crate reads it.
pub(super) fn fallback_byte(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// Bytes spelled in the byte alphabet of GPT-2; `None` if any character is not of it.
///
/// Printable Latin-1 characters stand for themselves. The other bytes, in order, are spelled
/// from U+0100 on.
pub(super) fn alphabet_bytes(text: &str) -> Option<Vec<u8>> {
    text.chars().map(alphabet_byte).collect()
}

fn alphabet_byte(character: char) -> Option<u8> {
    match u32::from(character) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_covers_every_byte_once() {
        let mut bytes: Vec<u8> = ('\0'..='\u{200}').filter_map(alphabet_byte).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(alphabet_bytes("Ġthe"), Some(b" the".to_vec()));
        assert_eq!(alphabet_bytes("ĊĠ"), Some(b"\n ".to_vec()));
        assert_eq!(alphabet_bytes("a｜"), None);
    }

    #[test]
    fn strip_goes_left_before_right_and_never_past_the_end() {
        let cases = [
            ("  a  ", 1, 1, " a "),
            ("  ", 1, 2, ""),
            (" ", 1, 1, ""),
            ("a", 3, 3, "a"),
            ("", 1, 1, ""),
        ];
        for (text, start, stop, left) in cases {
            assert_eq!(
                strip(text, ' ', start, stop),
                left,
                "{text:?} {start} {stop}"
            );
        }
    }

    /// What a pipeline says to a token: its strategy by a reason, if it cannot be compiled.
    fn reason(decoder: &Value, token: &str) -> Option<Reason> {
        let decoder = parse(Some(decoder)).unwrap();
        let pipeline = match Pipeline::compile(decoder.as_ref(), false) {
            Ok(pipeline) => pipeline,
            Err(reason) => return Some(reason),
        };
        pipeline.spec(token, TokenFlags::default()).err()
    }

    #[test]
    fn what_no_small_state_can_carry_is_refused_with_a_reason() {
        let sequence = |steps: Value| json!({"type": "Sequence", "decoders": steps});
        let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        let [fuse, byte_fallback, byte_level] =
            ["Fuse", "ByteFallback", "ByteLevel"].map(|name| json!({"type": name}));
        let suffix = json!({"type": "BPEDecoder"});
        let strip = |start: u32, stop: u32| json!({"type": "Strip", "content": " ", "start": start, "stop": stop});
        let rows = [
            (json!({"type": "CTC"}), "a", "CTC"),
            (
                json!({"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""}),
                "a",
                "regular expression",
            ),
            (
                sequence(json!([fuse, replace("ab", "c")])),
                "a",
                "Replace of \"ab\"",
            ),
            (
                sequence(json!([
                    byte_fallback,
                    fuse,
                    replace("a", "bc"),
                    strip(1, 0)
                ])),
                "a",
                "Strip of text",
            ),
            (
                sequence(json!([byte_fallback, fuse, replace("a", "b"), strip(0, 1)])),
                "a",
                "Strip of text",
            ),
            (
                sequence(json!([fuse, strip(1, 0), strip(1, 0)])),
                "a",
                "Strip behind",
            ),
            (
                sequence(json!([byte_fallback, strip(1, 0)])),
                "a",
                "Strip behind ByteFallback",
            ),
            // The blank of a suffix stands inside the string that the next step reads.
            (sequence(json!([suffix, byte_level])), "a", "ByteLevel"),
            (
                sequence(json!([suffix, byte_fallback])),
                "a",
                "ByteFallback",
            ),
            (suffix.clone(), "a</w>b", "suffix inside"),
            // A byte where it comes first, a word elsewhere.
            (
                sequence(json!([{"type": "WordPiece"}, byte_fallback])),
                "<0x41>",
                "a byte in some places",
            ),
        ];
        for (decoder, token, words) in rows {
            let reason = reason(&decoder, token).unwrap_or_default();
            assert!(reason.contains(words), "{decoder}: {reason:?}");
        }
        let compiled = [
            sequence(json!([replace("▁", " "), byte_fallback, fuse, strip(1, 0)])),
            sequence(json!([byte_fallback, fuse, replace("▁", " "), strip(1, 0)])),
            sequence(json!([sequence(json!([byte_level]))])),
        ];
        for decoder in compiled {
            assert_eq!(reason(&decoder, "▁a"), None, "{decoder}");
        }
    }
}
