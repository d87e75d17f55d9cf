//! One Python string per token, made when first needed and shared by all streams of a tokenizer.

use detok_core::{Table, TokenId};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;

const PAGE: usize = 256;

type Page = Box<[PyOnceLock<Py<PyString>>]>;

/// Texts of tokens as [`Table::token_text`] has them, by id, in pages made on demand.
pub(crate) struct TokenStrings(Box<[PyOnceLock<Page>]>);

impl TokenStrings {
    pub(crate) fn new(table: Option<&Table>) -> Self {
        let ids = table.map_or(0, Table::dense_len);
        Self((0..ids.div_ceil(PAGE)).map(|_| PyOnceLock::new()).collect())
    }

    /// The text of a token.
    #[inline]
    pub(crate) fn get(&self, py: Python<'_>, table: &Table, id: TokenId) -> Py<PyString> {
        let page = self.0.get(id as usize / PAGE).and_then(|page| page.get(py));
        match page.and_then(|page| page.get(id as usize % PAGE)?.get(py)) {
            Some(string) => string.clone_ref(py),
            None => self.make(py, table, id),
        }
    }

    #[cold]
    fn make(&self, py: Python<'_>, table: &Table, id: TokenId) -> Py<PyString> {
        let string = PyString::new(py, &table.token_text(id)).unbind();
        // Ids beyond a gap have no page: their strings are made anew.
        if let Some(page) = self.0.get(id as usize / PAGE) {
            let page = page.get_or_init(py, || (0..PAGE).map(|_| PyOnceLock::new()).collect());
            if let Some(slot) = page.get(id as usize % PAGE) {
                return slot.get_or_init(py, || string).clone_ref(py);
            }
        }
        string
    }
}
