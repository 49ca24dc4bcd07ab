//! The step `native`: what a C or C++ engine gets. The libraries are installed, their symbols and layouts looked at, and the
//! engines of `native/examples` run with real servers that are killed under them, also under sanitizers and valgrind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::codegen;
use crate::command::{self, cargo, output, program};
use crate::{header, install};

/// Longer than a server takes to start on the slowest machine.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Strict, as an engine may be compiled.
const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g"];

/// A language: its compilers, and an engine.
struct Language {
    compilers: [&'static str; 2],
    standard: &'static str,
    engine: &'static str,
    /// Ways in which the engine can run besides the plain one.
    ways: &'static [&'static str],
}

const LANGUAGES: [Language; 2] = [
    Language {
        compilers: ["gcc", "clang"],
        standard: "-std=c11",
        engine: "engine.c",
        ways: &["ring"],
    },
    Language {
        compilers: ["g++", "clang++"],
        standard: "-std=c++17",
        engine: "engine.cpp",
        ways: &[],
    },
];

/// How valgrind is asked: an error of any kind is an exit code.
const VALGRIND: [&str; 6] = [
    "valgrind",
    "--quiet",
    "--error-exitcode=99",
    "--leak-check=full",
    "--errors-for-leak-kinds=definite",
    "--num-callers=30",
];

/// Runs the step.
pub(crate) fn run() -> Result<()> {
    command::run(cargo().args(["build", "--package", "kvasir", "--bin", "kvasir", "--locked"]))?;
    let work = command::target().join("native");
    let prefix = work.join("prefix");
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| format!("cannot empty {}", work.display()))?;
    }
    install::into(&prefix, "dev")?;
    symbols(&prefix)?;
    let mut engines = Vec::new();
    for language in &LANGUAGES {
        layout(language, &prefix, &work)?;
        for compiler in language.compilers {
            let plain = compile(language, compiler, &prefix, &work, &[])?;
            // The first compiler's also under valgrind, and in every way.
            if compiler == language.compilers[0] {
                engines.push(Engine::new(plain.clone(), &VALGRIND));
                engines.extend(language.ways.iter().map(|way| Engine::in_way(&plain, way)));
            }
            engines.push(Engine::new(plain, &[]));
        }
        let sanitized = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
        engines.push(Engine::new(
            compile(language, language.compilers[0], &prefix, &work, &sanitized)?,
            &[],
        ));
    }
    engines.push(Engine::new(of_first_version(&prefix, &work)?, &[]));
    engines.extend(by_cmake(&prefix, &work)?.map(|path| Engine::new(path, &[])));
    run_all(&work, engines)
}

/// Neither library has a global symbol that is not in the header, nor lacks one that is.
fn symbols(prefix: &Path) -> Result<()> {
    let abi = header::checked_in()?;
    let expected: Vec<&str> = abi.functions().collect();
    let shared: (&str, &[&str]) = ("lib/libkvasir.so", &["--dynamic"]);
    let archive: (&str, &[&str]) = ("lib/libkvasir.a", &["--extern-only"]);
    for (library, how) in [shared, archive] {
        let mut nm = program("nm");
        nm.args(how).args(["--defined-only", "--format=posix"]);
        let listed = output(nm.arg(prefix.join(library)))?;
        let names = listed
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(name, _)| name);
        let mut found: Vec<&str> = names.filter(|name| !name.ends_with(']')).collect();
        found.sort_unstable();
        if found != expected {
            let more: Vec<_> = found.iter().filter(|name| !expected.contains(name)).collect();
            let less: Vec<_> = expected.iter().filter(|name| !found.contains(name)).collect();
            bail!("{library} has {more:?}, which are not in the header, and lacks {less:?}");
        }
    }
    println!("{} symbols, all of the header", expected.len());
    Ok(())
}

/// The compiler, with what pkg-config says.
fn compiler(language: &Language, compiler: &str, prefix: &Path) -> Result<Command> {
    let mut ask = program("pkg-config");
    ask.args(["--cflags", "--libs", "kvasir"]);
    ask.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let flags = output(&mut ask)?;
    let mut compile = program(compiler);
    compile.arg(language.standard).args(WARNINGS);
    // Behind the sources: libraries are looked at in order.
    compile.env("KVASIR_FLAGS", &flags);
    Ok(compile)
}

