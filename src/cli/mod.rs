//! The command line: serve, status, plan, vllm-args, doctor.
//!
//! The top of the crate; may import everything.

mod doctor;
mod environment;
mod log;
mod output;
pub mod plan;
mod serve;
mod socket;
mod status;
mod vllm_args;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use nix::sys::signal::Signal;

use crate::shm::process::ignore_signal;

/// Exit code for settings and input that cannot be used; clap uses the same for flags that it does not know.
const BAD_INPUT: u8 = 2;

/// A co-located KV-cache server for LLM inference engines
#[derive(Debug, Parser)]
#[command(name = "kvasir", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server until it is told to stop
    Serve(serve::ServeArgs),
    /// Show what a running server holds and whom it serves
    Status(status::StatusArgs),
    /// Answer what chunk size a model gets, and why, without starting anything
    Plan(plan::PlanArgs),
    /// Print the --kv-transfer-config for vLLM
    VllmArgs(vllm_args::VllmArgs),
    /// Report every trap in an engine's settings and its server, in one run
    Doctor(doctor::DoctorArgs),
}

/// Runs the command that `args` name (the first is the program) and returns its exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let started = Instant::now();
    // A file that may not grow further is an error of the write, or of a memory region that is made; not a death.
    if let Err(error) = ignore_signal(Signal::SIGXFSZ) {
        return output::fail("start", error, 1);
    }
    let args: Vec<OsString> = args.into_iter().collect();
    // Also where clap takes it for the value of another option, or finds no command at all.
    let json = args.iter().any(|arg| arg == "--json");
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && args.get(1).is_some_and(|command| command == "plan") => {
            return plan::refuse_arguments(&error, json);
        }
        Err(error) => {
            // Not `exit`, which would not return here; printing fails only when nobody reads.
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    match cli.command {
        Command::Serve(args) => serve::run(args, started),
        Command::Status(args) => status::run(&args),
        Command::Plan(args) => plan::run(&args, json),
        Command::VllmArgs(args) => vllm_args::run(&args),
        Command::Doctor(args) => doctor::run(&args),
    }
}
