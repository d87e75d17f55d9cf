//! Events of a request: `Start` and `TextDelta`, with its `SampledDelta`.

use crate::decoded::DecodedText;
use crate::finish::Finished;
use crate::ids::token_ids;
use crate::logprobs::{PositionLogprobs, optional_position_logprobs, position_logprobs};
use crate::value::{CallRepr, Reduced, hash_of, reduced};
use detok_core as core;
use detok_core::TokenId;
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;

/// What was sampled in one update.
#[pyclass(frozen, eq, hash, module = "detok")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct SampledDelta(Arc<core::SampledDelta>);

#[pymethods]
impl SampledDelta {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str) {
        ("token_ids", "logprobs")
    }

    #[new]
    #[pyo3(signature = (token_ids, logprobs = None))]
    fn new(token_ids: &Bound<'_, PyAny>, logprobs: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let token_ids = self::token_ids(token_ids)?;
        let logprobs = logprobs.map(position_logprobs).transpose()?;
        if let Some(logprobs) = &logprobs {
            check_count("logprobs", logprobs.len(), token_ids.len())?;
        }
        Ok(Self(Arc::new(core::SampledDelta {
            token_ids,
            logprobs,
        })))
    }

    #[getter]
    fn token_ids(&self) -> Vec<TokenId> {
        self.0.token_ids.clone()
    }

    #[getter]
    fn logprobs<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let logprobs = self.0.logprobs.as_ref();
        let list = |all: &Vec<core::PositionLogprobs>| {
            PyList::new(py, all.iter().cloned().map(PositionLogprobs))
        };
        logprobs.map(list).transpose()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let call = CallRepr::new(py, "SampledDelta").argument(&self.0.token_ids)?;
        let logprobs = self.logprobs(py)?;
        Ok(call
            .keyword_if(logprobs.is_some(), "logprobs", logprobs)?
            .end())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Reduced<'py> {
        let arguments = (&self.0.token_ids, self.logprobs(py)?);
        reduced(py, py.get_type::<Self>(), arguments)
    }
}

fn check_count(name: &str, count: usize, ids: usize) -> PyResult<()> {
    if count == ids {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{name} must have one entry per token id: {count} for {ids} ids"
    )))
}

/// The beginning of a request.
#[pyclass(frozen, eq, hash, module = "detok")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Start(pub(crate) core::Start);

#[pymethods]
impl Start {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str) {
        ("prompt_token_ids", "prompt_logprobs")
    }

    #[new]
    #[pyo3(signature = (prompt_token_ids, prompt_logprobs = None))]
    fn new(
        prompt_token_ids: &Bound<'_, PyAny>,
        prompt_logprobs: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let prompt_token_ids = token_ids(prompt_token_ids)?;
        let prompt_logprobs = prompt_logprobs
            .map(optional_position_logprobs)
            .transpose()?;
        if let Some(logprobs) = &prompt_logprobs {
            check_count("prompt_logprobs", logprobs.len(), prompt_token_ids.len())?;
        }
        Ok(Self(core::Start {
            prompt_token_ids: prompt_token_ids.into(),
            prompt_logprobs,
        }))
    }

    #[getter]
    fn prompt_token_ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.0.prompt_token_ids.iter())
    }

    #[getter]
    fn prompt_logprobs<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let logprobs = self.0.prompt_logprobs.as_ref();
        let list = |all: &Vec<Option<core::PositionLogprobs>>| {
            PyList::new(
                py,
                all.iter().map(|each| each.clone().map(PositionLogprobs)),
            )
        };
        logprobs.map(list).transpose()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let call = CallRepr::new(py, "Start").argument(self.prompt_token_ids(py)?)?;
        let logprobs = self.prompt_logprobs(py)?;
        Ok(call
            .keyword_if(logprobs.is_some(), "prompt_logprobs", logprobs)?
            .end())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Reduced<'py> {
        let arguments = (self.prompt_token_ids(py)?, self.prompt_logprobs(py)?);
        reduced(py, py.get_type::<Self>(), arguments)
    }
}

/// What one update brought.
#[pyclass(frozen, module = "detok")]
pub(crate) struct TextDelta {
    decoded: Arc<core::DecodedText>,
    sampled: Arc<core::SampledDelta>,
    finished: Option<Py<Finished>>,
}

/// An event on its way to Python.
pub(crate) enum EventObject {
    Start(core::Start),
    /// With what the engine told, if it is the last.
    TextDelta(core::TextDelta, Option<Py<PyAny>>),
}

impl<'py> IntoPyObject<'py> for EventObject {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (delta, kv_transfer_params) = match self {
            Self::Start(start) => return Ok(Bound::new(py, Start(start))?.into_any()),
            Self::TextDelta(delta, params) => (delta, params),
        };
        let finished = delta.finished;
        let finished =
            finished.map(|finished| Py::new(py, Finished::of(*finished, kv_transfer_params)));
        let delta = TextDelta {
            decoded: delta.decoded,
            sampled: delta.sampled,
            finished: finished.transpose()?,
        };
        Ok(Bound::new(py, delta)?.into_any())
    }
}

#[pymethods]
impl TextDelta {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str, &'static str) {
        ("decoded", "sampled", "finished")
    }

    #[new]
    #[pyo3(signature = (decoded, sampled, finished = None))]
    fn new(
        py: Python<'_>,
        decoded: &Bound<'_, DecodedText>,
        sampled: &Bound<'_, SampledDelta>,
        finished: Option<Py<Finished>>,
    ) -> PyResult<Self> {
        Ok(Self {
            decoded: decoded.get().decoded(py)?,
            sampled: Arc::clone(&sampled.get().0),
            finished,
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.finished)
    }

    #[getter]
    fn decoded(&self) -> DecodedText {
        DecodedText::new_shared(Arc::clone(&self.decoded))
    }

    #[getter]
    fn sampled(&self) -> SampledDelta {
        SampledDelta(Arc::clone(&self.sampled))
    }

    #[getter]
    fn finished(&self, py: Python<'_>) -> Option<Py<Finished>> {
        self.finished
            .as_ref()
            .map(|finished| finished.clone_ref(py))
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, Self>) -> PyResult<bool> {
        let other = other.get();
        if (&self.decoded, &self.sampled) != (&other.decoded, &other.sampled) {
            return Ok(false);
        }
        match (&self.finished, &other.finished) {
            (None, None) => Ok(true),
            (Some(own), Some(theirs)) => own.get().equals(py, theirs.get()),
            _ => Ok(false),
        }
    }

    fn __hash__(&self) -> u64 {
        let finished = self.finished.as_ref();
        let finished = finished.map(|finished| finished.get().hash());
        hash_of(&(&self.decoded, &self.sampled, finished))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let finished = self.finished(py);
        Ok(CallRepr::new(py, "TextDelta")
            .argument(self.decoded())?
            .argument(self.sampled())?
            .keyword_if(finished.is_some(), "finished", finished)?
            .end())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Reduced<'py> {
        let arguments = (self.decoded(), self.sampled(), self.finished(py));
        reduced(py, py.get_type::<Self>(), arguments)
    }
}
