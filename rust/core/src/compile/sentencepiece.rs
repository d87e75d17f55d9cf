//! `SentencePiece` models: the few fields of the protocol buffer that decoding needs.

use super::decoder;
use super::json::AddedToken;
use super::ranks::{add_missing, special_flags};
use crate::encode::Encoder;
use crate::error::LoadError;
use crate::program::{Family, Lead, Program, Repair};
use crate::table::{TableBuilder, TokenFlags, TokenSpec};
use crate::token::TokenId;
use crate::tokenizer::{Loaded, Tokenizer};

/// Stands for a blank in the spelling of a piece.
const MARKER: char = '\u{2581}';

/// Loads the bytes of a `SentencePiece` model.
///
/// # Errors
/// [`LoadError::Invalid`] saying what is wrong with it, and at which byte or piece.
pub fn from_sentencepiece(model: &[u8]) -> Result<Loaded, LoadError> {
    compile(model, Vec::new())
}

pub(super) fn compile(model: &[u8], extra: Vec<AddedToken>) -> Result<Loaded, LoadError> {
    let model = Model::parse(model)
        .map_err(|problem| LoadError::invalid(format!("not a SentencePiece model: {problem}")))?;
    let lead = model.lead();
    let mut builder = TableBuilder::default();
    let mut has_bytes = false;
    for (index, piece) in model.pieces.iter().enumerate() {
        has_bytes |= piece.kind == Kind::Byte;
        let id = TokenId::try_from(index)
            .map_err(|_| LoadError::invalid(format!("piece {index}: more pieces than ids")))?;
        let spec = piece.spec(lead != Lead::Nothing).ok_or_else(|| {
            LoadError::invalid(format!(
                "piece {index}: byte piece {:?} names no byte",
                piece.name
            ))
        })?;
        builder.insert(id, spec);
    }
    add_missing(&mut builder, extra);
    let family = if has_bytes {
        Family::ByteFallback
    } else {
        Family::Metaspace
    };
    let program = Program {
        repair: Repair::EachByte,
        pieces_end_runs: has_bytes,
        lead,
        ..Program::bytes(family)
    };
    let encoder = Encoder::Missing(
        "encode needs the tokenizer.json of this model, or the sentencepiece package; \
         a SentencePiece model is loaded for decoding only"
            .into(),
    );
    let tokenizer = Tokenizer::exact(builder.build(program)?, encoder);
    Ok(Loaded::quietly(tokenizer))
}

/// Whether the bytes begin as a model does: with a whole piece.
pub(super) fn looks_like_sentencepiece(bytes: &[u8]) -> bool {
    match (Fields { bytes, at: 0 }).next() {
        Some(Ok(Field {
            number: ModelField::PIECES,
            value: Value::Bytes(piece),
            at,
        })) => Piece::parse(piece, at).is_ok(),
        _ => false,
    }
}

/// Field numbers of the message `ModelProto`.
struct ModelField;

impl ModelField {
    const PIECES: u64 = 1;
    const TRAINER: u64 = 2;
    const NORMALIZER: u64 = 3;
    const DENORMALIZER: u64 = 5;
}

struct Model<'m> {
    pieces: Vec<Piece<'m>>,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
}

