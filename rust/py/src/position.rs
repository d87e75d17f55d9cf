//! Positions and lengths given by a caller.

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt};

/// A position that may lie past any end, but not before the start. `name` is the argument's.
pub(crate) fn position(value: &Bound<'_, PyAny>, name: &str) -> PyResult<usize> {
    if value.is_exact_instance_of::<PyInt>()
        && let Ok(position) = value.extract()
    {
        return Ok(position);
    }
    if value.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err(format!(
            "{name} must be an int, not bool"
        )));
    }
    let index = value
        .py()
        .import("operator")?
        .call_method1("index", (value,))?;
    match index.extract() {
        Ok(position) => Ok(position),
        Err(_) if index.lt(0)? => Err(PyValueError::new_err(format!(
            "{name} must not be negative: {index}"
        ))),
        Err(_) => Ok(usize::MAX),
    }
}

/// A number of threads.
pub(crate) fn threads(value: &Bound<'_, PyAny>) -> PyResult<usize> {
    match position(value, "threads")? {
        0 => Err(PyValueError::new_err("threads must be at least 1")),
        threads => Ok(threads),
    }
}

/// An index into `len` items, negative ones from the end; `None` for one that is out of range.
pub(crate) fn index(value: &Bound<'_, PyAny>, len: usize) -> PyResult<Option<usize>> {
    let at = match value.extract::<isize>() {
        Ok(at) if at < 0 => at + len.cast_signed(),
        Ok(at) => at,
        // An index that no machine word holds is out of range like any other.
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(usize::try_from(at).ok().filter(|&at| at < len))
}

/// Arguments that are positions, or counts, by their names.
macro_rules! named {
    ($($name:ident),*) => {$(
        pub(crate) fn $name(value: &Bound<'_, PyAny>) -> PyResult<u64> {
            Ok(position(value, stringify!($name))? as u64)
        }
    )*};
}

named!(
    byte_offset,
    token_index,
    prompt_token_count,
    output_token_count,
    cached_token_count,
    min_tokens,
    min_bytes_to_buffer
);
