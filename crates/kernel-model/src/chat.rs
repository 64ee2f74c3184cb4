//! Chat templates: a conversation to the text that the model was trained to see.
//!
//! Templates are written for Python's Jinja as transformers sets it up: trimmed blocks, Python's
//! methods on strings, lists and dicts, `raise_exception`, `strftime_now`, and JSON in Python's
//! spelling. A model without a template gets an error, not a guess.

use std::io;
use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter};

use crate::config::fields::{Fields, read_json};
use crate::error::{ModelError, Result};

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Message {
    /// A turn of the user.
    pub fn user(content: impl Into<String>) -> Self {
        Self {
            role: "user".to_owned(),
            content: content.into(),
        }
    }

    /// The system's opening.
    pub fn system(content: impl Into<String>) -> Self {
        Self {
            role: "system".to_owned(),
            content: content.into(),
        }
    }
}

/// What a template sees beside the messages.
#[derive(Debug, Clone)]
pub struct ChatOptions {
    /// Whether the text ends where the assistant is to begin.
    pub add_generation_prompt: bool,
    /// Descriptions of tools, as the template wants them.
    pub tools: Option<serde_json::Value>,
    /// Variables of one template family, such as Qwen3's `enable_thinking`.
    pub variables: serde_json::Map<String, serde_json::Value>,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self {
            add_generation_prompt: true,
            tools: None,
            variables: serde_json::Map::new(),
        }
    }
}

/// The chat template of a model.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    path: PathBuf,
    special: serde_json::Map<String, serde_json::Value>,
}

const NAME: &str = "chat";
/// Instructions that a template may run: far beyond any conversation, and over in seconds.
const FUEL: u64 = 100_000_000;
const SPECIAL_TOKENS: [&str; 4] = ["bos_token", "eos_token", "pad_token", "unk_token"];

impl ChatTemplate {
    /// Reads `chat_template.jinja`, or the template inside `tokenizer_config.json`.
    pub fn from_directory(directory: &Path) -> Result<Self> {
        let file = directory.join("chat_template.jinja");
        let config = directory.join("tokenizer_config.json");
        let document = if config.is_file() {
            Some(read_json(&config)?)
        } else {
            None
        };
        let (source, path) = if file.is_file() {
            let source = std::fs::read_to_string(&file).map_err(|source| ModelError::Read {
                path: file.clone(),
                source,
            })?;
            (source, file)
        } else {
            let source = match &document {
                Some(document) => template_of(&Fields::root(&config, document)?)?,
                None => None,
            };
            (
                source.ok_or_else(|| ModelError::NoChatTemplate(directory.to_owned()))?,
                config.clone(),
            )
        };
        let special = match &document {
            Some(document) => special_tokens(&Fields::root(&config, document)?)?,
            None => serde_json::Map::new(),
        };
        Self::new(&source, path, special)
    }

    /// Compiles a template; `path` is where errors say it comes from.
    pub fn new(
        source: &str,
        path: PathBuf,
        special: serde_json::Map<String, serde_json::Value>,
    ) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        match SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
        {
            Ok(syntax) => environment.set_syntax(syntax),
            Err(error) => {
                return Err(ModelError::ChatTemplate {
                    path,
                    problem: describe(&error),
                });
            }
        }
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", to_json);
        if let Err(error) = environment.add_template_owned(NAME, as_the_engine_reads(source)) {
            return Err(ModelError::ChatTemplate {
                path,
                problem: describe(&error),
            });
        }
        Ok(Self {
            environment,
            path,
            special,
        })
    }

    /// Writes a conversation.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String> {
        let fail = |error: &minijinja::Error| ModelError::ChatTemplate {
            path: self.path.clone(),
            problem: describe(error),
        };
        let mut context = self.special.clone();
        context.insert(
            "add_generation_prompt".to_owned(),
            options.add_generation_prompt.into(),
        );
        context.insert("messages".to_owned(), serde_json::json!(messages));
        context.insert(
            "tools".to_owned(),
            options.tools.clone().unwrap_or_default(),
        );
        context.insert("documents".to_owned(), serde_json::Value::Null);
        context.extend(options.variables.clone());
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|error| fail(&error))?;
        template
            .render(Value::from(Serde(&context)))
            .map_err(|error| fail(&error))
    }
}

/// A string, or a list of named templates of which `default` is meant.
fn template_of(fields: &Fields<'_>) -> Result<Option<String>> {
    let name = "chat_template";
    match fields.get(name) {
        None | Some(serde_json::Value::Null) => Ok(None),
        Some(serde_json::Value::String(text)) => Ok(Some(text.clone())),
        Some(serde_json::Value::Array(list)) => {
            let default = list.iter().find(|entry| entry["name"] == "default");
            match default.and_then(|entry| entry["template"].as_str()) {
                Some(text) => Ok(Some(text.to_owned())),
                None => Err(fields.error(name, "has no template named `default`")),
            }
        }
        Some(_) => Err(fields.error(name, "must be a string or a list of named templates")),
    }
}