impl<'m> Model<'m> {
    fn parse(bytes: &'m [u8]) -> Result<Self, String> {
        let mut model = Self {
            pieces: Vec::new(),
            // The format's defaults.
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
        };
        let mut has_specs = false;
        for field in (Fields { bytes, at: 0 }) {
            let Field { number, value, at } = field?;
            match (number, value) {
                (ModelField::PIECES, Value::Bytes(piece)) => {
                    let piece = Piece::parse(piece, at)
                        .map_err(|problem| format!("piece {}: {problem}", model.pieces.len()))?;
                    model.pieces.push(piece);
                }
                // Nothing in it matters here: the types of pieces say which are bytes.
                (ModelField::TRAINER, Value::Bytes(bytes)) => {
                    (Fields { bytes, at }).try_for_each(|field| field.map(drop))?;
                    has_specs = true;
                }
                (ModelField::NORMALIZER, Value::Bytes(bytes)) => {
                    model.read_normalizer(Fields { bytes, at })?;
                    has_specs = true;
                }
                (ModelField::DENORMALIZER, Value::Bytes(bytes)) => {
                    refuse_denormalizer(Fields { bytes, at })?;
                }
                (
                    ModelField::PIECES..=ModelField::NORMALIZER | ModelField::DENORMALIZER,
                    Value::Number(_) | Value::Other,
                ) => {
                    return Err(format!("field {number} at byte {at} is no message"));
                }
                _ => {}
            }
        }
        if model.pieces.is_empty() {
            return Err("it has no pieces".into());
        }
        // They follow the pieces, and every trainer writes them.
        if !has_specs {
            return Err(format!(
                "it ends behind piece {}, without the settings that follow the pieces",
                model.pieces.len() - 1
            ));
        }
        Ok(model)
    }

    fn read_normalizer(&mut self, fields: Fields<'_>) -> Result<(), String> {
        const ADD_DUMMY_PREFIX: u64 = 3;
        const REMOVE_EXTRA_WHITESPACES: u64 = 4;
        for field in fields {
            match field? {
                Field {
                    number: ADD_DUMMY_PREFIX,
                    value: Value::Number(number),
                    ..
                } => self.add_dummy_prefix = number != 0,
                Field {
                    number: REMOVE_EXTRA_WHITESPACES,
                    value: Value::Number(number),
                    ..
                } => self.remove_extra_whitespaces = number != 0,
                _ => {}
            }
        }
        Ok(())
    }

    /// While there is no text, a piece loses one leading marker: once if a dummy prefix was added,
    /// again and again if extra blanks were removed. How blanks are escaped and whether they are
    /// suffixes of words plays no part in it.
    fn lead(&self) -> Lead {
        match (self.add_dummy_prefix, self.remove_extra_whitespaces) {
            (false, false) => Lead::Nothing,
            (_, repeat) => Lead::Marker { repeat },
        }
    }
}

/// Rules that rewrite decoded text as a whole cannot be applied token by token.
fn refuse_denormalizer(fields: Fields<'_>) -> Result<(), String> {
    const PRECOMPILED_CHARSMAP: u64 = 2;
    for field in fields {
        if let Field {
            number: PRECOMPILED_CHARSMAP,
            value: Value::Bytes(rules @ [_, ..]),
            ..
        } = field?
        {
            return Err(format!(
                "it has denormalizer rules ({} bytes), which cannot be compiled; \
                 pass a Python object that decodes it instead",
                rules.len()
            ));
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Normal, user-defined and unused pieces decode alike.
    Text,
    /// Unknown and control pieces.
    Special,
    Byte,
}

struct Piece<'m> {
    name: &'m str,
    kind: Kind,
}

impl<'m> Piece<'m> {
    fn parse(bytes: &'m [u8], at: usize) -> Result<Self, String> {
        const NAME: u64 = 1;
        const TYPE: u64 = 3;
        let mut name = "";
        let mut kind = Kind::Text;
        for field in (Fields { bytes, at }) {
            let Field { number, value, at } = field?;
            match (number, value) {
                (NAME, Value::Bytes(bytes)) => {
                    name = std::str::from_utf8(bytes)
                        .map_err(|error| format!("its name at byte {at}: {error}"))?;
                }
                (TYPE, Value::Number(number)) => {
                    kind = match number {
                        1 | 4 | 5 => Kind::Text,
                        2 | 3 => Kind::Special,
                        6 => Kind::Byte,
                        _ => return Err(format!("its type {number} is not known")),
                    };
                }
                (NAME | TYPE, _) => return Err(format!("field {number} at byte {at}")),
                _ => {}
            }
        }
        if name.is_empty() {
            return Err("it has no name".into());
        }
        Ok(Self { name, kind })
    }

    /// `None` for a byte piece that names no byte.
    fn spec(&self, takes_marker: bool) -> Option<TokenSpec> {
        let text = |piece: &str| piece.replace(MARKER, " ").into_bytes();
        let spec = match self.kind {
            Kind::Special => TokenSpec {
                bytes: self.name.as_bytes().to_vec(),
                flags: special_flags(),
                ..TokenSpec::default()
            },
            Kind::Byte => TokenSpec {
                bytes: vec![decoder::fallback_byte(self.name)?],
                flags: TokenFlags::BYTE,
                ..TokenSpec::default()
            },
            Kind::Text => TokenSpec {
                bytes: text(self.name),
                first: self
                    .name
                    .strip_prefix(MARKER)
                    .filter(|_| takes_marker)
                    .map(text),
                ..TokenSpec::default()
            },
        };
        Some(TokenSpec {
            name: Some(self.name.to_owned()),
            ..spec
        })
    }
}

/// The fields of one message. Each borrows from the input, so nothing is allocated for lengths
/// that the input only claims.
struct Fields<'m> {
    bytes: &'m [u8],
    /// Where `bytes` starts in the file.
    at: usize,
}

