//! Developer tasks of Kvasir. `cargo xtask demo` shows the main job, `cargo xtask test` runs every check that a
//! change has to pass; both install what they need under the repository (`.venv-*`, `target/`).

mod abi;
mod bench;
mod circles;
mod codegen;
mod command;
mod demo;
mod deny;
mod features;
mod header;
mod install;
mod layers;
mod licence;
mod mutants;
mod native;
mod needs;
mod paths;
mod peer_env;
mod places;
mod python;
mod sources;
mod steps;
mod structure;
mod test;
mod vllm_alias;
mod vllm_env;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer tasks of Kvasir", version)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Show a real vLLM getting its prefix cache back from Kvasir, in a new process
    Demo(demo::Options),
    /// Run every check: format, layers, dependencies, generated code, lints, docs, Rust, C, loom, Python, vLLM
    Test(test::Options),
    /// Run every bench, and the head-to-head with a peer; writes a page of the documents and its charts
    Bench(bench::Options),
    /// Undo one fence, order or check of the protocol after the other, and say which test finds it
    Mutants(mutants::Options),
    /// Regenerate the flatbuffers code from schema/ and the C header from native/src
    Codegen(codegen::Options),
    /// Build the C libraries and install them with their header, for pkg-config and CMake
    Install(install::Options),
    /// Check how src is built up: who imports whom, no circles of files, where tests are kept, what the lean builds link
    Layers,
    /// Make the Python environment with the CPU build of vLLM, without running anything in it
    VllmEnv(vllm_env::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Demo(options) => demo::run(&options),
        Task::Test(options) => test::run(&options),
        Task::Bench(options) => bench::run(&options),
        Task::Mutants(options) => mutants::run(&options),
        Task::Codegen(options) => codegen::run(options.check),
        Task::Install(options) => install::run(&options),
        Task::Layers => structure::run().and_then(|()| features::run()),
        Task::VllmEnv(options) => vllm_env::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
