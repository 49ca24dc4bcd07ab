//! The `kvasir` command.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use kvasir::cli::plan::{self, PlanArgs};

/// A co-located KV-cache server for LLM inference engines
#[derive(Debug, Parser)]
#[command(name = "kvasir", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer what chunk size a model gets, and why, without starting anything
    Plan(PlanArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Plan(args) => plan::run(&args),
    }
}
