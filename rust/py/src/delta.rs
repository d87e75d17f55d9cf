//! `TextDelta`.

use crate::decoded::DecodedText;
use crate::finish::Finished;
use crate::per_token::PerToken;
use crate::sampled::SampledDelta;
use crate::tokenizer::Tokenizer;
use crate::value::{CallRepr, Reduced, hash_of, reduced};
use detok_core as core;
use detok_core::{Table, TokenId};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use std::sync::Arc;

/// What one update brought.
#[pyclass(frozen, module = "detok")]
pub(crate) struct TextDelta {
    /// The text of `decoded`.
    #[pyo3(get)]
    text: Py<PyString>,
    /// The texts of `sampled`.
    #[pyo3(get)]
    token_texts: Py<PyAny>,
    content: Content,
    finished: Option<Py<Finished>>,
}

/// Text and tokens of a delta.
enum Content {
    /// One token without logprobs.
    Token(TokenId, Outcome),
    Told(Box<Told>),
}

/// What came of one token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its own text, and all of it.
    Shown,
    /// Nothing yet.
    Waiting,
}

struct Told {
    decoded: Arc<core::DecodedText>,
    sampled: SampledDelta,
}

/// Events of one token without logprobs. Most events are of this kind, and they are the same in every
/// stream.
pub(crate) struct TokenDeltas {
    shown: PerToken<TextDelta>,
    shown_with_texts: PerToken<TextDelta>,
    waiting: PerToken<TextDelta>,
    waiting_with_texts: PerToken<TextDelta>,
}

impl TokenDeltas {
    pub(crate) fn new(table: Option<&Table>) -> Self {
        Self {
            shown: PerToken::new(table),
            shown_with_texts: PerToken::new(table),
            waiting: PerToken::new(table),
            waiting_with_texts: PerToken::new(table),
        }
    }

    /// `text` gives the token's own.
    #[inline]
    pub(crate) fn get(
        &self,
        py: Python<'_>,
        token_id: TokenId,
        outcome: Outcome,
        token_texts: bool,
        text: impl FnOnce() -> Py<PyString>,
    ) -> PyResult<Py<TextDelta>> {
        let deltas = match (outcome, token_texts) {
            (Outcome::Shown, false) => &self.shown,
            (Outcome::Shown, true) => &self.shown_with_texts,
            (Outcome::Waiting, false) => &self.waiting,
            (Outcome::Waiting, true) => &self.waiting_with_texts,
        };
        if let Some(delta) = deltas.get(py, token_id) {
            return Ok(delta);
        }
        let delta = TextDelta::of_token(py, token_id, outcome, token_texts, text())?;
        Ok(deltas.keep(py, token_id, delta))
    }
}

impl TextDelta {
    fn of_token(
        py: Python<'_>,
        token_id: TokenId,
        outcome: Outcome,
        token_texts: bool,
        text: Py<PyString>,
    ) -> PyResult<Py<Self>> {
        let delta = Self {
            token_texts: if token_texts {
                PyTuple::new(py, [&text])?.into_any().unbind()
            } else {
                py.None()
            },
            text: match outcome {
                Outcome::Shown => text,
                Outcome::Waiting => PyString::new(py, "").unbind(),
            },
            content: Content::Token(token_id, outcome),
            finished: None,
        };
        let delta = Py::new(py, delta)?;
        untrack(&delta);
        Ok(delta)
    }

    fn told(
        py: Python<'_>,
        decoded: Arc<core::DecodedText>,
        sampled: SampledDelta,
        finished: Option<Py<Finished>>,
    ) -> Self {
        let token_texts = sampled.token_texts(py).map(Py::into_any);
        Self {
            text: PyString::new(py, &decoded.text).unbind(),
            token_texts: token_texts.unwrap_or_else(|| py.None()),
            content: Content::Told(Box::new(Told { decoded, sampled })),
            finished,
        }
    }

    /// With what the engine told, if it is the last.
    pub(crate) fn of(
        py: Python<'_>,
        delta: core::TextDelta,
        kv_transfer_params: Option<Py<PyAny>>,
        tokenizer: &Tokenizer,
    ) -> PyResult<Py<Self>> {
        let finished = delta.finished;
        let finished =
            finished.map(|finished| Py::new(py, Finished::of(*finished, kv_transfer_params)));
        let token_texts = tokenizer.sampled_strings(py, &delta.sampled)?;
        let sampled = SampledDelta::new_from(delta.sampled, token_texts);
        let delta = Self::told(py, delta.decoded, sampled, finished.transpose()?);
        Py::new(py, delta)
    }

    fn decoded_text(&self, py: Python<'_>) -> PyResult<Arc<core::DecodedText>> {
        Ok(match &self.content {
            Content::Told(told) => Arc::clone(&told.decoded),
            Content::Token(id, Outcome::Shown) => {
                Arc::new(core::DecodedText::of_token(*id, self.text.to_str(py)?))
            }
            Content::Token(_, Outcome::Waiting) => Arc::default(),
        })
    }
}

/// Takes a shared event out of the sight of the collector of garbage, which would look at thousands of
/// them at each full collection.
#[allow(unsafe_code)]
fn untrack(delta: &Py<TextDelta>) {
    // SAFETY: the object is alive. What it holds are strings and a tuple of one, and it never changes,
    // so that it can lie on no cycle; and to untrack twice, as its deallocation does, is allowed.
    // `tests/test_values.py` asks the collector what it sees.
    unsafe { pyo3::ffi::PyObject_GC_UnTrack(delta.as_ptr().cast()) }
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
        let (decoded, sampled) = (decoded.get().decoded(py)?, sampled.get().clone_ref(py));
        Ok(Self::told(py, decoded, sampled, finished))
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
        let id = match &self.content {
            Content::Told(told) => return Ok(told.sampled.clone_ref(py)),
            Content::Token(id, _) => *id,
        };
        let token_texts = self.token_texts.extract(py)?;
        let sampled = core::SampledDelta::of_token(id, false);
        Ok(SampledDelta::new_from(sampled, token_texts))
    }

    #[getter]
    fn finished(&self, py: Python<'_>) -> Option<Py<Finished>> {
        self.finished
            .as_ref()
            .map(|finished| finished.clone_ref(py))
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
        Ok(hash_of(&(decoded, sampled.core(), finished)))
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
