//! Events of a request: `Start` and `TextDelta`, with its `SampledDelta`.

use crate::decoded::DecodedText;
use crate::finish::Finished;
use crate::ids::{sampled_ids, token_ids, type_name};
use crate::logprobs::{PositionLogprobs, optional_position_logprobs, position_logprobs};
use crate::tokenizer::Tokenizer;
use crate::value::{CallRepr, Reduced, hash_of, reduced, same_objects, with_keywords};
use detok_core as core;
use detok_core::TokenId;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use std::sync::Arc;

/// What was sampled in one update.
#[pyclass(frozen, module = "detok")]
pub(crate) struct SampledDelta {
    /// But for the texts.
    core: core::SampledDelta,
    token_texts: Option<Py<PyTuple>>,
}

impl SampledDelta {
    fn of(py: Python<'_>, mut core: core::SampledDelta, tokenizer: &Tokenizer) -> PyResult<Self> {
        let token_texts = tokenizer.sampled_strings(py, &core)?;
        core.token_texts = None;
        Ok(Self { core, token_texts })
    }

    fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            core: self.core.clone(),
            token_texts: self.token_texts.as_ref().map(|texts| texts.clone_ref(py)),
        }
    }

    fn equals(&self, py: Python<'_>, other: &Self) -> PyResult<bool> {
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
    fn token_texts(&self, py: Python<'_>) -> Option<Py<PyTuple>> {
        self.token_texts.as_ref().map(|texts| texts.clone_ref(py))
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, Self>) -> PyResult<bool> {
        self.equals(py, other.get())
    }

    /// Without the texts, which follow from the ids.
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
    if items.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(
            "token_texts must be one str for each id, not a str",
        ));
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
        all.push(PyString::new(items.py(), string.to_str()?));
    }
    PyTuple::new(items.py(), all)
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
    content: Content,
    finished: Option<Py<Finished>>,
}

/// Text and tokens of a delta.
enum Content {
    /// One token, whose own text is all that came of it: as most are, and they cost no more than to
    /// say so.
    Copied {
        token_id: TokenId,
        text: Py<PyString>,
        token_texts: bool,
    },
    Parts {
        decoded: Arc<core::DecodedText>,
        sampled: SampledDelta,
    },
}

impl TextDelta {
    /// Of one token whose own text is all that came of it.
    pub(crate) fn copied(token_id: TokenId, text: Py<PyString>, token_texts: bool) -> Self {
        Self {
            content: Content::Copied {
                token_id,
                text,
                token_texts,
            },
            finished: None,
        }
    }

    fn decoded_text(&self, py: Python<'_>) -> PyResult<Arc<core::DecodedText>> {
        Ok(match &self.content {
            Content::Parts { decoded, .. } => Arc::clone(decoded),
            Content::Copied { token_id, text, .. } => {
                let text = text.to_str(py)?;
                Arc::new(core::DecodedText::of_token(*token_id, text))
            }
        })
    }
}

/// An event on its way to Python.
pub(crate) enum EventObject<'t> {
    Start(core::Start),
    /// With what the engine told, if it is the last.
    TextDelta(core::TextDelta, Option<Py<PyAny>>, &'t Tokenizer),
}

impl<'py> IntoPyObject<'py> for EventObject<'_> {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (delta, kv_transfer_params, tokenizer) = match self {
            Self::Start(start) => return Ok(Bound::new(py, Start(start))?.into_any()),
            Self::TextDelta(delta, params, tokenizer) => (delta, params, tokenizer),
        };
        let finished = delta.finished;
        let finished =
            finished.map(|finished| Py::new(py, Finished::of(*finished, kv_transfer_params)));
        let delta = TextDelta {
            content: Content::Parts {
                decoded: delta.decoded,
                sampled: SampledDelta::of(py, delta.sampled, tokenizer)?,
            },
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
            content: Content::Parts {
                decoded: decoded.get().decoded(py)?,
                sampled: sampled.get().clone_ref(py),
            },
            finished,
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.finished)
    }

    #[getter]
    fn decoded(&self, py: Python<'_>) -> PyResult<DecodedText> {
        Ok(DecodedText::new_shared(self.decoded_text(py)?))
    }

    #[getter]
    fn sampled(&self, py: Python<'_>) -> PyResult<SampledDelta> {
        Ok(match &self.content {
            Content::Parts { sampled, .. } => sampled.clone_ref(py),
            Content::Copied { token_id, .. } => SampledDelta {
                core: core::SampledDelta {
                    token_ids: [*token_id].as_slice().into(),
                    ..core::SampledDelta::default()
                },
                token_texts: self.token_texts(py)?,
            },
        })
    }

    #[getter]
    fn finished(&self, py: Python<'_>) -> Option<Py<Finished>> {
        self.finished
            .as_ref()
            .map(|finished| finished.clone_ref(py))
    }

    /// The text of `decoded`.
    #[getter]
    fn text(&self, py: Python<'_>) -> Py<PyString> {
        match &self.content {
            Content::Parts { decoded, .. } => PyString::new(py, &decoded.text).unbind(),
            Content::Copied { text, .. } => text.clone_ref(py),
        }
    }

    /// The texts of `sampled`.
    #[getter]
    fn token_texts(&self, py: Python<'_>) -> PyResult<Option<Py<PyTuple>>> {
        Ok(match &self.content {
            Content::Parts { sampled, .. } => sampled.token_texts(py),
            Content::Copied {
                text,
                token_texts: true,
                ..
            } => Some(PyTuple::new(py, [text])?.unbind()),
            Content::Copied { .. } => None,
        })
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, Self>) -> PyResult<bool> {
        let other = other.get();
        if self.decoded_text(py)? != other.decoded_text(py)?
            || !self.sampled(py)?.equals(py, &other.sampled(py)?)?
        {
            return Ok(false);
        }
        match (&self.finished, &other.finished) {
            (None, None) => Ok(true),
            (Some(own), Some(theirs)) => own.get().equals(py, theirs.get()),
            _ => Ok(false),
        }
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<u64> {
        let finished = self.finished.as_ref();
        let finished = finished.map(|finished| finished.get().hash());
        let (decoded, sampled) = (self.decoded_text(py)?, self.sampled(py)?);
        Ok(hash_of(&(decoded, sampled.core, finished)))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let finished = self.finished(py);
        Ok(CallRepr::new(py, "TextDelta")
            .argument(self.decoded(py)?)?
            .argument(self.sampled(py)?)?
            .keyword_if(finished.is_some(), "finished", finished)?
            .end())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Reduced<'py> {
        let arguments = (self.decoded(py)?, self.sampled(py)?, self.finished(py));
        reduced(py, py.get_type::<Self>(), arguments)
    }
}
