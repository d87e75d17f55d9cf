//! Text → ids, for sources that can: the `tokenizers` crate's own tokenizer, built when it is
//! first asked for, or byte-pair merging by rank.

use crate::error::Error;
use crate::table::{Table, TokenFlags};
use crate::token::TokenId;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// How a tokenizer encodes.
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum Encoder {
    /// It does not; the text says why and what to do.
    Missing(String),
    /// By the `tokenizers` crate.
    TokenizerJson(Box<JsonEncoder>),
    /// By ranks and a split pattern (tiktoken, tekken).
    Ranks(Box<RankEncoder>),
}

impl Encoder {
    /// Ids of `text`; `table` is the one of the same tokenizer.
    pub(crate) fn encode(
        &self,
        table: Option<&Table>,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<TokenId>, Error> {
        match self {
            Self::Missing(why) => Err(Error::Unsupported(why.clone())),
            Self::TokenizerJson(encoder) => encoder.encode(text, add_special_tokens),
            Self::Ranks(encoder) => encoder.encode(table, text),
        }
    }
}

/// Where the text of a `tokenizer.json` is to be had again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum JsonSource {
    /// In a file, unchanged as long as the hash is the same.
    File { path: PathBuf, hash: u128 },
    /// Here. Not saved: a saved tokenizer stays small.
    Data(#[serde(skip)] Option<Arc<[u8]>>),
}

impl JsonSource {
    /// The bytes of a file that was just read.
    pub(crate) fn file(path: PathBuf, bytes: &[u8]) -> Self {
        Self::File {
            // The process may have another working directory when it encodes.
            path: std::path::absolute(&path).unwrap_or(path),
            hash: xxhash_rust::xxh3::xxh3_128(bytes),
        }
    }

    fn read(&self) -> Result<Vec<u8>, Error> {
        let missing = |why: String| Err(Error::Unsupported(why));
        match self {
            Self::Data(Some(data)) => Ok(data.to_vec()),
            Self::Data(None) => missing(
                "encode needs the tokenizer.json, which a pickled tokenizer does not carry; \
                 load the tokenizer from its file instead"
                    .into(),
            ),
            Self::File { path, hash } => match std::fs::read(path) {
                Ok(bytes) if xxhash_rust::xxh3::xxh3_128(&bytes) == *hash => Ok(bytes),
                Ok(_) => missing(format!(
                    "encode needs {}, which has changed since it was loaded",
                    path.display()
                )),
                Err(error) => missing(format!("encode needs {}: {error}", path.display())),
            },
        }
    }
}

/// The `tokenizers` crate's own tokenizer, built from the same file.
#[derive(Serialize, Deserialize)]
pub struct JsonEncoder {
    source: JsonSource,
    /// JSON of added tokens that came from elsewhere than the file.
    extra_tokens: Vec<String>,
    #[serde(skip)]
    built: OnceLock<Arc<tokenizers::Tokenizer>>,
}

impl JsonEncoder {
    pub(crate) fn new(source: JsonSource, extra_tokens: Vec<String>) -> Self {
        Self {
            source,
            extra_tokens,
            built: OnceLock::new(),
        }
    }

