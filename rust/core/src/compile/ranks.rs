//! Byte strings and their ranks: tiktoken's files and objects, and plain lists of bytes.

use super::json::AddedToken;
use super::source;
use crate::encode::{Encoder, RankEncoder};
use crate::error::LoadError;
use crate::program::{Family, Program};
use crate::table::{TableBuilder, TokenFlags, TokenSpec};
use crate::token::TokenId;
use crate::tokenizer::{Loaded, Tokenizer};
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// Loads the text of a rank file: lines of base64 and rank. `special_tokens` are names and ids,
/// `pattern` the regular expression that splits text before it is merged.
///
/// # Errors
/// [`LoadError::Invalid`] naming the line, or the special token.
pub fn from_tiktoken(
    file: &[u8],
    special_tokens: &[(String, TokenId)],
    pattern: Option<&str>,
) -> Result<Loaded, LoadError> {
    let mut tokens = RankTokens::from_file(file)?;
    tokens.add_specials(special_tokens)?;
    tokens.finish(pattern, Vec::new())
}

/// Loads a rank file.
///
/// # Errors
/// [`LoadError`] naming the path, and the line or the special token.
pub fn from_tiktoken_file(
    path: &Path,
    special_tokens: &[(String, TokenId)],
    pattern: Option<&str>,
) -> Result<Loaded, LoadError> {
    let file = source::read(path)?;
    from_tiktoken(&file, special_tokens, pattern).map_err(|error| error.at(path))
}

/// Ranks as they lie in memory. Where several special names share an id, the first counts.
///
/// # Errors
/// [`LoadError::Invalid`] naming the id that is given twice, or what is wrong with the pattern.
pub fn from_ranks(
    ranks: impl IntoIterator<Item = (Vec<u8>, TokenId)>,
    special_tokens: &[(String, TokenId)],
    pattern: Option<&str>,
) -> Result<Loaded, LoadError> {
    let mut tokens = RankTokens::default();
    for (bytes, id) in ranks {
        tokens.add(bytes, id).map_err(LoadError::invalid)?;
    }
    tokens.add_specials(special_tokens)?;
    tokens.finish(pattern, Vec::new())
}

/// A byte vocabulary given as data: the index is the id, `None` an id without a token.
///
/// # Errors
/// [`LoadError::Invalid`] naming a special id that has no token, or a length that ids cannot count.
pub fn from_token_bytes(
    tokens: Vec<Option<Vec<u8>>>,
    special_token_ids: &[TokenId],
) -> Result<Loaded, LoadError> {
    let count = tokens.len();
    for &id in special_token_ids {
        if tokens.get(id as usize).is_none_or(Option::is_none) {
            return Err(LoadError::invalid(format!(
                "special token id {id} has no bytes in a list of {count}"
            )));
        }
    }
    let special_token_ids: HashSet<&TokenId> = special_token_ids.iter().collect();
    let mut builder = TableBuilder::default();
    for (index, bytes) in tokens.into_iter().enumerate() {
        let id = TokenId::try_from(index)
            .map_err(|_| LoadError::invalid(format!("{count} tokens are more than ids")))?;
        let Some(bytes) = bytes else { continue };
        let flags = if special_token_ids.contains(&id) {
            special_flags()
        } else {
            TokenFlags::default()
        };
        builder.insert(id, spec(bytes, flags));
    }
    let encoder = Encoder::Missing(
        "encode needs ranks and a split pattern, which a list of token bytes does not have; \
         load a rank file with Tokenizer.from_tiktoken(path, pattern=...) instead"
            .into(),
    );
    let table = builder.build(Program::bytes(Family::Ranks))?;
    Ok(Loaded::quietly(Tokenizer::exact(table, encoder)))
}

/// A rank file in a folder, with what else the folder knows.
pub(super) fn compile(file: &[u8], extra: Vec<AddedToken>) -> Result<Loaded, LoadError> {
    RankTokens::from_file(file)?.finish(None, extra)
}

/// Whether the first line with anything on it is a token and its rank.
pub(super) fn looks_like_ranks(file: &[u8]) -> bool {
    lines(file).next().is_some_and(|(_, line)| {
        matches!(fields(line), Some((token, rank))
            if decode_base64(token).is_ok() && rank.iter().all(u8::is_ascii_digit))
    })
}

