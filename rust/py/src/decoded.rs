//! `DecodedText`.

use crate::attribution::{AttributionList, TokenAnchor, TokenAttribution};
use crate::choice::{MASK_RULES, SHARED, UNITS, choose};
use crate::error::{guarded, to_py};
use crate::ids::Argument;
use crate::position::position;
use detok_core as core;
use detok_core::{MaskRule, Shared, SpanIndex, Unit};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyMemoryView, PyRange, PyString, PyTuple, PyType};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Decoded text and the generated tokens attributed to it.
#[pyclass(frozen, module = "detok")]
pub(crate) struct DecodedText(Mutex<State>);

#[derive(Default)]
struct State {
    decoded: Arc<core::DecodedText>,
    /// Takes the place of `decoded` at the first look: what a flush gives is often dropped unread.
    unread: Option<Arc<core::Transcript>>,
    /// Made when first asked for, gone when the text changes.
    index: Option<(Unit, Arc<SpanIndex>)>,
    columns: Option<Columns>,
}

/// Ids, offsets and flags of all records, as Python's bytes.
type Columns = [Py<PyBytes>; 3];

/// The class, and what to call it with.
type Reduced<'py> = (Bound<'py, PyType>, (String, Vec<TokenAttribution>));

/// Bits of the flags column.
const FLAG_VISIBLE: u8 = 1;
const FLAG_CONTINUES_CHAR: u8 = 2;
const FLAG_CUT: u8 = 4;

impl DecodedText {
    pub(crate) fn new_from(decoded: core::DecodedText) -> Self {
        Self::new_shared(Arc::new(decoded))
    }

    /// Changing it changes a copy.
    pub(crate) fn new_shared(decoded: Arc<core::DecodedText>) -> Self {
        Self(Mutex::new(State {
            decoded,
            unread: None,
            index: None,
            columns: None,
        }))
    }

    pub(crate) fn new_unread(transcript: Arc<core::Transcript>) -> Self {
        Self(Mutex::new(State {
            unread: Some(transcript),
            ..State::default()
        }))
    }

    /// Decodes what was not read yet, so every method that looks at the text may fail.
    fn state(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, State>> {
        guarded(py, || {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(transcript) = &state.unread {
                state.decoded = Arc::clone(transcript.decoded());
                state.unread = None;
            }
            Ok(state)
        })
    }

    /// As it is now; later changes leave it as it is.
    pub(crate) fn decoded(&self, py: Python<'_>) -> PyResult<Arc<core::DecodedText>> {
        Ok(Arc::clone(&self.state(py)?.decoded))
    }

    /// Changes the text, without changing what was handed out of it.
    fn change<R>(
        &self,
        py: Python<'_>,
        change: impl FnOnce(&mut core::DecodedText) -> Result<R, core::Error>,
    ) -> PyResult<R> {
        let mut state = self.state(py)?;
        let changed = guarded(py, || Ok(change(Arc::make_mut(&mut state.decoded))))?;
        if changed.is_ok() {
            state.index = None;
            state.columns = None;
        }
        drop(state);
        changed.map_err(|error| to_py(py, error))
    }

    fn span_index(&self, py: Python<'_>, unit: Unit) -> PyResult<Arc<SpanIndex>> {
        let mut state = self.state(py)?;
        match &state.index {
            Some((known, index)) if *known == unit => Ok(Arc::clone(index)),
            _ => {
                let index = Arc::new(SpanIndex::new(&state.decoded, unit));
                state.index = Some((unit, Arc::clone(&index)));
                Ok(index)
            }
        }
    }

    fn columns(&self, py: Python<'_>) -> PyResult<Columns> {
        let mut state = self.state(py)?;
        if let Some(columns) = &state.columns {
            return Ok(columns.each_ref().map(|column| column.clone_ref(py)));
        }
        let records = &state.decoded.attributions;
        let ids: Vec<u8> = records
            .iter()
            .flat_map(|record| record.token_id.to_ne_bytes())
            .collect();
        let offsets: Vec<u8> = records
            .iter()
            .flat_map(|record| record.anchor.byte_offset().to_ne_bytes())
            .collect();
        let flags: Vec<u8> = records.iter().map(flags).collect();
        let columns = [ids, offsets, flags].map(|column| PyBytes::new(py, &column).unbind());
        state.columns = Some(columns.each_ref().map(|column| column.clone_ref(py)));
        Ok(columns)
    }
}

pub(crate) fn flags(record: &core::TokenAttribution) -> u8 {
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    flag(record.anchor.is_visible(), FLAG_VISIBLE)
        | flag(record.continues_char, FLAG_CONTINUES_CHAR)
        | flag(record.cut, FLAG_CUT)
}

#[pymethods]
impl DecodedText {
    #[new]
    #[pyo3(signature = (text = "", attributions = Argument::Missing))]
    fn new(py: Python<'_>, text: &str, attributions: Argument<'_>) -> PyResult<Self> {
        let mut records = core::Attributions::new();
        if let Some(attributions) = attributions.given() {
            for (index, item) in attributions.try_iter()?.enumerate() {
                let item = item?;
                let record = item.cast::<TokenAttribution>().map_err(|_| {
                    PyTypeError::new_err(format!(
                        "attributions[{index}] must be a TokenAttribution"
                    ))
                })?;
                records.push(record.get().0);
            }
        }
        let decoded =
            core::DecodedText::new(text.to_owned(), records).map_err(|error| to_py(py, error))?;
        Ok(Self::new_from(decoded))
    }

