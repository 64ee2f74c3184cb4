//! Running the command, and comparing what it does with a snapshot.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hub_fixture::Hub;

/// A place to run the command in.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    endpoint: String,
}

/// What differs from run to run, and what stands for it in snapshots.
const FILTERS: [(&str, &str); 8] = [
    (r"http://(127\.0\.0\.1|localhost):\d+", "[HUB]"),
    (r"\b[0-9a-f]{40}\b", "[COMMIT]"),
    (r"[A-Za-z0-9+/]{42,43}=", "[HASH]"),
    (r#""bytes": [1-9]\d*"#, r#""bytes": [SIZE]"#),
    (r"\d+\.\d+ [KM]iB", "[SIZE]"),
    (r"\b\d+ B\b", "[SIZE]"),
    // The width of columns follows from what is in them.
    (r"size +kernel", "size kernel"),
    (r"\[SIZE\] +", "[SIZE] "),
];

impl Place {
    /// Without a Hub: every request would fail.
    pub(crate) fn alone() -> Self {
        // Nobody listens on port 9 of the loopback interface.
        Self::with_endpoint("http://127.0.0.1:9")
    }

    /// With a Hub.
    pub(crate) fn beside(hub: &Hub) -> Self {
        Self::with_endpoint(hub.endpoint())
    }

    fn with_endpoint(endpoint: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("work")).unwrap();
        let machine = r#"{"cpu": "x86_64", "os": "linux", "backend": "cpu"}"#;
        fs::write(folder.path().join("machine.json"), machine).unwrap();
        Self {
            folder,
            endpoint: endpoint.to_owned(),
        }
    }

    /// The folder that the command runs in.
    pub(crate) fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// The cache.
    pub(crate) fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    /// Writes a file of the working folder.
    pub(crate) fn write(&self, name: &str, content: &str) {
        let path = self.work().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// The command with its environment, for the same machine everywhere.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        self.command_for(&self.folder.path().join("machine.json"), arguments)
    }

    /// The command with its environment, for a machine that a file describes.
    pub(crate) fn command_for<S: AsRef<OsStr>>(&self, machine: &Path, arguments: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kernel-cli"));
        command
            .env_clear()
            .env("HOME", self.folder.path())
            .env("KERNELS_CACHE", self.cache())
            .env("HF_ENDPOINT", &self.endpoint)
            .env("KERNEL_PYTHON_ENVIRONMENT", self.folder.path().join("none"))
            .current_dir(self.work())
            .arg("--system")
            .arg(machine)
            .args(arguments);
        command
    }

    /// Runs the command; arguments are separated by blanks.
    pub(crate) fn run(&self, arguments: &str) -> Output {
        let arguments: Vec<_> = arguments.split_whitespace().collect();
        self.command(&arguments).output().unwrap()
    }

    /// Runs the command, and what it prints does not matter.
    pub(crate) fn run_well(&self, arguments: &str) {
        let output = self.run(arguments);
        assert!(output.status.success(), "{}", self.text(arguments, &output));
    }

    /// Compares a run with a snapshot, then the same run with `--json` with another one.
    #[track_caller]
    pub(crate) fn check_both(&self, name: &str, arguments: &str) {
        self.check(name, arguments);
        let arguments = format!("{arguments} --json");
        self.check(&format!("{name}_json"), &arguments);
        let stdout = self.run(&arguments).stdout;
        let document: serde_json::Map<_, _> = serde_json::from_slice(&stdout).unwrap();
        assert_eq!(
            document.iter().next().unwrap(),
            (&"format".to_owned(), &1.into())
        );
    }

    /// Compares a run with a snapshot.
    #[track_caller]
    pub(crate) fn check(&self, name: &str, arguments: &str) {
        let output = self.run(arguments);
        let text = self.text(arguments, &output);
        let mut settings = insta::Settings::clone_current();
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.set_snapshot_path(Path::new("../snapshots"));
        for (pattern, replacement) in FILTERS {
            settings.add_filter(pattern, replacement);
        }
        settings.bind(|| insta::assert_snapshot!(name, text));
    }

    fn text(&self, arguments: &str, output: &Output) -> String {
        let text = format!(
            "$ kernel-cli {arguments}\nexit code: {}\n----- stdout -----\n{}----- stderr -----\n{}",
            output.status.code().unwrap_or(-1),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        let folder = self.folder.path().display().to_string();
        text.replace(&folder, "[FOLDER]")
    }
}
