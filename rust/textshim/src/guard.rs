//! Keeps templates within what fuel can't see. minijinja lets `{% set %}` build values that no budget bounds: a namespace that
//! holds itself and lists nested thousands deep overflow the stack when printed or dropped, and a list doubled by `+` again and
//! again is joined lazily, for nothing. All of these grow through assignments, so each one is checked: the source is rewritten,
//! `{% set x = E %}` to `{% set x = (E) | guard %}`. What a single tag can nest is bounded by its length. The same pass makes {% generation %} tags plain blocks, because
//! transformers marks assistant spans with them for training and rendering ignores them.
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

pub const GUARD_VARIABLE: &str = "guard_assigned_variable";
pub const GUARD_ATTRIBUTE: &str = "guard_assigned_attribute";

/// Deeper than any JSON that messages may hold (serde_json stops at 128).
const MAX_DEPTH: usize = 200;
const MAX_ITEMS: usize = 1_000_000;

/// Code outside string literals in one tag: each byte can be one level of minijinja's recursive parser and of a value.
const MAX_TAG_CODE_BYTES: usize = 4096;
/// minijinja nests the branches of an elif chain; real templates have a dozen.
const MAX_ELIFS: usize = 500;

/// The rewritten source, or why it is refused.
pub fn guarded_source(source: &str) -> Result<String, String> {
    let mut out = String::with_capacity(source.len() + source.len() / 8);
    let mut rest = source;
    let mut n_elifs = 0;
    while let Some(start) = next_tag(rest) {
        let (text, tag_on) = rest.split_at(start);
        out.push_str(text);
        let (end, code_bytes) = tag_end(tag_on);
        if code_bytes > MAX_TAG_CODE_BYTES {
            return Err(format!(
                "a tag of the chat template has more than {MAX_TAG_CODE_BYTES} bytes of code"
            ));
        }
        let (tag, after) = tag_on.split_at(end);
        rest = after;
        if !tag.starts_with("{%") || !tag.ends_with("%}") || tag.len() < 4 {
            out.push_str(tag);
            continue;
        }
        n_elifs += usize::from(first_word(tag) == "elif");
        if n_elifs > MAX_ELIFS {
            return Err(format!("the chat template has more than {MAX_ELIFS} elif tags"));
        }
        out.push_str(&rewritten(tag));
        if first_word(tag) == "raw" {
            let skipped = raw_end(rest);
            out.push_str(&rest[..skipped]);
            rest = &rest[skipped..];
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn next_tag(text: &str) -> Option<usize> {
    text.as_bytes()
        .windows(2)
        .position(|w| w[0] == b'{' && matches!(w[1], b'%' | b'{' | b'#'))
}

/// Where the tag that `text` starts with ends (the text's end if it is left open), and how much of it is code outside strings.
/// The closing mark does not count inside a string.
fn tag_end(text: &str) -> (usize, usize) {
    let bytes = text.as_bytes();
    let close: &[u8] = match bytes[1] {
        b'#' => return (text[2..].find("#}").map_or(text.len(), |i| i + 4), 0),
        b'%' => b"%}",
        _ => b"}}",
    };
    let (mut quote, mut code_bytes) = (0, 0);
    let mut i = 2;
    while i < bytes.len() {
        let byte = bytes[i];
        if quote != 0 {
            match byte {
                b'\\' => i += 1,
                b if b == quote => quote = 0,
                _ => {}
            }
        } else if byte == b'\'' || byte == b'"' {
            quote = byte;
            code_bytes += 1;
        } else if bytes[i..].starts_with(close) {
            return (i + 2, code_bytes);
        } else {
            code_bytes += 1;
        }
        i += 1;
    }
    (bytes.len(), code_bytes)
}

/// Everything up to and including the endraw tag's word.
fn raw_end(text: &str) -> usize {
    text.find("endraw").map_or(text.len(), |i| i + "endraw".len())
}

/// A block tag's parts: white space control at either end, and what lies between.
fn parts(tag: &str) -> (&str, &str, &str) {
    let inner = &tag[2..tag.len() - 2];
    let is_sign = |c: char| c == '-' || c == '+';
    let lead = inner.chars().next().filter(|c| is_sign(*c)).map_or(0, |_| 1);
    let trail = inner[lead..].chars().last().filter(|c| is_sign(*c)).map_or(0, |_| 1);
    (
        &inner[..lead],
        &inner[lead..inner.len() - trail],
        &inner[inner.len() - trail..],
    )
}

fn first_word(tag: &str) -> &str {
    let body = parts(tag).1.trim_start();
    &body[..body
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(body.len())]
}

fn rewritten(tag: &str) -> String {
    let (lead, body, trail) = parts(tag);
    let body = match first_word(tag) {
        "generation" => body.replacen("generation", "if true", 1),
        "endgeneration" => body.replacen("endgeneration", "endif", 1),
        "set" => match assignment(body) {
            Some((target, value)) => {
                let guard = if target.contains('.') {
                    GUARD_ATTRIBUTE
                } else {
                    GUARD_VARIABLE
                };
                format!("{target}=({value}) | {guard} ")
            }
            None => return tag.to_string(),
        },
        _ => return tag.to_string(),
    };
    format!("{{%{lead}{body}{trail}%}}")
}

/// Splits `set target = value`; None for a block set.
fn assignment(body: &str) -> Option<(&str, &str)> {
    let equals = body.find('=')?;
    let target = &body[..equals];
    let plain = target
        .chars()
        .all(|c| c.is_alphanumeric() || c.is_whitespace() || matches!(c, '_' | '.' | ',' | '(' | ')'));
    // `{% set x | filter(a=1) %}` is a block: its target is not plain.
    (plain && !body[equals + 1..].starts_with('=')).then(|| (target, &body[equals + 1..]))
}

pub fn guard_variable(state: &State, value: Value) -> Result<Value, Error> {
    check(state, &value, Namespaces::Allowed)?;
    Ok(value)
}

/// What goes into a namespace must not hold one: that could close a circle.
pub fn guard_attribute(state: &State, value: Value) -> Result<Value, Error> {
    check(state, &value, Namespaces::Refused)?;
    Ok(value)
}

#[derive(Clone, Copy, PartialEq)]
enum Namespaces {
    Allowed,
    Refused,
}

fn refused(why: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("set: {why}"))
}

/// Walks the value without recursion, so that depth costs nothing.
fn check(state: &State, value: &Value, namespaces: Namespaces) -> Result<(), Error> {
    let mut pending = vec![(value.clone(), 0)];
    let mut visited = 0;
    while let Some((value, depth)) = pending.pop() {
        visited += 1;
        if visited % 64 == 0 {
            state.consume_fuel(8)?;
        }
        let Some(object) = value.as_object() else { continue };
        if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
            continue;
        }
        if object.type_name().ends_with("::Namespace") {
            if namespaces == Namespaces::Refused {
                return Err(refused("a namespace cannot hold a namespace"));
            }
            continue; // its attributes were checked when they were assigned
        }
        // Lists of unknown length come from lazy filters over checked values: they are left alone.
        let Some(length) = value.len() else { continue };
        if depth >= MAX_DEPTH {
            return Err(refused("the value is nested too deeply"));
        }
        if length > MAX_ITEMS || visited + pending.len() + length > MAX_ITEMS {
            return Err(refused("the value is too large"));
        }
        for item in value.try_iter()? {
            let item = if value.kind() == ValueKind::Map {
                value.get_item(&item)?
            } else {
                item
            };
            if item.as_object().is_some() {
                pending.push((item, depth + 1));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::guarded_source;

    #[test]
    fn rewrites_assignments_only() {
        let unchanged = [
            "text { % set x = 1 %}",
            "{# {% set x = 1 %} #}",
            "{{ '{% set x = 1 %}' }}",
            "{% raw %}{% set x = 1 %}{% endraw %}",
            "{% set x %}body{% endset %}",
            "{% set x | replace(a=1) %}b{% endset %}",
            "{% if x == 1 %}{% endif %}",
            "{% set x = 1",
            "{%}",
            "{%-%}",
            "{% '",
        ];
        for source in unchanged {
            assert_eq!(guarded_source(source).unwrap(), source);
        }
        assert_eq!(
            guarded_source("{%- set x = 'a%}b' -%}é").unwrap(),
            "{%- set x =( 'a%}b' ) | guard_assigned_variable -%}é"
        );
        assert_eq!(
            guarded_source("{% set ns.a=b==c %}").unwrap(),
            "{% set ns.a=(b==c ) | guard_assigned_attribute %}"
        );
        assert_eq!(
            guarded_source("{%- generation +%}x{% endgeneration %}").unwrap(),
            "{%- if true +%}x{% endif %}"
        );
        assert!(guarded_source(&format!("{{{{ {}1 }}}}", "-".repeat(5000))).is_err());
        assert!(guarded_source(&format!("{{{{ '{}' }}}}", "-".repeat(5000))).is_ok());
    }
}
