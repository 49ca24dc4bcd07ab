//! `cargo xtask test`: every check that a change has to pass, cheapest first.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::command::{self, cargo, program};
use crate::python::{Environment, interpreter};
use crate::steps::{self, Step};
use crate::{codegen, deny, features, mutants, native, needs, structure, vllm_env};

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Leave out the end-to-end tests with a real vLLM, which take most of the time
    #[arg(long)]
    no_vllm: bool,
    /// Run this step alone; may be given several times (`--list` shows the names)
    #[arg(long, value_name = "STEP", conflicts_with = "no_vllm")]
    only: Vec<String>,
    /// Print the names of the steps, in the order in which they run
    #[arg(long)]
    list: bool,
    /// Directory of the vLLM environment; made if it is not there
    #[arg(long, default_value = vllm_env::DEFAULT_DIRECTORY)]
    venv: PathBuf,
}

/// The environment of the Python tests that need no engine.
const TEST_VENV: &str = ".venv-test";
const TEST_TOOLS: [&str; 6] = [
    "maturin>=1.9,<2",
    "pytest>=8,<10",
    "pytest-xdist>=3,<4",
    "numpy",
    "blake3",
    "xxhash",
];

/// Runs the steps.
pub(crate) fn run(options: &Options) -> Result<()> {
    // Minutes pass before Python is first used, and longer before the disk is full.
    let native = options.only.is_empty() || options.only.iter().any(|step| step == "native");
    needs::programs(native && !options.list)?;
    needs::target(&interpreter()?)?;
    let mut list = vec![
        Step::new("format", || {
            command::run(cargo().args(["fmt", "--all", "--check"]))
        }),
        Step::new("layers", || structure::run().and_then(|()| features::run())),
        Step::new("mutants", mutants::check),
        Step::new("deny", deny::run),
        Step::new("codegen", || codegen::run(true)),
        Step::new("clippy", clippy),
        Step::new("docs", docs),
        Step::new("rust", rust_tests),
        Step::new("native", native::run),
        Step::new("device", device_tests),
        Step::new("loom", loom),
        Step::new("python", python_tests),
    ];
    if options.no_vllm {
        println!("--no-vllm: the end-to-end tests with a real vLLM do not run");
    } else {
        list.push(Step::new("vllm", || vllm_tests(options)));
    }
    if options.list {
        steps::list(&list).iter().for_each(|name| println!("{name}"));
        return Ok(());
    }
    steps::run(steps::only(list, &options.only)?)
}

/// The whole workspace, and the library as others build it: alone with its tests, and with a part of its features.
fn clippy() -> Result<()> {
    let builds: [&[&str]; 6] = [
        &["--workspace", "--all-targets"],
        &["--package", "kvasir", "--no-default-features", "--all-targets"],
        &[
            "--package",
            "kvasir",
            "--no-default-features",
            "--features",
            "describe",
        ],
        &[
            "--package",
            "kvasir",
            "--no-default-features",
            "--features",
            "server",
        ],
        &[
            "--package",
            "kvasir",
            "--no-default-features",
            "--features",
            "cuda",
            "--all-targets",
        ],
        &["--package", "kvasir", "--features", "cuda", "--all-targets"],
    ];
    for build in builds {
        let mut clippy = cargo();
        clippy.arg("clippy").args(build);
        command::run(clippy.args(["--locked", "--", "-D", "warnings"]))?;
    }
    Ok(())
}

/// The library's documentation, whole and of the client alone: links lead nowhere where a feature is missing.
fn docs() -> Result<()> {
    for features in [&["--no-default-features"][..], &[], &["--features", "cuda"]] {
        let mut doc = cargo();
        doc.args(["doc", "--package", "kvasir", "--lib", "--no-deps", "--locked"]);
        command::run(doc.args(features).env("RUSTDOCFLAGS", "-D warnings"))?;
    }
    Ok(())
}

fn rust_tests() -> Result<()> {
    // The Python extension has no Rust tests, and as an extension module it cannot be linked into a test program.
    command::run(cargo().args(["test", "--workspace", "--exclude", "kvasir-python", "--locked"]))
}

