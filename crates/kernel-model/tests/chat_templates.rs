//! Real chat templates, rendered here and by transformers.
//!
//! The demo's model has one. Those of other families are not ours to publish; give directories with a
//! `tokenizer_config.json` of theirs, separated by `:`, in `KERNEL_MODEL_TEMPLATES` to try them too.

use std::path::{Path, PathBuf};
use std::process::Command;

use kernel_model::chat::{ChatOptions, ChatTemplate, Message};
use serde_json::Value;

fn directories() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut all = vec![root.join("models/SmolLM2-135M-Instruct")];
    if let Some(more) = std::env::var_os("KERNEL_MODEL_TEMPLATES") {
        all.extend(std::env::split_paths(&more));
    }
    all
}

#[test]
fn templates_render_as_in_transformers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(root.join("../../.venv/bin/python"))
        .arg(root.join("tests/oracle/render_chats.py"))
        .args(directories())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let cases: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(cases.len(), directories().len() * 32);
    let mut wrong = Vec::new();
    for case in cases {
        let messages: Vec<Message> = case["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| Message {
                role: message["role"].as_str().unwrap().to_owned(),
                content: message["content"].as_str().unwrap().to_owned(),
            })
            .collect();
        let mut options = ChatOptions::default();
        for (name, value) in case["options"].as_object().unwrap() {
            match name.as_str() {
                "add_generation_prompt" => {
                    options.add_generation_prompt = value.as_bool().unwrap();
                }
                "tools" => options.tools = Some(value.clone()),
                _ => {
                    options.variables.insert(name.clone(), value.clone());
                }
            }
        }
        let directory = Path::new(case["directory"].as_str().unwrap());
        let text = ChatTemplate::from_directory(directory)
            .and_then(|template| template.render(&messages, &options));
        let same = match (&text, case["text"].as_str()) {
            (Ok(ours), Some(theirs)) => ours == theirs,
            (Err(_), None) => true,
            _ => false,
        };
        if !same {
            wrong.push(format!("{case:#}\ngave {text:?}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} cases:\n{}",
        wrong.len(),
        wrong.join("\n\n")
    );
}
