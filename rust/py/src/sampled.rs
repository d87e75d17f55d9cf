//! `SampledDelta`.

use crate::ids::{sampled_ids, type_name};
use crate::logprobs::{PositionLogprobs, position_logprobs};
use crate::value::{CallRepr, Reduced, check_count, hash_of, reduced, same_objects, with_keywords};
use detok_core as core;
use detok_core::TokenId;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use std::sync::Arc;

/// What was sampled in one update.
#[pyclass(frozen, module = "detok")]
pub(crate) struct SampledDelta {
    /// But for the texts.
    core: core::SampledDelta,
    token_texts: Option<Py<PyTuple>>,
}

impl SampledDelta {
    /// `token_texts` are those of `core`.
    pub(crate) fn new_from(core: core::SampledDelta, token_texts: Option<Py<PyTuple>>) -> Self {
        let core = core::SampledDelta {
            token_texts: None,
            ..core
        };
        Self { core, token_texts }
    }

    pub(crate) fn core(&self) -> &core::SampledDelta {
        &self.core
    }

    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            core: self.core.clone(),
            token_texts: self.token_texts.as_ref().map(|texts| texts.clone_ref(py)),
        }
    }

    pub(crate) fn equals(&self, py: Python<'_>, other: &Self) -> PyResult<bool> {
        if self.core != other.core {
            return Ok(false);
        }
        let texts = |delta: &Self| delta.token_texts(py).map(Py::into_any);
        same_objects(py, texts(self).as_ref(), texts(other).as_ref())
    }
}

#[pymethods]
impl SampledDelta {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str) {
        ("token_ids", "logprobs")
    }

    #[new]
    #[pyo3(signature = (token_ids, logprobs = None, *, token_texts = None))]
    fn new(
        token_ids: &Bound<'_, PyAny>,
        logprobs: Option<&Bound<'_, PyAny>>,
        token_texts: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let token_ids = sampled_ids(token_ids)?;
        let logprobs = logprobs.map(position_logprobs).transpose()?;
        if let Some(logprobs) = &logprobs {
            check_count("logprobs", logprobs.len(), token_ids.len())?;
        }
        let token_texts = token_texts.map(strings).transpose()?;
        if let Some(texts) = &token_texts {
            check_count("token_texts", texts.len(), token_ids.len())?;
        }
        Ok(Self {
            core: core::SampledDelta {
                token_ids,
                logprobs: logprobs.map(Into::into),
                token_texts: None,
            },
            token_texts: token_texts.map(Bound::unbind),
        })
    }

    #[getter]
    fn token_ids(&self) -> Vec<TokenId> {
        self.core.token_ids.to_vec()
    }

    #[getter]
    fn logprobs<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let logprobs = self.core.logprobs.as_ref();
        let list = |all: &Arc<[core::PositionLogprobs]>| {
            PyList::new(py, all.iter().cloned().map(PositionLogprobs))
        };
        logprobs.map(list).transpose()
    }

    /// The text of each id, if asked for.
    #[getter]
    pub(crate) fn token_texts(&self, py: Python<'_>) -> Option<Py<PyTuple>> {
        self.token_texts.as_ref().map(|texts| texts.clone_ref(py))
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, Self>) -> PyResult<bool> {
        self.equals(py, other.get())
    }

    /// Without the texts: equal values have equal ids.
    fn __hash__(&self) -> u64 {
        hash_of(&self.core)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (logprobs, texts) = (self.logprobs(py)?, self.token_texts(py));
        Ok(CallRepr::new(py, "SampledDelta")
            .argument(self.token_ids())?
            .keyword_if(logprobs.is_some(), "logprobs", logprobs)?
            .keyword_if(texts.is_some(), "token_texts", texts)?
            .end())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Reduced<'py> {
        let keywords = PyDict::new(py);
        keywords.set_item("token_texts", self.token_texts(py))?;
        let make = with_keywords(py.get_type::<Self>(), &keywords)?;
        reduced(py, make, (self.token_ids(), self.logprobs(py)?))
    }
}

/// The strings of an iterable that is not one itself.
fn strings<'py>(items: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    if items.is_instance_of::<PyString>() || items.is_instance_of::<PyBytes>() {
        return Err(PyTypeError::new_err(format!(
            "token_texts must be one str for each id, not {}",
            type_name(items)
        )));
    }
    let mut all = Vec::new();
    for (index, item) in items.try_iter()?.enumerate() {
        let item = item?;
        let string = item.cast::<PyString>().map_err(|_| {
            PyTypeError::new_err(format!(
                "token_texts[{index}] must be a str, not {}",
                type_name(&item)
            ))
        })?;
        // Of a subclass, the text alone.
        let text = string.to_str().map_err(|_| {
            PyValueError::new_err(format!("token_texts[{index}] has half a surrogate pair"))
        })?;
        all.push(PyString::new(items.py(), text));
    }
    PyTuple::new(items.py(), all)
}
