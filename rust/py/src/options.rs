//! `TextDecodeOptions`.

use crate::choice::{FRAGMENTS, UNKNOWN_IDS, choose, word};
use crate::error::{guarded, to_py};
use crate::ids::{Argument, token_id, token_ids, type_name};
use crate::marker::{Marker, read_markers};
use crate::position;
use crate::tokenizer::{DETACH_FROM, KeptToken, Tokenizer, read_kept_tokens, resolve_kept_tokens};
use crate::value::{CallRepr, Reduced, hash_of, reduced, with_keywords};
use detok_core as core;
use detok_core::{
    CONTENT, DecodeOptions, Fragments, Sections, StopScope, StopStrings, TokenId, UnknownIds,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// How the ids of one request become text, and where it ends.
#[pyclass(frozen, module = "detok")]
pub(crate) struct TextDecodeOptions {
    /// All but the special tokens to keep.
    core: Arc<core::TextDecodeOptions>,
    /// As given: names are looked up in the tokenizer of each decoder.
    kept: Box<[KeptToken]>,
    /// As given, and compiled for the tokenizer that was met last.
    sections: Vec<core::Marker>,
    stop_scope: Option<String>,
    resolved: Mutex<Option<Resolved>>,
}

/// Options with what depends on the tokenizer.
type Resolved = (Weak<core::Tokenizer>, Arc<core::TextDecodeOptions>);

/// What tells options apart.
type Key<'a> = (
    (bool, &'a [KeptToken], UnknownIds, Fragments),
    (&'a [Arc<str>], &'a [TokenId], bool),
    (u64, usize),
    (&'a [core::Marker], Option<&'a str>),
);

/// The options of a request to a tokenizer; `None` is the defaults.
pub(crate) fn options_for(
    options: Option<&Bound<'_, TextDecodeOptions>>,
    tokenizer: &Bound<'_, Tokenizer>,
) -> PyResult<Arc<core::TextDecodeOptions>> {
    match options {
        Some(options) => options.get().for_tokenizer(tokenizer),
        None => Ok(Arc::default()),
    }
}

impl TextDecodeOptions {
    fn for_tokenizer(
        &self,
        tokenizer: &Bound<'_, Tokenizer>,
    ) -> PyResult<Arc<core::TextDecodeOptions>> {
        if self.kept.is_empty() && self.stop_scope.is_none() {
            return Ok(Arc::clone(&self.core));
        }
        let source = tokenizer.get().core();
        if let Some((of, options)) = &*self.resolved()
            && Weak::as_ptr(of) == Arc::as_ptr(&source)
        {
            return Ok(Arc::clone(options));
        }
        let py = tokenizer.py();
        let mut options = (*self.core).clone();
        if !self.kept.is_empty() {
            options.decode.keep_special_tokens =
                resolve_kept_tokens(py, tokenizer.get(), &self.kept)?;
        }
        if let Some(name) = &self.stop_scope {
            let sections = guarded(py, || {
                Sections::new(&source, &self.sections).map_err(|error| to_py(py, error))
            })?;
            options.scope = sections.named(name).map(|section| StopScope {
                sections: Arc::new(sections),
                section,
            });
        }
        let options = Arc::new(options);
        *self.resolved() = Some((Arc::downgrade(&source), Arc::clone(&options)));
        Ok(options)
    }

    fn resolved(&self) -> MutexGuard<'_, Option<Resolved>> {
        self.resolved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stops(&self) -> &[Arc<str>] {
        self.core.stop.as_deref().map_or(&[], StopStrings::strings)
    }

    fn key(&self) -> Key<'_> {
        let core = &*self.core;
        let DecodeOptions {
            skip_special_tokens,
            unknown_ids,
            ..
        } = core.decode;
        (
            (skip_special_tokens, &self.kept, unknown_ids, core.fragments),
            (self.stops(), &core.stop_token_ids, core.include_stop),
            (core.min_tokens, core.min_bytes_to_buffer),
            (&self.sections, self.stop_scope.as_deref()),
        )
    }

    /// By the constructor's names.
    fn keywords<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        all.set_item("skip_special_tokens", self.skip_special_tokens())?;
        all.set_item("keep_special_tokens", self.keep_special_tokens(py)?)?;
        all.set_item("stop", self.stop(py)?)?;
        all.set_item("stop_token_ids", self.stop_token_ids(py)?)?;
        all.set_item("include_stop_str_in_output", self.core.include_stop)?;
        all.set_item("min_tokens", self.core.min_tokens)?;
        all.set_item("min_bytes_to_buffer", self.core.min_bytes_to_buffer)?;
        all.set_item("sections", self.sections(py)?)?;
        all.set_item("stop_scope", self.stop_scope())?;
        all.set_item("unknown_ids", self.unknown_ids())?;
        all.set_item("fragments", self.fragments())?;
        Ok(all)
    }
}

