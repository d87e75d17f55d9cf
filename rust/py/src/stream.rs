//! `DecodeStream`, and the iterator behind `Tokenizer.stream`.

use crate::decoded::DecodedText;
use crate::error::{guarded, to_py};
use crate::ids::{Argument, PromptIds, token_id, token_ids};
use crate::lock::StreamLock;
use crate::position::position;
use crate::tokenizer::{DETACH_FROM, Tokenizer, decode_options};
use detok_core as core;
use detok_core::{Pending, StepText, StreamOptions};
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyIterator, PyString};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Incremental decoder of one generation.
#[pyclass(frozen, module = "detok")]
pub(crate) struct DecodeStream {
    tokenizer: Py<Tokenizer>,
    /// Whether decoding may run code of the caller.
    calls_python: bool,
    stream: StreamLock<core::DecodeStream>,
}

fn open(
    tokenizer: &Bound<'_, Tokenizer>,
    prompt_token_ids: &Argument<'_>,
    options: StreamOptions,
) -> PyResult<core::DecodeStream> {
    let py = tokenizer.py();
    let prompt = PromptIds::new(prompt_token_ids)?;
    guarded(py, || {
        core::DecodeStream::open(tokenizer.get().core(), &prompt, options)
            .map_err(|error| error.into_py(py))
    })
}

impl DecodeStream {
    fn open(
        tokenizer: &Bound<'_, Tokenizer>,
        prompt_token_ids: &Argument<'_>,
        options: StreamOptions,
    ) -> PyResult<Self> {
        Ok(Self {
            stream: StreamLock::new(open(tokenizer, prompt_token_ids, options)?),
            calls_python: tokenizer.get().calls_python(),
            tokenizer: tokenizer.clone().unbind(),
        })
    }

    /// Runs `call` under the lock; what it gives becomes Python's behind it.
    fn with<R>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut core::DecodeStream) -> Result<R, core::Error>,
    ) -> PyResult<R> {
        guarded(py, || self.stream.with(py, self.calls_python, call))?
            .map_err(|error| to_py(py, error))
    }

    /// Kept out of line: the steps that copy are most, and are to stay small.
    #[inline(never)]
    fn step_uncopied(&self, py: Python<'_>, id: u32) -> PyResult<Option<Py<PyString>>> {
        self.with(py, |stream| {
            Ok(match stream.step_uncopied(id)? {
                StepText::Nothing | StepText::Token => None,
                StepText::Text("\u{fffd}") => Some(replacement(py)),
                StepText::Text(text) => Some(PyString::new(py, text).unbind()),
            })
        })
    }
}

#[pymethods]
impl DecodeStream {
    #[new]
    #[pyo3(signature = (tokenizer, prompt_token_ids = Argument::Missing, *, skip_special_tokens = true, keep_special_tokens = Argument::Missing,
                        min_bytes_to_buffer = 0, unknown_ids = "error", keep_output = true))]
    fn new(
        tokenizer: &Bound<'_, Tokenizer>,
        prompt_token_ids: Argument<'_>,
        skip_special_tokens: bool,
        keep_special_tokens: Argument<'_>,
        min_bytes_to_buffer: i64,
        unknown_ids: &str,
        keep_output: bool,
    ) -> PyResult<Self> {
        let min_bytes_to_buffer = usize::try_from(min_bytes_to_buffer).map_err(|_| {
            PyValueError::new_err(format!(
                "min_bytes_to_buffer must not be negative: {min_bytes_to_buffer}"
            ))
        })?;
        let options = StreamOptions {
            decode: decode_options(
                tokenizer.get(),
                skip_special_tokens,
                &keep_special_tokens,
                unknown_ids,
            )?,
            min_bytes_to_buffer,
            keep_output,
            ..StreamOptions::default()
        };
        Self::open(tokenizer, &prompt_token_ids, options)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.tokenizer)
    }

    /// Pushes one token; the number of bytes of text that became certain.
    fn push_token(&self, py: Python<'_>, token_id: &Bound<'_, PyAny>) -> PyResult<usize> {
        let id = self::token_id(token_id, 0)?;
        self.with(py, |stream| stream.push_token(id))
    }

    /// Pushes tokens, all or none; the number of bytes of text that became certain.
    fn push_tokens(&self, py: Python<'_>, token_ids: &Bound<'_, PyAny>) -> PyResult<usize> {
        let ids = self::token_ids(token_ids)?;
        let detach = ids.len() >= DETACH_FROM && !self.calls_python;
        self.with(py, |stream| {
            if detach {
                py.detach(|| stream.push_tokens(&ids))
            } else {
                stream.push_tokens(&ids)
            }
        })
    }

    /// What may leave now, or `None`.
    fn next_chunk(&self, py: Python<'_>) -> PyResult<Option<DecodedText>> {
        let chunk = self.with(py, |stream| Ok(stream.next_chunk()))?;
        Ok(chunk.map(DecodedText::new_from))
    }

    /// Ends the text: the last chunk, and everything.
    #[pyo3(signature = (truncate_output_to = None))]
    fn flush(
        &self,
        py: Python<'_>,
        truncate_output_to: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Option<DecodedText>, DecodedText)> {
        let cut = truncate_output_to.map(|at| position(at, "truncate_output_to"));
        let cut = cut.transpose()?;
        let (last, everything) = self.with(py, |stream| stream.finish(cut))?;
        Ok((
            last.map(DecodedText::new_from),
            DecodedText::new_unread(everything),
        ))
    }

    /// Pushes one token and hands out what may leave, as text alone.
    fn step(&self, py: Python<'_>, token_id: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyString>>> {
        let id = self::token_id(token_id, 0)?;
        if self
            .stream
            .with(py, false, |stream| stream.step_copied(id))?
        {
            return Ok(Some(self.tokenizer.get().token_string(py, id)));
        }
        self.step_uncopied(py, id)
    }

    /// All text since the start, held-back text included.
    #[getter]
    fn output(&self, py: Python<'_>) -> PyResult<Py<PyString>> {
        self.with(py, |stream| {
            let output = stream.output()?;
            Ok(PyString::new(py, &output).unbind())
        })
    }

    /// What is withheld, and why.
    #[getter]
    fn pending(&self, py: Python<'_>) -> PyResult<HashMap<&'static str, usize>> {
        Ok(pending_counts(
            self.with(py, |stream| Ok(stream.pending()))?,
        ))
    }

    /// Tokens pushed since the start.
    #[getter]
    fn token_count(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |stream| Ok(stream.token_count()))
    }

    /// Starts over, behind another prompt.
    #[pyo3(signature = (prompt_token_ids = Argument::Missing))]
    fn reset(&self, py: Python<'_>, prompt_token_ids: Argument<'_>) -> PyResult<()> {
        // The prompt is the caller's object: it is read before the lock is taken.
        let options = self.with(py, |stream| Ok(stream.options().clone()))?;
        let fresh = open(self.tokenizer.bind(py), &prompt_token_ids, options)?;
        self.with(py, |stream| {
            *stream = fresh;
            Ok(())
        })
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (tokens, pending) =
            self.with(py, |stream| Ok((stream.token_count(), stream.pending())))?;
        Ok(format!(
            "<detok.DecodeStream: {tokens} tokens, {} bytes incomplete, {} held>",
            pending.incomplete_bytes, pending.held_bytes
        ))
    }
}

