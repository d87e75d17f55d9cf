//! `tokenizer.json`: what decoding needs of it, read without building the crate's tokenizer.

use super::decoder::{self, Pipeline};
use crate::encode::{Encoder, JsonEncoder, JsonSource};
use crate::error::LoadError;
use crate::table::{TableBuilder, TokenFlags};
use crate::token::TokenId;
use crate::tokenizer::{Loaded, Tokenizer};
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper};

/// A token beside the model's vocabulary, with the fields of the file.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AddedToken {
    #[serde(default)]
    pub(crate) id: TokenId,
    pub(crate) content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    normalized: Option<bool>,
    #[serde(default)]
    pub(crate) special: bool,
}

impl AddedToken {
    fn is_normalized(&self) -> bool {
        self.normalized.unwrap_or(!self.special)
    }
}

#[derive(Deserialize)]
struct TokenizerFile {
    version: Option<String>,
    #[serde(default)]
    added_tokens: Option<Vec<AddedToken>>,
    normalizer: Option<Value>,
    decoder: Option<Value>,
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    vocab: Vocabulary,
}

/// Either an object of token → id, or a list of `[token, score]` whose index is the id.
struct Vocabulary(Vec<(String, TokenId)>);

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Vocabulary;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a vocabulary: an object of token and id, or a list of token and score")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Vocabulary(entries))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vocabulary, A::Error> {
                let mut entries = Vec::new();
                while let Some((token, _score)) = seq.next_element::<(String, f64)>()? {
                    let id = u32::try_from(entries.len()).map_err(A::Error::custom)?;
                    entries.push((token, id));
                }
                Ok(Vocabulary(entries))
            }
        }
        deserializer.deserialize_any(Entries)
    }
}

/// Loads a `tokenizer.json`. `extra` tokens are those a `tokenizer_config.json` has beside it.
///
/// # Errors
/// [`LoadError`] naming the path.
pub fn from_tokenizer_json_file(path: &Path, strict: bool) -> Result<Loaded, LoadError> {
    from_file_with(path, Vec::new(), strict)
}

pub(crate) fn from_file_with(
    path: &Path,
    extra: Vec<AddedToken>,
    strict: bool,
) -> Result<Loaded, LoadError> {
    let bytes = super::source::read(path)?;
    let source = JsonSource::file(path.to_path_buf(), &bytes);
    compile(&bytes, source, extra, strict).map_err(|error| error.at(path))
}

/// Loads the text of a `tokenizer.json`.
///
/// # Errors
/// [`LoadError::Invalid`] saying what is wrong with it.
pub fn from_tokenizer_json(json: &[u8], strict: bool) -> Result<Loaded, LoadError> {
    let source = JsonSource::Data(Some(Arc::from(json)));
    compile(json, source, Vec::new(), strict)
}

pub(super) fn compile(
    json: &[u8],
    source: JsonSource,
    extra: Vec<AddedToken>,
    strict: bool,
) -> Result<Loaded, LoadError> {
    let file: TokenizerFile = serde_json::from_slice(json)
        .map_err(|error| LoadError::invalid(format!("not a tokenizer.json: {error}")))?;
    if let Some(version) = file
        .version
        .as_deref()
        .filter(|version| !["1.0", "2.0"].contains(version))
    {
        return Err(LoadError::invalid(format!(
            "tokenizer.json of version {version:?}; 1.0 and 2.0 are known"
        )));
    }
    let invalid_decoder = |error| LoadError::invalid(format!("the decoder section: {error}"));
    let decoder = decoder::parse(file.decoder.as_ref()).map_err(invalid_decoder)?;
    let mut warnings = Vec::new();
    let Vocabulary(vocabulary) = file.model.vocab;
    let normalizer = AddedNormalizer::new(file.normalizer)
        .map_err(|error| LoadError::invalid(format!("the normalizer section: {error}")))?;
    let mut added = AddedVocabulary::new(&vocabulary, normalizer);
    for token in file.added_tokens.unwrap_or_default() {
        added.add(token, &mut warnings);
    }
    let mut merged = Vec::new();
    let mut model_ids = HashSet::new();
    if !extra.is_empty() {
        model_ids.extend(vocabulary.iter().map(|(_, id)| *id));
    }
    for token in extra {
        if !added.by_id.contains_key(&token.id) && !model_ids.contains(&token.id) {
            merged.extend(serde_json::to_string(&token).ok());
            added.insert(token.id, token);
        }
    }
    let encoder = JsonEncoder::new(source, merged);
    let compiled = Pipeline::compile(decoder.as_ref(), strict).and_then(|pipeline| {
        let builder = tokens(&pipeline, &added, &vocabulary)?;
        Ok((builder, pipeline.program()))
    });
    let tokenizer = match compiled {
        Ok((builder, program)) => Tokenizer::exact(
            builder.build(program)?,
            Encoder::TokenizerJson(Box::new(encoder)),
        ),
        Err(reason) => {
            let built = encoder
                .tokenizer()
                .map_err(|error| LoadError::invalid(error.to_string()))?;
            let window = Arc::new(super::crate_window::CrateTokenizer(built));
            Tokenizer::from_window_source(window, reason, Encoder::TokenizerJson(Box::new(encoder)))
        }
    };
    Ok(Loaded {
        tokenizer,
        warnings,
    })
}

