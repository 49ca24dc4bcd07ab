//! Python bindings of the Kvasir client: the module `kvasir._native`.
//!
//! `python/kvasir/_native.pyi` is the contract; this crate only converts arguments, releases the GIL around everything
//! that waits or copies, and turns errors and panics into exceptions. Unsafe is opened in `memory` and
//! `tokens` alone.

mod args;
mod blocks;
mod client;
mod errors;
mod functions;
mod keys;
mod memory;
mod runs;
mod tokens;
mod weights;

use pyo3::prelude::*;

/// The compiled half of the `kvasir` package.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("KvasirError", module.py().get_type::<errors::KvasirError>())?;
    module.add_class::<keys::KeyChain>()?;
    module.add_class::<client::Client>()?;
    module.add_class::<client::Hit>()?;
    module.add_function(wrap_pyfunction!(blocks::pack_blocks, module)?)?;
    weights::add(module)?;
    functions::add(module)
}
