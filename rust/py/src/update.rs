//! `EngineUpdate`.

use crate::choice::{FINISH_KINDS, choose, word};
use crate::error::to_py;
use crate::ids::{Argument, sampled_ids, token_id, token_ids};
use crate::logprobs::{PositionLogprobs, TokenLogprob, given_for, given_for_prompt};
use crate::position;
use crate::value::{CallRepr, Reduced, hash_of, reduced, same_objects, with_keywords};
use detok_core as core;
use detok_core::{FinishKind, FinishReason, GivenLogprobs, SampledIds, Stop, TokenId};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::sync::Arc;

/// What an engine reports at one step of one request.
#[pyclass(frozen, module = "detok")]
pub(crate) struct EngineUpdate {
    pub(crate) core: core::EngineUpdate,
    pub(crate) kv_transfer_params: Option<Py<PyAny>>,
}

fn finish_reason(
    kind: Option<&str>,
    stop_token_id: Option<&Bound<'_, PyAny>>,
    stop_string: Option<&str>,
) -> PyResult<Option<FinishReason>> {
    let kind = kind.map(|kind| choose("finish_reason", kind, &FINISH_KINDS));
    let kind = kind.transpose()?;
    let stop = match (stop_token_id, stop_string) {
        (None, None) => None,
        (Some(_), Some(_)) => {
            return Err(PyValueError::new_err(
                "a request stops at stop_token_id or at stop_string, not at both",
            ));
        }
        _ if kind != Some(FinishKind::Stop) => {
            return Err(PyValueError::new_err(
                "stop_token_id and stop_string need finish_reason=\"stop\"",
            ));
        }
        (Some(id), None) => Some(Stop::Token(token_id(id, 0)?)),
        (None, Some(string)) => Some(Stop::String(string.into())),
    };
    Ok(kind.map(|kind| FinishReason { kind, stop }))
}

/// Logprobs of a prompt: checked against it at once, if it is known.
fn prompt_logprobs(
    given: &Bound<'_, PyAny>,
    prompt: Option<&Arc<[TokenId]>>,
) -> PyResult<Vec<Option<GivenLogprobs>>> {
    let given_logprobs = given_for_prompt(given)?;
    let Some(prompt) = prompt else {
        return Ok(given_logprobs);
    };
    let told = core::prompt_positions(prompt, &given_logprobs)
        .map_err(|error| to_py(given.py(), error))?;
    Ok(told
        .into_iter()
        .map(|position| position.map(GivenLogprobs::Told))
        .collect())
}

/// As the constructor takes it.
fn given_object<'py>(py: Python<'py>, given: &GivenLogprobs) -> PyResult<Bound<'py, PyAny>> {
    match given {
        GivenLogprobs::Alone(logprob) => logprob.0.into_bound_py_any(py),
        GivenLogprobs::Told(position) => {
            Ok(Bound::new(py, PositionLogprobs(position.clone()))?.into_any())
        }
        GivenLogprobs::Among(entries) => {
            let by_id = PyDict::new(py);
            for entry in entries.iter() {
                by_id.set_item(entry.token_id, TokenLogprob(entry.clone()))?;
            }
            Ok(by_id.into_any())
        }
    }
}

impl EngineUpdate {
    fn stop(&self) -> Option<&Stop> {
        self.core.finish_reason.as_ref()?.stop.as_ref()
    }

    /// By the constructor's names.
    fn keywords<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        all.set_item("logprobs", self.logprobs(py)?)?;
        all.set_item("finish_reason", self.finish_reason())?;
        all.set_item("stop_token_id", self.stop_token_id())?;
        all.set_item("stop_string", self.stop_string())?;
        all.set_item("prompt_token_ids", self.prompt_token_ids(py)?)?;
        all.set_item("prompt_logprobs", self.prompt_logprobs(py)?)?;
        all.set_item("cached_token_count", self.core.cached_token_count)?;
        all.set_item("kv_transfer_params", self.kv_transfer_params(py))?;
        Ok(all)
    }
}