fn flags(compile: &Command) -> Vec<String> {
    let flags = compile.get_envs().find(|(name, _)| *name == "KVASIR_FLAGS");
    let text = flags.and_then(|(_, value)| value).unwrap_or_default();
    text.to_string_lossy()
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

/// Both compilers agree with Rust about where every field lies.
fn layout(language: &Language, prefix: &Path, work: &Path) -> Result<()> {
    let source = work.join(format!("layout-{}", language.engine));
    fs::write(
        &source,
        "#include \"native/abi/layout.h\"\nint main(void) { return 0; }\n",
    )?;
    for name in language.compilers {
        let mut compile = compiler(language, name, prefix)?;
        let flags = flags(&compile);
        compile
            .arg("-fsyntax-only")
            .arg("-I")
            .arg(command::root())
            .arg(&source);
        command::run(compile.args(flags.iter().filter(|flag| flag.starts_with("-I"))))?;
    }
    Ok(())
}

/// Compiles an engine and returns the program.
fn compile(language: &Language, name: &str, prefix: &Path, work: &Path, more: &[&str]) -> Result<PathBuf> {
    let kind = match more {
        [] => "",
        [one] if one.starts_with("-I") => "-first",
        _ => "-sanitized",
    };
    let program = work.join(format!("{name}-{}{kind}", language.engine));
    let mut compile = compiler(language, name, prefix)?;
    let flags = flags(&compile);
    compile.args(more);
    compile.arg(command::root().join("native/examples").join(language.engine));
    compile.args(flags).arg("-o").arg(&program);
    compile.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
    command::run(&mut compile)?;
    Ok(program)
}

/// An engine that was compiled with the header of the first version, and runs with this library.
fn of_first_version(prefix: &Path, work: &Path) -> Result<PathBuf> {
    let include = work.join("first");
    fs::create_dir_all(&include)?;
    fs::copy(command::root().join(header::FIRST), include.join("kvasir.h"))
        .with_context(|| format!("cannot copy {}", header::FIRST))?;
    let include = format!("-I{}", include.display()); // looked at before what pkg-config says
    compile(
        &LANGUAGES[1],
        LANGUAGES[1].compilers[0],
        prefix,
        work,
        &[&include],
    )
}

/// The engines as a CMake project builds them: one with the shared library, one with the other.
fn by_cmake(prefix: &Path, work: &Path) -> Result<impl Iterator<Item = PathBuf>> {
    let build = work.join("cmake");
    let cmake = codegen::cmake()?;
    let mut configure = program(&cmake);
    configure
        .arg("-S")
        .arg(command::root().join("native/cmake/example"));
    configure.arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
    output(&mut configure)?;
    output(program(&cmake).arg("--build").arg(&build))?;
    Ok(["engine", "engine_static"]
        .into_iter()
        .map(move |name| build.join(name)))
}

/// A program and what it runs in.
struct Engine {
    program: PathBuf,
    wrapper: Vec<&'static str>,
    way: Option<&'static str>,
}

impl Engine {
    fn new(program: PathBuf, wrapper: &[&'static str]) -> Self {
        Self {
            program,
            wrapper: wrapper.to_vec(),
            way: None,
        }
    }

    fn in_way(program: &Path, way: &'static str) -> Self {
        Self {
            way: Some(way),
            ..Self::new(program.to_owned(), &[])
        }
    }

    fn name(&self) -> String {
        let file = self.program.file_name().unwrap_or_default().to_string_lossy();
        match (self.wrapper.first(), self.way) {
            (Some(wrapper), _) => format!("{file} under {wrapper}"),
            (None, Some(way)) => format!("{file} {way}"),
            (None, None) => file.into_owned(),
        }
    }
}

/// Runs every engine with servers of its own, two at a time: each waits for the other side most of the time.
fn run_all(work: &Path, engines: Vec<Engine>) -> Result<()> {
    let queue = std::sync::Mutex::new(engines.into_iter().enumerate());
    let next = || queue.lock().ok().and_then(|mut queue| queue.next());
    thread::scope(|scope| {
        let worker = || -> Result<()> {
            while let Some((index, engine)) = next() {
                let started = Instant::now();
                run_one(&work.join(format!("run-{index}")), &engine).with_context(|| engine.name())?;
                println!("{}: {:.1} s", engine.name(), started.elapsed().as_secs_f64());
            }
            Ok(())
        };
        let workers = [scope.spawn(worker), scope.spawn(worker)];
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })
}

/// A server that ends with the value.
struct Server(Child);

impl Server {
    fn start(directory: &Path) -> Result<Self> {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(directory.join("log"))?;
        let mut serve = program(command::target().join("debug/kvasir"));
        serve.arg("serve").arg("--socket").arg(directory.join("k.sock"));
        serve.args(["--pool-size", "32MiB", "--chunk-size", "64"]);
        let child = serve.stdout(Stdio::null()).stderr(log).spawn()?;
        Ok(Self(child))
    }

    /// As a crash ends it.
    fn kill(mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs an engine with three servers, of which the first two are killed.
fn run_one(directory: &Path, engine: &Engine) -> Result<()> {
    const SERVERS: usize = 3;
    fs::create_dir_all(directory)?;
    let mut server = Some(Server::start(directory)?);
    let seconds = WATCHDOG.as_secs() * SERVERS as u64;
    let mut run = program("timeout");
    run.arg(seconds.to_string())
        .args(&engine.wrapper)
        .arg(&engine.program);
    run.arg(directory.join("k.sock")).arg(SERVERS.to_string());
    run.args(engine.way);
    let errors = directory.join("errors");
    run.stdout(Stdio::piped()).stderr(fs::File::create(&errors)?);
    let mut child = run.spawn().context("cannot start it")?;
    let printed = child.stdout.take().context("no output")?;
    let mut lines = Vec::new();
    for line in BufReader::new(printed).lines() {
        let line = line?;
        if line == "waiting for another server"
            && let Some(server) = server.take()
        {
            server.kill()?;
        }
        // It has seen that there is none.
        if line == "no server: computing without a cache" {
            server = Some(Server::start(directory)?);
        }
        lines.push(line);
    }
    let status = child.wait()?;
    let exact = lines
        .iter()
        .filter(|line| line.ends_with("every byte as it was stored"))
        .count();
    let outages = lines.iter().filter(|line| line.starts_with("no server")).count();
    if !status.success() || exact != SERVERS || outages != SERVERS - 1 {
        let errors = fs::read_to_string(&errors).unwrap_or_default();
        let log = fs::read_to_string(directory.join("log")).unwrap_or_default();
        bail!("{status}\n{}\n{errors}\nits servers:\n{log}", lines.join("\n"));
    }
    Ok(())
}