struct Field<'m> {
    number: u64,
    value: Value<'m>,
    /// Where the value starts in the file.
    at: usize,
}

enum Value<'m> {
    Number(u64),
    Bytes(&'m [u8]),
    /// Fixed-width numbers: nothing here reads them.
    Other,
}

impl<'m> Iterator for Fields<'m> {
    type Item = Result<Field<'m>, String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.bytes = &[];
        }
        Some(field)
    }
}

impl<'m> Fields<'m> {
    fn read(&mut self) -> Result<Field<'m>, String> {
        let start = self.at;
        let tag = self.varint()?;
        let (number, wire_type) = (tag >> 3, tag & 7);
        if number == 0 {
            return Err(format!("no field begins at byte {start}"));
        }
        let mut at = self.at;
        let value = match wire_type {
            0 => Value::Number(self.varint()?),
            1 => self.take(8).map(|_| Value::Other)?,
            2 => {
                let len = self.varint()?;
                at = self.at;
                Value::Bytes(self.take(len)?)
            }
            5 => self.take(4).map(|_| Value::Other)?,
            _ => return Err(format!("wire type {wire_type} at byte {start}")),
        };
        Ok(Field { number, value, at })
    }

    fn take(&mut self, len: u64) -> Result<&'m [u8], String> {
        let taken = usize::try_from(len)
            .ok()
            .and_then(|len| self.bytes.split_at_checked(len));
        let Some((taken, rest)) = taken else {
            return Err(format!(
                "cut short: {len} bytes are announced at byte {}, {} are left",
                self.at,
                self.bytes.len()
            ));
        };
        self.bytes = rest;
        self.at += taken.len();
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, String> {
        const LONGEST: usize = 10;
        let mut number = 0_u64;
        for (index, &byte) in self.bytes.iter().take(LONGEST).enumerate() {
            // The tenth byte has room for one bit; what is above 64 bits is dropped.
            number |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.take(index as u64 + 1)?;
                return Ok(number);
            }
        }
        Err(format!("no number at byte {}", self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::test_support::{decode, every_prefix, flipped, message, piece};
    use crate::tokenizer::DecodeOptions;

    const NORMAL: u8 = 1;
    const UNKNOWN: u8 = 2;
    const CONTROL: u8 = 3;
    const USER_DEFINED: u8 = 4;
    const UNUSED: u8 = 5;
    const BYTE: u8 = 6;

    /// Ids 0 to 13; the normalizer's two switches are written only if they are given.
    fn model(add_dummy_prefix: Option<bool>, remove_extra_whitespaces: Option<bool>) -> Vec<u8> {
        let pieces = [
            ("<unk>", UNKNOWN),
            ("<s>", CONTROL),
            ("▁", NORMAL),
            ("▁▁", NORMAL),
            ("▁a", NORMAL),
            ("a", NORMAL),
            ("▁b▁c", NORMAL),
            ("▁U", USER_DEFINED),
            ("▁n", UNUSED),
            ("<0xE3>", BYTE),
            ("<0x81>", BYTE),
            ("<0x82>", BYTE),
            ("<0x20>", BYTE),
            ("▁c", CONTROL),
        ];
        let mut model = Vec::new();
        for (name, kind) in pieces {
            model.extend(piece(name, kind));
        }
        model.extend(message(2, &[0x98, 0x02, 1])); // byte_fallback
        let mut normalizer = vec![0x0a, 2, b'i', b'd'];
        for (tag, switch) in [(0x18, add_dummy_prefix), (0x20, remove_extra_whitespaces)] {
            normalizer.extend(switch.into_iter().flat_map(|on| [tag, u8::from(on)]));
        }
        model.extend(message(3, &normalizer));
        model
    }

    /// What the `sentencepiece` package 0.2.3 decodes.
    #[test]
    fn the_leading_marker_goes_as_in_sentencepiece() {
        // No switch, dummy prefix alone, extra blanks removed (with and without the prefix).
        let cases: [(&[u32], [&str; 3]); 12] = [
            (&[4, 4], [" a a", "a a", "a a"]),
            (&[2], [" ", "", ""]),
            (&[2, 4], ["  a", " a", "a"]),
            (&[2, 2, 4], ["   a", "  a", "a"]),
            (&[2, 5, 4], [" a a", "a a", "a a"]),
            (&[3, 4], ["   a", "  a", "  a"]),
            (&[6], [" b c", "b c", "b c"]),
            (&[7, 8], [" U n", "U n", "U n"]),
            (&[8, 7], [" n U", "n U", "n U"]),
            (&[12, 4], ["  a", "  a", "  a"]),
            (&[1, 13, 4], [" a", "a", "a"]),
            (&[9, 4], ["\u{fffd} a", "\u{fffd} a", "\u{fffd} a"]),
        ];
        let switches = [
            (Some(false), Some(false)),
            (None, Some(false)),
            (Some(false), None),
        ];
        for (which, (dummy, remove)) in switches.into_iter().enumerate() {
            let tokenizer = from_sentencepiece(&model(dummy, remove)).unwrap().tokenizer;
            for (ids, expected) in cases {
                assert_eq!(decode(&tokenizer, ids), expected[which], "{ids:?} {which}");
            }
        }
        let defaults = from_sentencepiece(&model(None, None)).unwrap().tokenizer;
        assert_eq!(decode(&defaults, &[2, 4]), "a");
    }

    #[test]
    fn special_pieces_are_hidden_or_shown_by_name() {
        let tokenizer = from_sentencepiece(&model(None, None)).unwrap().tokenizer;
        assert_eq!(tokenizer.strategy_name(), "byte_fallback");
        assert_eq!(tokenizer.special_token_ids().unwrap(), [0, 1, 13]);
        assert_eq!(tokenizer.vocab_size().unwrap(), 14);
        assert_eq!(tokenizer.id_to_token(6).unwrap().as_deref(), Some("▁b▁c"));
        assert_eq!(tokenizer.id_to_token(9).unwrap().as_deref(), Some("<0xE3>"));
        assert_eq!(tokenizer.token_to_id("▁a").unwrap(), Some(4));
        let shown = DecodeOptions {
            skip_special_tokens: false,
            ..DecodeOptions::default()
        };
        let ids = [1, 4, 13, 0];
        assert_eq!(tokenizer.decode(&ids, &shown).unwrap(), "<s> a▁c<unk>");
        assert_eq!(decode(&tokenizer, &ids), "a");
        assert!(tokenizer.encode("a", false).is_err());
    }

    #[test]
    fn runs_of_byte_pieces_end_with_a_shown_piece() {
        let tokenizer = from_sentencepiece(&model(None, None)).unwrap().tokenizer;
        let cases: [(&[u32], &str); 5] = [
            (&[9, 10, 11, 5], "あa"),
            (&[9, 10, 1, 11], "あ"),
            (&[9, 10, 5, 11], "\u{fffd}\u{fffd}a\u{fffd}"),
            (&[9, 10], "\u{fffd}\u{fffd}"),
            (&[9, 9, 10, 11], "\u{fffd}あ"),
        ];
        for (ids, text) in cases {
            assert_eq!(decode(&tokenizer, ids), text, "{ids:?}");
        }
    }

    #[test]
    fn a_model_without_byte_pieces_is_metaspace() {
        let mut model = piece("▁a", NORMAL);
        model.extend(message(3, &[0x18, 0]));
        let tokenizer = from_sentencepiece(&model).unwrap().tokenizer;
        assert_eq!(tokenizer.strategy_name(), "metaspace");
        assert_eq!(decode(&tokenizer, &[0, 0]), "a a");
    }

    #[test]
    fn damaged_models_are_refused() {
        let settings = message(3, &[]);
        let with = |bytes: &[u8]| [bytes, &settings].concat();
        let denormalizer = message(5, &message(2, b"rules"));
        let cases = [
            (Vec::new(), "no pieces"),
            (settings.clone(), "no pieces"),
            (piece("a", NORMAL), "ends behind piece 0"),
            (with(&piece("", NORMAL)), "piece 0: it has no name"),
            (with(&piece("a", 7)), "piece 0: its type 7"),
            (
                with(&piece("<0xG0>", BYTE)),
                "piece 0: byte piece \"<0xG0>\"",
            ),
            (with(&message(1, &message(1, b"\xff"))), "piece 0: its name"),
            (with(&[0x08, 1]), "field 1 at byte 1 is no message"),
            (
                vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f, 1],
                "4294967295 bytes are announced at byte 6, 1 are left",
            ),
            (vec![0x0b], "wire type 3 at byte 0"),
            (vec![0x00], "no field begins at byte 0"),
            (vec![0xff; 12], "no number at byte 0"),
            (
                [with(&piece("a", NORMAL)), denormalizer].concat(),
                "denormalizer rules (5 bytes)",
            ),
        ];
        for (bytes, problem) in cases {
            let error = from_sentencepiece(&bytes).unwrap_err().to_string();
            assert!(error.contains(problem), "{error} / {problem}");
        }
    }

    #[test]
    fn unknown_fields_are_passed_over() {
        let settings = message(3, &message(9, b"new"));
        let others = [0x39, 1, 2, 3, 4, 5, 6, 7, 8, 0x45, 1, 2, 3, 4];
        let model = [piece("▁a", NORMAL), others.to_vec(), settings].concat();
        let tokenizer = from_sentencepiece(&model).unwrap().tokenizer;
        assert_eq!(decode(&tokenizer, &[0, 0]), "a a");
    }

    #[test]
    fn no_damage_panics() {
        let whole = model(Some(true), Some(false));
        let first_piece = piece("<unk>", UNKNOWN).len();
        let pieces = whole.len() - 15;
        for (len, damaged) in every_prefix(&whole).enumerate() {
            assert_eq!(
                looks_like_sentencepiece(&damaged),
                len >= first_piece,
                "{len}"
            );
            let loaded = from_sentencepiece(&damaged);
            assert!(loaded.is_err() || len > pieces, "a prefix of {len} bytes");
        }
        for damaged in flipped(&whole, 5_000) {
            let _ = from_sentencepiece(&damaged);
        }
    }
}