    #[getter]
    fn text(&self, py: Python<'_>) -> PyResult<Py<PyString>> {
        Ok(PyString::new(py, &self.decoded(py)?.text).unbind())
    }

    #[getter]
    fn attributions(&self, py: Python<'_>) -> PyResult<AttributionList> {
        Ok(AttributionList(self.decoded(py)?))
    }

    #[getter]
    fn token_ids(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        let decoded = self.decoded(py)?;
        let ids = decoded.attributions.iter().map(|record| record.token_id);
        Ok(ids.collect())
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(!self.state(py)?.decoded.is_empty())
    }

    fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        // One lock at a time: two texts compared both ways in two threads must not wait for each other.
        let Ok(other) = other.cast::<Self>() else {
            return Ok(false);
        };
        let other = other.get().decoded(py)?;
        Ok(*self.decoded(py)? == *other)
    }

    fn __add__(&self, py: Python<'_>, other: &Bound<'_, Self>) -> PyResult<Self> {
        let mut sum = (*self.decoded(py)?).clone();
        sum.append(&*other.get().decoded(py)?)
            .map_err(|error| to_py(py, error))?;
        Ok(Self::new_from(sum))
    }

    /// Joins `other` to the end.
    fn append(&self, py: Python<'_>, other: &Bound<'_, Self>) -> PyResult<()> {
        let other = other.get().decoded(py)?;
        self.change(py, |decoded| decoded.append(&other))
    }

    /// Splits off the first `byte_len` bytes and the records that leave with them.
    fn drain_prefix(&self, py: Python<'_>, byte_len: &Bound<'_, PyAny>) -> PyResult<Self> {
        let byte_len = position(byte_len, "byte_len")?;
        let prefix = self.change(py, |decoded| decoded.drain_prefix(byte_len))?;
        Ok(Self::new_from(prefix))
    }

    /// Returns everything and leaves nothing.
    fn take(&self, py: Python<'_>) -> PyResult<Self> {
        let state = std::mem::take(&mut *self.state(py)?);
        Ok(Self(Mutex::new(state)))
    }

    /// Half-open ranges of text, one per token.
    #[pyo3(signature = (*, unit = "codepoint", shared = "touch"))]
    fn spans(&self, py: Python<'_>, unit: &str, shared: &str) -> PyResult<Vec<(usize, usize)>> {
        let unit = choose("unit", unit, &UNITS)?;
        let shared: Shared = choose("shared", shared, &SHARED)?;
        guarded(py, || {
            let spans = core::spans(&*self.decoded(py)?, unit, shared);
            Ok(spans
                .into_iter()
                .map(|span| (span.start, span.end))
                .collect())
        })
    }

