//! `Marker`.

use crate::error::to_py;
use crate::ids::{Argument, token_id, type_name};
use crate::value::{CallRepr, Reduced, hash_of, reduced, with_keywords};
use detok_core as core;
use detok_core::MarkerPart;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyString, PyTuple};

/// A named section, and the patterns that open and close it.
#[pyclass(frozen, module = "detok")]
pub(crate) struct Marker(pub(crate) core::Marker);

/// A pattern as a caller gives it: text, an id, or a sequence of these.
fn read_pattern(pattern: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<MarkerPart>> {
    if is_sequence(pattern)? {
        let parts = pattern.try_iter()?.enumerate();
        let read = |(index, part): (usize, PyResult<_>)| {
            read_part(&part?, index, &format!("{name}[{index}]"))
        };
        return parts.map(read).collect();
    }
    Ok(vec![read_part(pattern, 0, name)?])
}

fn is_sequence(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let is_text = object.is_instance_of::<PyString>();
    let is_bytes = object.is_instance_of::<PyBytes>() || object.is_instance_of::<PyByteArray>();
    Ok(!is_text && !is_bytes && object.hasattr("__getitem__")? && !object.hasattr("keys")?)
}

/// A part of a pattern; `index` is its place in it, `name` that in the call.
fn read_part(part: &Bound<'_, PyAny>, index: usize, name: &str) -> PyResult<MarkerPart> {
    if let Ok(text) = part.cast::<PyString>() {
        let text = text.to_cow().map_err(|_| {
            PyValueError::new_err(format!("{name} has a lone surrogate, which no text has"))
        })?;
        return Ok(MarkerPart::Text(text.into()));
    }
    let is_bool = part.is_instance_of::<PyBool>();
    if is_bool || is_sequence(part)? || !part.hasattr("__index__")? {
        return Err(PyTypeError::new_err(format!(
            "{name} must be a str or a token id, not {}",
            type_name(part)
        )));
    }
    match token_id(part, index) {
        Ok(id) => Ok(MarkerPart::Id(id)),
        Err(error) => {
            error.add_note(part.py(), format!("in {name} of a Marker"))?;
            Err(error)
        }
    }
}

/// A pattern as a caller sees it: what it has one part of is that part.
fn pattern_object<'py>(py: Python<'py>, pattern: &[MarkerPart]) -> PyResult<Bound<'py, PyAny>> {
    let part = |part: &MarkerPart| match part {
        MarkerPart::Text(text) => PyString::new(py, text).into_bound_py_any(py),
        MarkerPart::Id(id) => id.into_bound_py_any(py),
    };
    match pattern {
        [only] => part(only),
        parts => {
            let parts = parts.iter().map(part).collect::<PyResult<Vec<_>>>()?;
            PyTuple::new(py, parts)?.into_bound_py_any(py)
        }
    }
}

impl Marker {
    /// By the constructor's names.
    fn keywords<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        all.set_item("also_end", self.also_end(py)?)?;
        all.set_item("reopen", self.0.reopen)?;
        all.set_item("keep_markers", self.0.keep_markers)?;
        Ok(all)
    }
}

#[pymethods]
impl Marker {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str, &'static str) {
        ("name", "start", "end")
    }

    #[new]
    #[pyo3(signature = (name, start, end, *, also_end = Argument::Missing, reopen = false, keep_markers = false))]
    fn new(
        py: Python<'_>,
        name: &str,
        start: &Bound<'_, PyAny>,
        end: &Bound<'_, PyAny>,
        also_end: Argument<'_>,
        reopen: bool,
        keep_markers: bool,
    ) -> PyResult<Self> {
        let start = read_pattern(start, "start")?;
        let mut ends = vec![read_pattern(end, "end")?];
        if let Some(more) = also_end.given() {
            if !is_sequence(more)? {
                return Err(PyTypeError::new_err(format!(
                    "also_end must be a sequence of patterns, not {}; put a single one into a list",
                    type_name(more)
                )));
            }
            for (index, end) in more.try_iter()?.enumerate() {
                ends.push(read_pattern(&end?, &format!("also_end[{index}]"))?);
            }
        }
        core::Marker::new(name, start, ends, reopen, keep_markers)
            .map(Self)
            .map_err(|error| to_py(py, error))
    }

    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    #[getter]
    fn start<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        pattern_object(py, &self.0.start)
    }

    #[getter]
    fn end<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let end = self.0.ends.first().map(Vec::as_slice);
        pattern_object(py, end.unwrap_or_default())
    }

    #[getter]
    fn also_end<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let more = self.0.ends.iter().skip(1);
        let more = more.map(|end| pattern_object(py, end));
        PyTuple::new(py, more.collect::<PyResult<Vec<_>>>()?)
    }

    #[getter]
    fn reopen(&self) -> bool {
        self.0.reopen
    }

    #[getter]
    fn keep_markers(&self) -> bool {
        self.0.keep_markers
    }

    fn __eq__(&self, other: &Bound<'_, Self>) -> bool {
        self.0 == other.get().0
    }

    fn __hash__(&self) -> u64 {
        hash_of(&self.0)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let also_end = self.also_end(py)?;
        Ok(CallRepr::new(py, "Marker")
            .argument(self.name())?
            .argument(self.start(py)?)?
            .argument(self.end(py)?)?
            .keyword_if(!also_end.is_empty(), "also_end", also_end)?
            .keyword_if(self.0.reopen, "reopen", true)?
            .keyword_if(self.0.keep_markers, "keep_markers", true)?
            .end())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Reduced<'py> {
        let make = with_keywords(py.get_type::<Self>(), &self.keywords(py)?)?;
        reduced(py, make, (self.name(), self.start(py)?, self.end(py)?))
    }
}

/// Markers as a caller gives them.
pub(crate) fn read_markers(markers: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<core::Marker>> {
    if !is_sequence(markers)? {
        return Err(PyTypeError::new_err(format!(
            "{name} must be a sequence of Marker, not {}; put a single one into a list",
            type_name(markers)
        )));
    }
    let mut all = Vec::new();
    for (index, marker) in markers.try_iter()?.enumerate() {
        let marker = marker?;
        let marker = marker.cast::<Marker>().map_err(|_| {
            PyTypeError::new_err(format!(
                "{name}[{index}] must be a Marker, not {}",
                type_name(&marker)
            ))
        })?;
        all.push(marker.get().0.clone());
    }
    Ok(all)
}
