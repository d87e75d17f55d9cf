//! The one lock of a stream: threads wait for it without holding the interpreter, and a decode
//! that calls back into its own stream is told so.

use crate::error::reentered;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct StreamLock<T> {
    value: cell::Cell<T>,
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

impl<T: Send> StreamLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: cell::Cell::new(value),
            calling_python: AtomicU64::new(0),
        }
    }

    /// Runs `call` with the value. `calls_python`: it may run code of the caller. Otherwise it must
    /// make no Python object but strings, whose making runs no code (a collection of garbage might,
    /// and might come back to this lock).
    #[inline]
    pub(crate) fn with<R>(
        &self,
        py: Python<'_>,
        calls_python: bool,
        call: impl FnOnce(&mut T) -> R,
    ) -> PyResult<R> {
        let mut value = match self.value.try_lock(py) {
            Some(value) => value,
            None if self.calling_python.load(Ordering::Relaxed) == this_thread() => {
                return Err(reentered());
            }
            None => self.value.wait(py)?,
        };
        if !calls_python {
            return Ok(call(&mut value));
        }
        self.calling_python.store(this_thread(), Ordering::Relaxed);
        let _mark = Mark(&self.calling_python);
        Ok(call(&mut value))
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

/// Without an interpreter lock, a mutex.
#[cfg(Py_GIL_DISABLED)]
mod cell {
    use pyo3::prelude::*;
    use pyo3::sync::MutexExt;
    use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

    pub(super) struct Cell<T>(Mutex<T>);

    impl<T> Cell<T> {
        pub(super) fn new(value: T) -> Self {
            Self(Mutex::new(value))
        }

        #[inline]
        pub(super) fn try_lock(&self, _py: Python<'_>) -> Option<MutexGuard<'_, T>> {
            match self.0.try_lock() {
                Ok(value) => Some(value),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        }

        #[cold]
        pub(super) fn wait(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, T>> {
            Ok(self
                .0
                .lock_py_attached(py)
                .unwrap_or_else(PoisonError::into_inner))
        }
    }
}

/// Under the interpreter lock, a flag: a mutex would cost a step a fifth of its time, for two
/// atomic operations that the interpreter lock has paid for already.
#[cfg(not(Py_GIL_DISABLED))]
#[allow(unsafe_code)]
mod cell {
    use pyo3::prelude::*;
    use std::cell::UnsafeCell;
    use std::ops::{Deref, DerefMut};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    pub(super) struct Cell<T> {
        /// Read and written only by threads that hold the interpreter lock, which orders them.
        taken: AtomicBool,
        value: UnsafeCell<T>,
    }

    // SAFETY: the value is reached through a `Guard` alone, and of these there is one at a time:
    // `taken` is tested and set with no release of the interpreter lock between, and cleared by the
    // guard's drop, which happens attached to the interpreter too (see `Guard`). A thread that finds
    // `taken` cleared therefore sees all writes made under the guard before. `tests/test_threads.py`
    // drives one stream from many threads, with calls that give the interpreter up on the way.
    unsafe impl<T: Send> Sync for Cell<T> {}

    /// Borrows the interpreter token, so that it cannot outlive the attachment it was made in. Code
    /// that runs under it may detach, but has attached again before the guard is dropped.
    pub(super) struct Guard<'a, 'py, T> {
        cell: &'a Cell<T>,
        _attached: Python<'py>,
    }

    impl<T> Cell<T> {
        pub(super) fn new(value: T) -> Self {
            Self {
                taken: AtomicBool::new(false),
                value: UnsafeCell::new(value),
            }
        }

        #[inline]
        pub(super) fn try_lock<'a, 'py>(&'a self, py: Python<'py>) -> Option<Guard<'a, 'py, T>> {
            if self.taken.load(Ordering::Relaxed) {
                return None;
            }
            self.taken.store(true, Ordering::Relaxed);
            Some(Guard {
                cell: self,
                _attached: py,
            })
        }

        /// Lets other threads run until the one that has the value is done. Calls are short, and the
        /// long ones are those that gave the interpreter up or run Python.
        #[cold]
        pub(super) fn wait<'a, 'py>(&'a self, py: Python<'py>) -> PyResult<Guard<'a, 'py, T>> {
            let mut pause = Duration::from_micros(1);
            loop {
                py.detach(|| std::thread::sleep(pause));
                py.check_signals()?;
                if let Some(guard) = self.try_lock(py) {
                    return Ok(guard);
                }
                pause = (pause * 2).min(Duration::from_millis(1));
            }
        }
    }

    impl<T> Deref for Guard<'_, '_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            // SAFETY: this guard is the only one.
            unsafe { &*self.cell.value.get() }
        }
    }

    impl<T> DerefMut for Guard<'_, '_, T> {
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: this guard is the only one, and it is borrowed mutably.
            unsafe { &mut *self.cell.value.get() }
        }
    }

    impl<T> Drop for Guard<'_, '_, T> {
        #[inline]
        fn drop(&mut self) {
            self.cell.taken.store(false, Ordering::Relaxed);
        }
    }
}
