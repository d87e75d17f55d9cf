//! Python objects → token ids. Everything is checked before a stream's lock is taken.

use crate::error::{to_py, unknown_token_error};
use detok_core::{Error, Prompt, SampledIds, TokenId};
use pyo3::IntoPyObjectExt;
use pyo3::buffer::{ElementType, PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyInt, PyList, PyString, PyTuple};

/// An argument that may be left out; `None` is a value like any other, and none of ids.
pub(crate) enum Argument<'py> {
    Missing,
    Given(Bound<'py, PyAny>),
}

impl<'py> Argument<'py> {
    pub(crate) fn given(&self) -> Option<&Bound<'py, PyAny>> {
        match self {
            Self::Missing => None,
            Self::Given(value) => Some(value),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Argument<'py> {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self::Given(value.to_owned()))
    }
}

/// What the numbers of a sequence are, for errors.
#[derive(Clone, Copy)]
pub(crate) enum Noun {
    TokenId,
    Slot,
    Count,
}

impl Noun {
    const fn word(self) -> &'static str {
        match self {
            Self::TokenId => "token id",
            Self::Slot => "slot",
            Self::Count => "count",
        }
    }

    fn out_of_range(self, number: Bound<'_, PyAny>, index: usize) -> PyErr {
        let word = self.word();
        let message = format!(
            "{word} {} at index {index} is outside the range of {word}s, 0 to {}",
            short_number(&number),
            TokenId::MAX
        );
        match self {
            Self::TokenId => unknown_token_error(number.py(), (message, number.unbind(), index)),
            Self::Slot | Self::Count => PyValueError::new_err(message),
        }
    }
}

/// One id. `index` is its position in this call, for errors.
#[inline]
pub(crate) fn token_id(id: &Bound<'_, PyAny>, index: usize) -> PyResult<TokenId> {
    number(Noun::TokenId, id, index)
}

/// One slot.
pub(crate) fn slot(slot: &Bound<'_, PyAny>) -> PyResult<u32> {
    number(Noun::Slot, slot, 0)
}

#[inline]
fn number(noun: Noun, number: &Bound<'_, PyAny>, index: usize) -> PyResult<u32> {
    // `bool` is a subclass of `int`, so the exact type refuses it.
    if number.is_exact_instance_of::<PyInt>()
        && let Ok(number) = number.extract::<u32>()
    {
        return Ok(number);
    }
    unusual_number(noun, number, index)
}

#[cold]
fn unusual_number(noun: Noun, number: &Bound<'_, PyAny>, index: usize) -> PyResult<u32> {
    let has_index = number.hasattr("__index__")?;
    if number.is_instance_of::<PyBool>() || !has_index {
        return Err(PyTypeError::new_err(format!(
            "{} at index {index} must be an int, not {}: {}",
            noun.word(),
            type_name(number),
            short_repr(number)
        )));
    }
    let operator = number.py().import("operator")?;
    let number = operator.call_method1("index", (number,))?;
    number
        .extract::<u32>()
        .map_err(|_| noun.out_of_range(number, index))
}

/// An int in words; Python refuses to write out those of thousands of digits.
fn short_number(number: &Bound<'_, PyAny>) -> String {
    match number
        .call_method0("bit_length")
        .and_then(|bits| bits.extract::<u64>())
    {
        Ok(bits) if bits > 256 => format!("(an int of {bits} bits)"),
        _ => number.to_string(),
    }
}

pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    object
        .get_type()
        .name()
        .map_or_else(|_| "object".into(), |name| name.to_string())
}

pub(crate) fn short_repr(object: &Bound<'_, PyAny>) -> String {
    let repr = object
        .repr()
        .map_or_else(|_| "?".into(), |repr| repr.to_string());
    if repr.chars().count() > 60 {
        format!("{}...", repr.chars().take(60).collect::<String>())
    } else {
        repr
    }
}

/// Items read one by one between two looks at whether the user wants to stop.
const SIGNALS_EVERY: usize = 1 << 16;

/// All ids of a sequence or buffer.
pub(crate) fn token_ids(ids: &Bound<'_, PyAny>) -> PyResult<Vec<TokenId>> {
    numbers(Noun::TokenId, ids)
}

/// All ids of a sequence or buffer that usually has few.
pub(crate) fn sampled_ids(ids: &Bound<'_, PyAny>) -> PyResult<SampledIds> {
    if let Ok(list) = ids.cast::<PyList>() {
        let mut few = SampledIds::with_capacity(list.len());
        if read_plain_list(list, |id| few.push(id)) {
            return Ok(few);
        }
    }
    Ok(unusual_numbers(Noun::TokenId, ids)?.into())
}

/// All numbers of a sequence or buffer.
pub(crate) fn numbers(noun: Noun, numbers: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let mut all = Vec::new();
    read_numbers(noun, numbers, &mut all)?;
    Ok(all)
}

/// All ids into `all`, in place of what it had; its memory serves one sequence after the other.
pub(crate) fn read_token_ids(ids: &Bound<'_, PyAny>, all: &mut Vec<TokenId>) -> PyResult<()> {
    read_numbers(Noun::TokenId, ids, all)
}