/// Refuses a scope that no text has.
fn check_scope(scope: &str, sections: &[core::Marker]) -> PyResult<()> {
    let known = sections.iter().any(|marker| *marker.name == *scope);
    if known || (scope == CONTENT && !sections.is_empty()) {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "stop_scope {scope:?} is no section: give its marker in sections, or {CONTENT:?} with the markers of what it is not"
    )))
}

/// Stop strings: one, or a sequence of them.
fn read_stops(stop: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    if stop.is_none() {
        return Ok(Vec::new());
    }
    if let Ok(stop) = stop.cast::<PyString>() {
        return Ok(vec![read_stop(stop, 0)?]);
    }
    // The order settles ties, and a set has none.
    if !stop.hasattr("__getitem__")? || stop.hasattr("keys")? {
        return Err(PyTypeError::new_err(format!(
            "stop must be a str or a sequence of str, not {}",
            type_name(stop)
        )));
    }
    let mut all = Vec::new();
    for (index, item) in stop.try_iter()?.enumerate() {
        let item = item?;
        let string = item.cast::<PyString>().map_err(|_| {
            PyTypeError::new_err(format!(
                "stop[{index}] must be a str, not {}",
                type_name(&item)
            ))
        })?;
        all.push(read_stop(string, index)?);
    }
    Ok(all)
}

fn read_stop(stop: &Bound<'_, PyString>, index: usize) -> PyResult<String> {
    match stop.to_cow() {
        Ok(stop) => Ok(stop.into_owned()),
        Err(_) => Err(PyValueError::new_err(format!(
            "stop[{index}] has a lone surrogate, which no text has: {}",
            stop.repr()?
        ))),
    }
}

fn read_stop_token_ids(ids: &Bound<'_, PyAny>) -> PyResult<Arc<[TokenId]>> {
    let mut all = if ids.hasattr("__getitem__")? {
        token_ids(ids)?
    } else {
        // A set or a generator.
        let iterator = ids.try_iter().map_err(|_| {
            PyTypeError::new_err(format!(
                "stop_token_ids must be an iterable of token ids, not {}; leave it out for none",
                type_name(ids)
            ))
        })?;
        let read = (iterator.enumerate()).map(|(index, id)| token_id(&id?, index));
        read.collect::<PyResult<_>>()?
    };
    all.sort_unstable();
    all.dedup();
    Ok(all.into())
}

