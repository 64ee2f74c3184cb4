//! Standard output and standard error.
//!
//! Data goes to standard output, everything else to standard error. With `--json`, standard output
//! gets one JSON document.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::failure::Failure;

/// Version of the JSON documents.
pub(crate) const FORMAT: u32 = 1;

const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[1;31m";
const YELLOW: &str = "\x1b[1;33m";
const CYAN: &str = "\x1b[1;36m";
const RESET: &str = "\x1b[0m";

/// Where output goes, and how. Cheap to clone; the clones draw on the same terminal.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    /// Whether standard output gets JSON.
    pub(crate) json: bool,
    /// Whether notes and progress are left out.
    pub(crate) quiet: bool,
    /// How often `-v` was given.
    pub(crate) verbose: u8,
    color: ColorChoice,
    bars: MultiProgress,
}

#[derive(Serialize)]
struct Document<'a, T> {
    format: u32,
    #[serde(flatten)]
    content: &'a T,
}

impl Output {
    pub(crate) fn new(json: bool, quiet: bool, verbose: u8, color: ColorChoice) -> Self {
        let target = if quiet || !io::stderr().is_terminal() {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        Self {
            json,
            quiet,
            verbose,
            color,
            bars: MultiProgress::with_draw_target(target),
        }
    }

    /// Writes text to standard output, as it is.
    pub(crate) fn data(&self, text: impl AsRef<str>) -> Result<(), Failure> {
        let mut stream = io::stdout().lock();
        self.bars
            .suspend(|| {
                stream.write_all(text.as_ref().as_bytes())?;
                stream.flush()
            })
            .map_err(|error| Failure::stdout(&error))
    }

    /// Writes a line to standard output.
    pub(crate) fn line(&self, text: impl AsRef<str>) -> Result<(), Failure> {
        self.data(format!("{}\n", text.as_ref()))
    }

    /// Writes the JSON document to standard output: `"format"` first, then the keys of `content`,
    /// which has to be a struct or a map.
    pub(crate) fn json(&self, content: &impl Serialize) -> Result<(), Failure> {
        let document = Document {
            format: FORMAT,
            content,
        };
        let text = serde_json::to_string_pretty(&document)
            .map_err(|error| Failure::new("internal", format!("cannot write JSON: {error}")))?;
        self.line(text)
    }

    /// Says something that is good to know, on standard error. Nothing with `--quiet`.
    pub(crate) fn note(&self, text: impl AsRef<str>) {
        if !self.quiet {
            self.say(CYAN, "note", text.as_ref());
        }
    }

    /// Says that something may be wrong, on standard error.
    pub(crate) fn warning(&self, text: impl AsRef<str>) {
        self.say(YELLOW, "warning", text.as_ref());
    }

    pub(crate) fn error(&self, text: &str) {
        self.say(RED, "error", text);
    }

    pub(crate) fn labelled(&self, label: &str, text: &str) {
        self.say(BOLD, label, text);
    }

    /// Writes text to standard error, as it is.
    pub(crate) fn message(&self, text: &str) {
        let mut stream = AutoStream::new(io::stderr().lock(), self.color);
        // There is nowhere left to say that standard error is closed.
        let _ = self.bars.suspend(|| stream.write_all(text.as_bytes()));
    }

    fn say(&self, style: &str, label: &str, text: &str) {
        self.message(&format!("{style}{label}:{RESET} {text}\n"));
    }

    /// All progress bars of the program.
    pub(crate) fn bars(&self) -> MultiProgress {
        self.bars.clone()
    }

    /// A bar for bytes; hidden with `--quiet` and where standard error is no terminal.
    pub(crate) fn byte_bar(&self, label: &str, bytes: u64) -> ProgressBar {
        let style = "{prefix} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        self.bar(label, bytes, style)
    }

    /// A bar for steps, or a spinner where their number is not known (0).
    pub(crate) fn step_bar(&self, label: &str, steps: u64) -> ProgressBar {
        if steps == 0 {
            let spinner = self.bars.add(ProgressBar::new_spinner());
            spinner.set_message(label.to_owned());
            spinner.enable_steady_tick(Duration::from_millis(120));
            return spinner;
        }
        self.bar(label, steps, "{prefix} {bar:30} {pos}/{len} {eta}")
    }

    fn bar(&self, label: &str, length: u64, style: &str) -> ProgressBar {
        let bar = self.bars.add(ProgressBar::new(length));
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.set_prefix(label.to_owned());
        bar
    }

    /// With `-v`, sends the log of our crates to standard error; with `-vv`, that of all.
    pub(crate) fn start_log(&self) {
        let filter = match self.verbose {
            0 => return,
            1 => "kernel_registry=debug,kernel_cli=debug",
            _ => "debug",
        };
        // Fails only where there is a log already.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal() && self.color != ColorChoice::Never)
            .try_init();
    }
}

/// A number of bytes for people.
pub(crate) fn bytes(count: u64) -> String {
    indicatif::HumanBytes(count).to_string()
}

/// Columns of text, each as wide as its widest entry, with a heading.
pub(crate) fn table<const N: usize>(
    heading: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(heading);
    table.add_rows(rows);
    let lines = table.lines().map(|line| format!("{}\n", line.trim()));
    lines.collect()
}