/// Memory of GPUs, on the software driver: a stand-in for `libcuda.so.1`, which is built first.
fn device_tests() -> Result<()> {
    command::run(cargo().args(["build", "--package", "kvasir-softcuda", "--locked"]))?;
    command::run(cargo().args(["test", "--package", "kvasir-softcuda", "--locked"]))?;
    let device = |what: &[&str]| {
        let mut test = cargo();
        test.args([
            "test",
            "--package",
            "kvasir",
            "--no-default-features",
            "--features",
            "cuda",
            "--locked",
        ]);
        command::run(test.args(what))
    };
    device(&["--lib", "device::"])?;
    device(&["--test", "device_*"])?;
    client_on_device()
}

/// The client with pages in device memory, beside real servers: what can go wrong there, and the tests of pages of the
/// host as they are.
fn client_on_device() -> Result<()> {
    let test = |what: &[&str]| {
        let mut test = cargo();
        test.args(["test", "--package", "kvasir", "--features", "cuda", "--locked"]);
        test.args(what);
        test
    };
    command::run(&mut test(&["--test", "client_device*"]))?;
    let target = command::target();
    // A driver is looked for by this name.
    let folder = target.join("softcuda");
    std::fs::create_dir_all(&folder)?;
    std::fs::copy(target.join("debug/libsoftcuda.so"), folder.join("new"))?;
    std::fs::rename(folder.join("new"), folder.join("libcuda.so.1"))?;
    let files = [
        "client_payload",
        "client_integrity",
        "client_room",
        "client_calls",
        "client_direct",
        "client_late_commits",
        "client_recovery",
    ];
    let tests: Vec<&str> = files.into_iter().flat_map(|file| ["--test", file]).collect();
    let mut on_device = test(&tests);
    on_device
        .env("KVASIR_TEST_PAGES", "device")
        .env("LD_LIBRARY_PATH", folder);
    command::run(&mut on_device)
}

/// The model-checked tests: the library under `--cfg loom`, tests with `loom` in their names.
fn loom() -> Result<()> {
    let mut test = cargo();
    test.args([
        "test",
        "--package",
        "kvasir",
        "--lib",
        "--release",
        "--locked",
        "--target-dir",
    ]);
    test.arg(command::target().join("loom")).args(["--", "loom"]);
    test.env("RUSTFLAGS", "--cfg loom")
        .env("LOOM_MAX_PREEMPTIONS", "2");
    command::run(&mut test)
}

fn python_tests() -> Result<()> {
    let environment = Environment::ensure(TEST_VENV.as_ref())?;
    environment.pip_install(TEST_TOOLS)?;
    environment.install_kvasir()?;
    for vectors in ["tests/keys_golden.py", "tests/sums_golden.py"] {
        command::run(program(environment.python()).arg(vectors))?;
    }
    conformance(&environment)?;
    // They wait for processes and sockets about half of their time, and have servers of their own.
    pytest(&environment, "python/tests", &["--numprocesses=4"])
}

/// A client written from `schema/` and the documents alone.
fn conformance(environment: &Environment) -> Result<()> {
    let mut client = program(environment.python());
    client.args(["-u", "tests/conformance/run.py"]);
    command::run(client.env("KVASIR_BINARY", environment.binary("kvasir")))
}

fn vllm_tests(options: &Options) -> Result<()> {
    let environment = vllm_env::ensure(&options.venv)?;
    environment.install_kvasir()?;
    pytest(&environment, "python/e2e", &[])
}

fn pytest(environment: &Environment, directory: &str, more: &[&str]) -> Result<()> {
    if !command::root().join(directory).is_dir() {
        bail!("{directory} is not there");
    }
    let mut pytest = program(environment.python());
    pytest
        .args(["-m", "pytest", "-ra", "--durations=5", directory])
        .args(more);
    pytest.env("KVASIR_BINARY", environment.binary("kvasir"));
    pytest.env("KVASIR_MODEL_CACHE", command::target().join("e2e/models"));
    command::run(&mut pytest)
}