/// Tokens by bytes and by id, both unique.
#[derive(Default)]
pub(super) struct RankTokens {
    builder: TableBuilder,
    ids: HashMap<Vec<u8>, TokenId>,
}

impl RankTokens {
    fn from_file(file: &[u8]) -> Result<Self, LoadError> {
        let mut tokens = Self::default();
        for (number, line) in lines(file) {
            let added = parse_line(line).and_then(|(bytes, id)| tokens.add(bytes, id));
            added.map_err(|problem| LoadError::invalid(format!("line {number}: {problem}")))?;
        }
        if tokens.ids.is_empty() {
            return Err(LoadError::invalid(
                "no ranks in the file: it has no lines of base64 and rank",
            ));
        }
        Ok(tokens)
    }

    pub(super) fn add(&mut self, bytes: Vec<u8>, id: TokenId) -> Result<(), String> {
        if self.builder.contains(id) {
            return Err(format!("id {id} is given twice"));
        }
        match self.ids.entry(bytes) {
            Entry::Occupied(known) => Err(format!(
                "the token of id {id} is that of id {} again",
                known.get()
            )),
            Entry::Vacant(free) => {
                self.builder
                    .insert(id, spec(free.key().clone(), TokenFlags::default()));
                free.insert(id);
                Ok(())
            }
        }
    }

    /// A special token of its own id: its text is its name.
    pub(super) fn add_special(&mut self, name: &str, id: TokenId) -> Result<(), String> {
        // A list may name a token that is among the ranks already; any other clash would change
        // what one of the two decodes to.
        let known = self.ids.get(name.as_bytes()) == Some(&id);
        if self.builder.contains(id) && !known {
            return Err(format!(
                "special token {name:?} has id {id}, which another token has"
            ));
        }
        self.builder
            .insert(id, spec(name.as_bytes().to_vec(), special_flags()));
        Ok(())
    }

    fn add_specials(&mut self, special_tokens: &[(String, TokenId)]) -> Result<(), LoadError> {
        let mut names: HashMap<TokenId, &str> = HashMap::new();
        for (name, id) in special_tokens {
            // tiktoken's own o200k_harmony has a second name for 200018.
            if names.contains_key(id) {
                continue;
            }
            names.insert(*id, name);
            self.add_special(name, *id).map_err(LoadError::invalid)?;
        }
        Ok(())
    }

    pub(super) fn finish(
        self,
        pattern: Option<&str>,
        extra: Vec<AddedToken>,
    ) -> Result<Loaded, LoadError> {
        let Self { mut builder, .. } = self;
        add_missing(&mut builder, extra);
        let encoder = match pattern {
            Some(pattern) => Encoder::Ranks(Box::new(
                RankEncoder::new(pattern.to_owned())
                    .map_err(|error| LoadError::invalid(error.to_string()))?,
            )),
            None => Encoder::Missing(
                "encode needs the pattern that splits text, which a rank file does not carry; \
                 load it with Tokenizer.from_tiktoken(path, pattern=...)"
                    .into(),
            ),
        };
        let table = builder.build(Program::bytes(Family::Ranks))?;
        Ok(Loaded::quietly(Tokenizer::exact(table, encoder)))
    }
}

/// Adds the tokens of a configuration whose ids the file itself lacks, literally.
pub(super) fn add_missing(builder: &mut TableBuilder, extra: Vec<AddedToken>) {
    for token in extra {
        if !builder.contains(token.id) {
            let flags = if token.special {
                special_flags().with(TokenFlags::ADDED)
            } else {
                TokenFlags::ADDED
            };
            builder.insert(token.id, spec(token.content.into_bytes(), flags));
        }
    }
}

pub(super) const fn special_flags() -> TokenFlags {
    TokenFlags::SPECIAL.with(TokenFlags::HIDEABLE)
}

/// A token of these bytes; its name is their text.
fn spec(bytes: Vec<u8>, flags: TokenFlags) -> TokenSpec {
    TokenSpec {
        bytes,
        flags,
        ..TokenSpec::default()
    }
}

