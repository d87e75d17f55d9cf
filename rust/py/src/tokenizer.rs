//! `Tokenizer`.

use crate::choice::{UNKNOWN_IDS, choose};
use crate::decoded::DecodedText;
use crate::delta::{Outcome, TextDelta, TokenDeltas};
use crate::error::{detok_error, guarded, load_to_py, to_py, unknown_token_error};
use crate::ids::{Argument, read_token_ids, token_id, token_ids};
use crate::per_token::PerToken;
use crate::position::threads;
use crate::source::PythonSource;
use crate::stream::ChunkIterator;
use detok_core as core;
use detok_core::{DecodeOptions, Encoder, LoadError, Loaded, SampledText, Table, TokenId};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFrozenSet, PyMapping, PyString, PyTuple, PyType};
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::Arc;

/// Work on at least this many ids, or bytes, is worth giving up the interpreter for: to get it back
/// beside a busy thread can take five milliseconds.
pub(crate) const DETACH_FROM: usize = 1 << 16;

/// An immutable tokenizer, as decoding sees it.
#[pyclass(frozen, module = "detok")]
pub(crate) struct Tokenizer {
    core: Arc<core::Tokenizer>,
    /// Texts of tokens, as the table names them.
    strings: PerToken<PyString>,
    deltas: TokenDeltas,
    /// A callable `(text, add_special_tokens) -> ids` of the source object, where that encodes.
    encoder: Option<Py<PyAny>>,
    /// The object that decodes, where the strategy is the window over one.
    source: Option<Arc<PythonSource>>,
}

impl Tokenizer {
    fn new(core: core::Tokenizer) -> Self {
        Self {
            strings: PerToken::new(core.table()),
            deltas: TokenDeltas::new(core.table()),
            core: Arc::new(core),
            encoder: None,
            source: None,
        }
    }

    pub(crate) fn core(&self) -> Arc<core::Tokenizer> {
        Arc::clone(&self.core)
    }

    pub(crate) fn table(&self) -> Option<&Table> {
        self.core.table()
    }

    /// Whether decoding may run code of the caller.
    #[inline]
    pub(crate) fn calls_python(&self) -> bool {
        self.source.is_some()
    }

    /// The shared string of a token's text, as a table has it.
    #[inline]
    pub(crate) fn token_string(&self, py: Python<'_>, id: TokenId) -> Py<PyString> {
        self.strings.get(py, id).unwrap_or_else(|| {
            let text = self.core.table().map(|table| table.token_text(id));
            let string = PyString::new(py, &text.unwrap_or_default());
            self.strings.keep(py, id, string.unbind())
        })
    }

    /// The shared event of a token without logprobs.
    #[inline]
    pub(crate) fn token_delta(
        &self,
        py: Python<'_>,
        id: TokenId,
        outcome: Outcome,
        token_texts: bool,
    ) -> PyResult<Py<TextDelta>> {
        let text = || self.token_string(py, id);
        self.deltas.get(py, id, outcome, token_texts, text)
    }

    /// The text of a sampled token.
    pub(crate) fn sampled_string(&self, py: Python<'_>, sampled: &SampledText<'_>) -> Py<PyString> {
        match sampled.written() {
            None => self.token_string(py, sampled.token_id),
            Some(text) => PyString::new(py, text).unbind(),
        }
    }

    /// The texts of an update's tokens, if asked for.
    pub(crate) fn sampled_strings(
        &self,
        py: Python<'_>,
        sampled: &core::SampledDelta,
    ) -> PyResult<Option<Py<PyTuple>>> {
        let Some(texts) = sampled.texts(self.core.table()) else {
            return Ok(None);
        };
        let strings = texts.map(|sampled| self.sampled_string(py, &sampled));
        Ok(Some(PyTuple::new(py, strings)?.unbind()))
    }

    fn decode_one(
        &self,
        token_ids: &Bound<'_, PyAny>,
        options: &DecodeOptions,
        scratch: &mut Scratch,
    ) -> PyResult<Py<PyString>> {
        let py = token_ids.py();
        let Scratch { ids, text } = scratch;
        read_token_ids(token_ids, ids)?;
        text.clear();
        text.reserve(ids.len() * 5);
        guarded(py, || {
            let decoded = self.core.decode_lossily(ids, options, text);
            decoded.map_err(|error| to_py(py, error))?;
            // Making the string checks the bytes, most of which are fine.
            let string = PyString::from_bytes(py, text)
                .unwrap_or_else(|_| PyString::new(py, &String::from_utf8_lossy(text)));
            Ok(string.unbind())
        })
    }

