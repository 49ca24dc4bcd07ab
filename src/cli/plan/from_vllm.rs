//! `kvasir plan from-vllm`: an engine's description from vLLM's own arguments.
//!
//! vLLM alone knows what its flags come to, so its Python resolves them (`kvasir.vllm.describe`). Nothing is loaded or started.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use serde_json::Value;

use super::{Answer, PlanError};

/// What runs in the engine's Python.
const MODULE: &str = "kvasir.vllm.describe";

/// Exit code of the module for arguments that vLLM's parser refuses.
const BAD_ARGUMENTS: i32 = 2;

/// Arguments of `kvasir plan from-vllm`.
#[derive(Debug, Args)]
pub(super) struct FromVllmArgs {
    /// Python in which vLLM and Kvasir are installed [default: the one beside this program, else python3]
    #[arg(long, value_name = "PATH", env = "KVASIR_PYTHON")]
    python: Option<PathBuf>,
    /// What would follow `vllm serve`, the model first
    #[arg(
        value_name = "ARGS",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    arguments: Vec<String>,
}

pub(super) fn run(args: &FromVllmArgs) -> Result<Answer, PlanError> {
    let python = args.python.clone().unwrap_or_else(default_python);
    let failed = |reason: String| PlanError::new("vllm", reason);
    let output = Command::new(&python)
        .args(["-m", MODULE])
        .args(&args.arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| {
            failed(format!(
                "cannot start {}: {error}; name the Python of vLLM's environment with --python",
                python.display()
            ))
        })?;
    if !output.status.success() {
        let reason = if output.status.code() == Some(BAD_ARGUMENTS) {
            "vLLM refuses these arguments; its own words are above".to_owned()
        } else {
            format!(
                "no description came of it ({}); its own words are above, and if they name a missing module, --python has to \
                 name the Python in which vLLM and Kvasir are installed",
                output.status
            )
        };
        return Err(failed(format!("{} -m {MODULE}: {reason}", python.display())));
    }
    let json: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| failed(format!("{} -m {MODULE} wrote no JSON: {error}", python.display())))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(Answer {
        json,
        text,
        unknown_fields: Vec::new(),
    })
}

/// A wheel puts this program beside the interpreter that it was installed with.
fn default_python() -> PathBuf {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|program| program.parent().map(|directory| directory.join("python")));
    beside
        .filter(|python| python.is_file())
        .unwrap_or_else(|| Path::new("python3").to_owned())
}
