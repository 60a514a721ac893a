//! `tenants`: serves WebAssembly handlers that nobody trusts, or proves that it can.
#![deny(unsafe_code)]

use clap::{Parser, Subcommand};
use janus::{Config, Profile, Runtime, StackClass};
use janus_tenants::proof::{Scale, prove};
use janus_tenants::server::{Server, listen};
use janus_tenants::settings::Settings;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

#[derive(Parser)]
#[command(name = "tenants", version, about, long_about = None)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the tenants of a file on loopback, until the input ends (Ctrl-D); open requests are answered first
    Serve {
        /// Who is served, and what they may use (janus/tenants/tenants.conf is an example)
        settings: PathBuf,
        /// 0: any that is free
        #[arg(long, default_value_t = 8080)]
        port: u16,
        /// Further folders to look for modules in
        #[arg(long, value_name = "FOLDER")]
        modules: Vec<PathBuf>,
        /// Threads that run tasks
        #[arg(long, default_value_t = 2)]
        workers: usize,
    },
    /// Start a server, attack it, and look whether its other tenants notice; ends with `proof tenants: ok` or `FAILED`
    Proof {
        /// The file that `serve` is given
        settings: PathBuf,
        /// Where the compiled C guests are; modules that are no modules are written there too
        #[arg(long, value_name = "FOLDER")]
        modules: PathBuf,
        /// A few requests of everything, for tests
        #[arg(long)]
        short: bool,
    },
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve { settings, port, modules, workers } => {
            match serve(&settings, port, &modules, workers) {
                Ok(()) => ExitCode::SUCCESS,
                Err(why) => {
                    eprintln!("tenants: {why}");
                    ExitCode::FAILURE
                }
            }
        }
        Command::Proof { settings, modules, short } => {
            let scale = if short { Scale::SHORT } else { Scale::LONG };
            match prove(&settings, &modules, &scale) {
                Ok(()) => {
                    println!("proof tenants: ok");
                    ExitCode::SUCCESS
                }
                Err(why) => {
                    println!("proof tenants: FAILED {why}");
                    ExitCode::FAILURE
                }
            }
        }
    }
}

/// Operations after which a guest yields; they are instructions, so smaller than the operations that native tasks
/// count.
const QUANTUM: u64 = 16_384;

fn serve(settings: &Path, port: u16, modules: &[PathBuf], workers: usize) -> Result<(), String> {
    let settings = Settings::read(settings, modules)?;
    let config = Config::new().profile(Profile::Sovereign).quantum(QUANTUM).workers(workers);
    #[allow(unsafe_code, reason = "the one promise of a runtime's making")]
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime =
        unsafe { Runtime::new(config.stack(StackClass::Small)) }.map_err(|error| error.to_string())?;
    let runtime = Arc::new(runtime);
    let server = Server::new(settings, runtime.clone());
    for tenant in server.tenants() {
        if let Some(why) = tenant.refused() {
            eprintln!("tenants: {}: {why}", tenant.name);
        }
    }
    let (open, stop) = janus::channel::<()>(1);
    let reader = std::thread::Builder::new().name("input".into()).spawn(move || {
        // Input is ignored; the end of the input ends the server.
        let mut piece = [0; 64];
        while std::io::stdin().read(&mut piece).is_ok_and(|got| got > 0) {}
        drop(open);
    });
    reader.map_err(|error| format!("no thread to read the input: {error}"))?;
    let served = runtime.run(|cx| {
        let listener = listen(cx, port)?;
        println!("listening on http://{}/", listener.local_addr()?);
        std::io::stdout().flush()?;
        server.run(cx, &listener, &stop);
        Ok(())
    });
    match served {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            let error: std::io::Error = error;
            Err(format!("cannot listen on port {port}: {error}; choose another with --port"))
        }
        Err(error) => Err(error.to_string()),
    }
}