fn read_numbers(noun: Noun, numbers: &Bound<'_, PyAny>, all: &mut Vec<u32>) -> PyResult<()> {
    all.clear();
    if let Ok(list) = numbers.cast::<PyList>() {
        all.reserve(list.len());
        if read_plain_list(list, |id| all.push(id)) {
            return Ok(());
        }
    }
    *all = unusual_numbers(noun, numbers)?;
    Ok(())
}

fn unusual_numbers(noun: Noun, ids: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    if let Ok(list) = ids.cast::<PyList>() {
        // Unlike the list, a tuple cannot change under an `__index__`.
        return tuple_numbers(noun, &list.to_tuple());
    }
    if let Ok(tuple) = ids.cast::<PyTuple>() {
        return tuple_numbers(noun, tuple);
    }
    if let Some(buffer) = id_buffer(noun, ids)?
        && let Some(ids) = buffer.to_numbers(noun, ids.py())?
    {
        return Ok(ids);
    }
    check_sequence(noun, ids)?;
    let mut all = Vec::new();
    for index in 0..ids.len()? {
        // A range may be long beyond patience.
        if index % SIGNALS_EVERY == 0 {
            ids.py().check_signals()?;
        }
        all.push(number(noun, &ids.get_item(index)?, index)?);
    }
    Ok(all)
}

/// Reads a list of plain ints in range, the usual case; says whether it was one.
///
/// Items are borrowed: reading an exact int runs no code that could change the list.
#[cfg(not(Py_GIL_DISABLED))]
#[allow(unsafe_code)]
fn read_plain_list(list: &Bound<'_, PyList>, mut push: impl FnMut(TokenId)) -> bool {
    use pyo3::ffi;
    let len = list.len();
    for index in 0..len.cast_signed() {
        // SAFETY: the list is alive and the index within its length, which nothing can change while
        // this thread holds the interpreter lock and runs no Python code; so the item, if there is
        // one, is alive until it was read. Reading an exact int runs no Python code.
        // `tests/test_errors.py` changes lists under an `__index__`, which takes the other way.
        let id = unsafe {
            let item = ffi::PyList_GetItem(list.as_ptr(), index);
            if item.is_null() || ffi::PyLong_CheckExact(item) == 0 {
                return false;
            }
            ffi::PyLong_AsUnsignedLong(item)
        };
        match TokenId::try_from(id) {
            // The highest id may be an error of a word of 32 bits.
            Ok(id) if id < TokenId::MAX => push(id),
            _ => {
                // The other way says what is wrong, if anything is.
                drop(PyErr::take(list.py()));
                return false;
            }
        }
    }
    true
}

/// Without an interpreter lock, a borrowed item may go away under another thread.
#[cfg(Py_GIL_DISABLED)]
fn read_plain_list(_list: &Bound<'_, PyList>, _push: impl FnMut(TokenId)) -> bool {
    false
}

fn tuple_numbers(noun: Noun, tuple: &Bound<'_, PyTuple>) -> PyResult<Vec<u32>> {
    let mut numbers = Vec::with_capacity(tuple.len());
    for (index, item) in tuple.iter_borrowed().enumerate() {
        numbers.push(number(noun, &item, index)?);
    }
    Ok(numbers)
}

/// Ids in memory, by their width and sign.
enum IdBuffer {
    Empty,
    /// At an address that no integer has: items are read one by one.
    Unaligned,
    U32(PyBuffer<u32>),
    I32(PyBuffer<i32>),
    U64(PyBuffer<u64>),
    I64(PyBuffer<i64>),
}

impl IdBuffer {
    fn to_numbers(&self, noun: Noun, py: Python<'_>) -> PyResult<Option<Vec<u32>>> {
        let ids = match self {
            Self::Unaligned => return Ok(None),
            Self::Empty => Ok(Vec::new()),
            Self::U32(buffer) => buffer.to_vec(py),
            Self::I32(buffer) => narrowed(noun, py, &buffer.to_vec(py)?),
            Self::U64(buffer) => narrowed(noun, py, &buffer.to_vec(py)?),
            Self::I64(buffer) => narrowed(noun, py, &buffer.to_vec(py)?),
        };
        ids.map(Some)
    }
}

fn narrowed<'py, T>(noun: Noun, py: Python<'py>, ids: &[T]) -> PyResult<Vec<u32>>
where
    T: Copy + TryInto<TokenId> + std::fmt::Display + IntoPyObject<'py>,
{
    let mut narrow = Vec::with_capacity(ids.len());
    for (index, &id) in ids.iter().enumerate() {
        match id.try_into() {
            Ok(id) => narrow.push(id),
            // The same error as for an int of this value.
            Err(_) => match id.into_py_any(py) {
                Ok(id) => narrow.push(unusual_number(noun, id.bind(py), index)?),
                Err(error) => return Err(error),
            },
        }
    }
    Ok(narrow)
}

