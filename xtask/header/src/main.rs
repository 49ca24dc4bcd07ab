//! Prints the C header of the crate in the directory that it is given.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1) else {
        eprintln!("usage: kvasir-header DIRECTORY");
        return ExitCode::FAILURE;
    };
    let directory = Path::new(&directory);
    let header = cbindgen::Config::from_file(directory.join("cbindgen.toml"))
        .map_err(|error| format!("cbindgen.toml: {error}"))
        .and_then(|config| {
            let builder = cbindgen::Builder::new().with_config(config).with_crate(directory);
            builder.generate().map_err(|error| error.to_string())
        });
    match header {
        Ok(header) => {
            header.write(std::io::stdout());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cannot make the header of {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}
