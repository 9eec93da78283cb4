//! Brings messages into the shape a template was written for: content as text or as parts, tool arguments as object or as text.
use serde_json::{json, Map, Value as Json};

use crate::Failure;

/// What a template can read, found by rendering probes once (template.rs).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    pub content: Content,
    pub arguments: Arguments,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Content {
    /// Text only: parts are flattened.
    Text,
    /// Parts only: text becomes one part.
    Parts,
    Either,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arguments {
    /// The JSON object itself (most templates pipe it through tojson).
    Object,
    /// OpenAI's form: the object as JSON text.
    Text,
}

/// Parses and checks a request's messages, then applies `shape` and leaves out the oldest turns.
pub fn shaped_messages(text: &str, shape: Shape, dropped_turns: usize) -> Result<Json, Failure> {
    let mut list = parsed(text)?;
    for (i, message) in list.iter_mut().enumerate() {
        let Some(message) = message.as_object_mut() else {
            return Err(Failure::InvalidArgument(format!("messages[{i}]: expected an object")));
        };
        shape_content(i, message, shape.content)?;
        shape_arguments(message, shape.arguments);
    }
    drop_turns(&mut list, dropped_turns);
    Ok(Json::Array(list))
}

/// How many of the oldest turns can be left out: all but the last.
pub fn droppable_turns(text: &str) -> Result<usize, Failure> {
    let turns = turns(&parsed(text)?);
    Ok(turns.into_iter().flatten().max().unwrap_or(0))
}

fn parsed(text: &str) -> Result<Vec<Json>, Failure> {
    match serde_json::from_str(text) {
        Ok(Json::Array(list)) => Ok(list),
        Ok(_) => Err(Failure::InvalidArgument("messages: expected an array".to_string())),
        Err(e) => Err(Failure::InvalidArgument(format!("messages: {e}"))),
    }
}

fn drop_turns(messages: &mut Vec<Json>, n: usize) {
    let mut turns = turns(messages).into_iter();
    messages.retain(|_| turns.next().flatten().is_none_or(|turn| turn >= n));
}

/// Each message's turn, by position. A turn begins with a user's message; what stands before the first one is a turn too. Instructions
/// are in none: they hold for all of them.
fn turns(messages: &[Json]) -> Vec<Option<usize>> {
    let (mut turn, mut is_begun) = (0, false);
    let turn_of = |message: &Json| {
        let role = message.get("role").and_then(Json::as_str);
        if role == Some("system") || role == Some("developer") {
            return None;
        }
        turn += usize::from(is_begun && role == Some("user"));
        is_begun = true;
        Some(turn)
    };
    messages.iter().map(turn_of).collect()
}

fn shape_content(i: usize, message: &mut Map<String, Json>, content: Content) -> Result<(), Failure> {
    let Some(value) = message.get_mut("content") else {
        return Ok(());
    };
    if let Some(parts) = value.as_array() {
        if content == Content::Text {
            *value = Json::String(flattened(i, parts)?);
        }
    } else if let (Content::Parts, Some(text)) = (content, value.as_str()) {
        *value = json!([{"type": "text", "text": text}]);
    }
    Ok(())
}

/// The texts of a part list joined by newlines, as llama.cpp and vLLM do for templates that take only text.
fn flattened(i: usize, parts: &[Json]) -> Result<String, Failure> {
    let mut texts = Vec::with_capacity(parts.len());
    for (j, part) in parts.iter().enumerate() {
        let text = match part {
            Json::String(text) => Some(text.as_str()),
            _ => part.get("text").and_then(Json::as_str),
        };
        match text {
            Some(text) => texts.push(text),
            None => {
                return Err(Failure::InvalidArgument(format!(
                    "messages[{i}].content[{j}]: the chat template takes only text parts"
                )))
            }
        }
    }
    Ok(texts.join("\n"))
}

fn shape_arguments(message: &mut Map<String, Json>, arguments: Arguments) {
    let Some(calls) = message.get_mut("tool_calls").and_then(Json::as_array_mut) else {
        return;
    };
    for call in calls {
        let Some(value) = call.pointer_mut("/function/arguments") else {
            continue;
        };
        match (arguments, &*value) {
            (Arguments::Object, Json::String(text)) => {
                if let Ok(object @ Json::Object(_)) = serde_json::from_str(text) {
                    *value = object;
                }
            }
            (Arguments::Text, Json::Object(_)) => *value = Json::String(value.to_string()),
            _ => {}
        }
    }
}
