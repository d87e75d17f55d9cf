//! `RequestDecoder`.

use crate::delta::{Outcome, TextDelta};
use crate::error::{guarded, to_py};
use crate::ids::token_ids;
use crate::lock::StreamLock;
use crate::options::{TextDecodeOptions, options_for};
use crate::start::Start;
use crate::tokenizer::{DETACH_FROM, Tokenizer};
use crate::update::EngineUpdate;
use detok_core as core;
use detok_core::{Event, EventOptions, OneToken, Stop, TokenId};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};
use std::sync::{Mutex, PoisonError};

/// The event stream of one request, without I/O.
#[pyclass(frozen, module = "detok")]
pub(crate) struct RequestDecoder {
    tokenizer: Py<Tokenizer>,
    decoder: StreamLock<core::RequestDecoder>,
    /// Whether decoding may run code of the caller.
    calls_python: bool,
    /// Whether each sampled token comes with its text.
    token_texts: bool,
    request_id: Py<PyString>,
    /// The latest that the engine told. Taken under the decoder's lock only, and never while Python
    /// code runs.
    kv_transfer_params: Mutex<Option<Py<PyAny>>>,
}

/// What a push came to.
enum Pushed {
    /// One token without logprobs.
    Token(TokenId, Outcome),
    Told(Told),
}

struct Told {
    events: core::Events,
    /// The engine's object, at the end.
    kv_transfer_params: Option<Py<PyAny>>,
    /// What it took the place of: to be dropped behind the lock, as that may run Python code.
    _replaced: Option<Py<PyAny>>,
}

impl RequestDecoder {
    /// Runs `call` under the lock; what it gives becomes Python's behind it.
    fn with<R>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut core::RequestDecoder) -> Result<R, core::Error>,
    ) -> PyResult<R> {
        guarded(py, || self.decoder.with(py, self.calls_python, call))?
            .map_err(|error| to_py(py, error))
    }

    fn push_update(&self, py: Python<'_>, update: &EngineUpdate) -> PyResult<Pushed> {
        let core = &update.core;
        let of_prompt = core.prompt_logprobs.as_ref().map_or(0, Vec::len);
        let detach = core.token_ids.len() + of_prompt >= DETACH_FROM && !self.calls_python;
        self.with(py, |decoder| {
            let told = update.kv_transfer_params.as_ref();
            let events = match decoder.push_one(core)? {
                Some(OneToken::Shown(id)) if told.is_none() => {
                    return Ok(Pushed::Token(id, Outcome::Shown));
                }
                Some(OneToken::Waiting(id)) if told.is_none() => {
                    return Ok(Pushed::Token(id, Outcome::Waiting));
                }
                Some(one) => {
                    let delta = one.into_delta(self.tokenizer.get().table(), self.token_texts);
                    [Event::TextDelta(delta)].into_iter().collect()
                }
                None if detach => py.detach(|| decoder.push_any(core))?,
                None => decoder.push_any(core)?,
            };
            let is_finished = decoder.is_finished();
            if told.is_none() && !is_finished {
                return Ok(Pushed::Told(Told {
                    events,
                    kv_transfer_params: None,
                    _replaced: None,
                }));
            }
            let latest = self.kv_transfer_params.lock();
            let mut latest = latest.unwrap_or_else(PoisonError::into_inner);
            let replaced = told.and_then(|told| latest.replace(told.clone_ref(py)));
            Ok(Pushed::Told(Told {
                events,
                kv_transfer_params: if is_finished { latest.take() } else { None },
                _replaced: replaced,
            }))
        })
    }
}

#[pymethods]
impl RequestDecoder {
    #[new]
    #[pyo3(signature = (tokenizer, prompt_token_ids = None, options = None, *, request_id = "", intermediate = true, token_texts = false))]
    fn new(
        tokenizer: &Bound<'_, Tokenizer>,
        prompt_token_ids: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, TextDecodeOptions>>,
        request_id: &str,
        intermediate: bool,
        token_texts: bool,
    ) -> PyResult<Self> {
        let py = tokenizer.py();
        let prompt = prompt_token_ids.map(token_ids).transpose()?;
        let options = options_for(options, tokenizer)?;
        let core = tokenizer.get().core();
        let events = EventOptions {
            intermediate,
            token_texts,
        };
        let decoder = guarded(py, || {
            let id = request_id.to_owned();
            core::RequestDecoder::open(core, prompt.map(Into::into), options, id, events)
                .map_err(|error| to_py(py, error))
        })?;
        Ok(Self {
            decoder: StreamLock::new(decoder),
            token_texts,
            tokenizer: tokenizer.clone().unbind(),
            calls_python: tokenizer.get().calls_python(),
            request_id: PyString::new(py, request_id).unbind(),
            kv_transfer_params: Mutex::new(None),
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.tokenizer)?;
        match self.kv_transfer_params.try_lock() {
            Ok(params) => visit.call(&*params),
            // In use, so not garbage.
            Err(_) => Ok(()),
        }
    }

    /// The events of one update.
    fn push<'py>(
        &self,
        py: Python<'py>,
        update: &Bound<'py, EngineUpdate>,
    ) -> PyResult<Bound<'py, PyList>> {
        let tokenizer = self.tokenizer.get();
        let told = match self.push_update(py, update.get())? {
            Pushed::Told(told) => told,
            Pushed::Token(id, outcome) => {
                let delta = tokenizer.token_delta(py, id, outcome, self.token_texts)?;
                return PyList::new(py, [delta]);
            }
        };
        let mut params = told.kv_transfer_params;
        let events = told.events.into_iter().map(|event| match event {
            Event::Start(start) => Ok(Bound::new(py, Start(start))?.into_any().unbind()),
            Event::TextDelta(delta) => {
                Ok(TextDelta::of(py, delta, params.take(), tokenizer)?.into_any())
            }
        });
        PyList::new(py, events.collect::<PyResult<Vec<Py<PyAny>>>>()?)
    }

    /// Says so if the updates have ended and the request has not.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |decoder| decoder.close())
    }

    /// The stop of the request's own that ended it.
    #[getter]
    fn abort_cause(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        self.with(py, |decoder| {
            Ok(decoder.abort_cause().map(|stop| match stop {
                Stop::String(_) => "stop_string",
                Stop::Token(_) => "stop_token_id",
            }))
        })
    }

    #[getter]
    fn is_finished(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |decoder| Ok(decoder.is_finished()))
    }

    #[getter]
    fn request_id(&self, py: Python<'_>) -> Py<PyString> {
        self.request_id.clone_ref(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let state = if self.is_finished(py)? {
            "finished"
        } else {
            "open"
        };
        let id = self.request_id.bind(py).repr()?;
        Ok(format!("<detok.RequestDecoder {id}: {state}>"))
    }
}
