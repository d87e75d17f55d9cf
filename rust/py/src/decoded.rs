//! `DecodedText`.

use crate::attribution::{AttributionList, TokenAnchor, TokenAttribution};
use crate::choice::{MASK_RULES, SHARED, UNITS, choose};
use crate::error::{guarded, to_py};
use crate::ids::Argument;
use detok_core as core;
use detok_core::{MaskRule, Shared, SpanIndex, Unit};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyMemoryView, PyRange, PyTuple, PyType};
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

/// Bits of the flags column.
const FLAG_VISIBLE: u8 = 1;
const FLAG_CONTINUES_CHAR: u8 = 2;
const FLAG_CUT: u8 = 4;

impl DecodedText {
    pub(crate) fn new_from(decoded: core::DecodedText) -> Self {
        Self(Mutex::new(State {
            decoded: Arc::new(decoded),
            ..State::default()
        }))
    }

    pub(crate) fn new_unread(transcript: Arc<core::Transcript>) -> Self {
        Self(Mutex::new(State {
            unread: Some(transcript),
            ..State::default()
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(transcript) = state.unread.take() {
            state.decoded = Arc::clone(transcript.decoded());
        }
        state
    }

    fn decoded(&self) -> Arc<core::DecodedText> {
        Arc::clone(&self.state().decoded)
    }

    /// Changes the text, without changing what was handed out of it.
    fn change<R>(&self, change: impl FnOnce(&mut core::DecodedText) -> R) -> R {
        let mut state = self.state();
        state.index = None;
        state.columns = None;
        change(Arc::make_mut(&mut state.decoded))
    }

    fn span_index(&self, unit: Unit) -> Arc<SpanIndex> {
        let mut state = self.state();
        match &state.index {
            Some((known, index)) if *known == unit => Arc::clone(index),
            _ => {
                let index = Arc::new(SpanIndex::new(&state.decoded, unit));
                state.index = Some((unit, Arc::clone(&index)));
                index
            }
        }
    }

    fn columns(&self, py: Python<'_>) -> [Py<PyBytes>; 3] {
        let mut state = self.state();
        if let Some(columns) = &state.columns {
            return columns.each_ref().map(|column| column.clone_ref(py));
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
        columns
    }
}

fn flags(record: &core::TokenAttribution) -> u8 {
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    flag(record.anchor.is_visible(), FLAG_VISIBLE)
        | flag(record.continues_char, FLAG_CONTINUES_CHAR)
        | flag(record.cut, FLAG_CUT)
}

/// A position or length given by the caller.
fn position(value: i64, name: &str) -> PyResult<usize> {
    usize::try_from(value)
        .map_err(|_| PyValueError::new_err(format!("{name} must not be negative: {value}")))
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
    fn text(&self) -> String {
        self.decoded().text.clone()
    }

    #[getter]
    fn attributions(&self) -> AttributionList {
        AttributionList(self.decoded())
    }

    #[getter]
    fn token_ids(&self) -> Vec<u32> {
        self.decoded()
            .attributions
            .iter()
            .map(|record| record.token_id)
            .collect()
    }

    fn __bool__(&self) -> bool {
        !self.state().decoded.is_empty()
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        // One lock at a time: two texts compared both ways in two threads must not wait for each other.
        let other = other.cast::<Self>().map(|other| other.get().decoded());
        other.is_ok_and(|other| *self.decoded() == *other)
    }

    fn __add__(&self, py: Python<'_>, other: &Bound<'_, Self>) -> PyResult<Self> {
        let mut sum = (*self.decoded()).clone();
        sum.append(&other.get().decoded())
            .map_err(|error| to_py(py, error))?;
        Ok(Self::new_from(sum))
    }

    /// Joins `other` to the end.
    fn append(&self, py: Python<'_>, other: &Bound<'_, Self>) -> PyResult<()> {
        let other = other.get().decoded();
        self.change(|decoded| decoded.append(&other))
            .map_err(|error| to_py(py, error))
    }

    /// Splits off the first `byte_len` bytes and the records that leave with them.
    fn drain_prefix(&self, py: Python<'_>, byte_len: i64) -> PyResult<Self> {
        let byte_len = position(byte_len, "byte_len")?;
        let prefix = self.change(|decoded| decoded.drain_prefix(byte_len));
        prefix.map(Self::new_from).map_err(|error| to_py(py, error))
    }

    /// Returns everything and leaves nothing.
    fn take(&self) -> Self {
        Self::new_from(self.change(core::DecodedText::take))
    }

    /// Half-open ranges of text, one per token.
    #[pyo3(signature = (*, unit = "codepoint", shared = "touch"))]
    fn spans(&self, py: Python<'_>, unit: &str, shared: &str) -> PyResult<Vec<(usize, usize)>> {
        let unit = choose("unit", unit, &UNITS)?;
        let shared: Shared = choose("shared", shared, &SHARED)?;
        guarded(py, || {
            let spans = core::spans(&self.decoded(), unit, shared);
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
        guarded(py, || Ok(core::offsets(&self.decoded(), unit)))
    }

    /// Indices of the tokens whose text overlaps a range.
    #[pyo3(signature = (start, end, *, unit = "codepoint"))]
    fn tokens_at<'py>(
        &self,
        py: Python<'py>,
        start: i64,
        end: i64,
        unit: &str,
    ) -> PyResult<Bound<'py, PyRange>> {
        let unit = choose("unit", unit, &UNITS)?;
        let (start, end) = (position(start, "start")?, position(end, "end")?);
        let tokens = guarded(py, || {
            self.span_index(unit)
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
            let (start, end): (i64, i64) = range?.extract()?;
            pairs.push((position(start, "start")?, position(end, "end")?));
        }
        guarded(py, || {
            core::mask(&self.decoded(), &pairs, unit, rule).map_err(|error| to_py(py, error))
        })
    }

    /// Columns of ids, byte offsets and flags.
    fn to_numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let columns = self.columns(py);
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
        let decoded = self.decoded();
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
        let decoded = self.decoded();
        let text = decoded.text.as_str().into_pyobject(py)?;
        let records = AttributionList(decoded.clone()).__repr__();
        Ok(format!("DecodedText({}, {records})", text.repr()?))
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> (Bound<'py, PyType>, (String, Vec<TokenAttribution>)) {
        let decoded = self.decoded();
        let records = decoded
            .attributions
            .iter()
            .copied()
            .map(TokenAttribution)
            .collect();
        (py.get_type::<Self>(), (decoded.text.clone(), records))
    }
}
