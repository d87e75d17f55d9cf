//! What a step gave, as Arrow arrays by the `PyCapsule` interface: libraries that speak it share one
//! copy of the columns.

use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_data::ffi::FFI_ArrowArray;
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, DataType, Field, Fields};
use detok_core::StepOutput;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::sync::Arc;

/// Rows of a step: slot, text, `kept_tokens`, and the columns of its records.
#[pyclass(frozen, module = "detok")]
pub(crate) struct ArrowBatch(ArrayData);

impl ArrowBatch {
    pub(crate) fn new(slots: &[u32], output: &StepOutput) -> PyResult<Self> {
        Self::build(slots, output).map_err(failed)
    }

    fn build(slots: &[u32], output: &StepOutput) -> Result<Self, ArrowError> {
        let (mut text, mut texts, mut records) = (String::new(), Vec::new(), Vec::new());
        let (mut ids, mut places, mut flags) = (Vec::new(), Vec::new(), Vec::new());
        for position in 0..output.len() {
            text.push_str(output.text(position).unwrap_or_default());
            texts.push(text.len());
            for record in output.records(position) {
                ids.push(record.token_id);
                places.push(record.anchor.byte_offset());
                flags.push(crate::decoded::flags(&record));
            }
            records.push(ids.len());
        }
        let rows = output.len();
        let text = ArrayData::builder(DataType::LargeUtf8)
            .len(rows)
            .add_buffer(offsets(&texts))
            .add_buffer(Buffer::from_vec(text.into_bytes()))
            .build()?;
        let kept: Vec<u32> = output.kept_tokens().collect();
        let array = ArrayData::builder(DataType::Struct(fields()))
            .len(rows)
            .add_child_data(numbers(DataType::UInt32, slots.to_vec())?)
            .add_child_data(text)
            .add_child_data(numbers(DataType::UInt32, kept)?)
            .add_child_data(list(&records, numbers(DataType::UInt32, ids)?)?)
            .add_child_data(list(&records, numbers(DataType::UInt32, places)?)?)
            .add_child_data(list(&records, numbers(DataType::UInt8, flags)?)?)
            .build()?;
        Ok(Self(array))
    }
}

fn fields() -> Fields {
    let field = |name: &str, kind: DataType| Field::new(name, kind, false);
    let list = |kind: DataType| DataType::LargeList(Arc::new(item(kind)));
    Fields::from(vec![
        field("slot", DataType::UInt32),
        field("text", DataType::LargeUtf8),
        field("kept_tokens", DataType::UInt32),
        field("token_ids", list(DataType::UInt32)),
        field("byte_offsets", list(DataType::UInt32)),
        field("flags", list(DataType::UInt8)),
    ])
}

fn item(kind: DataType) -> Field {
    Field::new("item", kind, false)
}

/// Where parts begin that end there, and the last ends.
fn offsets(ends: &[usize]) -> Buffer {
    let ends = ends.iter().map(|end| end.cast_signed() as i64);
    Buffer::from_vec(std::iter::once(0).chain(ends).collect::<Vec<i64>>())
}

fn numbers<T: arrow_buffer::ArrowNativeType>(
    kind: DataType,
    numbers: Vec<T>,
) -> Result<ArrayData, ArrowError> {
    ArrayData::builder(kind)
        .len(numbers.len())
        .add_buffer(Buffer::from_vec(numbers))
        .build()
}

fn list(ends: &[usize], items: ArrayData) -> Result<ArrayData, ArrowError> {
    let kind = DataType::LargeList(Arc::new(item(items.data_type().clone())));
    ArrayData::builder(kind)
        .len(ends.len())
        .add_buffer(offsets(ends))
        .add_child_data(items)
        .build()
}

fn failed(error: ArrowError) -> PyErr {
    pyo3::exceptions::PyRuntimeError::new_err(error.to_string())
}

#[pymethods]
impl ArrowBatch {
    /// The columns' types, as a capsule.
    #[allow(clippy::unused_self)] // The protocol asks the object.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(&DataType::Struct(fields())).map_err(failed)?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    /// The columns, as a pair of capsules. `requested_schema` is passed over, as the protocol allows.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        #[allow(unused_variables)] requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        let array = FFI_ArrowArray::new(&self.0);
        let array = PyCapsule::new_with_value(py, array, c"arrow_array")?;
        Ok((self.__arrow_c_schema__(py)?, array))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }
}