#[pymethods]
impl EngineUpdate {
    #[new]
    #[pyo3(signature = (token_ids = Argument::Missing, *, logprobs = None, finish_reason = None, stop_token_id = None, stop_string = None,
                        prompt_token_ids = None, prompt_logprobs = None, cached_token_count = 0, kv_transfer_params = None))]
    #[allow(clippy::too_many_arguments)] // They are keywords to those who call.
    fn new(
        token_ids: Argument<'_>,
        logprobs: Option<&Bound<'_, PyAny>>,
        finish_reason: Option<&str>,
        stop_token_id: Option<&Bound<'_, PyAny>>,
        stop_string: Option<&str>,
        prompt_token_ids: Option<&Bound<'_, PyAny>>,
        prompt_logprobs: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = position::cached_token_count)] cached_token_count: u64,
        kv_transfer_params: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let token_ids = match token_ids.given() {
            Some(ids) => sampled_ids(ids)?,
            None => SampledIds::new(),
        };
        let logprobs = logprobs.map(|given| given_for(given, &token_ids));
        let prompt = prompt_token_ids.map(self::token_ids).transpose()?;
        let prompt: Option<Arc<[TokenId]>> = prompt.map(Into::into);
        let prompt_logprobs =
            prompt_logprobs.map(|given| self::prompt_logprobs(given, prompt.as_ref()));
        Ok(Self {
            core: core::EngineUpdate {
                logprobs: logprobs.transpose()?,
                token_ids,
                finish_reason: self::finish_reason(finish_reason, stop_token_id, stop_string)?,
                prompt_logprobs: prompt_logprobs.transpose()?,
                prompt_token_ids: prompt,
                cached_token_count,
            },
            kv_transfer_params,
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.kv_transfer_params)
    }

    #[getter]
    fn token_ids(&self) -> Vec<TokenId> {
        self.core.token_ids.to_vec()
    }

    #[getter]
    fn logprobs<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let list = |all: &Vec<core::PositionLogprobs>| {
            PyList::new(py, all.iter().cloned().map(PositionLogprobs))
        };
        self.core.logprobs.as_ref().map(list).transpose()
    }

    #[getter]
    fn finish_reason(&self) -> Option<&'static str> {
        let reason = self.core.finish_reason.as_ref();
        reason.map(|reason| word(reason.kind, &FINISH_KINDS))
    }

    #[getter]
    fn stop_token_id(&self) -> Option<TokenId> {
        match self.stop() {
            Some(Stop::Token(id)) => Some(*id),
            _ => None,
        }
    }

    #[getter]
    fn stop_string(&self) -> Option<&str> {
        match self.stop() {
            Some(Stop::String(string)) => Some(string),
            _ => None,
        }
    }

    #[getter]
    fn prompt_token_ids<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let prompt = self.core.prompt_token_ids.as_ref();
        prompt
            .map(|prompt| PyList::new(py, prompt.iter()))
            .transpose()
    }

    #[getter]
    fn prompt_logprobs<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let Some(positions) = &self.core.prompt_logprobs else {
            return Ok(None);
        };
        let all = PyList::empty(py);
        for given in positions {
            let given = given.as_ref().map(|given| given_object(py, given));
            all.append(given.transpose()?)?;
        }
        Ok(Some(all))
    }

    #[getter]
    fn cached_token_count(&self) -> u64 {
        self.core.cached_token_count
    }

    #[getter]
    fn kv_transfer_params(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.kv_transfer_params
            .as_ref()
            .map(|params| params.clone_ref(py))
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, Self>) -> PyResult<bool> {
        let other = other.get();
        let (own, theirs) = (&self.kv_transfer_params, &other.kv_transfer_params);
        Ok(self.core == other.core && same_objects(py, own.as_ref(), theirs.as_ref())?)
    }

    /// The engine's object, which need not be hashable, is left out.
    fn __hash__(&self) -> u64 {
        hash_of(&self.core)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let mut call = CallRepr::new(py, "EngineUpdate").argument(self.token_ids())?;
        for (name, value) in self.keywords(py)? {
            let is_default = value.is_none() || name.eq("cached_token_count")? && value.eq(0)?;
            call = call.keyword_if(!is_default, &name.extract::<String>()?, value)?;
        }
        Ok(call.end())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Reduced<'py> {
        let make = with_keywords(py.get_type::<Self>(), &self.keywords(py)?)?;
        reduced(py, make, (self.token_ids(),))
    }
}
