//! What a path holds: a folder is searched, a file is told by its content, never by its name.

use super::json::{self, AddedToken};
use super::{ranks, sentencepiece, tekken};
use crate::encode::JsonSource;
use crate::error::LoadError;
use crate::token::TokenId;
use crate::tokenizer::Loaded;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use std::io::Read as _;
use std::path::{Path, PathBuf};

const CONFIG_NAME: &str = "tokenizer_config.json";

/// Names that a folder's main model or rank file goes by; these come before others.
const USUAL_NAMES: [&str; 4] = [
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
];

/// Loads a folder or a file of any format this crate compiles.
///
/// # Errors
/// [`LoadError`] naming the path, and what it lacks or what is wrong with it.
pub fn load_path(path: &Path, strict: bool) -> Result<Loaded, LoadError> {
    if !path.is_dir() {
        return load_file(path, Vec::new(), strict);
    }
    let names = file_names(path)?;
    let mut warnings = Vec::new();
    let file = find_tokenizer(path, &names, &mut warnings)?;
    let extra = if names.iter().any(|name| name == CONFIG_NAME) {
        added_tokens(&path.join(CONFIG_NAME), &mut warnings)
    } else {
        Vec::new()
    };
    let mut loaded = load_file(&file, extra, strict)?;
    loaded.warnings.append(&mut warnings);
    Ok(loaded)
}

/// The bytes of a file, which must not be packed.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    const GZIP: [u8; 2] = [0x1f, 0x8b];
    let invalid = |problem: &str| LoadError::invalid(problem).at(path);
    // Devices and pipes may never end.
    if !std::fs::metadata(path).map_err(io(path))?.is_file() {
        return Err(invalid("not a file"));
    }
    let bytes = std::fs::read(path).map_err(io(path))?;
    if bytes.starts_with(&GZIP) {
        return Err(invalid("packed with gzip; unpack it first"));
    }
    Ok(bytes)
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> LoadError + '_ {
    move |error| LoadError::Io {
        path: path.display().to_string(),
        error,
    }
}

fn load_file(path: &Path, extra: Vec<AddedToken>, strict: bool) -> Result<Loaded, LoadError> {
    let bytes = read(path)?;
    load_bytes(path, &bytes, extra, strict).map_err(|error| error.at(path))
}

fn load_bytes(
    path: &Path,
    bytes: &[u8],
    extra: Vec<AddedToken>,
    strict: bool,
) -> Result<Loaded, LoadError> {
    match Format::of(bytes) {
        Some(Format::Json) => {
            // Most are; so only what is not pays for a second look.
            let source = JsonSource::file(path.to_path_buf(), bytes);
            json::compile(bytes, source, extra.clone(), strict).or_else(|problem| {
                match Sections::of(bytes)? {
                    Sections { model: Some(_), .. } => Err(problem),
                    Sections {
                        config: Some(_),
                        vocab: Some(_),
                        ..
                    } => tekken::compile(bytes, extra),
                    _ => Err(LoadError::invalid(
                        "no tokenizer: a JSON object with neither the \"model\" of a \
                         tokenizer.json nor the \"config\" and \"vocab\" of a tekken.json",
                    )),
                }
            })
        }
        Some(Format::Ranks) => ranks::compile(bytes, extra),
        Some(Format::SentencePiece) => sentencepiece::compile(bytes, extra),
        None => Err(LoadError::invalid(format!(
            "no tokenizer: {} bytes that are no JSON object (tokenizer.json, tekken.json), no \
             lines of base64 and rank (tiktoken), no SentencePiece model",
            bytes.len()
        ))),
    }
}

/// What the beginning of a file says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Json,
    Ranks,
    SentencePiece,
}

impl Format {
    fn of(bytes: &[u8]) -> Option<Self> {
        // A model begins with a line feed, which is blank to the others.
        if sentencepiece::looks_like_sentencepiece(bytes) {
            Some(Self::SentencePiece)
        } else if bytes.trim_ascii_start().starts_with(b"{") {
            Some(Self::Json)
        } else if ranks::looks_like_ranks(bytes) {
            Some(Self::Ranks)
        } else {
            None
        }
    }
}

