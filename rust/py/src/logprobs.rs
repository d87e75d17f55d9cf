//! `TokenLogprob`, `PositionLogprobs`, and what engines give in their place.

use crate::ids::{Argument, short_repr, token_id, type_name};
use crate::position::position;
use crate::value::{CallRepr, Reduced, check_count, reduced, with_keywords};
use detok_core as core;
use detok_core::{GivenLogprobs, Logprob, TokenId, TokenText};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use std::fmt;
use std::sync::Arc;

/// A token that was sampled, or might have been, and how likely it was.
#[pyclass(frozen, eq, hash, module = "detok")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct TokenLogprob(pub(crate) core::TokenLogprob);

#[pymethods]
impl TokenLogprob {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str, &'static str) {
        ("token_id", "logprob", "rank")
    }

    #[new]
    #[pyo3(signature = (token_id, logprob, rank = None, *, token = "", token_bytes = &b""[..]))]
    fn new(
        token_id: &Bound<'_, PyAny>,
        logprob: f64,
        rank: Option<&Bound<'_, PyAny>>,
        token: &str,
        token_bytes: &[u8],
    ) -> PyResult<Self> {
        let rank = rank.map(|rank| position(rank, "rank")).transpose()?;
        Ok(Self(core::TokenLogprob {
            token_id: self::token_id(token_id, 0)?,
            logprob,
            rank: rank.map(|rank| rank as u64),
            token: TokenText::Written {
                text: token.into(),
                bytes: token_bytes.into(),
            },
        }))
    }

    #[getter]
    fn token_id(&self) -> TokenId {
        self.0.token_id
    }

    #[getter]
    fn logprob(&self) -> f64 {
        self.0.logprob
    }

    #[getter]
    fn rank(&self) -> Option<u64> {
        self.0.rank
    }

    #[getter]
    fn token<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        PyString::new(py, self.0.text())
    }

    #[getter]
    fn token_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.bytes())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (text, bytes) = (self.0.text(), self.0.bytes());
        Ok(CallRepr::new(py, "TokenLogprob")
            .argument(self.0.token_id)?
            .argument(self.0.logprob)?
            .keyword_if(self.0.rank.is_some(), "rank", self.0.rank)?
            .keyword_if(!text.is_empty(), "token", text)?
            .keyword_if(!bytes.is_empty(), "token_bytes", PyBytes::new(py, bytes))?
            .end())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Reduced<'py> {
        let keywords = PyDict::new(py);
        keywords.set_item("token", self.token(py))?;
        keywords.set_item("token_bytes", self.token_bytes(py))?;
        let make = with_keywords(py.get_type::<Self>(), &keywords)?;
        reduced(py, make, (self.0.token_id, self.0.logprob, self.0.rank))
    }
}

/// The sampled token of one position, and its alternatives.
#[pyclass(frozen, eq, hash, module = "detok")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct PositionLogprobs(pub(crate) core::PositionLogprobs);

#[pymethods]
impl PositionLogprobs {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str) {
        ("sampled", "top")
    }

    #[new]
    #[pyo3(signature = (sampled, top = Argument::Missing))]
    fn new(sampled: &Bound<'_, TokenLogprob>, top: Argument<'_>) -> PyResult<Self> {
        Ok(Self(core::PositionLogprobs {
            sampled: sampled.get().0.clone(),
            top: match top.given() {
                Some(top) => token_logprobs(top, "top")?.into(),
                None => Arc::default(),
            },
        }))
    }

    #[getter]
    fn sampled(&self) -> TokenLogprob {
        TokenLogprob(self.0.sampled.clone())
    }

    #[getter]
    fn top<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.top.iter().cloned().map(TokenLogprob))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let call = CallRepr::new(py, "PositionLogprobs").argument(self.sampled())?;
        let top = self.top(py)?;
        Ok(call.keyword_if(!top.is_empty(), "top", top)?.end())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Reduced<'py> {
        reduced(py, py.get_type::<Self>(), (self.sampled(), self.top(py)?))
    }
}

/// Of which argument, for errors.
#[derive(Clone, Copy)]
struct Place<'n> {
    name: &'n str,
    index: usize,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.name, self.index)
    }
}

impl Place<'_> {
    #[cold]
    fn must_be(&self, what: &str, object: &Bound<'_, PyAny>) -> PyErr {
        PyTypeError::new_err(format!(
            "{self} must be {what}, not {}: {}",
            type_name(object),
            short_repr(object)
        ))
    }
}

