//! `TokenAnchor`, `TokenAttribution`, and the list of them that a text has.

use crate::ids::token_id;
use crate::position::position;
use crate::value::with_keywords;
use detok_core as core;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySlice, PyTuple, PyType};
use std::sync::Arc;

/// Where a token stands in text.
#[pyclass(frozen, eq, hash, module = "detok")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TokenAnchor(pub(crate) core::TokenAnchor);

#[pymethods]
impl TokenAnchor {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str) {
        ("kind", "byte_offset")
    }

    #[new]
    fn new(kind: &str, byte_offset: &Bound<'_, PyAny>) -> PyResult<Self> {
        match kind {
            "visible" => Self::visible(byte_offset),
            "zero_width" => Self::zero_width(byte_offset),
            _ => Err(PyValueError::new_err(format!(
                "kind must be \"visible\" or \"zero_width\", not {kind:?}"
            ))),
        }
    }

    /// A token with text of its own.
    #[staticmethod]
    fn visible(byte_offset: &Bound<'_, PyAny>) -> PyResult<Self> {
        let byte_offset = offset_32(byte_offset)?;
        Ok(Self(core::TokenAnchor::Visible { byte_offset }))
    }

    /// A token without text of its own.
    #[staticmethod]
    fn zero_width(byte_offset: &Bound<'_, PyAny>) -> PyResult<Self> {
        let byte_offset = offset_32(byte_offset)?;
        Ok(Self(core::TokenAnchor::ZeroWidth { byte_offset }))
    }

    #[getter]
    pub(crate) fn kind(&self) -> &'static str {
        if self.0.is_visible() {
            "visible"
        } else {
            "zero_width"
        }
    }

    #[getter]
    fn is_visible(&self) -> bool {
        self.0.is_visible()
    }

    #[getter]
    fn byte_offset(&self) -> u32 {
        self.0.byte_offset()
    }

    fn __repr__(&self) -> String {
        format!("TokenAnchor.{}({})", self.kind(), self.byte_offset())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (&'static str, u32)) {
        (py.get_type::<Self>(), (self.kind(), self.byte_offset()))
    }
}

fn offset_32(byte_offset: &Bound<'_, PyAny>) -> PyResult<u32> {
    u32::try_from(position(byte_offset, "byte_offset")?).map_err(|_| {
        PyValueError::new_err(format!(
            "byte_offset must be at most {}, not {byte_offset}",
            u32::MAX
        ))
    })
}

/// One generated token and its place in decoded text.
#[pyclass(frozen, eq, hash, module = "detok")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TokenAttribution(pub(crate) core::TokenAttribution);

#[pymethods]
impl TokenAttribution {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str) {
        ("token_id", "anchor")
    }

    #[new]
    #[pyo3(signature = (token_id, anchor, *, continues_char = false, cut = false))]
    fn new(
        token_id: &Bound<'_, PyAny>,
        anchor: &Bound<'_, TokenAnchor>,
        continues_char: bool,
        cut: bool,
    ) -> PyResult<Self> {
        let anchor = anchor.get().0;
        if continues_char && !anchor.is_visible() {
            return Err(PyValueError::new_err(
                "a zero-width token has no character to continue",
            ));
        }
        Ok(Self(core::TokenAttribution {
            token_id: self::token_id(token_id, 0)?,
            anchor,
            continues_char,
            cut,
        }))
    }

    #[getter]
    fn token_id(&self) -> u32 {
        self.0.token_id
    }

    #[getter]
    fn anchor(&self) -> TokenAnchor {
        TokenAnchor(self.0.anchor)
    }

    #[getter]
    fn continues_char(&self) -> bool {
        self.0.continues_char
    }

    #[getter]
    fn cut(&self) -> bool {
        self.0.cut
    }

    fn __repr__(&self) -> String {
        let flag = |set: bool, name: &str| {
            if set {
                format!(", {name}=True")
            } else {
                String::new()
            }
        };
        format!(
            "TokenAttribution({}, {}{}{})",
            self.0.token_id,
            self.anchor().__repr__(),
            flag(self.0.continues_char, "continues_char"),
            flag(self.0.cut, "cut")
        )
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, (u32, TokenAnchor))> {
        let keywords = PyDict::new(py);
        keywords.set_item("continues_char", self.0.continues_char)?;
        keywords.set_item("cut", self.0.cut)?;
        let make = with_keywords(py.get_type::<Self>(), &keywords)?;
        Ok((make, (self.0.token_id, self.anchor())))
    }
}