    /// Anchors of all tokens.
    #[pyo3(signature = (*, unit = "codepoint"))]
    fn offsets(&self, py: Python<'_>, unit: &str) -> PyResult<Vec<usize>> {
        let unit = choose("unit", unit, &UNITS)?;
        guarded(py, || Ok(core::offsets(&*self.decoded(py)?, unit)))
    }

    /// Indices of the tokens whose text overlaps a range.
    #[pyo3(signature = (start, end, *, unit = "codepoint"))]
    fn tokens_at<'py>(
        &self,
        py: Python<'py>,
        start: &Bound<'py, PyAny>,
        end: &Bound<'py, PyAny>,
        unit: &str,
    ) -> PyResult<Bound<'py, PyRange>> {
        let unit = choose("unit", unit, &UNITS)?;
        let (start, end) = (position(start, "start")?, position(end, "end")?);
        let tokens = guarded(py, || {
            self.span_index(py, unit)?
                .tokens_at(start, end)
                .map_err(|error| to_py(py, error))
        })?;
        PyRange::new(py, tokens.start.cast_signed(), tokens.end.cast_signed())
    }

    /// One bool per token: does it belong to the ranges?
    #[pyo3(signature = (ranges, *, unit = "codepoint", rule = "first"))]
    fn mask(
        &self,
        py: Python<'_>,
        ranges: &Bound<'_, PyAny>,
        unit: &str,
        rule: &str,
    ) -> PyResult<Vec<bool>> {
        let unit = choose("unit", unit, &UNITS)?;
        let rule: MaskRule = choose("rule", rule, &MASK_RULES)?;
        let mut pairs = Vec::new();
        for range in ranges.try_iter()? {
            let range = range?;
            let pair = range.len().is_ok_and(|len| len == 2);
            let ends = range
                .get_item(0)
                .ok()
                .zip(range.get_item(1).ok())
                .filter(|_| pair);
            let Some((start, end)) = ends else {
                return Err(PyTypeError::new_err(format!(
                    "ranges[{}] must be a pair (start, end), not {}",
                    pairs.len(),
                    range.repr()?
                )));
            };
            pairs.push((position(&start, "start")?, position(&end, "end")?));
        }
        guarded(py, || {
            core::mask(&*self.decoded(py)?, &pairs, unit, rule).map_err(|error| to_py(py, error))
        })
    }

    /// Columns of ids, byte offsets and flags.
    fn to_numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let columns = self.columns(py)?;
        let formats = [("uint32", "I"), ("uint32", "I"), ("uint8", "B")];
        let numpy = py.import("numpy");
        let views = columns
            .iter()
            .zip(formats)
            .map(|(column, (dtype, format))| {
                let column = column.bind(py);
                match &numpy {
                    Ok(numpy) => numpy.call_method1("frombuffer", (column, dtype)),
                    Err(_) => PyMemoryView::from(column.as_any())?.call_method1("cast", (format,)),
                }
            });
        PyTuple::new(py, views.collect::<PyResult<Vec<_>>>()?)
    }

    /// Text and records as plain values, for JSON.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let decoded = self.decoded(py)?;
        let tokens = PyList::empty(py);
        for record in &decoded.attributions {
            let token = PyDict::new(py);
            token.set_item("token_id", record.token_id)?;
            token.set_item("kind", TokenAnchor(record.anchor).kind())?;
            token.set_item("byte_offset", record.anchor.byte_offset())?;
            token.set_item("continues_char", record.continues_char)?;
            token.set_item("cut", record.cut)?;
            tokens.append(token)?;
        }
        let all = PyDict::new(py);
        all.set_item("text", &decoded.text)?;
        all.set_item("attributions", tokens)?;
        Ok(all)
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py()
            .import("detok.view.html")?
            .call_method1("render", (slf,))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let decoded = self.decoded(py)?;
        let text = decoded.text.as_str().into_pyobject(py)?;
        let records = AttributionList(decoded.clone()).__repr__();
        Ok(format!("DecodedText({}, {records})", text.repr()?))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let decoded = self.decoded(py)?;
        let records = decoded.attributions.iter().copied();
        let records = records.map(TokenAttribution).collect();
        Ok((py.get_type::<Self>(), (decoded.text.clone(), records)))
    }
}