    fn loaded(py: Python<'_>, loaded: Result<Loaded, LoadError>) -> PyResult<Self> {
        let Loaded {
            tokenizer,
            warnings,
        } = loaded.map_err(|error| load_to_py(py, error))?;
        let category = py.import("detok.errors")?.getattr("DetokWarning")?;
        for warning in warnings {
            let words = CString::new(warning.replace('\0', "\\0")).unwrap_or_default();
            PyErr::warn(py, &category, &words, 1)?;
        }
        Ok(Self::new(tokenizer))
    }
}

/// Memory that one-shot decoding needs for a sequence, and the next one again.
#[derive(Default)]
struct Scratch {
    ids: Vec<TokenId>,
    text: Vec<u8>,
}

/// What is shown and tolerated, from a call's keywords.
pub(crate) fn decode_options(
    tokenizer: &Tokenizer,
    skip_special_tokens: bool,
    keep_special_tokens: &Argument<'_>,
    unknown_ids: &str,
) -> PyResult<DecodeOptions> {
    Ok(DecodeOptions {
        skip_special_tokens,
        keep_special_tokens: match keep_special_tokens.given() {
            Some(tokens) => {
                resolve_kept_tokens(tokens.py(), tokenizer, &read_kept_tokens(tokens)?)?
            }
            None => None,
        },
        unknown_ids: choose("unknown_ids", unknown_ids, &UNKNOWN_IDS)?,
    })
}

/// A special token to keep, as the caller names it.
#[derive(Clone, PartialEq, Eq, Hash, IntoPyObjectRef)]
pub(crate) enum KeptToken {
    Name(String),
    Id(TokenId),
}

pub(crate) fn read_kept_tokens(tokens: &Bound<'_, PyAny>) -> PyResult<Vec<KeptToken>> {
    if tokens.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(
            "keep_special_tokens must be an iterable of names and ids; put a single name into a list",
        ));
    }
    let mut all = Vec::new();
    for (index, token) in tokens.try_iter()?.enumerate() {
        let token = token?;
        all.push(match token.cast::<PyString>() {
            Ok(name) => KeptToken::Name(name.to_cow()?.into_owned()),
            Err(_) => KeptToken::Id(token_id(&token, index)?),
        });
    }
    Ok(all)
}

/// The ids of special tokens to keep, which the tokenizer must have.
pub(crate) fn resolve_kept_tokens(
    py: Python<'_>,
    tokenizer: &Tokenizer,
    tokens: &[KeptToken],
) -> PyResult<Option<Arc<[TokenId]>>> {
    let core = &tokenizer.core;
    let mut kept = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        kept.push(match token {
            KeptToken::Id(id) => {
                let name = core.id_to_token(*id).map_err(|error| to_py(py, error))?;
                if name.is_none() {
                    let message = format!(
                        "keep_special_tokens[{index}]: token id {id} is unknown to the tokenizer"
                    );
                    return Err(unknown_token_error(py, (message, *id, index)));
                }
                *id
            }
            KeptToken::Name(name) => {
                let id = core.token_to_id(name).map_err(|error| to_py(py, error))?;
                id.ok_or_else(|| {
                    let name = PyString::new(py, name);
                    PyValueError::new_err(format!(
                        "keep_special_tokens[{index}]: the tokenizer has no token {name:?}"
                    ))
                })?
            }
        });
    }
    kept.sort_unstable();
    Ok((!kept.is_empty()).then(|| kept.into()))
}