/// The sections by which JSON files of tokenizers are told, `model` being a `tokenizer.json`'s.
#[derive(Deserialize)]
struct Sections {
    model: Option<IgnoredAny>,
    config: Option<IgnoredAny>,
    vocab: Option<IgnoredAny>,
}

impl Sections {
    fn of(json: &[u8]) -> Result<Self, LoadError> {
        serde_json::from_slice(json)
            .map_err(|error| LoadError::invalid(format!("damaged JSON: {error}")))
    }
}

/// Names of the files in a folder, in order. Names that are not Unicode are none of a tokenizer.
fn file_names(folder: &Path) -> Result<Vec<String>, LoadError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io(folder))? {
        let name = entry.map_err(io(folder))?.file_name().into_string();
        names.extend(name.ok().filter(|name| folder.join(name).is_file()));
    }
    names.sort();
    Ok(names)
}

/// The file of a folder that is its tokenizer.
fn find_tokenizer(
    folder: &Path,
    names: &[String],
    warnings: &mut Vec<String>,
) -> Result<PathBuf, LoadError> {
    let is_tekken = |name: &&String| {
        let stem = name.strip_suffix(".json");
        stem.is_some_and(|stem| stem.starts_with("tekken"))
    };
    let json = names
        .iter()
        .find(|name| *name == "tokenizer.json")
        .or_else(|| names.iter().find(is_tekken));
    if let Some(name) = json {
        return Ok(folder.join(name));
    }
    let mut ranks = Vec::new();
    let mut models = Vec::new();
    for name in names.iter().filter(|name| may_be_model(name)) {
        match Format::of(&read_head(&folder.join(name))?) {
            Some(Format::Ranks) => ranks.push(name.as_str()),
            Some(Format::SentencePiece) => models.push(name.as_str()),
            Some(Format::Json) | None => {}
        }
    }
    let found = if ranks.is_empty() { models } else { ranks };
    let usual = USUAL_NAMES.iter().find(|&name| found.contains(name));
    match (usual.or(found.first()), found.as_slice()) {
        (None, _) => Err(LoadError::invalid(
            "no tokenizer in the folder: looked for tokenizer.json, tekken.json, rank files \
             (*.tiktoken, *.model) and SentencePiece models (*.model, *.model.v3)",
        )
        .at(folder)),
        (Some(name), [_, _, ..]) if usual.is_none() => {
            warnings.push(format!(
                "{} has {} tokenizers of one kind, of which {name} is used: {}",
                folder.display(),
                found.len(),
                found.join(", ")
            ));
            Ok(folder.join(name))
        }
        (Some(name), _) => Ok(folder.join(name)),
    }
}

/// Whether a name is one that rank files or `SentencePiece` models go by.
fn may_be_model(name: &str) -> bool {
    // A version may follow: `tokenizer.model.v3`.
    let mut extensions = name.split('.').skip(1);
    extensions.any(|extension| ["model", "tiktoken"].contains(&extension))
}

/// Enough of a file to tell its format.
fn read_head(path: &Path) -> Result<Vec<u8>, LoadError> {
    const HEAD_LEN: u64 = 1 << 16;
    let mut head = Vec::new();
    let file = std::fs::File::open(path).map_err(io(path))?;
    file.take(HEAD_LEN)
        .read_to_end(&mut head)
        .map_err(io(path))?;
    Ok(head)
}

/// The added tokens of a `tokenizer_config.json`. What is wrong with it is no reason not to load
/// the tokenizer itself.
fn added_tokens(path: &Path, warnings: &mut Vec<String>) -> Vec<AddedToken> {
    let config = read(path).and_then(|bytes| {
        serde_json::from_slice::<Value>(&bytes)
            .map_err(|error| LoadError::invalid(format!("not JSON: {error}")).at(path))
    });
    let mut config = match config {
        Ok(config) => config,
        Err(error) => {
            warnings.push(format!("the added tokens of {error} are left out"));
            return Vec::new();
        }
    };
    let Some(Value::Object(entries)) = config.get_mut("added_tokens_decoder").map(Value::take)
    else {
        return Vec::new();
    };
    let mut tokens = Vec::new();
    for (key, entry) in entries {
        match added_token(&key, entry) {
            Ok(token) => tokens.push(token),
            Err(problem) => warnings.push(format!(
                "{}: added token {key:?} is left out: {problem}",
                path.display()
            )),
        }
    }
    tokens
}

