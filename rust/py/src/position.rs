//! Positions and lengths given by a caller.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBool;

/// A position that may lie past any end, but not before the start. `name` is the argument's.
pub(crate) fn position(value: &Bound<'_, PyAny>, name: &str) -> PyResult<usize> {
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