/// The records of a `DecodedText`, made one by one as they are asked for.
#[pyclass(frozen, sequence, module = "detok")]
pub(crate) struct AttributionList(pub(crate) Arc<core::DecodedText>);

impl AttributionList {
    fn records(&self) -> &[core::TokenAttribution] {
        &self.0.attributions
    }
}

#[pymethods]
impl AttributionList {
    fn __len__(&self) -> usize {
        self.records().len()
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        index: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let records = self.records();
        if let Ok(slice) = index.cast::<PySlice>() {
            let range = slice.indices(records.len().cast_signed())?;
            let mut at = range.start;
            let items = PyList::empty(py);
            for _ in 0..range.slicelength {
                items.append(record(records, at.cast_unsigned())?)?;
                at = at.wrapping_add(range.step);
            }
            return Ok(items.into_any());
        }
        let at = crate::position::index(index, records.len())?.unwrap_or(records.len());
        Ok(Bound::new(py, record(records, at)?)?.into_any())
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        if let Ok(other) = other.cast::<Self>() {
            return Ok(self.records() == other.get().records());
        }
        if !(other.is_instance_of::<PyList>() || other.is_instance_of::<PyTuple>()) {
            return Ok(false);
        }
        let mut same = other.len()? == self.records().len();
        for (record, item) in self.records().iter().zip(other.try_iter()?) {
            same = same
                && item?
                    .cast::<TokenAttribution>()
                    .is_ok_and(|item| item.get().0 == *record);
        }
        Ok(same)
    }

    fn __contains__(&self, item: &Bound<'_, PyAny>) -> bool {
        let item = item.cast::<TokenAttribution>();
        item.is_ok_and(|item| self.records().contains(&item.get().0))
    }

    /// Position of the first equal record between `start` and `stop`.
    #[pyo3(signature = (item, start = 0, stop = isize::MAX))]
    fn index(&self, item: &Bound<'_, PyAny>, start: isize, stop: isize) -> PyResult<usize> {
        let len = self.records().len();
        let bound = |at: isize| {
            if at < 0 {
                len.saturating_sub(at.unsigned_abs())
            } else {
                at.unsigned_abs().min(len)
            }
        };
        let item = item
            .cast::<TokenAttribution>()
            .ok()
            .map(|item| item.get().0);
        let found = (bound(start)..bound(stop)).find(|&at| self.records().get(at).copied() == item);
        found.ok_or_else(|| PyValueError::new_err("no such record"))
    }

    /// How many records are equal to `item`.
    fn count(&self, item: &Bound<'_, PyAny>) -> usize {
        let Ok(item) = item.cast::<TokenAttribution>() else {
            return 0;
        };
        self.records()
            .iter()
            .filter(|record| **record == item.get().0)
            .count()
    }

    pub(crate) fn __repr__(&self) -> String {
        let records: Vec<String> = self
            .records()
            .iter()
            .map(|record| TokenAttribution(*record).__repr__())
            .collect();
        format!("[{}]", records.join(", "))
    }

    /// A list of the records: the text they belong to is not carried along.
    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (Vec<TokenAttribution>,)) {
        (
            py.get_type::<PyList>(),
            (self
                .records()
                .iter()
                .copied()
                .map(TokenAttribution)
                .collect(),),
        )
    }
}

fn record(records: &[core::TokenAttribution], at: usize) -> PyResult<TokenAttribution> {
    let record = records.get(at).copied().map(TokenAttribution);
    record.ok_or_else(|| PyIndexError::new_err("record index out of range"))
}