#[pymethods]
impl TextDecodeOptions {
    #[new]
    #[pyo3(signature = (*, skip_special_tokens = true, keep_special_tokens = Argument::Missing, stop = None, stop_token_ids = Argument::Missing,
                        include_stop_str_in_output = false, min_tokens = 0, min_bytes_to_buffer = 0,
                        sections = Argument::Missing, stop_scope = None, unknown_ids = "error", fragments = "openai"))]
    #[allow(clippy::too_many_arguments)] // They are keywords to those who call.
    fn new(
        py: Python<'_>,
        skip_special_tokens: bool,
        keep_special_tokens: Argument<'_>,
        stop: Option<&Bound<'_, PyAny>>,
        stop_token_ids: Argument<'_>,
        include_stop_str_in_output: bool,
        #[pyo3(from_py_with = position::min_tokens)] min_tokens: u64,
        #[pyo3(from_py_with = position::min_bytes_to_buffer)] min_bytes_to_buffer: u64,
        sections: Argument<'_>,
        stop_scope: Option<String>,
        unknown_ids: &str,
        fragments: &str,
    ) -> PyResult<Self> {
        let sections = match sections.given() {
            Some(markers) => read_markers(markers, "sections")?,
            None => Vec::new(),
        };
        if let Some(scope) = &stop_scope {
            check_scope(scope, &sections)?;
        }
        let stops = stop.map(read_stops).transpose()?.unwrap_or_default();
        let bytes: usize = stops.iter().map(String::len).sum();
        let stop = guarded(py, || {
            let compiled = if bytes >= DETACH_FROM {
                py.detach(|| StopStrings::new(&stops))
            } else {
                StopStrings::new(&stops)
            };
            compiled.map_err(|error| to_py(py, error))
        })?;
        let core = core::TextDecodeOptions {
            decode: DecodeOptions {
                skip_special_tokens,
                keep_special_tokens: None,
                unknown_ids: choose("unknown_ids", unknown_ids, &UNKNOWN_IDS)?,
            },
            stop: stop.map(Arc::new),
            scope: None,
            stop_token_ids: match stop_token_ids.given() {
                Some(ids) => read_stop_token_ids(ids)?,
                None => Arc::default(),
            },
            include_stop: include_stop_str_in_output,
            min_tokens,
            min_bytes_to_buffer: min_bytes_to_buffer as usize,
            fragments: choose("fragments", fragments, &FRAGMENTS)?,
        };
        Ok(Self {
            core: Arc::new(core),
            kept: match keep_special_tokens.given() {
                Some(tokens) => read_kept_tokens(tokens)?.into(),
                None => Box::default(),
            },
            sections,
            stop_scope,
            resolved: Mutex::default(),
        })
    }

    #[getter]
    fn skip_special_tokens(&self) -> bool {
        self.core.decode.skip_special_tokens
    }

    #[getter]
    fn keep_special_tokens<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.kept.iter())
    }

    #[getter]
    fn stop<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.stops().iter().map(|stop| PyString::new(py, stop)))
    }

    #[getter]
    fn stop_token_ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.core.stop_token_ids.iter())
    }

    #[getter]
    fn include_stop_str_in_output(&self) -> bool {
        self.core.include_stop
    }

    #[getter]
    fn min_tokens(&self) -> u64 {
        self.core.min_tokens
    }

    #[getter]
    fn min_bytes_to_buffer(&self) -> usize {
        self.core.min_bytes_to_buffer
    }

    #[getter]
    fn sections<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.sections.iter().cloned().map(Marker))
    }

    #[getter]
    fn stop_scope(&self) -> Option<&str> {
        self.stop_scope.as_deref()
    }

    #[getter]
    fn unknown_ids(&self) -> &'static str {
        word(self.core.decode.unknown_ids, &UNKNOWN_IDS)
    }

    #[getter]
    fn fragments(&self) -> &'static str {
        word(self.core.fragments, &FRAGMENTS)
    }

    fn __eq__(&self, other: &Bound<'_, Self>) -> bool {
        self.key() == other.get().key()
    }

    fn __hash__(&self) -> u64 {
        hash_of(&self.key())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let default = Self {
            core: Arc::default(),
            kept: Box::default(),
            sections: Vec::new(),
            stop_scope: None,
            resolved: Mutex::default(),
        };
        let defaults = default.keywords(py)?;
        let mut call = CallRepr::new(py, "TextDecodeOptions");
        for (name, value) in self.keywords(py)? {
            let is_default = defaults
                .get_item(&name)?
                .is_some_and(|default| default.eq(&value).unwrap_or(false));
            call = call.keyword_if(!is_default, &name.extract::<String>()?, value)?;
        }
        Ok(call.end())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Reduced<'py> {
        let make = with_keywords(py.get_type::<Self>(), &self.keywords(py)?)?;
        reduced(py, make, PyTuple::empty(py))
    }
}
