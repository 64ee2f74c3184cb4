//! Child processes: run them, show how far they are, and say what failed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};

/// Runs a command with the terminal as its output; an exit status other than 0 is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {}", describe(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", describe(command));
    }
    Ok(())
}

/// Runs a command behind a spinner that shows its latest line; the whole output is shown only
/// when it fails.
pub(crate) fn run_quietly(title: &str, command: &mut Command) -> Result<()> {
    let spinner = spinner(title);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", describe(command)))?;
    let stderr = child
        .stderr
        .take()
        .context("a piped child has a standard error")?;
    let collector = std::thread::spawn(move || {
        BufReader::new(stderr)
            .lines()
            .map_while(Result::ok)
            .collect::<Vec<_>>()
    });
    let stdout = child
        .stdout
        .take()
        .context("a piped child has a standard output")?;
    let mut shown = Vec::new();
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        spinner.set_message(shorten(&line));
        shown.push(line);
    }
    let status = child
        .wait()
        .with_context(|| format!("cannot wait for {}", describe(command)))?;
    let complaints = collector.join().unwrap_or_default();
    if status.success() {
        spinner.finish_with_message("done");
        return Ok(());
    }
    spinner.finish_with_message("failed");
    let lines: Vec<_> = shown.iter().chain(&complaints).collect();
    for line in lines.iter().skip(lines.len().saturating_sub(40)) {
        eprintln!("  {line}");
    }
    bail!("{} ended with {status}", describe(command))
}

/// What a command prints on standard output; `None` when it cannot be run or fails.
pub(crate) fn output(program: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn spinner(title: &str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_prefix(title.to_owned());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} [{elapsed}] {wide_msg}") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(Duration::from_millis(120));
    if spinner.is_hidden() {
        eprintln!("{title} ...");
    }
    spinner
}

fn shorten(line: &str) -> String {
    line.trim().chars().take(90).collect()
}

fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut words = vec![
        program
            .file_name()
            .unwrap_or(command.get_program())
            .to_string_lossy()
            .into_owned(),
    ];
    words.extend(
        command
            .get_args()
            .take(4)
            .map(|word| word.to_string_lossy().into_owned()),
    );
    format!("`{}`", words.join(" "))
}
