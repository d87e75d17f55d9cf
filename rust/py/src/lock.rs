//! The one lock of a stream: threads wait for it without holding the interpreter, and a decode
//! that calls back into its own stream is told so.

use crate::error::reentered;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

pub(crate) struct StreamLock<T> {
    value: Mutex<T>,
    /// The thread that holds the lock while it may run Python code; 0 is none. Only that can
    /// re-enter, so a stream over a compiled table never writes it.
    calling_python: AtomicU64,
}

/// Clears the mark when the call ends, however it ends.
struct Mark<'a>(&'a AtomicU64);

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl<T> StreamLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            calling_python: AtomicU64::new(0),
        }
    }

    /// Runs `call` with the value. `calls_python`: it may run code of the caller.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        py: Python<'_>,
        calls_python: bool,
        call: impl FnOnce(&mut T) -> PyResult<R>,
    ) -> PyResult<R> {
        let mut value = match self.value.try_lock() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.wait(py)?,
        };
        if !calls_python {
            return call(&mut value);
        }
        self.calling_python.store(this_thread(), Ordering::Relaxed);
        let _mark = Mark(&self.calling_python);
        call(&mut value)
    }

    #[cold]
    fn wait(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, T>> {
        if self.calling_python.load(Ordering::Relaxed) == this_thread() {
            return Err(reentered());
        }
        Ok(self
            .value
            .lock_py_attached(py)
            .unwrap_or_else(PoisonError::into_inner))
    }
}

/// A number of this thread's own, never 0.
fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}