/// Lines that are not blank, with their numbers from 1.
fn lines(file: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    file.split(|&byte| byte == b'\n')
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim_ascii()))
        .filter(|(_, line)| !line.is_empty())
}

/// The two fields of a line.
fn fields(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut fields = line
        .split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty());
    match (fields.next(), fields.next(), fields.next()) {
        (Some(token), Some(rank), None) => Some((token, rank)),
        _ => None,
    }
}

fn parse_line(line: &[u8]) -> Result<(Vec<u8>, TokenId), String> {
    let (token, rank) = fields(line).ok_or_else(|| {
        format!(
            "expected a token in base64 and its rank, found {}",
            shown(line)
        )
    })?;
    let bytes = decode_base64(token).map_err(|error| format!("token {}: {error}", shown(token)))?;
    let id = std::str::from_utf8(rank)
        .ok()
        .and_then(|rank| rank.parse().ok())
        .ok_or_else(|| format!("rank {} is no id from 0 to {}", shown(rank), TokenId::MAX))?;
    Ok((bytes, id))
}

/// The beginning of a field, fit for a message.
fn shown(field: &[u8]) -> String {
    const MOST: usize = 40;
    let text = String::from_utf8_lossy(field.get(..MOST).unwrap_or(field));
    let more = if field.len() > MOST { "..." } else { "" };
    format!("{text:?}{more}")
}

