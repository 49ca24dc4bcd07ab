//! The `kvasir` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    kvasir::cli::main(std::env::args_os())
}
