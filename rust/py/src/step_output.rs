//! `StepOutput`: what a step of a batch gave, made Python's when asked for.

use crate::arrow::ArrowBatch;
use crate::decoded::DecodedText;
use crate::error::{detok_error, guarded, to_py};
use crate::finish::StopMatch;
use crate::position::index;
use crate::tokenizer::Tokenizer;
use detok_core as core;
use pyo3::exceptions::PyIndexError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyString};

/// What a step gave, by position in its slots.
#[pyclass(frozen, module = "detok")]
pub(crate) struct StepOutput {
    tokenizer: Py<Tokenizer>,
    slots: Vec<u32>,
    output: core::StepOutput,
    errors: Py<PyDict>,
    texts: PyOnceLock<Py<PyList>>,
    token_texts: PyOnceLock<Option<Py<PyList>>>,
    arrow: PyOnceLock<Py<ArrowBatch>>,
}

impl StepOutput {
    pub(crate) fn new(
        py: Python<'_>,
        tokenizer: &Py<Tokenizer>,
        slots: Vec<u32>,
        mut output: core::StepOutput,
    ) -> PyResult<Self> {
        let errors = PyDict::new(py);
        for (slot, error) in output.take_errors() {
            errors.set_item(slot, slot_error(py, error).into_value(py))?;
        }
        Ok(Self {
            tokenizer: tokenizer.clone_ref(py),
            slots,
            output,
            errors: errors.unbind(),
            texts: PyOnceLock::new(),
            token_texts: PyOnceLock::new(),
            arrow: PyOnceLock::new(),
        })
    }

    fn make_texts(&self, py: Python<'_>) -> PyResult<Py<PyList>> {
        let (output, tokenizer) = (&self.output, self.tokenizer.get());
        let texts = (0..output.len()).map(|position| match output.own_token(position) {
            Some(own) => tokenizer.token_string(py, own),
            None => PyString::new(py, output.text(position).unwrap_or_default()).unbind(),
        });
        Ok(PyList::new(py, texts)?.unbind())
    }

    fn make_token_texts(&self, py: Python<'_>) -> PyResult<Option<Py<PyList>>> {
        let Some(texts) = self.output.token_texts() else {
            return Ok(None);
        };
        let tokenizer = self.tokenizer.get();
        let mut texts = texts.map(|sampled| tokenizer.sampled_string(py, &sampled));
        let lists = (self.output.kept_tokens())
            .map(|kept| PyList::new(py, texts.by_ref().take(kept as usize)));
        let lists = lists.collect::<PyResult<Vec<_>>>()?;
        Ok(Some(PyList::new(py, lists)?.unbind()))
    }
}

/// All that can befall a slot is a `DetokError`; what is a `ValueError` elsewhere becomes one.
fn slot_error(py: Python<'_>, error: core::Error) -> PyErr {
    match error {
        core::Error::TextTooLong { .. } => detok_error(py, error.to_string()),
        other => to_py(py, other),
    }
}

#[pymethods]
impl StepOutput {
    /// By position, the text that became certain.
    #[getter]
    fn texts(&self, py: Python<'_>) -> PyResult<Py<PyList>> {
        let texts = self.texts.get_or_try_init(py, || self.make_texts(py))?;
        Ok(texts.clone_ref(py))
    }

    /// By position, the texts of its kept tokens, if they were asked for.
    #[getter]
    fn token_texts(&self, py: Python<'_>) -> PyResult<Option<Py<PyList>>> {
        let texts = self
            .token_texts
            .get_or_try_init(py, || self.make_token_texts(py))?;
        Ok(texts.as_ref().map(|texts| texts.clone_ref(py)))
    }

    /// By position, how many of its ids count.
    #[getter]
    fn kept_tokens(&self) -> Vec<u32> {
        self.output.kept_tokens().collect()
    }

    /// By slot, the stop that ended its request.
    #[getter]
    fn stopped<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stopped = PyDict::new(py);
        for (slot, stop_match) in self.output.stopped() {
            stopped.set_item(slot, StopMatch(stop_match.clone()))?;
        }
        Ok(stopped)
    }

    /// By slot, why nothing was done to it.
    #[getter]
    fn errors(&self, py: Python<'_>) -> Py<PyDict> {
        self.errors.clone_ref(py)
    }

    /// Text and records of a position.
    fn decoded(&self, i: &Bound<'_, PyAny>) -> PyResult<DecodedText> {
        let len = self.output.len();
        let decoded = index(i, len)?.and_then(|position| self.output.decoded(position));
        decoded
            .map(DecodedText::new_from)
            .ok_or_else(|| PyIndexError::new_err(format!("position {i} is not one of {len} slots")))
    }

    /// Texts and records as Arrow arrays, one row per position.
    fn to_arrow(&self, py: Python<'_>) -> PyResult<Py<ArrowBatch>> {
        let arrow = self.arrow.get_or_try_init(py, || {
            let batch = guarded(py, || ArrowBatch::new(&self.slots, &self.output))?;
            Py::new(py, batch)
        })?;
        Ok(arrow.clone_ref(py))
    }

    /// An error that was raised knows the frames that it passed through, which may know this output.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.tokenizer)?;
        visit.call(&self.errors)
    }

    fn __len__(&self) -> usize {
        self.output.len()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!(
            "<detok.StepOutput: {} slots, {} stopped, {} errors>",
            self.output.len(),
            self.output.stopped().len(),
            self.errors.bind(py).len()
        )
    }
}
