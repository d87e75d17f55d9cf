//! A Python object with `decode` as a source of windows.

use detok_core::{SourceError, TokenId, WindowSource};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::detok_error;
use crate::ids::token_id;

/// Any object that has `decode`, `id_to_token` and `is_special`.
pub(crate) struct PythonSource(pub(crate) Py<PyAny>);

impl PythonSource {
    /// An attribute that the object need not have, or an error that names it.
    fn optional<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        purpose: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.0.bind(py).getattr(name).map_err(|_| {
            detok_error(
                py,
                format!(
                    "{purpose} needs {name} of the tokenizer object, and {} has none",
                    self.0.bind(py).get_type()
                ),
            )
        })
    }
}

fn boxed(error: PyErr) -> SourceError {
    Box::new(error)
}

impl WindowSource for PythonSource {
    fn decode(&self, ids: &[TokenId], skip_special_tokens: bool) -> Result<String, SourceError> {
        Python::attach(|py| {
            let keywords = PyDict::new(py);
            keywords.set_item(intern!(py, "skip_special_tokens"), skip_special_tokens)?;
            let object = self.0.bind(py);
            let text =
                object.call_method(intern!(py, "decode"), (ids.to_vec(),), Some(&keywords))?;
            text.extract().map_err(|_| {
                PyTypeError::new_err(format!(
                    "decode of {} must return a str, not {}",
                    object.get_type(),
                    text.get_type()
                ))
            })
        })
        .map_err(boxed)
    }

    fn id_to_token(&self, id: TokenId) -> Result<Option<String>, SourceError> {
        Python::attach(|py| {
            self.0
                .bind(py)
                .call_method1(intern!(py, "id_to_token"), (id,))?
                .extract()
        })
        .map_err(boxed)
    }

    fn is_special(&self, id: TokenId) -> Result<bool, SourceError> {
        Python::attach(|py| {
            self.0
                .bind(py)
                .call_method1(intern!(py, "is_special"), (id,))?
                .is_truthy()
        })
        .map_err(boxed)
    }

    fn token_to_id(&self, token: &str) -> Result<Option<TokenId>, SourceError> {
        Python::attach(|py| {
            self.optional(py, "token_to_id", "token_to_id")?
                .call1((token,))?
                .extract()
        })
        .map_err(boxed)
    }

    fn vocab_size(&self) -> Result<u64, SourceError> {
        Python::attach(|py| self.optional(py, "vocab_size", "vocab_size")?.extract()).map_err(boxed)
    }

    fn special_token_ids(&self) -> Result<Vec<TokenId>, SourceError> {
        Python::attach(|py| {
            let ids = self.optional(py, "special_token_ids", "special_token_ids")?;
            ids.try_iter()?
                .enumerate()
                .map(|(index, id)| token_id(&id?, index))
                .collect::<PyResult<_>>()
        })
        .map_err(boxed)
    }
}
