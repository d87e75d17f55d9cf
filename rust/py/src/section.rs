//! `SectionSplitter`.

use crate::decoded::DecodedText;
use crate::error::{guarded, to_py};
use crate::ids::{Argument, CallError, PromptIds};
use crate::lock::StreamLock;
use crate::marker::read_markers;
use crate::tokenizer::Tokenizer;
use detok_core as core;
use detok_core::{Error, Section, Sections};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use std::sync::Arc;

/// Splits decoded text into named sections at markers, and counts the tokens of each.
#[pyclass(frozen, module = "detok")]
pub(crate) struct SectionSplitter(StreamLock<core::SectionSplitter>);

/// A section's name, and what lies in it.
type Piece = (Py<PyString>, DecodedText);

impl SectionSplitter {
    fn with<R>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut core::SectionSplitter) -> Result<R, Error>,
    ) -> PyResult<R> {
        guarded(py, || self.0.with(py, false, call))?.map_err(|error| to_py(py, error))
    }
}

fn pieces(py: Python<'_>, sections: Vec<Section>) -> Vec<Piece> {
    let piece = |section: Section| {
        let name = PyString::intern(py, &section.name).unbind();
        (name, DecodedText::new_from(section.decoded))
    };
    sections.into_iter().map(piece).collect()
}

#[pymethods]
impl SectionSplitter {
    #[new]
    #[pyo3(signature = (tokenizer, markers, *, prompt_token_ids = Argument::Missing, initial = None))]
    fn new(
        tokenizer: &Bound<'_, Tokenizer>,
        markers: &Bound<'_, PyAny>,
        prompt_token_ids: Argument<'_>,
        initial: Option<&str>,
    ) -> PyResult<Self> {
        let py = tokenizer.py();
        let markers = read_markers(markers, "markers")?;
        let prompt = PromptIds::new(&prompt_token_ids)?;
        let tokenizer = tokenizer.get().core();
        let splitter = guarded(py, || {
            let sections = Sections::new(&tokenizer, &markers).map_err(|error| to_py(py, error))?;
            let sections = Arc::new(sections);
            match initial {
                Some(name) => {
                    core::SectionSplitter::open_in(sections, name).map_err(|error| to_py(py, error))
                }
                None => core::SectionSplitter::open(&tokenizer, sections, &prompt)
                    .map_err(|error: CallError| error.into_py(py)),
            }
        })?;
        Ok(Self(StreamLock::new(splitter)))
    }

    /// The sections of more decoded text, as far as they are certain.
    fn push(&self, py: Python<'_>, decoded: &Bound<'_, DecodedText>) -> PyResult<Vec<Piece>> {
        let decoded = decoded.get().decoded(py)?;
        let sections = self.with(py, |splitter| splitter.push(&decoded))?;
        Ok(pieces(py, sections))
    }

    /// What might have become a marker, as text of its section.
    fn finish(&self, py: Python<'_>) -> PyResult<Vec<Piece>> {
        let sections = self.with(py, core::SectionSplitter::finish)?;
        Ok(pieces(py, sections))
    }

    /// Tokens by section, those of markers apart.
    #[getter]
    fn token_counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts: Vec<(String, u64)> = self.with(py, |splitter| {
            let counts = splitter.token_counts().into_iter();
            Ok(counts
                .map(|(name, count)| (name.to_owned(), count))
                .collect())
        })?;
        let all = PyDict::new(py);
        for (name, count) in counts {
            all.set_item(name, count)?;
        }
        Ok(all)
    }

    /// The section that the next text belongs to, as far as it is decided.
    #[getter]
    fn section(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |splitter| Ok(splitter.section_name().to_string()))
    }
}
