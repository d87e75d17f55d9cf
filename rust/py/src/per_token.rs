//! One Python object per token, made when first needed and shared by all streams of a tokenizer.

use detok_core::{Table, TokenId};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

const PAGE: usize = 256;

type Page<T> = Box<[PyOnceLock<Py<T>>]>;

/// Objects by token id, in pages made on demand.
pub(crate) struct PerToken<T>(Box<[PyOnceLock<Page<T>>]>);

impl<T> PerToken<T> {
    pub(crate) fn new(table: Option<&Table>) -> Self {
        let ids = table.map_or(0, Table::dense_len);
        Self((0..ids.div_ceil(PAGE)).map(|_| PyOnceLock::new()).collect())
    }

    /// The object of a token, if it is kept.
    #[inline]
    pub(crate) fn get(&self, py: Python<'_>, id: TokenId) -> Option<Py<T>> {
        let page = self.0.get(id as usize / PAGE)?.get(py)?;
        let object = page.get(id as usize % PAGE)?.get(py)?;
        Some(object.clone_ref(py))
    }

    /// Keeps the object of a token, unless one is kept: the one that is.
    #[cold]
    pub(crate) fn keep(&self, py: Python<'_>, id: TokenId, object: Py<T>) -> Py<T> {
        // Ids beyond a gap have no page: their objects are made anew.
        let Some(page) = self.0.get(id as usize / PAGE) else {
            return object;
        };
        let page = page.get_or_init(py, || (0..PAGE).map(|_| PyOnceLock::new()).collect());
        match page.get(id as usize % PAGE) {
            Some(place) => place.get_or_init(py, || object).clone_ref(py),
            None => object,
        }
    }
}