/// The buffer of an array of ids; `None` if the object has no buffer.
fn id_buffer(noun: Noun, ids: &Bound<'_, PyAny>) -> PyResult<Option<IdBuffer>> {
    let word = noun.word();
    if ids.is_instance_of::<PyBytes>() || ids.is_instance_of::<PyByteArray>() {
        return Err(PyTypeError::new_err(format!(
            "{word}s must be integers, not bytes: {}",
            short_repr(ids)
        )));
    }
    let Ok(buffer) = PyUntypedBuffer::get(ids) else {
        return Ok(None);
    };
    if buffer.dimensions() != 1 {
        return Err(PyValueError::new_err(format!(
            "{word}s must be a 1-D array, not {}-D",
            buffer.dimensions()
        )));
    }
    let format = buffer.format().to_string_lossy().into_owned();
    let foreign = if cfg!(target_endian = "little") {
        ['>', '!']
    } else {
        ['<', '<']
    };
    let native = !format.starts_with(foreign);
    let typed = match ElementType::from_format(buffer.format()) {
        // The pointer of an empty array need not be aligned, so it has no typed view.
        ElementType::UnsignedInteger { bytes: 4 | 8 }
        | ElementType::SignedInteger { bytes: 4 | 8 }
            if native && buffer.item_count() == 0 =>
        {
            return Ok(Some(IdBuffer::Empty));
        }
        ElementType::UnsignedInteger { bytes: 4 } if native => {
            buffer.into_typed().map(IdBuffer::U32)
        }
        ElementType::SignedInteger { bytes: 4 } if native => buffer.into_typed().map(IdBuffer::I32),
        ElementType::UnsignedInteger { bytes: 8 } if native => {
            buffer.into_typed().map(IdBuffer::U64)
        }
        ElementType::SignedInteger { bytes: 8 } if native => buffer.into_typed().map(IdBuffer::I64),
        _ => {
            return Err(PyTypeError::new_err(format!(
                "{word}s must be an array of native 32- or 64-bit integers, not of format {format:?}"
            )));
        }
    };
    // The type fits, so what may not is the address.
    Ok(Some(typed.unwrap_or(IdBuffer::Unaligned)))
}

/// Refuses what is no sequence of ids, before an item of it is read.
fn check_sequence(noun: Noun, ids: &Bound<'_, PyAny>) -> PyResult<()> {
    let word = noun.word();
    // Tensors are no registered sequences, but have a length and items.
    let is_text = ids.is_instance_of::<PyString>();
    if is_text || !ids.hasattr("__len__")? || !ids.hasattr("__getitem__")? || ids.hasattr("keys")? {
        return Err(PyTypeError::new_err(format!(
            "{word}s must be a list, a tuple, a range or an array of integers, not {}: {}",
            type_name(ids),
            short_repr(ids)
        )));
    }
    match ids.getattr("ndim") {
        Ok(dimensions) if !dimensions.eq(1)? => Err(PyValueError::new_err(format!(
            "{word}s must be 1-D, not {dimensions}-D"
        ))),
        _ => Ok(()),
    }
}

/// A prompt in Python; only the items that are asked for are read.
pub(crate) enum PromptIds<'a, 'py> {
    Empty,
    List(&'a Bound<'py, PyList>),
    Tuple(&'a Bound<'py, PyTuple>),
    Other(&'a Bound<'py, PyAny>, usize),
}

impl<'a, 'py> PromptIds<'a, 'py> {
    pub(crate) fn new(ids: &'a Argument<'py>) -> PyResult<Self> {
        let Some(ids) = ids.given() else {
            return Ok(Self::Empty);
        };
        if let Ok(list) = ids.cast::<PyList>() {
            return Ok(Self::List(list));
        }
        if let Ok(tuple) = ids.cast::<PyTuple>() {
            return Ok(Self::Tuple(tuple));
        }
        if id_buffer(Noun::TokenId, ids)?.is_none() {
            check_sequence(Noun::TokenId, ids)?;
        }
        Ok(Self::Other(ids, ids.len()?))
    }
}

impl Prompt<CallError> for PromptIds<'_, '_> {
    fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::List(list) => list.len(),
            Self::Tuple(tuple) => tuple.len(),
            Self::Other(_, len) => *len,
        }
    }

    fn get(&self, index: usize) -> Result<TokenId, CallError> {
        let id = match self {
            Self::Empty => Err(PyIndexError::new_err("an empty prompt has no ids")),
            Self::List(list) => list.get_item(index),
            Self::Tuple(tuple) => tuple.get_item(index),
            Self::Other(ids, _) => ids.get_item(index),
        };
        Ok(token_id(&id?, index)?)
    }
}

/// Why a call that reads Python objects and drives the core failed.
pub(crate) enum CallError {
    Python(PyErr),
    Core(Error),
}

impl From<PyErr> for CallError {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self::Core(error)
    }
}

impl CallError {
    pub(crate) fn into_py(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Python(error) => error,
            Self::Core(error) => to_py(py, error),
        }
    }
}