/// Every token of the file, compiled.
fn tokens(
    pipeline: &Pipeline,
    added: &AddedVocabulary<'_>,
    vocabulary: &[(String, TokenId)],
) -> Result<TableBuilder, String> {
    let mut builder = TableBuilder::default();
    // The crate hides by content: any token spelled like a special one goes.
    let hidden = |spelling: &str| {
        if added.special_contents.contains(spelling) {
            TokenFlags::HIDEABLE
        } else {
            TokenFlags::default()
        }
    };
    for (token, id) in vocabulary {
        if !added.by_id.contains_key(id) {
            let mut spec = pipeline.spec(token, hidden(token))?;
            spec.name = Some(token.clone());
            builder.insert(*id, spec);
        }
    }
    for (&id, token) in &added.by_id {
        let spelling = added.spelling(id, token);
        let mut flags = hidden(spelling).with(TokenFlags::ADDED);
        if token.special {
            flags = flags.with(TokenFlags::SPECIAL);
        }
        let mut spec = match added.spelled_back(id) {
            // Bytes that the normalizer spelled are not letters of the token's own (deviation D2).
            Some(text) if !pipeline.is_strict() => pipeline.spec(&text, flags)?,
            _ => pipeline.spec(spelling, flags)?,
        };
        spec.name = Some(token.content.clone());
        builder.insert(id, spec);
    }
    Ok(builder)
}

/// Added tokens by id, numbered and spelled as the `tokenizers` crate does when it reads a file.
struct AddedVocabulary<'v> {
    model_ids: HashMap<&'v str, TokenId>,
    /// The crate counts on from the size of the vocabulary, whatever ids that has.
    next: u64,
    normalizer: AddedNormalizer,
    by_id: HashMap<TokenId, AddedToken>,
    by_content: HashMap<String, TokenId>,
    /// Normalized forms, where they differ. The crate keeps one when the token comes again.
    normalized: HashMap<TokenId, String>,
    special_contents: HashSet<String>,
}

impl<'v> AddedVocabulary<'v> {
    fn new(vocabulary: &'v [(String, TokenId)], normalizer: AddedNormalizer) -> Self {
        let model_ids: HashMap<_, _> = vocabulary
            .iter()
            .map(|(token, id)| (token.as_str(), *id))
            .collect();
        Self {
            next: model_ids.len() as u64,
            model_ids,
            normalizer,
            by_id: HashMap::new(),
            by_content: HashMap::new(),
            normalized: HashMap::new(),
            special_contents: HashSet::new(),
        }
    }

    fn add(&mut self, token: AddedToken, warnings: &mut Vec<String>) {
        if token.content.is_empty() {
            return;
        }
        let content = token.content.as_str();
        let known = self.by_content.get(content).or(self.model_ids.get(content));
        let id = known.copied().unwrap_or_else(|| {
            let next = self.next;
            self.next += 1;
            TokenId::try_from(next).unwrap_or(TokenId::MAX)
        });
        if id != token.id {
            warnings.push(format!(
                "added token {content:?} has id {} in the file and gets id {id}: added ids must follow on from the vocabulary",
                token.id
            ));
        }
        self.insert(id, token);
    }

    fn insert(&mut self, id: TokenId, token: AddedToken) {
        if token.special {
            self.special_contents.insert(token.content.clone());
        }
        if let Some(normalized) = self.normalizer.normalize(&token) {
            self.normalized.insert(id, normalized);
        }
        self.by_content.insert(token.content.clone(), id);
        self.by_id.insert(id, token);
    }

    /// The text whose bytes a byte-level normalizer spelled in the byte alphabet.
    fn spelled_back(&self, id: TokenId) -> Option<String> {
        let spelled = self
            .normalized
            .get(&id)
            .filter(|_| self.normalizer.is_byte_level)?;
        String::from_utf8(decoder::alphabet_bytes(spelled)?).ok()
    }

    /// What the crate decodes the token by.
    fn spelling<'a>(&'a self, id: TokenId, token: &'a AddedToken) -> &'a str {
        self.normalized.get(&id).unwrap_or(&token.content)
    }
}

/// The normalizer, as far as it changes how added tokens are spelled when decoding.
struct AddedNormalizer {
    normalizer: Option<NormalizerWrapper>,
    /// It spells bytes in the byte alphabet, and the decoder spells them back.
    is_byte_level: bool,
}

impl AddedNormalizer {
    fn new(section: Option<Value>) -> Result<Self, serde_json::Error> {
        Ok(Self {
            is_byte_level: section.as_ref().is_some_and(mentions_byte_level),
            normalizer: match section {
                None | Some(Value::Null) => None,
                Some(section) => Some(serde_json::from_value(section)?),
            },
        })
    }

    fn normalize(&self, token: &AddedToken) -> Option<String> {
        let normalizer = self.normalizer.as_ref().filter(|_| token.is_normalized())?;
        let mut normalized = NormalizedString::from(token.content.as_str());
        normalizer.normalize(&mut normalized).ok()?;
        Some(normalized.get().to_owned()).filter(|normalized| *normalized != token.content)
    }
}

fn mentions_byte_level(section: &Value) -> bool {
    match section {
        Value::Object(fields) => {
            fields.get("type").and_then(Value::as_str) == Some("ByteLevel")
                || fields.values().any(mentions_byte_level)
        }
        Value::Array(items) => items.iter().any(mentions_byte_level),
        _ => false,
    }
}