/// Special tokens by name; each is a string or an object with `content`.
fn special_tokens(fields: &Fields<'_>) -> Result<serde_json::Map<String, serde_json::Value>> {
    let mut tokens = serde_json::Map::new();
    for name in SPECIAL_TOKENS {
        let text = match fields.get(name) {
            None | Some(serde_json::Value::Null) => continue,
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(other) => match other["content"].as_str() {
                Some(text) => text.to_owned(),
                None => return Err(fields.error(name, "must be a token")),
            },
        };
        tokens.insert(name.to_owned(), text.into());
    }
    Ok(tokens)
}

/// The template with what Python's Jinja reads and the engine does not.
fn as_the_engine_reads(source: &str) -> String {
    joined_lines(&without_generation_tags(source))
}

/// In a string, a backslash at the end of a line continues it on the next; templates with long texts
/// do that.
fn joined_lines(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    // What closes the tag at hand, and the quote of the string at hand.
    let (mut close, mut quote) = (None, None);
    let mut rest = source;
    while let Some(next) = rest.chars().next() {
        let mut taken = next.len_utf8();
        match (close, quote) {
            (None, _) => {
                close = match rest.get(..2) {
                    Some("{{") => Some("}}"),
                    Some("{%") => Some("%}"),
                    Some("{#") => Some("#}"),
                    _ => None,
                };
            }
            (Some(_), Some(_)) if next == '\\' => {
                if let Some(joined) = rest.strip_prefix("\\\n") {
                    rest = joined;
                    continue;
                }
                // What is escaped does not end the string.
                taken += rest[1..].chars().next().map_or(0, char::len_utf8);
            }
            (Some(_), Some(end)) => {
                if next == end {
                    quote = None;
                }
            }
            (Some(end), None) => {
                if rest.starts_with(end) {
                    (close, taken) = (None, end.len());
                } else if end != "#}" && matches!(next, '\'' | '"') {
                    quote = Some(next);
                }
            }
        }
        out.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    out
}

/// `{% generation %}` marks what to train on and means nothing here; the engine does not know
/// the tag. A condition that always holds takes its place, so that whitespace control stays.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else {
            break;
        };
        let tag = &rest[start..start + length + 2];
        let inner = tag[2..tag.len() - 2].trim_matches(['-', '+']).trim();
        out.push_str(&rest[..start]);
        match inner {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = &rest[start + length + 2..];
    }
    out.push_str(rest);
    out
}

fn raise_exception(message: String) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime_now(format: &str) -> Result<String, minijinja::Error> {
    use std::fmt::Write;
    let mut text = String::new();
    // An unknown format letter is an error of the formatter, not a panic.
    write!(text, "{}", chrono::Local::now().format(format)).map_err(|_| {
        minijinja::Error::new(
            ErrorKind::InvalidOperation,
            format!("`{format}` is not a format of strftime"),
        )
    })?;
    Ok(text)
}

/// JSON as Python's `json.dumps(value, ensure_ascii=False)` spells it, which is what the models
/// saw in training.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn to_json(value: &Value, options: Kwargs) -> Result<Value, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Accepted and without effect: this is never escaped.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut out = Vec::new();
    let written = match indent {
        Some(width) => {
            let indent = vec![b' '; width.min(16)];
            let formatter = PrettyFormatter::with_indent(&indent);
            value.serialize(&mut serde_json::Serializer::with_formatter(
                &mut out, formatter,
            ))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(
            &mut out,
            PythonSpacing,
        )),
    };
    written.map_err(|error| {
        minijinja::Error::new(ErrorKind::BadSerialization, "not JSON").with_source(error)
    })?;
    Ok(Value::from_safe_string(
        String::from_utf8_lossy(&out).into_owned(),
    ))
}

/// One line, with a space after commas and colons.
struct PythonSpacing;

impl Formatter for PythonSpacing {
    fn begin_array_value<W: io::Write + ?Sized>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: io::Write + ?Sized>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

/// The template's own words where it raised, else the engine's with the line.
fn describe(error: &minijinja::Error) -> String {
    let detail = error
        .detail()
        .map_or_else(|| error.kind().to_string(), ToOwned::to_owned);
    match error.line() {
        Some(line) => format!("{detail} (line {line})"),
        None => detail,
    }
}

#[cfg(test)]
mod tests;
