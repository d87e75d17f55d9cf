//! `tekken.json`: special tokens first, then ranks of byte strings behind them.

use super::json::AddedToken;
use super::ranks::{self, RankTokens};
use crate::error::LoadError;
use crate::token::TokenId;
use crate::tokenizer::Loaded;
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// More special tokens than any file has, and few enough to make up their names.
const MOST_SPECIALS: u32 = 1 << 16;

/// The newest version whose files do not list their special tokens.
const LAST_UNLISTED_VERSION: u32 = 7;

/// Special tokens of files that list none, by id.
const DEFAULT_SPECIALS: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

#[derive(Deserialize)]
struct TekkenFile<'a> {
    config: Config,
    #[serde(borrow)]
    vocab: Vec<Ranked<'a>>,
    special_tokens: Option<Vec<SpecialToken>>,
}

#[derive(Deserialize)]
struct Config {
    pattern: String,
    default_vocab_size: u32,
    default_num_special_tokens: u32,
    version: Option<String>,
}

#[derive(Deserialize)]
struct Ranked<'a> {
    rank: u32,
    #[serde(borrow)]
    token_bytes: Cow<'a, str>,
}

/// Every entry is special, whatever its `is_control` says: the format's own decoder drops or shows
/// them all alike.
#[derive(Deserialize)]
struct SpecialToken {
    rank: TokenId,
    token_str: String,
}

/// Loads the text of a `tekken.json`.
///
/// # Errors
/// [`LoadError::Invalid`] saying what is wrong with it, and with which entry.
pub fn from_tekken_json(json: &[u8]) -> Result<Loaded, LoadError> {
    compile(json, Vec::new())
}

pub(super) fn compile(json: &[u8], extra: Vec<AddedToken>) -> Result<Loaded, LoadError> {
    let file: TekkenFile<'_> = serde_json::from_slice(json)
        .map_err(|error| LoadError::invalid(format!("not a tekken.json: {error}")))?;
    let tokens = tokens(&file).map_err(LoadError::invalid)?;
    tokens.finish(Some(&file.config.pattern), extra)
}

fn tokens(file: &TekkenFile<'_>) -> Result<RankTokens, String> {
    let config = &file.config;
    let specials = config.default_num_special_tokens;
    if specials > MOST_SPECIALS {
        return Err(format!(
            "config.default_num_special_tokens is {specials}, more than {MOST_SPECIALS}"
        ));
    }
    // Ranks past this are in the file, but not in the model's vocabulary.
    let ranks = config
        .default_vocab_size
        .checked_sub(specials)
        .ok_or_else(|| {
            format!(
                "config.default_vocab_size is {}, less than the {specials} special tokens",
                config.default_vocab_size
            )
        })?;
    let mut tokens = RankTokens::default();
    for (id, name) in special_names(file, specials)? {
        tokens.add_special(&name, id)?;
    }
    let mut used = 0;
    for (index, entry) in file.vocab.iter().enumerate() {
        if entry.rank >= ranks {
            continue;
        }
        let problem = |problem: String| format!("vocab[{index}]: {problem}");
        let bytes = ranks::decode_base64(entry.token_bytes.as_bytes())
            .map_err(|error| problem(format!("token_bytes: {error}")))?;
        tokens.add(bytes, entry.rank + specials).map_err(problem)?;
        used += 1;
    }
    if used < ranks {
        return Err(format!(
            "vocab has {used} of the {ranks} ranks that config.default_vocab_size asks for"
        ));
    }
    Ok(tokens)
}

/// A name for each id below `count`.
fn special_names(file: &TekkenFile<'_>, count: u32) -> Result<BTreeMap<TokenId, String>, String> {
    let mut names = BTreeMap::new();
    if let Some(listed) = &file.special_tokens {
        for SpecialToken { rank, token_str } in listed {
            if *rank >= count {
                return Err(format!(
                    "special token {token_str:?} has rank {rank}; there are {count}"
                ));
            }
            if let Some(other) = names.insert(*rank, token_str.clone()) {
                return Err(format!(
                    "special tokens {other:?} and {token_str:?} share rank {rank}"
                ));
            }
        }
    } else {
        if let Some(version) = unlisted_version(&file.config) {
            return Err(format!("version {version:?} must list its special_tokens"));
        }
        let defaults = (0..count).zip(DEFAULT_SPECIALS);
        names.extend(defaults.map(|(id, name)| (id, name.to_owned())));
    }
    for id in 0..count {
        names.entry(id).or_insert_with(|| format!("<SPECIAL_{id}>"));
    }
    Ok(names)
}

