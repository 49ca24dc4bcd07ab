//! Identities of weights and adapters. A job runs in threads of its own that never touch the interpreter.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use kvasir::keys::{self, WeightsError, WeightsIdentity, WeightsOptions};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Adds the functions and the class to the module.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<WeightsJob>()?;
    module.add_class::<Weights>()?;
    module.add_function(wrap_pyfunction!(weights_identity, module)?)?;
    module.add_function(wrap_pyfunction!(remembered_weights, module)?)?;
    module.add_function(wrap_pyfunction!(weights_stamp, module)?)?;
    module.add_function(wrap_pyfunction!(weights_shape, module)?)
}

fn options(overrides: &str, cache_dir: Option<PathBuf>, threads: usize) -> WeightsOptions {
    WeightsOptions {
        overrides: overrides.to_owned(),
        cache_dir: cache_dir.or_else(keys::default_cache_dir),
        threads,
    }
}

fn os_error(error: &WeightsError) -> PyErr {
    PyOSError::new_err(format!("cannot identify the weights: {error}"))
}

/// What was found out about a set of weights.
#[pyclass(frozen, module = "kvasir._native")]
pub(crate) struct Weights(WeightsIdentity);

#[pymethods]
impl Weights {
    #[getter]
    fn identity<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.digest)
    }

    #[getter]
    fn stamp<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.stamp.digest)
    }

    #[getter]
    fn newest_change_ns(&self) -> i64 {
        self.0.stamp.newest_change_ns
    }

    #[getter]
    fn files(&self) -> usize {
        self.0.files
    }

    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes
    }

    #[getter]
    fn bytes_read(&self) -> u64 {
        self.0.bytes_read
    }

    #[getter]
    fn forgetful(&self) -> Option<String> {
        self.0.forgetful.clone()
    }
}

/// Finds an identity in the background; ends when it is dropped.
#[pyclass(frozen, module = "kvasir._native")]
pub(crate) struct WeightsJob(Arc<Job>);

struct Job {
    cancelled: AtomicBool,
    result: OnceLock<Result<WeightsIdentity, WeightsError>>,
}

#[pymethods]
impl WeightsJob {
    #[new]
    #[pyo3(signature = (path, overrides = "", cache_dir = None, threads = 0))]
    fn new(path: PathBuf, overrides: &str, cache_dir: Option<PathBuf>, threads: usize) -> PyResult<Self> {
        let job = Arc::new(Job {
            cancelled: AtomicBool::new(false),
            result: OnceLock::new(),
        });
        let (own, options) = (Arc::clone(&job), options(overrides, cache_dir, threads));
        let work = move || {
            let result = keys::identify_weights(&path, &options, &own.cancelled);
            let _ = own.result.set(result);
        };
        let thread = thread::Builder::new()
            .name("kvasir-identity".to_owned())
            .spawn(work);
        thread
            .map(|_| Self(job))
            .map_err(|error| PyOSError::new_err(format!("no thread to identify the weights with: {error}")))
    }

    fn result(&self) -> PyResult<Option<Weights>> {
        match self.0.result.get() {
            None => Ok(None),
            Some(Ok(found)) => Ok(Some(Weights(found.clone()))),
            Some(Err(error)) => Err(os_error(error)),
        }
    }

    fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Relaxed);
    }
}

impl Drop for WeightsJob {
    fn drop(&mut self) {
        self.cancel();
    }
}

#[pyfunction]
#[pyo3(signature = (dir, overrides = ""))]
fn weights_identity<'py>(py: Python<'py>, dir: &str, overrides: &str) -> PyResult<Bound<'py, PyBytes>> {
    let read = py.detach(|| keys::weights_identity(dir.as_ref(), overrides));
    let identity =
        read.map_err(|error| PyOSError::new_err(format!("cannot identify the weights: {error}")))?;
    Ok(PyBytes::new(py, &identity))
}

#[pyfunction]
#[pyo3(signature = (path, overrides = "", cache_dir = None))]
fn remembered_weights(
    py: Python<'_>,
    path: PathBuf,
    overrides: &str,
    cache_dir: Option<PathBuf>,
) -> PyResult<Option<Weights>> {
    let options = options(overrides, cache_dir, 0);
    let found = py.detach(|| keys::remembered_weights(&path, &options));
    found
        .map(|found| found.map(Weights))
        .map_err(|error| os_error(&error))
}

#[pyfunction]
fn weights_stamp(py: Python<'_>, path: PathBuf) -> PyResult<(Bound<'_, PyBytes>, i64)> {
    let stamp = py.detach(|| keys::weights_stamp(&path));
    let stamp = stamp.map_err(|error| os_error(&error))?;
    Ok((PyBytes::new(py, &stamp.digest), stamp.newest_change_ns))
}

#[pyfunction]
#[pyo3(signature = (path, overrides = ""))]
fn weights_shape<'py>(py: Python<'py>, path: PathBuf, overrides: &str) -> PyResult<Bound<'py, PyBytes>> {
    let shape = py.detach(|| keys::weights_shape(&path, overrides));
    shape
        .map(|shape| PyBytes::new(py, &shape))
        .map_err(|error| os_error(&error))
}
