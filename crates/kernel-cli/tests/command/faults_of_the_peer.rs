//! What the Python library gets wrong, seen through the command.

use std::fs;

use hub_fixture::{Hub, samples};

use crate::support::Place;

fn text(output: &std::process::Output) -> String {
    let [stdout, stderr] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{stdout}{stderr}")
}

#[test]
fn telemetry_switches_change_nothing() {
    let hub = Hub::with_samples().unwrap();
    let place = Place::beside(&hub);
    for variable in [
        "HF_HUB_DISABLE_TELEMETRY",
        "DISABLE_TELEMETRY",
        "DO_NOT_TRACK",
    ] {
        let mut command = place.command(&["fetch", "kernels-test/relu@v1"]);
        let output = command.env(variable, "1").output().unwrap();
        assert!(output.status.success(), "{variable}: {}", text(&output));
    }
    let agents: Vec<_> = hub
        .requests()
        .iter()
        .filter_map(|request| request.headers.get("user-agent").cloned())
        .collect();
    assert!(!agents.is_empty());
    let own = |agent: &String| agent.starts_with("hub-kernels/") || agent.contains("hf-hub");
    assert!(agents.iter().all(own), "{agents:?}");
}

#[test]
fn local_kernels_take_the_place_of_repositories_and_say_so() {
    let hub = Hub::with_samples().unwrap();
    let place = Place::beside(&hub);
    samples::relu()
        .write_branch("v2", &place.work().join("mine"))
        .unwrap();
    let value = "kernels-test/relu=mine:";
    let run = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        command.env("LOCAL_KERNELS", value).output().unwrap()
    };
    let output = run(&["fetch", "kernels-test/relu@v1", "--json"]);
    assert!(output.status.success(), "{}", text(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let kernel = &report["kernels"][0];
    assert_eq!(kernel["path"], "mine/build/torch-cpu");
    assert_eq!(
        (&kernel["origin"], &kernel["trust"]),
        (&"local".into(), &"local".into())
    );
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("`kernels-test/relu` is taken from `mine`"),
        "{said}"
    );
    assert!(hub.requests().is_empty(), "{:#?}", hub.request_lines());
    // `verify` looks at the same folder, and notices what loading would refuse.
    fs::write(place.work().join("mine/build/torch-cpu/extra.py"), "").unwrap();
    let output = run(&["verify", "kernels-test/relu@v1"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let output = run(&["fetch", "kernels-test/relu@v1"]);
    assert!(
        text(&output).contains("Unknown file: extra.py"),
        "{}",
        text(&output)
    );
}

#[test]
fn what_is_not_there_is_an_answer() {
    let hub = Hub::with_samples().unwrap();
    let place = Place::beside(&hub);
    for (arguments, kind) in [
        ("variants kernels-test/relu@v9", "version-not-found"),
        ("variants kernels-test/nothing", "repository-not-found"),
        ("variants kernels-test/relu@v1 --offline", "not-cached"),
        ("versions kernels-test/nothing", "repository-not-found"),
        ("info kernels-test/relu-tpu@v1", "no-variant"),
    ] {
        let output = place.run(&format!("{arguments} --json"));
        assert_eq!(
            output.status.code(),
            Some(1),
            "{arguments}: {}",
            text(&output)
        );
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["error"]["kind"], kind, "{arguments}");
    }
}

#[test]
fn what_was_fetched_is_looked_at_offline() {
    let hub = Hub::with_samples().unwrap();
    let place = Place::beside(&hub);
    place.run_well("fetch kernels-test/relu@v1");
    hub.clear_requests();
    place.run_well("versions kernels-test/relu --offline");
    place.run_well("info kernels-test/relu --offline");
    place.run_well("variants kernels-test/relu@v1 --offline --backend tpu");
    assert_eq!(hub.request_lines(), Vec::<String>::new());
}

#[test]
fn a_stranger_is_looked_at_without_being_trusted() {
    let hub = Hub::with_samples().unwrap();
    let place = Place::beside(&hub);
    for command in ["info", "variants", "versions"] {
        place.run_well(&format!("{command} someone/relu"));
    }
    place.check_both("info_untrusted", "info someone/relu@v1");
    let output = place.run("fetch someone/relu@v1");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
}

#[test]
fn switches_of_the_environment_leave_a_models_kernels_out() {
    let hub = Hub::with_samples().unwrap();
    let place = Place::beside(&hub);
    let config =
        r#"{"kernel_config": {"kernel_mapping": {"RMSNorm": "kernels-test/relu@v1:ReLU"}}}"#;
    place.write("model/config.json", config);
    for (variable, value) in [("USE_HUB_KERNELS", "0"), ("DISABLE_KERNEL_MAPPING", "1")] {
        let mut command = place.command(&["fetch", "--config", "model", "--json"]);
        let output = command.env(variable, value).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["kernels"], serde_json::json!([]));
        assert!(text(&output).contains(variable), "{}", text(&output));
    }
    assert!(hub.requests().is_empty());
    let mut command = place.command(&["fetch", "--config", "model"]);
    let output = command.env("USE_HUB_KERNELS", "maybe").output().unwrap();
    assert!(
        text(&output).contains("USE_HUB_KERNELS"),
        "{}",
        text(&output)
    );
}

#[test]
fn an_unknown_op_is_named_once() {
    let output = Place::alone().run("list --op attenton");
    let text = text(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    let message = text.lines().next().unwrap();
    assert_eq!(message.matches("attenton").count(), 1, "{text}");
}
