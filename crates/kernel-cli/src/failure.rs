//! Errors as people and programs read them, and exit codes.

use std::error::Error;
use std::io;
use std::process::ExitCode;

use anstream::ColorChoice;
use clap::error::ErrorKind;
use serde::Serialize;

use crate::interrupt;
use crate::output::Output;
use crate::runtime::RuntimeError;

/// Exit code where the command failed, or its answer is no.
const FAILED: u8 = 1;
/// Exit code where the call is wrong.
const WRONG_CALL: u8 = 2;

/// Why a command ends early.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Stable word for programs.
    pub(crate) kind: Box<str>,
    /// What happened.
    pub(crate) message: String,
    /// Its causes, outermost first.
    pub(crate) causes: Vec<String>,
    /// What the user can do.
    pub(crate) hint: Option<String>,
    /// Details behind `-v`.
    pub(crate) detail: Option<String>,
    /// The program's exit code.
    pub(crate) exit_code: u8,
    /// Whether nothing is to be said of it.
    silent: bool,
}

impl Failure {
    /// A failure with exit code 1.
    pub(crate) fn new(kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind: kind.into().into_boxed_str(),
            message: message.into(),
            causes: Vec::new(),
            hint: None,
            detail: None,
            exit_code: FAILED,
            silent: false,
        }
    }

    /// A wrong call: exit code 2.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new("usage", message).wrong_call()
    }

    /// The user pressed Ctrl-C.
    pub(crate) fn interrupted() -> Self {
        Self {
            exit_code: interrupt::EXIT_CODE,
            ..Self::new("interrupted", "interrupted")
        }
    }

    /// A file could not be read or written.
    pub(crate) fn io(action: &str, path: &std::path::Path, error: &io::Error) -> Self {
        let mut failure = Self::new("io", format!("cannot {action} `{}`", path.display()));
        failure.causes.push(error.to_string());
        failure
    }

    /// Standard output is closed. A reader that has read enough, such as `head`, is no failure.
    pub(crate) fn stdout(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self {
                exit_code: 0,
                silent: true,
                ..Self::new("broken-pipe", "standard output is closed")
            };
        }
        Self::new("io", format!("cannot write to standard output: {error}"))
    }

    /// The same, with exit code 2.
    pub(crate) fn wrong_call(self) -> Self {
        Self {
            exit_code: WRONG_CALL,
            ..self
        }
    }

    /// The same, with its cause.
    pub(crate) fn caused_by(mut self, cause: String) -> Self {
        self.causes.push(cause);
        self
    }

    /// The same, with something that the user can do.
    pub(crate) fn with_hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }

    fn of(error: &(impl Error + 'static), kind: impl Into<String>, hint: Option<String>) -> Self {
        let mut failure = Self::new(kind, error.to_string());
        failure.hint = hint;
        let mut cause = error.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Some messages hold their cause already.
            if !failure.message.contains(&text) {
                failure.causes.push(text);
            }
            cause = error.source();
        }
        failure
    }

    /// Prints it and gives the exit code.
    pub(crate) fn report(&self, output: &Output) -> ExitCode {
        if !self.silent {
            // Where standard output cannot be written, there is still standard error.
            if !output.json || output.json(&Report { error: self.into() }).is_err() {
                self.print(output);
            }
            if let Some(detail) = self.detail.as_ref().filter(|_| output.verbose > 0) {
                output.message(&format!("\n{detail}\n"));
            }
        }
        ExitCode::from(self.exit_code)
    }

    fn print(&self, output: &Output) {
        output.error(&self.message);
        for cause in &self.causes {
            output.labelled("caused by", cause);
        }
        if let Some(hint) = &self.hint {
            output.labelled("hint", hint);
        }
    }
}

#[derive(Serialize)]
struct Report<'a> {
    error: ReportedError<'a>,
}

#[derive(Serialize)]
struct ReportedError<'a> {
    kind: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    causes: &'a [String],
    hint: Option<&'a str>,
}

impl<'a> From<&'a Failure> for ReportedError<'a> {
    fn from(failure: &'a Failure) -> Self {
        Self {
            kind: &failure.kind,
            message: &failure.message,
            causes: &failure.causes,
            hint: failure.hint.as_deref(),
        }
    }
}

impl From<kernel_registry::Error> for Failure {
    fn from(error: kernel_registry::Error) -> Self {
        let failure = Self::of(&error, error.kind(), error.hint());
        match error {
            kernel_registry::Error::Setting { .. } => failure.wrong_call(),
            _ => failure,
        }
    }
}

impl From<kernel_spec::Error> for Failure {
    fn from(error: kernel_spec::Error) -> Self {
        Self::of(&error, error.kind(), error.hint())
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        let mut failure = Self::new(error.kind(), error.to_string());
        failure.hint = error.hint();
        if let RuntimeError::Failed(told) = error {
            if matches!(told.kind.as_str(), "cancelled" | "interrupted") {
                return Self::interrupted();
            }
            failure.causes = told.causes;
            failure.detail = told.detail;
            if told.kind == "usage" {
                return failure.wrong_call();
            }
        }
        failure
    }
}

/// Prints what clap says of the arguments: help and version on standard output, a wrong call on
/// standard error or, where `--json` is among the arguments, as JSON.
pub(crate) fn report_usage(error: &clap::Error) -> ExitCode {
    let is_answer = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    let json = std::env::args_os()
        .skip(1)
        .take_while(|argument| argument != "--")
        .any(|argument| argument == "--json");
    if is_answer || !json {
        // A closed pipe is the reader's choice.
        let _ = error.print();
        return ExitCode::from(if is_answer { 0 } else { WRONG_CALL });
    }
    let output = Output::new(true, false, 0, ColorChoice::Never);
    usage_failure(error).report(&output)
}

/// The first paragraph is the message; a `tip:` is the hint, or else the help.
fn usage_failure(error: &clap::Error) -> Failure {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Failure::usage("a command is missing").with_hint("see `kernel-cli --help`");
    }
    let text = error.render().to_string();
    let message: Vec<_> = text
        .lines()
        .take_while(|line| !line.is_empty())
        .map(str::trim)
        .collect();
    let message = message.join(" ");
    let tip = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("tip: "))
        .unwrap_or("see `kernel-cli --help`");
    Failure::usage(message.strip_prefix("error: ").unwrap_or(&message)).with_hint(tip)
}
