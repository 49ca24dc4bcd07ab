//! The command line: serve, status, clients, clear, plan, vllm-args, doctor, conform.

mod arguments;
mod clear;
mod clients;
mod conditions;
mod conform;
mod doctor;
mod environment;
mod failure;
mod log;
mod output;
#[doc(hidden)] // what fuzz targets and benches call
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
    /// List who holds what of a running server, or end such a client
    Clients(clients::ClientsArgs),
    /// Drop everything that the server holds and nobody is reading
    Clear(clear::ClearArgs),
    /// Answer what chunk size a model gets, and why, without starting anything
    Plan(plan::PlanArgs),
    /// Print the --kv-transfer-config for vLLM
    VllmArgs(vllm_args::VllmArgs),
    /// Report every trap in an engine's settings and its server, in one run
    Doctor(doctor::DoctorArgs),
    /// Play the server's side of a script against a client, and say what is wrong with it
    Conform(conform::ConformArgs),
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
    let (cli, matches) = match arguments::parse(&args) {
        Ok(parsed) => parsed,
        Err(error) => return arguments::refuse(&error, &args, json),
    };
    match cli.command {
        Command::Serve(args) => serve::run(args, &matches, started),
        Command::Status(args) => status::run(&args),
        Command::Clients(args) => clients::run(&args),
        Command::Clear(args) => clear::run(&args),
        Command::Plan(args) => plan::run(&args, json),
        Command::VllmArgs(args) => vllm_args::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Conform(args) => conform::run(&args),
    }
}
