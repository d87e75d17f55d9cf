//! Choices given as strings: the legal words, each with its value.

use detok_core::{FinishKind, Fragments, MaskRule, Shared, Unit, UnknownIds};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

type Words<T, const N: usize> = [(&'static str, T); N];

pub(crate) const UNITS: Words<Unit, 3> = [
    ("byte", Unit::Byte),
    ("codepoint", Unit::CodePoint),
    ("utf16", Unit::Utf16),
];

pub(crate) const SHARED: Words<Shared, 2> = [("touch", Shared::Touch), ("own", Shared::Own)];

pub(crate) const MASK_RULES: Words<MaskRule, 4> = [
    ("any", MaskRule::Any),
    ("all", MaskRule::All),
    ("first", MaskRule::First),
    ("majority", MaskRule::Majority),
];

pub(crate) const UNKNOWN_IDS: Words<UnknownIds, 2> =
    [("error", UnknownIds::Error), ("skip", UnknownIds::Skip)];

pub(crate) const FRAGMENTS: Words<Fragments, 3> = [
    ("openai", Fragments::OpenAi),
    ("empty", Fragments::Empty),
    ("replacement", Fragments::Replacement),
];

pub(crate) const FINISH_KINDS: Words<FinishKind, 5> = [
    ("stop", FinishKind::Stop),
    ("length", FinishKind::Length),
    ("abort", FinishKind::Abort),
    ("error", FinishKind::Error),
    ("repetition", FinishKind::Repetition),
];

/// The word of `value`, which has one.
pub(crate) fn word<T: PartialEq>(value: T, words: &[(&'static str, T)]) -> &'static str {
    let found = words.iter().find(|(_, known)| *known == value);
    found.map_or("", |(word, _)| word)
}

/// The value of `word`, or an error that lists the legal ones.
pub(crate) fn choose<T: Copy>(name: &str, word: &str, words: &[(&'static str, T)]) -> PyResult<T> {
    if let Some((_, value)) = words.iter().find(|(known, _)| *known == word) {
        Ok(*value)
    } else {
        let legal: Vec<String> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
        Err(PyValueError::new_err(format!(
            "{name} must be one of {}, not {word:?}",
            legal.join(", ")
        )))
    }
}
