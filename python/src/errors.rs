//! The one exception, and the guard that keeps panics inside.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kvasir::client::ClientError;
use kvasir::keys::KeyError;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(
    kvasir,
    KvasirError,
    PyException,
    "A typed refusal: `kind` is a stable word, `numbers` the numbers of the message."
);

/// An exception with its two attributes.
pub(crate) fn typed(py: Python<'_>, kind: &str, numbers: Vec<i64>, message: String) -> PyErr {
    let error = KvasirError::new_err(message);
    let value = error.value(py);
    let set = value
        .setattr("kind", kind)
        .and_then(|()| value.setattr("numbers", numbers));
    match set {
        Ok(()) => error,
        Err(failed) => failed,
    }
}

pub(crate) fn client_error(py: Python<'_>, error: &ClientError) -> PyErr {
    typed(py, &error.kind(), error.numbers(), error.to_string())
}

pub(crate) fn key_error(py: Python<'_>, error: KeyError) -> PyErr {
    client_error(py, &ClientError::from(error))
}

/// Runs `work` without the GIL. A panic in it becomes an exception of kind "Panic": the engine lives on.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, ClientError> + Send,
) -> PyResult<T> {
    match py.detach(|| catch_unwind(AssertUnwindSafe(work))) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(client_error(py, &error)),
        Err(panic) => Err(panicked(py, &*panic)),
    }
}

fn panicked(py: Python<'_>, panic: &(dyn std::any::Any + Send)) -> PyErr {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    typed(
        py,
        "Panic",
        Vec::new(),
        format!("a defect in the Kvasir client: {text}"),
    )
}
