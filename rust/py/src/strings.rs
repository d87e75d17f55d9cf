//! One Python string per token, made when first needed and shared by all streams of a tokenizer.

use detok_core::{Table, TokenId};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;

const PAGE: usize = 256;

type Page = Box<[PyOnceLock<Py<PyString>>]>;

/// Strings of tokens that are whole text, by id, in pages made on demand.
pub(crate) struct TokenStrings(Box<[PyOnceLock<Page>]>);

impl TokenStrings {
    pub(crate) fn new(table: Option<&Table>) -> Self {
        let ids = table.map_or(0, Table::dense_len);
        Self((0..ids.div_ceil(PAGE)).map(|_| PyOnceLock::new()).collect())
    }

    /// The string of a token that [`Table::copied_text`] has; a new one if it has no page.
    #[inline]
    pub(crate) fn get(&self, py: Python<'_>, table: &Table, id: TokenId) -> Py<PyString> {
        let at = id as usize;
        let make = || PyString::new(py, table.copied_text(id).unwrap_or_default()).unbind();
        let Some(page) = self.0.get(at / PAGE) else {
            return make();
        };
        let page = page.get_or_init(py, || (0..PAGE).map(|_| PyOnceLock::new()).collect());
        match page.get(at % PAGE) {
            Some(slot) => slot.get_or_init(py, make).clone_ref(py),
            None => make(),
        }
    }
}