/// The version, if it is one whose special tokens have no default names.
fn unlisted_version(config: &Config) -> Option<&str> {
    let version = config.version.as_deref()?;
    let digits = version.trim_start_matches('v');
    let end = digits
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(digits.len());
    let number: u32 = digits.get(..end)?.parse().ok()?;
    (number > LAST_UNLISTED_VERSION).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::test_support::{decode, every_prefix, flipped};
    use serde_json::{Value, json};

    /// Four special tokens, then `a`, `b`, the halves of `あ` and `ab`; `c` is past the cut.
    fn file() -> Value {
        let entry = |(rank, bytes): (usize, &&str)| json!({"rank": rank, "token_bytes": bytes, "token_str": null});
        let vocab: Vec<Value> = ["YQ==", "Yg==", "44E=", "gg==", "YWI=", "Yw=="]
            .iter()
            .enumerate()
            .map(entry)
            .collect();
        json!({
            "config": {
                "pattern": "\\p{L}+", "num_vocab_tokens": 6, "default_vocab_size": 9,
                "default_num_special_tokens": 4, "version": "v3",
            },
            "vocab": vocab,
        })
    }

    fn load(file: &Value) -> Result<Loaded, LoadError> {
        from_tekken_json(file.to_string().as_bytes())
    }

    #[test]
    fn ranks_follow_the_special_tokens() {
        let tokenizer = load(&file()).unwrap().tokenizer;
        assert_eq!(tokenizer.strategy_name(), "ranks");
        assert_eq!(tokenizer.vocab_size().unwrap(), 9);
        assert_eq!(tokenizer.special_token_ids().unwrap(), [0, 1, 2, 3]);
        assert_eq!(tokenizer.id_to_token(3).unwrap().as_deref(), Some("[INST]"));
        assert_eq!(decode(&tokenizer, &[1, 4, 6, 2, 7, 8]), "aあab");
        assert_eq!(tokenizer.encode("aba", false).unwrap(), [8, 4]);
    }

    #[test]
    fn special_tokens_are_listed_or_have_default_names() {
        let mut listed = file();
        listed["special_tokens"] = json!([
            {"rank": 0, "token_str": "<unk>", "is_control": true},
            {"rank": 2, "token_str": "[THINK]", "is_control": false},
        ]);
        listed["config"]["version"] = json!("v13");
        let tokenizer = load(&listed).unwrap().tokenizer;
        let name = |id| tokenizer.id_to_token(id).unwrap().map(Cow::into_owned);
        assert_eq!(name(1).as_deref(), Some("<SPECIAL_1>"));
        assert_eq!(name(2).as_deref(), Some("[THINK]"));
        assert!(tokenizer.is_special(2).unwrap());
        let mut many = file();
        many["config"]["default_num_special_tokens"] = json!(25);
        many["config"]["default_vocab_size"] = json!(31);
        let tokenizer = load(&many).unwrap().tokenizer;
        let name = |id| tokenizer.id_to_token(id).unwrap().map(Cow::into_owned);
        assert_eq!(name(19).as_deref(), Some("[TOOL_CONTENT]"));
        assert_eq!(name(20).as_deref(), Some("<SPECIAL_20>"));
        assert_eq!(name(25).as_deref(), Some("a"));
    }

    #[test]
    fn bad_files_are_refused() {
        let cases = [
            ("/config/default_vocab_size", json!(3), "less than the 4"),
            ("/config/default_vocab_size", json!(11), "6 of the 7 ranks"),
            (
                "/config/default_num_special_tokens",
                json!(4_000_000_000_u32),
                "more than 65536",
            ),
            ("/config/pattern", json!("("), "split pattern"),
            (
                "/config/version",
                json!("v11"),
                "must list its special_tokens",
            ),
            ("/config/version", json!(3), "not a tekken.json"),
            ("/vocab/1/rank", json!(0), "vocab[1]: id 4 is given twice"),
            ("/vocab/1/rank", json!(-1), "not a tekken.json"),
            (
                "/vocab/2/token_bytes",
                json!("YQ=="),
                "vocab[2]: the token of id 6",
            ),
            ("/vocab/2/token_bytes", json!("??"), "vocab[2]: token_bytes"),
            ("/vocab/0", json!({"rank": 0}), "token_bytes"),
        ];
        for (pointer, value, problem) in cases {
            let mut damaged = file();
            *damaged.pointer_mut(pointer).unwrap() = value;
            let error = load(&damaged).unwrap_err().to_string();
            assert!(error.contains(problem), "{pointer}: {error}");
        }
        let mut shared = file();
        shared["special_tokens"] =
            json!([{"rank": 1, "token_str": "x"}, {"rank": 1, "token_str": "y"}]);
        assert!(
            load(&shared)
                .unwrap_err()
                .to_string()
                .contains("share rank 1")
        );
        shared["special_tokens"] = json!([{"rank": 4, "token_str": "x"}]);
        assert!(
            load(&shared)
                .unwrap_err()
                .to_string()
                .contains("has rank 4")
        );
    }

    #[test]
    fn no_damage_panics() {
        let file = file().to_string().into_bytes();
        for damaged in every_prefix(&file).chain(flipped(&file, 2_000)) {
            let _ = from_tekken_json(&damaged);
        }
    }
}