/// Special tokens given as name → id.
fn special_tokens(mapping: &Bound<'_, PyMapping>) -> PyResult<Vec<(String, TokenId)>> {
    let mut tokens = Vec::new();
    for (index, item) in mapping.items()?.iter().enumerate() {
        let (name, id): (String, Bound<'_, PyAny>) = item.extract()?;
        tokens.push((name, token_id(&id, index)?));
    }
    Ok(tokens)
}

#[pymethods]
impl Tokenizer {
    /// Loads by what `source` is: a path, or an object.
    #[staticmethod]
    #[pyo3(signature = (source, *, strict = false))]
    fn load<'py>(source: &Bound<'py, PyAny>, strict: bool) -> PyResult<Bound<'py, PyAny>> {
        let py = source.py();
        if source.is_exact_instance_of::<Self>() {
            return Ok(source.clone());
        }
        let sources = py.import("detok._sources")?;
        sources.call_method1("load", (source, strict))
    }

    /// Loads a file or folder.
    #[staticmethod]
    #[pyo3(signature = (path, *, strict = false))]
    fn from_file(py: Python<'_>, path: PathBuf, strict: bool) -> PyResult<Self> {
        guarded(py, || {
            Self::loaded(py, py.detach(|| core::load_path(&path, strict)))
        })
    }

    /// Loads the text of a `tokenizer.json`.
    #[staticmethod]
    #[pyo3(signature = (data, *, strict = false))]
    fn from_json(data: &Bound<'_, PyAny>, strict: bool) -> PyResult<Self> {
        let py = data.py();
        let json = if let Ok(text) = data.cast::<PyString>() {
            text.to_cow()?.into_owned().into_bytes()
        } else if let Ok(bytes) = data.cast::<PyBytes>() {
            bytes.as_bytes().to_vec()
        } else {
            return Err(PyTypeError::new_err(
                "data must be the str or bytes of a tokenizer.json",
            ));
        };
        guarded(py, || {
            Self::loaded(py, py.detach(|| core::from_tokenizer_json(&json, strict)))
        })
    }

    /// Loads a tiktoken rank file.
    #[staticmethod]
    #[pyo3(signature = (path, *, special_tokens = Argument::Missing, pattern = None))]
    fn from_tiktoken(
        py: Python<'_>,
        path: PathBuf,
        special_tokens: Argument<'_>,
        pattern: Option<&str>,
    ) -> PyResult<Self> {
        let special = match special_tokens.given() {
            Some(mapping) => self::special_tokens(mapping.cast()?)?,
            None => Vec::new(),
        };
        guarded(py, || {
            Self::loaded(py, core::from_tiktoken_file(&path, &special, pattern))
        })
    }

    /// A byte vocabulary given as data: index = id.
    #[staticmethod]
    #[pyo3(signature = (tokens, *, special_token_ids = Argument::Missing))]
    fn from_token_bytes(
        tokens: &Bound<'_, PyAny>,
        special_token_ids: Argument<'_>,
    ) -> PyResult<Self> {
        let py = tokens.py();
        let mut all = Vec::new();
        for (id, token) in tokens.try_iter()?.enumerate() {
            let token = token?;
            all.push(match token.cast::<PyBytes>() {
                Ok(bytes) => Some(bytes.as_bytes().to_vec()),
                Err(_) if token.is_none() => None,
                Err(_) => {
                    let kind = token.get_type();
                    return Err(PyTypeError::new_err(format!(
                        "tokens[{id}] must be bytes or None, not {kind}"
                    )));
                }
            });
        }
        let mut special = Vec::new();
        if let Some(ids) = special_token_ids.given() {
            for (index, id) in ids.try_iter()?.enumerate() {
                special.push(token_id(&id?, index)?);
            }
        }
        guarded(py, || {
            Self::loaded(py, core::from_token_bytes(all, &special))
        })
    }

    /// Byte strings by rank, as a `tiktoken.Encoding` has them.
    #[staticmethod]
    fn _from_ranks(
        py: Python<'_>,
        ranks: &Bound<'_, PyMapping>,
        special_tokens: &Bound<'_, PyMapping>,
        pattern: Option<&str>,
    ) -> PyResult<Self> {
        let mut pairs = Vec::with_capacity(ranks.len()?);
        for (index, item) in ranks.items()?.iter().enumerate() {
            let (bytes, id): (Vec<u8>, Bound<'_, PyAny>) = item.extract()?;
            pairs.push((bytes, token_id(&id, index)?));
        }
        let special = self::special_tokens(special_tokens)?;
        guarded(py, || {
            Self::loaded(py, core::from_ranks(pairs, &special, pattern))
        })
    }

    /// Any object with `decode`, decoded by windows.
    #[staticmethod]
    fn _from_object(object: &Bound<'_, PyAny>, reason: String) -> Self {
        let source = Arc::new(PythonSource(object.clone().unbind()));
        let missing = "encode needs encode of the tokenizer object, which has none".to_owned();
        let core =
            core::Tokenizer::from_window_source(source.clone(), reason, Encoder::Missing(missing));
        Self {
            source: Some(source),
            ..Self::new(core)
        }
    }

    /// The same tokenizer, encoding by a callable `(text, add_special_tokens) -> ids`.
    fn _with_encoder(&self, encoder: Py<PyAny>) -> Self {
        Self {
            core: self.core(),
            strings: PerToken::new(self.core.table()),
            deltas: TokenDeltas::new(self.core.table()),
            encoder: Some(encoder),
            source: self.source.clone(),
        }
    }

    /// What `__reduce__` saved.
    #[staticmethod]
    fn _from_saved(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        let core = guarded(py, || {
            core::Tokenizer::from_bytes(data).map_err(|error| load_to_py(py, error))
        })?;
        Ok(Self::new(core))
    }

    #[getter]
    fn vocab_size(&self, py: Python<'_>) -> PyResult<u64> {
        self.core.vocab_size().map_err(|error| to_py(py, error))
    }

    #[getter]
    fn special_token_ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyFrozenSet>> {
        let ids = self
            .core
            .special_token_ids()
            .map_err(|error| to_py(py, error))?;
        PyFrozenSet::new(py, ids)
    }

    #[getter]
    fn strategy(&self) -> &'static str {
        self.core.strategy_name()
    }

    #[getter]
    fn strategy_reason(&self) -> Option<&str> {
        self.core.strategy_reason()
    }

    #[getter]
    fn fingerprint(&self, py: Python<'_>) -> PyResult<String> {
        self.core.fingerprint().map_err(|error| to_py(py, error))
    }

    /// The token as its source spells it.
    fn id_to_token(&self, token_id: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
        let id = self::token_id(token_id, 0)?;
        let name = self
            .core
            .id_to_token(id)
            .map_err(|error| to_py(token_id.py(), error))?;
        Ok(name.map(std::borrow::Cow::into_owned))
    }

    /// The id of a token by its name.
    fn token_to_id(&self, py: Python<'_>, token: &str) -> PyResult<Option<TokenId>> {
        self.core
            .token_to_id(token)
            .map_err(|error| to_py(py, error))
    }

    /// What the token contributes in the middle of text.
    fn token_bytes<'py>(
        &self,
        token_id: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let py = token_id.py();
        let id = self::token_id(token_id, 0)?;
        let bytes = self
            .core
            .token_bytes(id)
            .map_err(|error| to_py(py, error))?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Whether the token is special by its source's word.
    fn is_special(&self, token_id: &Bound<'_, PyAny>) -> PyResult<bool> {
        let id = self::token_id(token_id, 0)?;
        self.core
            .is_special(id)
            .map_err(|error| to_py(token_id.py(), error))
    }

    /// Ids of a text.
    #[pyo3(signature = (text, *, add_special_tokens = false))]
    fn encode(
        &self,
        py: Python<'_>,
        text: &str,
        add_special_tokens: bool,
    ) -> PyResult<Vec<TokenId>> {
        if let Some(encoder) = &self.encoder {
            return token_ids(&encoder.bind(py).call1((text, add_special_tokens))?);
        }
        guarded(py, || {
            py.detach(|| self.core.encode(text, add_special_tokens))
                .map_err(|error| to_py(py, error))
        })
    }

    /// The text of a whole sequence.
    #[pyo3(signature = (token_ids, *, skip_special_tokens = true, keep_special_tokens = Argument::Missing, unknown_ids = "error"))]
    fn decode(
        &self,
        token_ids: &Bound<'_, PyAny>,
        skip_special_tokens: bool,
        keep_special_tokens: Argument<'_>,
        unknown_ids: &str,
    ) -> PyResult<Py<PyString>> {
        let options = decode_options(self, skip_special_tokens, &keep_special_tokens, unknown_ids)?;
        self.decode_one(token_ids, &options, &mut Scratch::default())
    }

    /// The texts of many sequences.
    #[pyo3(signature = (sequences, *, skip_special_tokens = true, unknown_ids = "error", threads = 1))]
    fn decode_batch(
        &self,
        py: Python<'_>,
        sequences: &Bound<'_, PyAny>,
        skip_special_tokens: bool,
        unknown_ids: &str,
        #[pyo3(from_py_with = threads)] threads: usize,
    ) -> PyResult<Vec<Py<PyString>>> {
        let options = decode_options(self, skip_special_tokens, &Argument::Missing, unknown_ids)?;
        if threads == 1 || self.calls_python() {
            // One sequence at a time: no second copy of all ids.
            let mut scratch = Scratch::default();
            let texts = sequences.try_iter()?.enumerate().map(|(at, ids)| {
                self.decode_one(&ids?, &options, &mut scratch)
                    .map_err(|error| in_sequence(py, at, error))
            });
            return texts.collect();
        }
        let mut all = Vec::new();
        for (at, ids) in sequences.try_iter()?.enumerate() {
            all.push(token_ids(&ids?).map_err(|error| in_sequence(py, at, error))?);
        }
        let total: usize = all.iter().map(Vec::len).sum();
        let decode = || self.core.decode_batch(&all, &options, threads);
        let texts = guarded(py, || {
            Ok(if total < DETACH_FROM {
                decode()
            } else {
                py.detach(decode)
            })
        })?;
        texts
            .into_iter()
            .enumerate()
            .map(|(at, text)| match text {
                Ok(text) => Ok(PyString::new(py, &text).unbind()),
                Err(error) => Err(in_sequence(py, at, to_py(py, error))),
            })
            .collect()
    }

    /// The text of a whole sequence behind a prompt, with one record per id.
    #[pyo3(signature = (token_ids, *, prompt_token_ids = Argument::Missing, skip_special_tokens = true,
                        keep_special_tokens = Argument::Missing, unknown_ids = "error"))]
    fn decode_attributed(
        slf: &Bound<'_, Self>,
        token_ids: &Bound<'_, PyAny>,
        prompt_token_ids: Argument<'_>,
        skip_special_tokens: bool,
        keep_special_tokens: Argument<'_>,
        unknown_ids: &str,
    ) -> PyResult<DecodedText> {
        let options = decode_options(
            slf.get(),
            skip_special_tokens,
            &keep_special_tokens,
            unknown_ids,
        )?;
        crate::stream::decode_attributed(slf, token_ids, &prompt_token_ids, options)
    }

    /// Chunks as they become certain, the flushed rest last.
    #[pyo3(signature = (token_ids, *, prompt_token_ids = Argument::Missing, skip_special_tokens = true))]
    fn stream(
        slf: &Bound<'_, Self>,
        token_ids: &Bound<'_, PyAny>,
        prompt_token_ids: Argument<'_>,
        skip_special_tokens: bool,
    ) -> PyResult<ChunkIterator> {
        ChunkIterator::open(slf, token_ids, &prompt_token_ids, skip_special_tokens)
    }

    fn __repr__(&self) -> String {
        let size = self
            .core
            .vocab_size()
            .map_or_else(|_| String::new(), |size| format!(", {size} ids"));
        format!("<detok.Tokenizer: {}{size}>", self.core.strategy_name())
    }

    /// An object may keep the tokenizer that was made of it. As long as streams share the tokenizer,
    /// what they hold is not this object's alone to tell of.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(encoder) = &self.encoder {
            visit.call(encoder)?;
        }
        match &self.source {
            Some(source) if Arc::strong_count(&self.core) == 1 => visit.call(&source.0),
            _ => Ok(()),
        }
    }

    /// Immutable, so a copy is the same object.
    fn __copy__(slf: &Bound<'_, Self>) -> Py<Self> {
        slf.clone().unbind()
    }

    fn __deepcopy__(slf: &Bound<'_, Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        slf.clone().unbind()
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyAny>,))> {
        let class: Bound<'py, PyType> = py.get_type::<Self>();
        if let Some(source) = &self.source {
            return Ok((class.getattr("load")?, (source.0.bind(py).clone(),)));
        }
        if let Some(json) = self.core.to_json() {
            return Ok((
                class.getattr("from_json")?,
                (PyString::new(py, &json).into_any(),),
            ));
        }
        let saved = self.core.to_bytes().map_err(|error| to_py(py, error))?;
        Ok((
            class.getattr("_from_saved")?,
            (PyBytes::new(py, &saved).into_any(),),
        ))
    }
}

/// The same error, saying in which sequence of the batch.
fn in_sequence(py: Python<'_>, at: usize, error: PyErr) -> PyErr {
    match error
        .value(py)
        .call_method1("add_note", (format!("in sequence {at} of the batch"),))
    {
        Ok(_) => error,
        Err(_) => detok_error(py, error.to_string()),
    }
}
