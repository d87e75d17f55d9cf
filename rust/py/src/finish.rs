//! How a request ended: `TokenUsage`, `FinishReason`, `StopMatch`, `Finished`.

use crate::choice::{FINISH_KINDS, choose, word};
use crate::ids::{Argument, token_id, token_ids, type_name};
use crate::position::{self, position};
use crate::value::{CallRepr, Reduced, hash_of, reduced, same_objects};
use detok_core as core;
use detok_core::{Stop, TokenId};
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString};

type Names3 = (&'static str, &'static str, &'static str);
type Names4 = (&'static str, &'static str, &'static str, &'static str);
type Names6 = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
);

/// Counts of tokens.
#[pyclass(frozen, eq, hash, module = "detok")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TokenUsage(pub(crate) core::TokenUsage);

#[pymethods]
impl TokenUsage {
    #[classattr]
    fn __match_args__() -> Names3 {
        (
            "prompt_token_count",
            "output_token_count",
            "cached_token_count",
        )
    }

    #[new]
    #[pyo3(signature = (prompt_token_count, output_token_count, cached_token_count = 0))]
    fn new(
        #[pyo3(from_py_with = position::prompt_token_count)] prompt_token_count: u64,
        #[pyo3(from_py_with = position::output_token_count)] output_token_count: u64,
        #[pyo3(from_py_with = position::cached_token_count)] cached_token_count: u64,
    ) -> Self {
        Self(core::TokenUsage {
            prompt_token_count,
            output_token_count,
            cached_token_count,
        })
    }

    #[getter]
    fn prompt_token_count(&self) -> u64 {
        self.0.prompt_token_count
    }

    #[getter]
    fn output_token_count(&self) -> u64 {
        self.0.output_token_count
    }

    #[getter]
    fn cached_token_count(&self) -> u64 {
        self.0.cached_token_count
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let cached = self.0.cached_token_count;
        Ok(CallRepr::new(py, "TokenUsage")
            .keyword("prompt_token_count", self.0.prompt_token_count)?
            .keyword("output_token_count", self.0.output_token_count)?
            .keyword_if(cached > 0, "cached_token_count", cached)?
            .end())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Reduced<'py> {
        let core::TokenUsage {
            prompt_token_count,
            output_token_count,
            cached_token_count,
        } = self.0;
        let counts = (prompt_token_count, output_token_count, cached_token_count);
        reduced(py, py.get_type::<Self>(), counts)
    }
}

/// A stop as a caller gives it.
fn read_stop(stop: &Bound<'_, PyAny>) -> PyResult<Stop> {
    if let Ok(string) = stop.cast::<PyString>() {
        return Ok(Stop::String(string.to_cow()?.into()));
    }
    if !stop.is_instance_of::<PyInt>() {
        return Err(PyTypeError::new_err(format!(
            "stop must be a str or a token id, not {}",
            type_name(stop)
        )));
    }
    Ok(Stop::Token(token_id(stop, 0)?))
}

/// A stop as a caller sees it.
fn stop_object<'py>(py: Python<'py>, stop: &Stop) -> PyResult<Bound<'py, PyAny>> {
    Ok(match stop {
        Stop::String(string) => PyString::new(py, string).into_any(),
        Stop::Token(id) => id.into_pyobject(py)?.into_any(),
    })
}

/// Why a request ended.
#[pyclass(frozen, eq, hash, module = "detok")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct FinishReason(pub(crate) core::FinishReason);

#[pymethods]
impl FinishReason {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str) {
        ("kind", "stop")
    }

    #[new]
    #[pyo3(signature = (kind, stop = None))]
    fn new(kind: &str, stop: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        Ok(Self(core::FinishReason {
            kind: choose("kind", kind, &FINISH_KINDS)?,
            stop: stop.map(read_stop).transpose()?,
        }))
    }

    #[getter]
    fn kind(&self) -> &'static str {
        word(self.0.kind, &FINISH_KINDS)
    }

    #[getter]
    fn stop<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let stop = self.0.stop.as_ref();
        stop.map(|stop| stop_object(py, stop)).transpose()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let call = CallRepr::new(py, "FinishReason").argument(self.kind())?;
        let stop = self.stop(py)?;
        Ok(call.keyword_if(stop.is_some(), "stop", stop)?.end())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Reduced<'py> {
        reduced(py, py.get_type::<Self>(), (self.kind(), self.stop(py)?))
    }
}

/// Where and how a stop ended a generation.
#[pyclass(frozen, eq, hash, module = "detok")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct StopMatch(pub(crate) core::StopMatch);

#[pymethods]
impl StopMatch {
    #[classattr]
    fn __match_args__() -> Names4 {
        ("stop", "byte_offset", "token_index", "cut")
    }