fn added_token(key: &str, entry: Value) -> Result<AddedToken, String> {
    let id: TokenId = key
        .parse()
        .map_err(|_| format!("it is no id from 0 to {}", TokenId::MAX))?;
    let mut token: AddedToken = serde_json::from_value(entry).map_err(|error| error.to_string())?;
    if token.content.is_empty() {
        return Err("its content is empty".into());
    }
    token.id = id;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::test_support::{decode, message, piece};
    use serde_json::json;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A folder of its own, gone at the end of the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(files: &[(&str, &[u8])]) -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("detok-source-{}-{count}", std::process::id());
            let folder = Self(std::env::temp_dir().join(name));
            std::fs::create_dir_all(&folder.0).unwrap();
            for (name, bytes) in files {
                std::fs::write(folder.0.join(name), bytes).unwrap();
            }
            folder
        }

        fn load(&self) -> Result<Loaded, LoadError> {
            load_path(&self.0, false)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const RANKS: &[u8] = b"cg== 0\nYQ== 1\n";

    /// Each of these decodes `[0, 1]` to its own letter and `a`.
    fn tokenizer_json() -> Vec<u8> {
        json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "decoder": {"type": "ByteLevel",
            "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "vocab": {"j": 0, "a": 1}, "merges": []},
        })
        .to_string()
        .into_bytes()
    }

    fn tekken_json() -> Vec<u8> {
        let vocab = json!([{"rank": 0, "token_bytes": "dA==", "token_str": "t"},
            {"rank": 1, "token_bytes": "YQ==", "token_str": null}]);
        let config = json!({"pattern": ".", "num_vocab_tokens": 2, "default_vocab_size": 2,
            "default_num_special_tokens": 0, "version": "v3"});
        json!({"config": config, "vocab": vocab})
            .to_string()
            .into_bytes()
    }

    fn model() -> Vec<u8> {
        [piece("s", 1), piece("a", 1), message(3, &[])].concat()
    }

    #[test]
    fn a_folder_is_searched_in_order() {
        let (json, tekken, model) = (tokenizer_json(), tekken_json(), model());
        let mut files: Vec<(&str, &[u8])> = vec![
            ("tokenizer.json", &json),
            ("tekken.json", &tekken),
            ("tokenizer.model", RANKS),
            ("spiece.model", &model),
            ("config.json", b"{}"),
            ("notes.model", b"\xff\xff"),
        ];
        for (text, strategy) in [
            ("ja", "byte_level"),
            ("ta", "ranks"),
            ("ra", "ranks"),
            ("sa", "metaspace"),
        ] {
            let loaded = Folder::new(&files).load().unwrap();
            assert_eq!(decode(&loaded.tokenizer, &[0, 1]), text);
            assert_eq!(loaded.tokenizer.strategy_name(), strategy);
            assert_eq!(loaded.warnings, Vec::<String>::new());
            files.remove(0);
        }
        let folder = Folder::new(&files);
        let error = folder.load().unwrap_err().to_string();
        assert!(error.contains("looked for tokenizer.json"), "{error}");
        assert!(
            error.starts_with(&folder.0.display().to_string()),
            "{error}"
        );
    }

    #[test]
    fn a_file_is_told_by_its_content() {
        let (json, tekken, model) = (tokenizer_json(), tekken_json(), model());
        let files: [(&[u8], &str); 4] = [
            (&json, "ja"),
            (&tekken, "ta"),
            (RANKS, "ra"),
            (&model, "sa"),
        ];
        for (bytes, text) in files {
            let folder = Folder::new(&[("any.txt", bytes)]);
            let loaded = load_path(&folder.0.join("any.txt"), false).unwrap();
            assert_eq!(decode(&loaded.tokenizer, &[0, 1]), text);
        }
    }

    #[test]
    fn what_is_no_tokenizer_is_refused_by_path() {
        let json = tokenizer_json();
        let cases: [(&[u8], &str); 9] = [
            (b"", "0 bytes that are no JSON object"),
            (b"\n\nhello\n", "no JSON object"),
            (b"[PAD]\n[UNK]\n", "no JSON object"),
            (b"{}", "neither the \"model\""),
            (b"{\"model\": 7, \"vocab\": 8}", "not a tokenizer.json"),
            (b"{\"config\": {}, \"vocab\": []}", "not a tekken.json"),
            (&json[..json.len() / 2], "damaged JSON"),
            (b"\x1f\x8b\x08\x00", "packed with gzip"),
            (&model()[..7], "no JSON object"),
        ];
        for (bytes, problem) in cases {
            let folder = Folder::new(&[("tokenizer.json", bytes)]);
            let error = folder.load().unwrap_err().to_string();
            assert!(error.contains(problem), "{error} / {problem}");
            assert!(error.contains("tokenizer.json: "), "{error}");
        }
        let missing = load_path(Path::new("no such folder/tokenizer.json"), false);
        assert!(matches!(missing, Err(LoadError::Io { .. })), "{missing:?}");
    }

    #[test]
    fn the_configuration_adds_what_the_file_lacks() {
        let config = json!({
            "clean_up_tokenization_spaces": true,
            "added_tokens_decoder": {
                "0": {"content": "<other>", "special": true},
                "2": {"content": "<s>", "special": true, "__type": "AddedToken"},
                "3": {"content": "<tool>", "special": false, "lstrip": true},
                "5": "not a token",
                "6": {"content": ""},
                "-1": {"content": "x"},
                "4294967296": {"content": "x"},
            },
        })
        .to_string();
        for bytes in [tokenizer_json(), tekken_json(), RANKS.to_vec(), model()] {
            let name = match bytes.first() {
                Some(b'{') => "tokenizer.json",
                _ => "tokenizer.model",
            };
            let folder = Folder::new(&[(name, &bytes), (CONFIG_NAME, config.as_bytes())]);
            let Loaded {
                tokenizer,
                warnings,
            } = folder.load().unwrap();
            assert_eq!(decode(&tokenizer, &[2, 1, 3, 1]), "a<tool>a");
            assert_eq!(tokenizer.special_token_ids().unwrap(), [2]);
            assert_eq!(tokenizer.vocab_size().unwrap(), 4);
            assert_eq!(tokenizer.id_to_token(3).unwrap().as_deref(), Some("<tool>"));
            assert_eq!(warnings.len(), 4, "{warnings:?}");
            for key in ["\"5\"", "\"6\"", "\"-1\"", "\"4294967296\""] {
                assert!(warnings.iter().any(|text| text.contains(key)), "{key}");
            }
        }
    }

    #[test]
    fn a_damaged_configuration_is_a_warning() {
        for config in [&b"{"[..], b"\xff", b""] {
            let folder = Folder::new(&[("a.tiktoken", RANKS), (CONFIG_NAME, config)]);
            let loaded = folder.load().unwrap();
            assert!(matches!(loaded.warnings.as_slice(), [one] if one.contains("not JSON")));
        }
        for config in ["[]", "7", "{\"added_tokens_decoder\": null}"] {
            let folder = Folder::new(&[("a.tiktoken", RANKS), (CONFIG_NAME, config.as_bytes())]);
            assert_eq!(folder.load().unwrap().warnings.len(), 0, "{config}");
        }
    }

    #[test]
    fn a_choice_among_equals_is_said() {
        let folder = Folder::new(&[("b.tiktoken", b"Yg== 0"), ("a.tiktoken", b"YQ== 0")]);
        let loaded = folder.load().unwrap();
        assert_eq!(decode(&loaded.tokenizer, &[0]), "a");
        assert!(matches!(loaded.warnings.as_slice(), [one] if one.contains("a.tiktoken is used")));
        let folder = Folder::new(&[("tokenizer.model", RANKS), ("a.tiktoken", b"YQ== 0")]);
        let loaded = folder.load().unwrap();
        assert_eq!(decode(&loaded.tokenizer, &[0]), "r");
        assert_eq!(loaded.warnings.len(), 0);
    }
}