fn token_logprobs(
    items: &Bound<'_, PyAny>,
    name: impl fmt::Display,
) -> PyResult<Vec<core::TokenLogprob>> {
    let mut all = Vec::new();
    for (index, item) in items.try_iter()?.enumerate() {
        let item = item?;
        let Ok(entry) = item.cast::<TokenLogprob>() else {
            let name = &name.to_string();
            return Err(Place { name, index }.must_be("a TokenLogprob", &item));
        };
        all.push(entry.get().0.clone());
    }
    Ok(all)
}

/// Logprobs of values that already are `PositionLogprobs`.
pub(crate) fn position_logprobs(
    positions: &Bound<'_, PyAny>,
) -> PyResult<Vec<core::PositionLogprobs>> {
    let mut all = Vec::new();
    for (index, item) in positions.try_iter()?.enumerate() {
        all.push(position_of(&item?, "logprobs", index)?);
    }
    Ok(all)
}

/// The same, where a position may have none.
pub(crate) fn optional_position_logprobs(
    positions: &Bound<'_, PyAny>,
) -> PyResult<Vec<Option<core::PositionLogprobs>>> {
    let mut all = Vec::new();
    for (index, item) in positions.try_iter()?.enumerate() {
        let item = item?;
        let has_some = !item.is_none();
        all.push(
            has_some
                .then(|| position_of(&item, "prompt_logprobs", index))
                .transpose()?,
        );
    }
    Ok(all)
}

fn position_of(
    item: &Bound<'_, PyAny>,
    name: &str,
    index: usize,
) -> PyResult<core::PositionLogprobs> {
    let position = item
        .cast::<PositionLogprobs>()
        .map_err(|_| Place { name, index }.must_be("a PositionLogprobs", item))?;
    Ok(position.get().0.clone())
}

/// What an engine gave for sampled ids, one entry each.
pub(crate) fn given_for(
    given: &Bound<'_, PyAny>,
    ids: &[TokenId],
) -> PyResult<Vec<core::PositionLogprobs>> {
    let name = "logprobs";
    check_sequence(given, name)?;
    let count = given.len()?;
    check_count(name, count, ids.len())?;
    let mut all = Vec::with_capacity(count);
    let mut push = |index: usize, entry: &Bound<'_, PyAny>| {
        let (place, id) = (Place { name, index }, ids.get(index).copied());
        let Some(id) = id else {
            return check_count(name, index + 1, ids.len());
        };
        let position = given_logprobs(entry, place)?.at(id).ok_or_else(|| {
            PyValueError::new_err(format!("{place} is not of the sampled token, {id}"))
        })?;
        all.push(position);
        Ok::<_, PyErr>(())
    };
    if let Ok(list) = given.cast::<PyList>() {
        for (index, entry) in list.iter().enumerate() {
            push(index, &entry)?;
        }
    } else {
        for (index, entry) in given.try_iter()?.enumerate() {
            push(index, &entry?)?;
        }
    }
    check_count(name, all.len(), ids.len())?;
    Ok(all)
}

/// A mapping in the place of a list of them, or a set, would be read by its keys.
fn check_sequence(given: &Bound<'_, PyAny>, name: &str) -> PyResult<()> {
    if given.is_instance_of::<PyList>() || given.is_instance_of::<PyTuple>() {
        return Ok(());
    }
    let is_text = given.is_instance_of::<PyString>() || given.is_instance_of::<PyBytes>();
    let py = given.py();
    let is_mapping = given.hasattr(intern!(py, "keys"))?;
    if !is_text && !is_mapping && given.hasattr(intern!(py, "__getitem__"))? {
        return Ok(());
    }
    Err(PyTypeError::new_err(format!(
        "{name} must be a sequence with an entry for each id, not {}: {}",
        type_name(given),
        short_repr(given)
    )))
}

/// What an engine gave for the tokens of a prompt, which it may or may not have named.
pub(crate) fn given_for_prompt(given: &Bound<'_, PyAny>) -> PyResult<Vec<Option<GivenLogprobs>>> {
    let name = "prompt_logprobs";
    check_sequence(given, name)?;
    let mut all = Vec::with_capacity(given.len()?);
    for (index, entry) in given.try_iter()?.enumerate() {
        let entry = entry?;
        all.push(if entry.is_none() {
            None
        } else {
            Some(given_logprobs(&entry, Place { name, index })?)
        });
    }
    Ok(all)
}