    #[new]
    #[pyo3(signature = (stop, byte_offset, token_index, cut = false))]
    fn new(
        stop: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = position::byte_offset)] byte_offset: u64,
        #[pyo3(from_py_with = position::token_index)] token_index: u64,
        cut: bool,
    ) -> PyResult<Self> {
        Ok(Self(core::StopMatch {
            stop: read_stop(stop)?,
            byte_offset,
            token_index,
            cut,
        }))
    }

    #[getter]
    fn stop<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        stop_object(py, &self.0.stop)
    }

    #[getter]
    fn byte_offset(&self) -> u64 {
        self.0.byte_offset
    }

    #[getter]
    fn token_index(&self) -> u64 {
        self.0.token_index
    }

    #[getter]
    fn cut(&self) -> bool {
        self.0.cut
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(CallRepr::new(py, "StopMatch")
            .argument(self.stop(py)?)?
            .keyword("byte_offset", self.0.byte_offset)?
            .keyword("token_index", self.0.token_index)?
            .keyword_if(self.0.cut, "cut", true)?
            .end())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Reduced<'py> {
        let (at, token) = (self.0.byte_offset, self.0.token_index);
        let arguments = (self.stop(py)?, at, token, self.0.cut);
        reduced(py, py.get_type::<Self>(), arguments)
    }
}

/// How a request ended.
#[pyclass(frozen, module = "detok")]
pub(crate) struct Finished {
    core: core::Finished,
    kv_transfer_params: Option<Py<PyAny>>,
}

impl Finished {
    pub(crate) fn of(core: core::Finished, kv_transfer_params: Option<Py<PyAny>>) -> Self {
        Self {
            core,
            kv_transfer_params,
        }
    }

    pub(crate) fn equals(&self, py: Python<'_>, other: &Self) -> PyResult<bool> {
        let (own, theirs) = (&self.kv_transfer_params, &other.kv_transfer_params);
        Ok(self.core == other.core && same_objects(py, own.as_ref(), theirs.as_ref())?)
    }

    /// The engine's object, which need not be hashable, is left out.
    pub(crate) fn hash(&self) -> u64 {
        hash_of(&self.core)
    }
}

#[pymethods]
impl Finished {
    #[classattr]
    fn __match_args__() -> Names6 {
        (
            "usage",
            "finish_reason",
            "stop_match",
            "kv_transfer_params",
            "dropped_token_ids",
            "first_cut_token",
        )
    }

    #[new]
    #[pyo3(signature = (usage, finish_reason, stop_match = None, kv_transfer_params = None, dropped_token_ids = Argument::Missing,
                        first_cut_token = None))]
    fn new(
        usage: &Bound<'_, TokenUsage>,
        finish_reason: &Bound<'_, FinishReason>,
        stop_match: Option<&Bound<'_, StopMatch>>,
        kv_transfer_params: Option<Py<PyAny>>,
        dropped_token_ids: Argument<'_>,
        first_cut_token: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let first_cut_token = first_cut_token.map(|at| position(at, "first_cut_token"));
        Ok(Self {
            core: core::Finished {
                usage: usage.get().0,
                finish_reason: finish_reason.get().0.clone(),
                stop_match: stop_match.map(|stop_match| stop_match.get().0.clone()),
                dropped_token_ids: match dropped_token_ids.given() {
                    Some(ids) => token_ids(ids)?,
                    None => Vec::new(),
                },
                first_cut_token: first_cut_token.transpose()?.map(|at| at as u64),
            },
            kv_transfer_params,
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.kv_transfer_params)
    }

    #[getter]
    fn usage(&self) -> TokenUsage {
        TokenUsage(self.core.usage)
    }

    #[getter]
    fn finish_reason(&self) -> FinishReason {
        FinishReason(self.core.finish_reason.clone())
    }

    #[getter]
    fn stop_match(&self) -> Option<StopMatch> {
        self.core.stop_match.clone().map(StopMatch)
    }

    #[getter]
    fn kv_transfer_params(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.kv_transfer_params
            .as_ref()
            .map(|params| params.clone_ref(py))
    }

    #[getter]
    fn dropped_token_ids(&self) -> Vec<TokenId> {
        self.core.dropped_token_ids.clone()
    }

    #[getter]
    fn first_cut_token(&self) -> Option<u64> {
        self.core.first_cut_token
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, Self>) -> PyResult<bool> {
        self.equals(py, other.get())
    }

    fn __hash__(&self) -> u64 {
        self.hash()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let core = &self.core;
        let params = self.kv_transfer_params(py);
        let dropped = &core.dropped_token_ids;
        Ok(CallRepr::new(py, "Finished")
            .argument(self.usage())?
            .argument(self.finish_reason())?
            .keyword_if(core.stop_match.is_some(), "stop_match", self.stop_match())?
            .keyword_if(params.is_some(), "kv_transfer_params", params)?
            .keyword_if(!dropped.is_empty(), "dropped_token_ids", dropped)?
            .keyword_if(
                core.first_cut_token.is_some(),
                "first_cut_token",
                core.first_cut_token,
            )?
            .end())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Reduced<'py> {
        let arguments = (
            self.usage(),
            self.finish_reason(),
            self.stop_match(),
            self.kv_transfer_params(py),
            &self.core.dropped_token_ids,
            self.core.first_cut_token,
        );
        reduced(py, py.get_type::<Self>(), arguments)
    }
}
