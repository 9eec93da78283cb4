//! A chat template: compiled once, rendered with bounded time, memory and recursion.
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{context, Environment, Error, ErrorKind, State, UndefinedBehavior};
use serde_json::{json, Value as Json};

use crate::messages::{shaped_messages, Arguments, Content, Shape};
use crate::{guard, python, Failure};

/// Fuel bounds both time and memory: one unit per instruction and per 64 bytes created, so at most 640 MB of texts made in a render.
/// What it does not see, guard.rs does.
const FUEL: u64 = 10_000_000;
/// A probe's conversation is tiny; a template that needs more than this for it is not worth asking.
const PROBE_FUEL: u64 = 200_000;
const MAX_RECURSION: usize = 100;
/// The largest published templates have 40 KB; a longer one could nest values deeper than the stack is (guard.rs sees assignments).
const MAX_SOURCE_BYTES: usize = 128 << 10;
const NAME: &str = "chat_template";

pub struct CompiledTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    shape: Shape,
}

pub struct RenderRequest<'a> {
    pub messages: &'a str,
    pub tools: &'a str,
    pub extra: &'a str,
    pub now_s: i64,
    pub add_generation_prompt: bool,
    pub dropped_turns: usize,
}

/// The message of a template's raise_exception, carried as the error's source.
#[derive(Debug)]
struct Raised(String);
impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Raised {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
}

/// Reads the clock that render() put into the template's variables, so that a render depends on its inputs only.
fn strftime_now(state: &State, format: String) -> String {
    let now_s = state.lookup("__now_s").and_then(|v| i64::try_from(v).ok()).unwrap_or(0);
    python::strftime(now_s, &format)
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.expect("default delimiters are valid"));
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_recursion_limit(MAX_RECURSION);
    env.set_fuel(Some(PROBE_FUEL));
    env.set_unknown_method_callback(python::unknown_method);
    env.add_filter("tojson", python::tojson);
    env.add_filter(guard::GUARD_VARIABLE, guard::guard_variable);
    env.add_filter(guard::GUARD_ATTRIBUTE, guard::guard_attribute);
    env.add_test("iterable", python::is_iterable);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    env
}

impl CompiledTemplate {
    pub fn compile(source: &str, bos: &str, eos: &str) -> Result<CompiledTemplate, Failure> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(Failure::Unsupported(format!(
                "chat template is larger than {MAX_SOURCE_BYTES} bytes"
            )));
        }
        let source = guard::guarded_source(source).map_err(Failure::Unsupported)?;
        let mut environment = environment();
        environment
            .add_template_owned(NAME, source)
            .map_err(|e| Failure::Unsupported(one_line(&e)))?;
        let shape = Shape {
            content: Content::Text,
            arguments: Arguments::Object,
        };
        let mut template = CompiledTemplate {
            environment,
            bos: bos.to_string(),
            eos: eos.to_string(),
            shape,
        };
        template.shape = Shape {
            content: template.probed_content(),
            arguments: template.probed_arguments(),
        };
        template.environment.set_fuel(Some(FUEL));
        Ok(template)
    }

    pub fn render(&self, request: &RenderRequest) -> Result<String, Failure> {
        let messages = shaped_messages(request.messages, self.shape, request.dropped_turns)?;
        let tools = parsed(request.tools, "tools", Json::is_array)?;
        let extra = parsed(request.extra, "chat_template_kwargs", Json::is_object)?;
        self.run(&messages, tools, extra, request.now_s, request.add_generation_prompt)
            .map_err(failure)
    }

    fn run(&self, messages: &Json, tools: Json, extra: Json, now_s: i64, prompt: bool) -> Result<String, Error> {
        let given = context! {
            messages => Value::from(Serde(messages)),
            tools => Value::from(Serde(tools)),
            documents => (),
            add_generation_prompt => prompt,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
            __now_s => now_s,
        };
        // A request's own variables win over ours, as in transformers, except for the conversation itself.
        let mut extra = extra;
        if let Some(map) = extra.as_object_mut() {
            for reserved in ["messages", "tools", "__now_s"] {
                map.remove(reserved);
            }
        }
        let variables = if extra.is_null() {
            given
        } else {
            context! { ..Value::from(Serde(extra)), ..given }
        };
        self.environment.get_template(NAME)?.render(variables)
    }

    fn probe(&self, messages: Json) -> String {
        self.run(&messages, Json::Null, Json::Null, 0, false)
            .unwrap_or_default()
    }

    /// Renders the same word as text and as a part. A template that takes only text prints a part list in Python's spelling,
    /// drops it or fails.
    fn probed_content(&self) -> Content {
        let as_parts = self.probe(json!([{"role": "user", "content": [{"type": "text", "text": "N33DLE"}]}]));
        let as_text = self.probe(json!([{"role": "user", "content": "N33DLE"}]));
        let takes_parts = as_parts.contains("N33DLE") && !as_parts.contains("'type'") && !as_parts.contains("\"type\"");
        match (takes_parts, as_text.contains("N33DLE")) {
            (true, true) => Content::Either,
            (true, false) => Content::Parts,
            (false, _) => Content::Text,
        }
    }

    fn probed_arguments(&self) -> Arguments {
        let conversation = |arguments: Json| {
            json!([
                {"role": "user", "content": "u"},
                {"role": "assistant", "content": "", "tool_calls": [
                    {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": arguments}}]},
            ])
        };
        let found = |text: String| text.contains("N33DLE");
        if found(self.probe(conversation(json!({"N33DLE": 1}))))
            || !found(self.probe(conversation(json!("{\"N33DLE\": 1}"))))
        {
            Arguments::Object
        } else {
            Arguments::Text
        }
    }
}

fn parsed(text: &str, what: &str, accepts: fn(&Json) -> bool) -> Result<Json, Failure> {
    if text.trim().is_empty() {
        return Ok(Json::Null);
    }
    let value: Json = serde_json::from_str(text).map_err(|e| Failure::InvalidArgument(format!("{what}: {e}")))?;
    if value.is_null() || accepts(&value) {
        Ok(value)
    } else {
        Err(Failure::InvalidArgument(format!("{what}: wrong JSON type")))
    }
}

fn failure(error: Error) -> Failure {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(e) = cause {
        if let Some(Raised(message)) = e.downcast_ref::<Raised>() {
            let given = if message.is_empty() {
                "the chat template refused these messages"
            } else {
                message
            };
            return Failure::InvalidArgument(given.to_string());
        }
        cause = e.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => {
            Failure::Exhausted("the chat template ran beyond its limits on these messages".to_string())
        }
        _ => Failure::InvalidArgument(one_line(&error)),
    }
}

fn one_line(error: &Error) -> String {
    let mut text = format!("chat template: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(e) = cause {
        text.push_str(&format!(": {e}"));
        cause = e.source();
    }
    text.replace(['\n', '\r'], " ")
}