/// What an engine gave for one position: the sampled token's number, that token, a sequence with it
/// first, or a mapping by id.
fn given_logprobs(entry: &Bound<'_, PyAny>, place: Place<'_>) -> PyResult<GivenLogprobs> {
    if let Ok(by_id) = entry.cast_exact::<PyDict>() {
        return match plain_entries(by_id) {
            Some(entries) => Ok(GivenLogprobs::Among(entries)),
            None => entries_of_items(by_id.items().as_any(), place),
        };
    }
    if let Ok(number) = entry.cast::<PyFloat>() {
        return Ok(GivenLogprobs::Alone(Logprob(number.value())));
    }
    if let Ok(sampled) = entry.cast::<TokenLogprob>() {
        return Ok(GivenLogprobs::Told(core::PositionLogprobs {
            sampled: sampled.get().0.clone(),
            top: Arc::default(),
        }));
    }
    if let Ok(position) = entry.cast::<PositionLogprobs>() {
        return Ok(GivenLogprobs::Told(position.get().0.clone()));
    }
    if entry.hasattr(intern!(entry.py(), "items"))? {
        let items = entry.call_method0(intern!(entry.py(), "items"))?;
        return entries_of_items(&items, place);
    }
    if !is_sequence(entry)? {
        return match number(entry) {
            Ok(number) => Ok(GivenLogprobs::Alone(Logprob(number))),
            Err(error) if error.is_instance_of::<PyTypeError>(entry.py()) => {
                let what = "a number, a TokenLogprob, a sequence of them, or a mapping of token ids to logprobs";
                Err(place.must_be(what, entry))
            }
            Err(error) => Err(error),
        };
    }
    let mut all = token_logprobs(entry, place)?.into_iter();
    let sampled = all.next().ok_or_else(|| {
        PyValueError::new_err(format!("{place} is empty; the sampled token comes first"))
    })?;
    let top = all.collect();
    Ok(GivenLogprobs::Told(core::PositionLogprobs { sampled, top }))
}

/// Text is none, and neither is an array without dimensions.
fn is_sequence(entry: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = entry.py();
    if entry.is_instance_of::<PyString>() || !entry.hasattr(intern!(py, "__iter__"))? {
        return Ok(false);
    }
    let dimensions = entry.getattr_opt(intern!(py, "ndim"))?;
    dimensions.map_or(Ok(true), |dimensions| dimensions.ne(0))
}

/// A number that is no truth value.
fn number(value: &Bound<'_, PyAny>) -> PyResult<f64> {
    if matches!(type_name(value).as_str(), "bool" | "bool_") {
        return Err(PyTypeError::new_err("a bool is no logprob"));
    }
    value.extract()
}

/// The entries of a dict of plain numbers, the usual case. No Python code runs that could change the
/// dict; without an interpreter lock other threads could, so there it is a copy.
fn plain_entries(by_id: &Bound<'_, PyDict>) -> Option<Arc<[core::TokenLogprob]>> {
    #[cfg(Py_GIL_DISABLED)]
    let by_id = &by_id.copy().ok()?;
    let mut entries = by_id.iter().map(|(id, logprob)| {
        let plain = id.is_exact_instance_of::<PyInt>() && logprob.is_exact_instance_of::<PyFloat>();
        if !plain {
            return None;
        }
        let (id, logprob) = (id.extract().ok()?, logprob.extract().ok()?);
        Some(core::TokenLogprob::new(id, logprob, None))
    });
    if entries.len() == 1 {
        // The sampled token alone.
        return Some(Arc::new([entries.next()??]));
    }
    let mut all = Vec::with_capacity(entries.len());
    for entry in entries {
        all.push(entry?);
    }
    Some(all.into())
}

fn entries_of_items(items: &Bound<'_, PyAny>, place: Place<'_>) -> PyResult<GivenLogprobs> {
    let mut entries = Vec::new();
    for (index, item) in items.try_iter()?.enumerate() {
        let (id, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item?.extract()?;
        let (logprob, rank) = number_and_rank(&value).map_err(|error| {
            if error.is_instance_of::<PyTypeError>(value.py()) {
                place.must_be("a number, or have one as its logprob, for each id", &value)
            } else {
                error
            }
        })?;
        entries.push(core::TokenLogprob::new(
            token_id(&id, index)?,
            logprob,
            rank,
        ));
    }
    Ok(GivenLogprobs::Among(entries.into()))
}

/// A number, or an object that has it and perhaps the token's rank.
fn number_and_rank(value: &Bound<'_, PyAny>) -> PyResult<(f64, Option<u64>)> {
    let py = value.py();
    if value.is_instance_of::<PyFloat>() {
        return Ok((value.extract()?, None));
    }
    let Some(logprob) = value.getattr_opt(intern!(py, "logprob"))? else {
        return Ok((value.extract()?, None));
    };
    let rank = value.getattr_opt(intern!(py, "rank"))?;
    let rank = rank.filter(|rank| !rank.is_none());
    let rank = rank.map(|rank| position(&rank, "rank")).transpose()?;
    Ok((logprob.extract()?, rank.map(|rank| rank as u64)))
}
