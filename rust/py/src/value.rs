//! What value classes share: a repr that reads like the call that makes the value, pickles, hashes.

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// Writes a value as the call that makes it.
pub(crate) struct CallRepr<'py> {
    py: Python<'py>,
    text: String,
}

impl<'py> CallRepr<'py> {
    pub(crate) fn new(py: Python<'py>, class: &str) -> Self {
        let text = format!("{class}(");
        Self { py, text }
    }

    pub(crate) fn argument(self, value: impl IntoPyObject<'py>) -> PyResult<Self> {
        self.named("", value)
    }

    pub(crate) fn keyword(self, name: &str, value: impl IntoPyObject<'py>) -> PyResult<Self> {
        self.named(&format!("{name}="), value)
    }

    /// Leaves out what need not be said.
    pub(crate) fn keyword_if(
        self,
        said: bool,
        name: &str,
        value: impl IntoPyObject<'py>,
    ) -> PyResult<Self> {
        if said {
            self.keyword(name, value)
        } else {
            Ok(self)
        }
    }

    fn named(mut self, name: &str, value: impl IntoPyObject<'py>) -> PyResult<Self> {
        if !self.text.ends_with('(') {
            self.text.push_str(", ");
        }
        let value = value.into_bound_py_any(self.py)?.repr()?;
        self.text.push_str(name);
        self.text.push_str(&value.to_string_lossy());
        Ok(self)
    }

    pub(crate) fn end(mut self) -> String {
        self.text.push(')');
        self.text
    }
}

/// What a pickle keeps: what to call, and with what.
pub(crate) type Reduced<'py> = PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)>;

pub(crate) fn reduced<'py, A>(
    py: Python<'py>,
    make: impl IntoPyObject<'py>,
    arguments: A,
) -> Reduced<'py>
where
    A: IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error: Into<PyErr>>,
{
    let arguments = arguments.into_pyobject(py).map_err(Into::into)?;
    Ok((make.into_bound_py_any(py)?, arguments))
}

/// A class with keywords filled in: what a pickle calls, as it knows no keywords itself.
pub(crate) fn with_keywords<'py>(
    class: impl IntoPyObject<'py>,
    keywords: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let partial = keywords.py().import("functools")?.getattr("partial")?;
    partial.call((class.into_bound_py_any(keywords.py())?,), Some(keywords))
}

pub(crate) fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Python's equality of two objects, either of which may be missing.
pub(crate) fn same_objects(
    py: Python<'_>,
    one: Option<&Py<PyAny>>,
    other: Option<&Py<PyAny>>,
) -> PyResult<bool> {
    match (one, other) {
        (None, None) => Ok(true),
        (Some(one), Some(other)) => Ok(one.is(other) || one.bind(py).eq(other)?),
        _ => Ok(false),
    }
}

/// Values that go with ids go one with each.
pub(crate) fn check_count(name: &str, count: usize, ids: usize) -> PyResult<()> {
    if count == ids {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{name} must have one entry per token id: {count} for {ids} ids"
    )))
}
