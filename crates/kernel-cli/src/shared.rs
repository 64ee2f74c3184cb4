//! The flags that every command takes, and what is made of them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anstream::ColorChoice;
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use kernel_registry::{Event, EventSink, Registry, SignaturePolicy, system, vendor};
use kernel_spec::protocol::RegistrySettings;
use kernel_spec::{Backend, KernelRef, RepositoryId, System};

use crate::failure::Failure;
use crate::output::Output;

/// When output is coloured.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(crate) enum Color {
    /// Where it goes to a terminal, and NO_COLOR is not set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Flags of every command.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "one for each flag")]
pub(crate) struct Shared {
    /// Print one JSON document on standard output
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) json: bool,
    /// Print no notes and no progress; warnings and errors remain
    #[arg(short, long, global = true, help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Print what is being done; twice for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Output")]
    pub(crate) verbose: u8,
    /// Colours
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "WHEN",
        default_value_t,
        hide_possible_values = false,
        help_heading = "Output"
    )]
    pub(crate) color: Color,

    /// Use no network at all: only what is in the program, in folders, and in the cache
    #[arg(long, global = true, help_heading = "Kernels")]
    pub(crate) offline: bool,
    /// Take commits from kernels.lock only; fail where it is missing or stale
    #[arg(long, global = true, help_heading = "Kernels")]
    pub(crate) locked: bool,
    /// As --locked, and do not look at the Hub
    #[arg(long, global = true, help_heading = "Kernels")]
    pub(crate) frozen: bool,
    /// Let this repository's code run whatever the Hub says of its publisher; repeatable
    #[arg(long, global = true, value_name = "ORG/NAME", help_heading = "Kernels")]
    pub(crate) trust: Vec<String>,
    /// Refuse kernels without a signature that holds
    #[arg(long, global = true, help_heading = "Kernels")]
    pub(crate) require_signed: bool,
    /// Whose signatures count: a JSON file with the workflows that may sign, instead of those of the
    /// kernels community
    #[arg(long, global = true, value_name = "FILE", help_heading = "Kernels")]
    pub(crate) signature_policy: Option<PathBuf>,
    /// Resolve for this backend instead of the machine's: cpu, tpu, cu130, ...
    #[arg(long, global = true, value_name = "NAME", help_heading = "Kernels")]
    pub(crate) backend: Option<String>,
    /// Resolve for the machine that this JSON file describes (cpu, os, backend, torch_version, ...)
    #[arg(long, global = true, value_name = "FILE", help_heading = "Kernels")]
    pub(crate) system: Option<PathBuf>,
    /// Take kernels from a folder that `vendor` filled, before all others
    // Another name than that of the argument of `vendor`, which is a DIR, too.
    #[arg(
        long = "vendor",
        id = "vendor_folder",
        global = true,
        value_name = "DIR",
        help_heading = "Kernels"
    )]
    pub(crate) vendor: Option<PathBuf>,
}

impl Shared {
    /// Where output goes.
    pub(crate) fn output(&self) -> Output {
        let color = match self.color {
            Color::Auto => ColorChoice::Auto,
            Color::Always => ColorChoice::Always,
            Color::Never => ColorChoice::Never,
        };
        Output::new(self.json, self.quiet, self.verbose, color)
    }

    /// The registry, with `kernels.lock` in the current folder.
    pub(crate) fn registry(&self, output: &Output) -> Result<Registry, Failure> {
        self.registry_with(output, |builder| builder)
    }

    /// The registry, with settings of the command's own.
    pub(crate) fn registry_with(
        &self,
        output: &Output,
        adapt: impl FnOnce(kernel_registry::RegistryBuilder) -> kernel_registry::RegistryBuilder,
    ) -> Result<Registry, Failure> {
        let mut builder = Registry::builder()
            .locked(self.locked)
            .frozen(self.frozen)
            .trust(self.trusted()?)
            .require_signed(self.require_signed)
            .progress(event_sink(output));
        if self.offline {
            builder = builder.offline(true);
        }
        if let Some(path) = &self.signature_policy {
            builder = builder.signature_policy(SignaturePolicy::read(path)?);
        }
        if let Some(system) = self.described_system()? {
            builder = builder.system(system);
        }
        if let Some(folder) = &self.vendor {
            builder = builder.local_kernels(vendor::vendored(folder)?);
        }
        Ok(adapt(builder).build()?)
    }

    /// The same settings, for the runtime library.
    pub(crate) fn settings(&self) -> RegistrySettings {
        RegistrySettings {
            offline: self.offline,
            locked: self.locked,
            frozen: self.frozen,
            lockfile: None,
            trust: self.trust.clone(),
            require_signed: self.require_signed,
            signature_policy: self.signature_policy.clone(),
            vendor: self.vendor.clone(),
        }
    }

    fn trusted(&self) -> Result<Vec<RepositoryId>, Failure> {
        let parse = |text: &String| {
            text.parse().map_err(|error: kernel_spec::Error| {
                let mut failure = Failure::from(error).wrong_call();
                failure.message = format!("--trust: {}", failure.message);
                failure
            })
        };
        self.trust.iter().map(parse).collect()
    }

    /// The machine that flags describe; none where it is this one.
    fn described_system(&self) -> Result<Option<System>, Failure> {
        let described = match &self.system {
            Some(path) => Some(read_system(path)?),
            None => None,
        };
        let Some(backend) = &self.backend else {
            return Ok(described);
        };
        let backend: Backend = backend
            .parse()
            .map_err(|error| Failure::from(error).wrong_call())?;
        let system = described
            .unwrap_or_else(|| system::detect(system::python::PythonEnvironment::find().as_ref()));
        Ok(Some(system.with_backend(backend)))
    }
}

fn read_system(path: &Path) -> Result<System, Failure> {
    let bytes =
        std::fs::read(path).map_err(|error| Failure::io("read", path, &error).wrong_call())?;
    System::from_slice(&bytes).map_err(|error| Failure::from(error).wrong_call())
}

/// Reads a reference from the command line. One that does not parse is a wrong call.
pub(crate) fn parse_reference(text: &str) -> Result<KernelRef, Failure> {
    text.parse()
        .map_err(|error| Failure::from(error).wrong_call())
}

/// Draws downloads, and says what the registry has to say.
fn event_sink(output: &Output) -> EventSink {
    let output = output.clone();
    let bars: Mutex<HashMap<RepositoryId, ProgressBar>> = Mutex::default();
    Arc::new(move |event| {
        let mut bars = bars.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Note(text) => output.note(text),
            Event::Warning(text) => output.warning(text),
            Event::DownloadStarted {
                repository, bytes, ..
            } => {
                let bar = output.byte_bar(repository.as_str(), bytes);
                bars.insert(repository, bar);
            }
            // One kernel is downloaded at a time, so that the bytes are those of the only bar.
            Event::DownloadAdvanced { bytes } => bars.values().for_each(|bar| bar.inc(bytes)),
            Event::DownloadSetBack { bytes } => {
                for bar in bars.values() {
                    bar.set_position(bar.position().saturating_sub(bytes));
                }
            }
            Event::DownloadFinished { repository } => {
                if let Some(bar) = bars.remove(&repository) {
                    bar.finish_and_clear();
                }
            }
            Event::Retrying { reason, delay } => output.note(format!(
                "{reason}; next attempt in {:.1} s",
                delay.as_secs_f64()
            )),
            Event::WaitingForLock { path, waited } if waited.as_secs() > 0 => output.note(format!(
                "waiting for another process, which holds `{}`",
                path.display()
            )),
            _ => {}
        }
    })
}
