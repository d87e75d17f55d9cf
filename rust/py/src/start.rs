//! `Start`, the beginning of a request.

use crate::ids::token_ids;
use crate::logprobs::{PositionLogprobs, optional_position_logprobs};
use crate::value::{CallRepr, Reduced, check_count, reduced};
use detok_core as core;
use pyo3::prelude::*;
use pyo3::types::PyList;

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
