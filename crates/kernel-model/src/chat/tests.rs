use serde_json::json;

use super::*;

fn template(source: &str) -> ChatTemplate {
    let special = json!({"bos_token": "<s>", "eos_token": "</s>"});
    let special = special.as_object().unwrap().clone();
    ChatTemplate::new(source, PathBuf::from("chat_template.jinja"), special).unwrap()
}

fn render(source: &str) -> String {
    let messages = [Message::system("be brief"), Message::user("hi")];
    template(source)
        .render(&messages, &ChatOptions::default())
        .unwrap()
}

#[test]
fn blocks_are_trimmed_as_in_transformers() {
    let source = "{{ bos_token }}\n{% for m in messages %}\n    {% if true %}\n[{{ m.role }}]\
                  {{ m['content'] }}\n    {% endif %}\n{% endfor %}\n";
    assert_eq!(render(source), "<s>\n[system]be brief\n[user]hi\n");
}

#[test]
fn python_methods_and_reversed_slices_work() {
    let source = "{% for m in messages[::-1] %}{{ m.role.upper() }},{% endfor %}\
                  {{ 'a</think>b'.split('</think>')[-1].lstrip('\\n') }}\
                  {{ messages[0].content.startswith('be') }}{{ ' x '.strip() }}\
                  {% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}";
    assert_eq!(render(source), "USER,SYSTEM,bTruexa1");
}

#[test]
fn namespaces_and_loop_controls_work() {
    let source = "{% set ns = namespace(n=0) %}{% for m in messages %}{% if loop.first %}\
                  {% continue %}{% endif %}{% set ns.n = ns.n + loop.index %}{% break %}\
                  {% endfor %}{{ ns.n }}";
    assert_eq!(render(source), "2");
}

#[test]
fn json_is_spelled_as_python_spells_it() {
    let tools = json!([{"name": "f", "args": {"zeta": 1, "alpha": "<é'&>"}, "none": null}]);
    let options = ChatOptions {
        tools: Some(tools),
        ..ChatOptions::default()
    };
    let text = template("{{ tools | tojson }}")
        .render(&[], &options)
        .unwrap();
    assert_eq!(
        text,
        r#"[{"name": "f", "args": {"zeta": 1, "alpha": "<é'&>"}, "none": null}]"#
    );
    let indented = template("{{ tools[0].args | tojson(indent=2) }}")
        .render(&[], &options)
        .unwrap();
    assert_eq!(indented, "{\n  \"zeta\": 1,\n  \"alpha\": \"<é'&>\"\n}");
}

#[test]
fn generation_marks_are_ignored() {
    let source = "{%- generation -%} a {%- endgeneration %} b";
    assert_eq!(render(source), "a b");
}

#[test]
fn a_string_goes_on_after_a_backslash_at_the_end_of_a_line() {
    let source = "{# it's #}{{ \"a\\\n b \\\"c\\\\\" }}\\\n{% if 'x\\\ny' == 'xy' %}d{% endif %}";
    assert_eq!(render(source), "a b \"c\\\\\nd");
}

#[test]
fn variables_of_the_template_reach_it() {
    let mut options = ChatOptions::default();
    options
        .variables
        .insert("enable_thinking".to_owned(), false.into());
    let source = "{% if enable_thinking is defined and enable_thinking is false %}no{% endif %}";
    assert_eq!(template(source).render(&[], &options).unwrap(), "no");
    assert_eq!(render(source), "");
}

#[test]
fn an_exception_of_the_template_is_an_error_with_its_words() {
    let template = template("{{ raise_exception('roles must alternate') }}");
    let error = template.render(&[], &ChatOptions::default()).unwrap_err();
    assert!(
        error.to_string().contains("roles must alternate"),
        "{error}"
    );
    assert!(error.to_string().contains("chat_template.jinja"), "{error}");
}

#[test]
fn a_template_that_does_not_parse_is_an_error() {
    let special = serde_json::Map::new();
    let error = ChatTemplate::new("{% if %}", PathBuf::from("t"), special).unwrap_err();
    assert!(matches!(error, ModelError::ChatTemplate { .. }), "{error}");
}

#[test]
fn a_template_that_never_ends_is_stopped() {
    let source = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}\
                  {% endfor %}{% endfor %}{% endfor %}";
    assert!(
        template(source)
            .render(&[], &ChatOptions::default())
            .is_err()
    );
}

#[test]
fn dates_are_formatted_and_bad_formats_refused() {
    assert_eq!(render("{{ strftime_now('%Y') | length }}"), "4");
    let error = template("{{ strftime_now('%!') }}").render(&[], &ChatOptions::default());
    assert!(error.is_err());
}

#[test]
fn the_file_goes_before_the_config_and_named_lists_use_default() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let missing = ChatTemplate::from_directory(path).unwrap_err();
    assert!(matches!(missing, ModelError::NoChatTemplate(_)));

    let config = json!({
        "bos_token": {"content": "<b>"},
        "chat_template": [
            {"name": "tool_use", "template": "tools"},
            {"name": "default", "template": "{{ bos_token }}config"}
        ]
    });
    std::fs::write(path.join("tokenizer_config.json"), config.to_string()).unwrap();
    let text = |path| {
        ChatTemplate::from_directory(path)
            .unwrap()
            .render(&[], &ChatOptions::default())
            .unwrap()
    };
    assert_eq!(text(path), "<b>config");
    std::fs::write(path.join("chat_template.jinja"), "file{{ bos_token }}").unwrap();
    assert_eq!(text(path), "file<b>");
}