/// Base64 as Python's lenient decoder takes it, less what is no base64 at all: padding may be
/// missing or alone (Whisper's empty token is `=`), and unused bits may be set.
pub(super) fn decode_base64(field: &[u8]) -> Result<Vec<u8>, base64::DecodeError> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_padding_mode(DecodePaddingMode::Indifferent)
            .with_decode_allow_trailing_bits(true),
    );
    let digits = field.trim_ascii_end();
    let padding = digits
        .iter()
        .rev()
        .take_while(|&&digit| digit == b'=')
        .count();
    LENIENT.decode(digits.get(..digits.len() - padding).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::test_support::{decode, every_prefix, flipped};
    use crate::tokenizer::DecodeOptions;

    fn specials(named: &[(&str, TokenId)]) -> Vec<(String, TokenId)> {
        named
            .iter()
            .map(|(name, id)| ((*name).to_owned(), *id))
            .collect()
    }

    #[test]
    fn a_file_with_gaps_blank_lines_and_an_empty_token() {
        let file = b"\nIQ== 0\r\n44E= 5\n  gg==\t6 \n\n= 9\n";
        let loaded = from_tiktoken(file, &specials(&[("<|end|>", 12)]), None).unwrap();
        let tokenizer = loaded.tokenizer;
        assert_eq!(tokenizer.strategy_name(), "ranks");
        assert_eq!(tokenizer.vocab_size().unwrap(), 13);
        assert_eq!(tokenizer.special_token_ids().unwrap(), [12]);
        assert_eq!(tokenizer.token_bytes(9).unwrap().as_deref(), Some(&b""[..]));
        assert_eq!(tokenizer.id_to_token(1).unwrap(), None);
        assert_eq!(
            tokenizer.id_to_token(6).unwrap().as_deref(),
            Some("\u{fffd}")
        );
        assert_eq!(tokenizer.token_to_id("<|end|>").unwrap(), Some(12));
        assert_eq!(decode(&tokenizer, &[0, 5, 12, 9, 6, 0]), "!あ!");
        let shown = DecodeOptions {
            skip_special_tokens: false,
            ..DecodeOptions::default()
        };
        assert_eq!(tokenizer.decode(&[0, 12], &shown).unwrap(), "!<|end|>");
        let error = tokenizer.encode("!", false).unwrap_err().to_string();
        assert!(error.contains("pattern="), "{error}");
    }

    #[test]
    fn bad_files_are_refused_naming_the_line() {
        let cases: [(&[u8], &str); 11] = [
            (b"", "no lines of base64 and rank"),
            (b"IQ== 0\nIQ==\n", "line 2: expected"),
            (b"IQ== 0\nIg== 1 2\n", "line 2: expected"),
            (b"IQ== -1\n", "line 1: rank \"-1\""),
            (b"IQ== 4294967296\n", "line 1: rank \"4294967296\""),
            (b"IQ== 1.0\n", "line 1: rank \"1.0\""),
            (b"IQ== 0\n\nI!== 1\n", "line 3: token \"I!==\""),
            (b"IQ== 0\nIg 1\nI 2", "line 3: token \"I\""),
            (b"IQ== 0\nIg== 0\n", "line 2: id 0 is given twice"),
            (b"IQ== 0\nIQ 7\n", "line 2: the token of id 7"),
            (b"\xff\xfe 0\n", "line 1: token"),
        ];
        for (file, problem) in cases {
            let error = from_tiktoken(file, &[], None).unwrap_err().to_string();
            assert!(error.contains(problem), "{error} / {problem}");
        }
        let far = from_tiktoken(b"IQ== 4294967295\nIg== 3", &[], None).unwrap();
        assert_eq!(decode(&far.tokenizer, &[3, u32::MAX]), "\"!");
    }

    #[test]
    fn special_tokens_never_change_what_a_rank_decodes_to() {
        let ranks = || vec![(b"a".to_vec(), 0), (b"<s>".to_vec(), 1)];
        let clash = from_ranks(ranks(), &specials(&[("<x>", 0)]), None).unwrap_err();
        assert!(clash.to_string().contains("\"<x>\" has id 0"), "{clash}");
        let named = specials(&[("<s>", 1), ("<end>", 2), ("<other>", 2)]);
        let tokenizer = from_ranks(ranks(), &named, None).unwrap().tokenizer;
        assert_eq!(tokenizer.special_token_ids().unwrap(), [1, 2]);
        assert_eq!(tokenizer.id_to_token(2).unwrap().as_deref(), Some("<end>"));
        assert!(from_ranks([(b"a".to_vec(), 0), (b"b".to_vec(), 0)], &[], None).is_err());
    }

    #[test]
    fn encode_merges_by_rank() {
        let mut ranks: Vec<_> = (0..=255)
            .map(|byte| (vec![byte], u32::from(byte)))
            .collect();
        ranks.extend([
            (b"ab".to_vec(), 300),
            (b"bc".to_vec(), 256),
            (b"abc".to_vec(), 400),
        ]);
        let encode = |text: &str| {
            let loaded = from_ranks(ranks.clone(), &[], Some(r"\p{L}+|\s+")).unwrap();
            loaded.tokenizer.encode(text, false).unwrap()
        };
        assert_eq!(encode("abc"), [400]);
        assert_eq!(encode("abcd ab"), [400, 100, 32, 300]);
        assert_eq!(encode("bcab"), [256, 300]);
        let broken = from_ranks(ranks.clone(), &[], Some("(")).unwrap_err();
        assert!(broken.to_string().contains("split pattern"), "{broken}");
    }

    #[test]
    fn token_bytes_are_taken_by_index() {
        let tokens = || {
            vec![
                Some(b"a".to_vec()),
                None,
                Some(b"<s>".to_vec()),
                Some(vec![]),
            ]
        };
        let tokenizer = from_token_bytes(tokens(), &[2]).unwrap().tokenizer;
        assert_eq!(decode(&tokenizer, &[0, 2, 3, 0]), "aa");
        assert_eq!(tokenizer.special_token_ids().unwrap(), [2]);
        assert!(tokenizer.encode("a", false).is_err());
        for id in [1, 4, u32::MAX] {
            let error = from_token_bytes(tokens(), &[id]).unwrap_err().to_string();
            assert!(error.contains(&format!("id {id} has no bytes")), "{error}");
        }
        assert!(from_token_bytes(Vec::new(), &[]).is_ok());
    }

    #[test]
    fn no_damage_panics() {
        let file = b"IQ== 0\n44E= 5\ngg== 6\n\n= 9\nYWJj 4294967295\n";
        for damaged in every_prefix(file).chain(flipped(file, 2_000)) {
            let _ = looks_like_ranks(&damaged);
            let _ = from_tiktoken(&damaged, &specials(&[("<s>", 6)]), Some("."));
        }
    }
}
