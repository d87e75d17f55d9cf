//! Hands the interpreter's build flags (`Py_GIL_DISABLED`) on to this crate.

fn main() {
    pyo3_build_config::use_pyo3_cfgs();
}
