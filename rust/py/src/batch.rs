//! `BatchDecoder`.

use crate::error::{guarded, to_py};
use crate::finish::TokenUsage;
use crate::ids::{Argument, CallError, Noun, PromptIds, numbers, slot, token_ids};
use crate::lock::StreamLock;
use crate::options::{TextDecodeOptions, options_for};
use crate::position::threads;
use crate::step_output::StepOutput;
use crate::stream::pending_counts;
use crate::tokenizer::{DETACH_FROM, Tokenizer};
use detok_core as core;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

/// Many requests, one call per engine step.
#[pyclass(frozen, module = "detok")]
pub(crate) struct BatchDecoder {
    tokenizer: Py<Tokenizer>,
    /// Of requests that bring none of their own.
    options: Arc<core::TextDecodeOptions>,
    threads: usize,
    release_gil: Option<bool>,
    batch: StreamLock<core::BatchDecoder>,
}

impl BatchDecoder {
    fn with<R>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut core::BatchDecoder) -> Result<R, core::Error>,
    ) -> PyResult<R> {
        let calls_python = self.tokenizer.get().calls_python();
        guarded(py, || self.batch.with(py, calls_python, call))?.map_err(|error| to_py(py, error))
    }

    /// Whether work on so many ids, or bytes, gives up the interpreter.
    fn detaches(&self, work: usize) -> bool {
        !self.tokenizer.get().calls_python() && self.release_gil.unwrap_or(work >= DETACH_FROM)
    }
}

#[pymethods]
impl BatchDecoder {
    #[new]
    #[pyo3(signature = (tokenizer, options = None, *, threads = 1, release_gil = None))]
    fn new(
        tokenizer: &Bound<'_, Tokenizer>,
        options: Option<&Bound<'_, TextDecodeOptions>>,
        #[pyo3(from_py_with = threads)] threads: usize,
        release_gil: Option<bool>,
    ) -> PyResult<Self> {
        Ok(Self {
            options: options_for(options, tokenizer)?,
            threads,
            release_gil,
            batch: StreamLock::new(core::BatchDecoder::new(tokenizer.get().core())),
            tokenizer: tokenizer.clone().unbind(),
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.tokenizer)
    }

    /// Adds a request; its slot.
    #[pyo3(signature = (prompt_token_ids = Argument::Missing, options = None))]
    fn add(
        &self,
        py: Python<'_>,
        prompt_token_ids: Argument<'_>,
        options: Option<&Bound<'_, TextDecodeOptions>>,
    ) -> PyResult<u32> {
        let options = match options {
            Some(_) => options_for(options, self.tokenizer.bind(py))?,
            None => Arc::clone(&self.options),
        };
        // The prompt is the caller's object: it is read before the lock is taken.
        let prompt = PromptIds::new(&prompt_token_ids)?;
        let request = guarded(py, || {
            core::BatchRequest::open(self.tokenizer.get().core(), &prompt, options)
                .map_err(|error: CallError| error.into_py(py))
        })?;
        self.with(py, |batch| batch.add(request))
    }

    /// Pushes the ids of one engine step.
    #[pyo3(signature = (slots, token_ids, counts = None, *, token_texts = false))]
    fn step(
        &self,
        py: Python<'_>,
        slots: &Bound<'_, PyAny>,
        token_ids: &Bound<'_, PyAny>,
        counts: Option<&Bound<'_, PyAny>>,
        token_texts: bool,
    ) -> PyResult<StepOutput> {
        let slots = numbers(Noun::Slot, slots)?;
        let ids = self::token_ids(token_ids)?;
        let counts = counts.map(|counts| numbers(Noun::Count, counts));
        let counts = counts.transpose()?;
        let detaches = self.detaches(ids.len());
        let output = self.with(py, |batch| {
            let counts = counts.as_deref();
            let mut step = || batch.step(&slots, &ids, counts, token_texts, self.threads);
            if detaches { py.detach(step) } else { step() }
        })?;
        StepOutput::new(py, &self.tokenizer, slots, output)
    }

    /// Ends requests; what they withheld comes out.
    fn finish(&self, py: Python<'_>, slots: &Bound<'_, PyAny>) -> PyResult<StepOutput> {
        let slots = numbers(Noun::Slot, slots)?;
        let output = self.with(py, |batch| {
            let held = |slot: &u32| batch.pending(*slot).map_or(0, |pending| pending.held_bytes);
            let detaches = self.detaches(slots.iter().map(held).sum());
            let mut finish = || batch.finish(&slots);
            if detaches {
                py.detach(finish)
            } else {
                finish()
            }
        })?;
        StepOutput::new(py, &self.tokenizer, slots, output)
    }

    /// Frees slots, all or none.
    fn remove(&self, py: Python<'_>, slots: &Bound<'_, PyAny>) -> PyResult<()> {
        let slots = numbers(Noun::Slot, slots)?;
        self.with(py, |batch| batch.remove(&slots))
    }

    /// What a slot withholds, and why.
    fn pending(
        &self,
        py: Python<'_>,
        slot: &Bound<'_, PyAny>,
    ) -> PyResult<HashMap<&'static str, usize>> {
        let slot = self::slot(slot)?;
        Ok(pending_counts(self.with(py, |batch| batch.pending(slot))?))
    }

    /// Tokens of a slot's request so far.
    fn usage(&self, py: Python<'_>, slot: &Bound<'_, PyAny>) -> PyResult<TokenUsage> {
        let slot = self::slot(slot)?;
        Ok(TokenUsage(self.with(py, |batch| batch.usage(slot))?))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |batch| Ok(batch.len()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let len = self.__len__(py)?;
        Ok(format!("<detok.BatchDecoder: {len} slots in use>"))
    }
}
