//! One map from the core's errors to Python's exceptions, and from panics to `InternalError`.

use detok_core::{Error, LoadError};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Makes a constructor for an exception class of `detok.errors`.
macro_rules! exception {
    ($function:ident, $class:literal) => {
        pub(crate) fn $function<A>(py: Python<'_>, arguments: A) -> PyErr
        where
            A: pyo3::PyErrArguments + Send + Sync + 'static,
        {
            static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
            match CLASS.import(py, "detok.errors", $class) {
                Ok(class) => PyErr::from_type(class.clone(), arguments),
                Err(error) => error,
            }
        }
    };
}

exception!(detok_error, "DetokError");
exception!(internal_error, "InternalError");
exception!(request_error, "RequestError");
exception!(state_error, "StateError");
exception!(stream_finished_error, "StreamFinishedError");
exception!(tokenizer_load_error, "TokenizerLoadError");
exception!(unknown_token_error, "UnknownTokenError");

/// The exception for an error of the core.
pub(crate) fn to_py(py: Python<'_>, error: Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::UnknownToken { id, index, .. } | Error::UnknownMarkerToken { id, index, .. } => {
            unknown_token_error(py, (message, id, index))
        }
        Error::Finished | Error::Ended(_) => stream_finished_error(py, message),
        Error::Request { request_id, .. } => request_error(py, (message, request_id)),
        Error::OutputNotKept | Error::NoSlot(_) => state_error(py, message),
        Error::TextTooLong { .. }
        | Error::CutInsideCharacter { .. }
        | Error::CutBeforeHandedOut { .. }
        | Error::ReversedRange { .. }
        | Error::BadAttribution { .. }
        | Error::BadMarker(_)
        | Error::BadStep(_)
        | Error::BadStop(_)
        | Error::BadUpdate(_) => PyValueError::new_err(message),
        // A Python source's own exception comes back as it was raised.
        Error::Source(source) => match source.downcast::<PyErr>() {
            Ok(raised) => *raised,
            Err(_) => detok_error(py, message),
        },
        Error::InSlot { slot, error } => {
            let raised = to_py(py, *error);
            match raised.add_note(py, format!("while slot {slot} of a batch was decoded")) {
                Ok(()) => raised,
                Err(error) => error,
            }
        }
        _ => detok_error(py, message),
    }
}

/// The exception for a tokenizer that could not be loaded.
pub(crate) fn load_to_py(py: Python<'_>, error: LoadError) -> PyErr {
    match error {
        LoadError::Io { path, error } => match error.raw_os_error() {
            // With number, words and name, OSError picks its own subclass.
            Some(number) => {
                let words = py
                    .import("os")
                    .and_then(|os| os.call_method1("strerror", (number,)))
                    .map_or_else(|_| error.to_string(), |words| words.to_string());
                pyo3::exceptions::PyOSError::new_err((number, words, path))
            }
            None => PyValueError::new_err(format!("{path}: {error}")),
        },
        invalid => tokenizer_load_error(py, invalid.to_string()),
    }
}

/// Runs `call`; a panic in it, a bug of ours, becomes an exception that `except Exception` catches.
#[inline]
pub(crate) fn guarded<R>(py: Python<'_>, call: impl FnOnce() -> PyResult<R>) -> PyResult<R> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result,
        Err(panic) => Err(internal_error(py, panic_message(panic.as_ref()))),
    }
}

#[cold]
fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().map(ToString::to_string);
    let words = words.or_else(|| panic.downcast_ref::<String>().cloned());
    let words = words.unwrap_or_else(|| "no message".into());
    format!("a bug in detok, please report it: {words}")
}

/// What a stream says to a caller that re-enters it from its own decode.
pub(crate) fn reentered() -> PyErr {
    PyRuntimeError::new_err(
        "the stream is already decoding in this thread: its tokenizer's decode called back into it",
    )
}
