//! The page in a real browser: nothing sticks out on a phone, both themes are drawn, and it prints.
//!
//! ```text
//! cargo test --workspace --test browser -- --ignored
//! ```
//! Pictures are left in `target/tmp/report/`, to be looked at.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use kernel_report::report::compare::changes;
use kernel_report::report::gate::Gate;
use kernel_report::report::html;
use support::{comparison, named};

const BROWSERS: [&str; 4] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
];

fn browser() -> String {
    std::env::var("CHROMIUM").unwrap_or_else(|_| {
        BROWSERS
            .into_iter()
            .find(|name| Command::new(name).arg("--version").output().is_ok())
            .expect("install Chromium, or set CHROMIUM")
            .to_owned()
    })
}

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn page() -> String {
    let mut before = comparison(
        &[
            ("rms_norm R=1 H=576", 0.82),
            ("rms_norm R=128 H=576", 1.0),
            ("rms_norm R=512 H=4096", 1.07),
        ],
        1,
    );
    before.samples[1]
        .warnings
        .push("drift: A became 7% slower from the first third of the run to the last".into());
    let after = comparison(
        &[
            ("rms_norm R=1 H=576", 0.78),
            ("rms_norm R=512 H=4096", 1.12),
        ],
        9,
    );
    let records = [named("before.json", before), named("after.json", after)];
    let changes = changes(&records, 0.95);
    let gate = Gate::new(0.03, &records, &changes);
    html::page(&records, &changes, Some(&gate)).unwrap()
}

fn run(arguments: &[String]) -> String {
    let output = Command::new(browser())
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
        ])
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
#[ignore = "needs Chromium"]
fn nothing_sticks_out_at_any_width_and_one_drawing_is_shown() {
    let probe = "<script>document.title=[innerWidth,document.documentElement.scrollWidth,\
        [...document.querySelectorAll('svg')].filter(e=>e.getBoundingClientRect().width>0).length,\
        document.querySelectorAll('svg').length].join(',')</script></body>";
    let path = folder().join("probe.html");
    std::fs::write(&path, page().replace("</body>", probe)).unwrap();
    for width in [360, 768, 1280] {
        // A frame has the width asked for; a window of Chromium is never narrower than 500 pixels.
        let frame = folder().join("frame.html");
        let text = format!(
            "<iframe src='probe.html' width='{width}' height='900' style='border:0'></iframe>\
             <script>onload=()=>document.title=frames[0].document.title</script>"
        );
        std::fs::write(&frame, text).unwrap();
        let dom = run(&[
            "--allow-file-access-from-files".into(),
            "--window-size=1400,1000".into(),
            "--virtual-time-budget=5000".into(),
            "--dump-dom".into(),
            format!("file://{}", frame.display()),
        ]);
        let title = dom
            .split("<title>")
            .nth(1)
            .and_then(|rest| rest.split("</title>").next());
        let figures: Vec<u32> = title
            .unwrap_or_default()
            .split(',')
            .map(|n| n.parse().unwrap())
            .collect();
        let [inner, scroll, shown, all] = figures[..] else {
            panic!("{dom}");
        };
        assert_eq!(inner, width);
        assert!(scroll <= inner, "{scroll} pixels at {inner}");
        assert_eq!(shown * 2, all, "at {inner}");
    }
}

#[test]
#[ignore = "needs Chromium"]
fn pictures_of_both_themes_of_a_phone_and_of_paper() {
    let folder = folder();
    let path = folder.join("page.html");
    std::fs::write(&path, page()).unwrap();
    let address = format!("file://{}", path.display());
    for (name, width, scheme) in [("light", 1000, 1), ("dark", 1000, 0), ("phone", 500, 1)] {
        let picture = folder.join(format!("{name}.png"));
        run(&[
            format!("--window-size={width},5200"),
            format!("--blink-settings=preferredColorScheme={scheme}"),
            format!("--screenshot={}", picture.display()),
            address.clone(),
        ]);
        assert!(std::fs::metadata(&picture).unwrap().len() > 10_000);
    }
    let paper = folder.join("paper.pdf");
    run(&[
        "--no-pdf-header-footer".into(),
        format!("--print-to-pdf={}", paper.display()),
        address,
    ]);
    assert!(std::fs::read(&paper).unwrap().starts_with(b"%PDF"));
}
