//! Running other programs, and where things are in the repository.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the repository").to_path_buf()
}

/// The `target` directory, which CARGO_TARGET_DIR may move.
pub(crate) fn target() -> PathBuf {
    // Set to nothing is not set.
    match std::env::var_os("CARGO_TARGET_DIR").filter(|directory| !directory.is_empty()) {
        Some(directory) => root().join(directory),
        None => root().join("target"),
    }
}

/// `cargo`, the one that runs this task.
pub(crate) fn cargo() -> Command {
    program(
        std::env::var_os("CARGO")
            .filter(|cargo| !cargo.is_empty())
            .unwrap_or_else(|| "cargo".into()),
    )
}

/// A program that runs in the root of the repository and reads nothing from the terminal.
pub(crate) fn program(name: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// Runs a command to its end with its output shown; an error unless it succeeds.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{}: {status}", shown(command));
    }
    Ok(())
}

/// Runs a command to its end and returns what it printed; an error with its error output unless it succeeds.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        bail!(
            "{}: {}\n{}",
            shown(command),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Whether a program can be started and says that it is well.
pub(crate) fn works(command: &mut Command) -> bool {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Installs a system package where that is possible without asking anybody: as root on a machine with apt.
pub(crate) fn install_system_package(name: &str, why: &str) -> Result<()> {
    let root_user = output(program("id").arg("-u")).is_ok_and(|uid| uid == "0");
    if !root_user || !works(program("apt-get").arg("--version")) {
        bail!(
            "{why}; install it with the system's package manager (on Debian or Ubuntu: apt-get install {name})"
        );
    }
    eprintln!("{why}: installing {name}");
    let mut update = program("apt-get");
    run(update.args(["update", "-q"]))?;
    let mut install = program("apt-get");
    install.env("DEBIAN_FRONTEND", "noninteractive");
    run(install.args(["install", "-q", "-y", "--no-install-recommends", name]))
}

/// A command line for people.
fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_an_error_that_names_it() {
        let error = run(program("false").arg("--why")).unwrap_err();
        assert!(
            error.to_string().starts_with("false --why: exit status: 1"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_program_is_an_error_that_names_it() {
        let error = output(&mut program("kvasir-no-such-program")).unwrap_err();
        assert!(
            error.to_string().contains("cannot start kvasir-no-such-program"),
            "{error}"
        );
        assert!(!works(&mut program("kvasir-no-such-program")));
    }

    #[test]
    fn output_is_returned_and_errors_carry_the_error_output() {
        assert_eq!(output(program("sh").args(["-c", "echo yes"])).unwrap(), "yes");
        let error = output(program("sh").args(["-c", "echo broken >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("broken"), "{error}");
    }
}