/// What is withheld, by its name.
pub(crate) fn pending_counts(pending: Pending) -> HashMap<&'static str, usize> {
    HashMap::from([
        ("incomplete_bytes", pending.incomplete_bytes),
        ("held_bytes", pending.held_bytes),
        ("waiting_tokens", pending.waiting_tokens),
    ])
}

/// The one string that a broken byte gives, shared: a stream may have nothing else.
fn replacement(py: Python<'_>) -> Py<PyString> {
    static REPLACEMENT: PyOnceLock<Py<PyString>> = PyOnceLock::new();
    REPLACEMENT
        .get_or_init(py, || PyString::new(py, "\u{fffd}").unbind())
        .clone_ref(py)
}

/// Chunks of a stream fed from an iterator of ids.
#[pyclass(frozen, module = "detok")]
pub(crate) struct ChunkIterator {
    ids: Py<PyIterator>,
    stream: DecodeStream,
    /// Ids taken so far; after the end or an error there are no more.
    taken: AtomicUsize,
    ended: AtomicBool,
}

impl ChunkIterator {
    pub(crate) fn open(
        tokenizer: &Bound<'_, Tokenizer>,
        ids: &Bound<'_, PyAny>,
        prompt_token_ids: &Argument<'_>,
        skip_special_tokens: bool,
    ) -> PyResult<Self> {
        let options = StreamOptions {
            decode: decode_options(
                tokenizer.get(),
                skip_special_tokens,
                &Argument::Missing,
                "error",
            )?,
            keep_output: false,
            ..StreamOptions::default()
        };
        Ok(Self {
            ids: ids.try_iter()?.unbind(),
            stream: DecodeStream::open(tokenizer, prompt_token_ids, options)?,
            taken: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        })
    }

    fn advance(&self, py: Python<'_>) -> PyResult<Option<DecodedText>> {
        let ids = self.ids.bind(py).clone();
        for id in ids {
            let index = self.taken.fetch_add(1, Ordering::Relaxed);
            let id = self::token_id(&id?, index)?;
            self.stream.with(py, |stream| {
                stream.push_token(id).map_err(|error| error.at_index(index))
            })?;
            if let Some(chunk) = self.stream.next_chunk(py)? {
                return Ok(Some(chunk));
            }
        }
        self.ended.store(true, Ordering::Relaxed);
        let (last, _) = self.stream.with(py, |stream| stream.finish(None))?;
        Ok(last.map(DecodedText::new_from))
    }
}

#[pymethods]
impl ChunkIterator {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.ids)
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<DecodedText>> {
        if self.ended.load(Ordering::Relaxed) {
            return Ok(None);
        }
        self.advance(py)
            .inspect_err(|_| self.ended.store(true, Ordering::Relaxed))
    }
}

/// One-shot decoding with records.
pub(crate) fn decode_attributed(
    tokenizer: &Bound<'_, Tokenizer>,
    token_ids: &Bound<'_, PyAny>,
    prompt_token_ids: &Argument<'_>,
    decode: core::DecodeOptions,
) -> PyResult<DecodedText> {
    let py = tokenizer.py();
    let ids = self::token_ids(token_ids)?;
    let options = StreamOptions {
        decode,
        ..StreamOptions::default()
    };
    let mut stream = open(tokenizer, prompt_token_ids, options)?;
    guarded(py, || {
        let all = stream.push_tokens(&ids).and_then(|_| stream.flush(None));
        Ok(DecodedText::new_from(
            all.map_err(|error| to_py(py, error))?.1,
        ))
    })
}