    /// The crate's tokenizer.
    pub(crate) fn tokenizer(&self) -> Result<Arc<tokenizers::Tokenizer>, Error> {
        if let Some(built) = self.built.get() {
            return Ok(Arc::clone(built));
        }
        let built = Arc::new(build(&self.source.read()?, &self.extra_tokens)?);
        Ok(Arc::clone(self.built.get_or_init(|| built)))
    }

    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<TokenId>, Error> {
        let encoding = self
            .tokenizer()?
            .encode_fast(text, add_special_tokens)
            .map_err(Error::Source)?;
        Ok(encoding.get_ids().to_vec())
    }
}

fn build(json: &[u8], extra_tokens: &[String]) -> Result<tokenizers::Tokenizer, Error> {
    let source = |error: serde_json::Error| Error::Source(Box::new(error));
    let mut value: Value = serde_json::from_slice(json).map_err(source)?;
    // Files of version 2.0 have the sections of 1.0; the crate knows only the older number.
    if let Some(version) = value.get_mut("version") {
        *version = "1.0".into();
    }
    for token in extra_tokens {
        let token = serde_json::from_str(token).map_err(source)?;
        if let Some(tokens) = value.get_mut("added_tokens").and_then(Value::as_array_mut) {
            tokens.push(token);
        }
    }
    // Truncation and padding shape batches for a model; ids of a text are all of its ids.
    for key in ["truncation", "padding"] {
        if let Some(setting) = value.get_mut(key) {
            *setting = Value::Null;
        }
    }
    serde_json::from_value(value).map_err(source)
}

/// Ids by byte strings.
type Ranks = HashMap<Vec<u8>, TokenId>;

/// Byte-pair merging: split by a pattern, then join the neighbours of lowest rank.
#[derive(Serialize, Deserialize)]
pub struct RankEncoder {
    pattern: String,
    #[serde(skip)]
    regex: OnceLock<fancy_regex::Regex>,
    /// The table the other way round.
    #[serde(skip)]
    ranks: OnceLock<Ranks>,
}

impl RankEncoder {
    pub(crate) fn new(pattern: String) -> Result<Self, Error> {
        let encoder = Self {
            pattern,
            regex: OnceLock::new(),
            ranks: OnceLock::new(),
        };
        encoder.regex()?;
        Ok(encoder)
    }

    fn regex(&self) -> Result<&fancy_regex::Regex, Error> {
        if let Some(regex) = self.regex.get() {
            return Ok(regex);
        }
        let regex = fancy_regex::Regex::new(&self.pattern).map_err(|error| {
            Error::Unsupported(format!("the split pattern {:?}: {error}", self.pattern))
        })?;
        Ok(self.regex.get_or_init(|| regex))
    }

    /// Names of special tokens in the text are ordinary text.
    fn encode(&self, table: Option<&Table>, text: &str) -> Result<Vec<TokenId>, Error> {
        let ranks = self
            .ranks
            .get_or_init(|| table.map_or_else(Ranks::new, ranks));
        let mut ids = Vec::with_capacity(text.len() / 3);
        for part in self.regex()?.find_iter(text) {
            let part = part.map_err(|error| Error::Source(Box::new(error)))?;
            encode_part(ranks, part.as_str().as_bytes(), &mut ids)?;
        }
        Ok(ids)
    }
}

/// What merging may join: every token that is neither special nor added to the ranks.
fn ranks(table: &Table) -> Ranks {
    let mut ranks = Ranks::new();
    let beside = |flags: TokenFlags| flags.has(TokenFlags::ADDED) || flags.has(TokenFlags::SPECIAL);
    for id in table.ids() {
        let is_rank = !table.flags(id).is_some_and(beside);
        if let Some(bytes) = table.token_bytes(id).filter(|_| is_rank) {
            ranks.entry(bytes.to_vec()).or_insert(id);
        }
    }
    ranks
}

fn encode_part(ranks: &Ranks, part: &[u8], ids: &mut Vec<TokenId>) -> Result<(), Error> {
    if let Some(&id) = ranks.get(part) {
        ids.push(id);
        return Ok(());
    }
    // Starts of the tokens so far; a split pattern keeps parts short.
    let mut starts: Vec<usize> = (0..=part.len()).collect();
    let rank = |from: usize, to: usize| {
        part.get(from..to)
            .and_then(|joined| ranks.get(joined))
            .copied()
    };
    loop {
        let lowest = starts
            .windows(3)
            .enumerate()
            .filter_map(|(at, bounds)| Some((rank(*bounds.first()?, *bounds.last()?)?, at)))
            .min();
        let Some((_, at)) = lowest else { break };
        starts.remove(at + 1);
    }
    for bounds in starts.windows(2) {
        if let [from, to] = *bounds {
            let id = rank(from, to).ok_or_else(|| {
                Error::Unsupported(format!(
                    "no token spells the bytes {:02x?}",
                    part.get(from..to)
                ))
            })?;
            ids.push(id);
        }
    }
    Ok(())
}
