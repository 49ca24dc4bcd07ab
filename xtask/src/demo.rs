//! `cargo xtask demo`: builds everything, makes the vLLM environment and runs `python/e2e/demo.py` in it.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::command::{self, program};
use crate::vllm_env;

/// Arguments of `cargo xtask demo`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Name of the model (see python/e2e/models.py)
    #[arg(long, default_value = "qwen3", conflicts_with = "all_models")]
    model: String,
    /// Run every model, also those that the engine is expected to refuse, and print the support table
    #[arg(long)]
    all_models: bool,
    /// Directory of the vLLM environment; made if it is not there
    #[arg(long, default_value = vllm_env::DEFAULT_DIRECTORY)]
    venv: PathBuf,
    /// Write the result to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Leave the logs of server and engines in this directory
    #[arg(long)]
    keep_logs: Option<PathBuf>,
}

/// Runs the demo; its output is the demo's own.
pub(crate) fn run(options: &Options) -> Result<()> {
    eprintln!("demo: vLLM environment");
    let environment = vllm_env::ensure(&options.venv)?;
    eprintln!("demo: building Kvasir");
    environment.install_kvasir()?;

    let mut demo = program(environment.python());
    demo.arg("python/e2e/demo.py")
        .arg("--kvasir")
        .arg(environment.binary("kvasir"));
    demo.arg("--cache").arg(command::target().join("e2e/models"));
    if options.all_models {
        demo.arg("--all-models");
    } else {
        demo.arg("--model").arg(&options.model);
    }
    // The demo runs in the root of the repository; the paths are the caller's.
    let here = std::env::current_dir().context("cannot tell the current directory")?;
    if let Some(json) = &options.json {
        demo.arg("--json").arg(here.join(json));
    }
    if let Some(logs) = &options.keep_logs {
        demo.arg("--keep-logs").arg(here.join(logs));
    }
    command::run(&mut demo)
}
