//! The C interface of textshim.h: pointers become slices here, failures become codes, panics stop here.
mod guard;
mod messages;
mod python;
mod template;

use std::panic::{catch_unwind, AssertUnwindSafe};

use template::{CompiledTemplate, RenderRequest};

/// What went wrong, as textshim.h's codes.
#[derive(Debug, PartialEq)]
pub enum Failure {
    InvalidArgument(String),
    Unsupported(String),
    Exhausted(String),
}

const OK: i32 = 0;
const INTERNAL: i32 = 4;

impl Failure {
    fn code(&self) -> i32 {
        match self {
            Failure::InvalidArgument(_) => 1,
            Failure::Unsupported(_) => 2,
            Failure::Exhausted(_) => 3,
        }
    }
    fn message(self) -> String {
        match self {
            Failure::InvalidArgument(m) | Failure::Unsupported(m) | Failure::Exhausted(m) => m,
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct View {
    data: *const u8,
    size: usize,
}

impl View {
    /// # Safety
    /// `data` points to `size` readable bytes that outlive the call, or `size` is 0.
    unsafe fn text<'a>(self, what: &str) -> Result<&'a str, Failure> {
        let bytes = if self.size == 0 {
            &[]
        } else {
            std::slice::from_raw_parts(self.data, self.size)
        };
        std::str::from_utf8(bytes)
            .map_err(|e| Failure::InvalidArgument(format!("{what}: not UTF-8 at byte {}", e.valid_up_to())))
    }
}

#[repr(C)]
pub struct Text {
    data: *mut u8,
    size: usize,
    capacity: usize,
}

impl Text {
    fn from(text: String) -> Text {
        if text.is_empty() {
            return Text {
                data: std::ptr::null_mut(),
                size: 0,
                capacity: 0,
            };
        }
        let mut bytes = std::mem::ManuallyDrop::new(text.into_bytes());
        Text {
            data: bytes.as_mut_ptr(),
            size: bytes.len(),
            capacity: bytes.capacity(),
        }
    }
}

#[repr(C)]
pub struct Request {
    messages: View,
    tools: View,
    extra: View,
    now_s: i64,
    add_generation_prompt: i32,
    dropped_turns: u32,
}

/// Runs `work`, stores its text or message in `text` and returns its code; a panic becomes INTERNAL.
unsafe fn guarded(text: *mut Text, work: impl FnOnce() -> Result<String, Failure>) -> i32 {
    let (code, answer) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(answer)) => (OK, answer),
        Ok(Err(failure)) => (failure.code(), failure.message()),
        Err(panic) => {
            let reason = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("unknown reason");
            (INTERNAL, format!("chat template engine failed: {reason}"))
        }
    };
    text.write(Text::from(answer));
    code
}

/// # Safety
/// As textshim.h says: views readable, out pointers writable.
#[no_mangle]
pub unsafe extern "C" fn textshim_template_compile(
    source: View,
    bos: View,
    eos: View,
    compiled: *mut *mut CompiledTemplate,
    text: *mut Text,
) -> i32 {
    compiled.write(std::ptr::null_mut());
    guarded(text, || {
        let template = CompiledTemplate::compile(
            source.text("chat template")?,
            bos.text("bos token")?,
            eos.text("eos token")?,
        )?;
        compiled.write(Box::into_raw(Box::new(template)));
        Ok(String::new())
    })
}

/// # Safety
/// `compiled` came from textshim_template_compile and is freed once.
#[no_mangle]
pub unsafe extern "C" fn textshim_template_free(compiled: *mut CompiledTemplate) {
    if !compiled.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(compiled))));
    }
}

/// # Safety
/// As textshim.h says.
#[no_mangle]
pub unsafe extern "C" fn textshim_template_render(
    compiled: *const CompiledTemplate,
    request: *const Request,
    text: *mut Text,
) -> i32 {
    let (template, request) = (&*compiled, &*request);
    guarded(text, || {
        template.render(&RenderRequest {
            messages: request.messages.text("messages")?,
            tools: request.tools.text("tools")?,
            extra: request.extra.text("chat_template_kwargs")?,
            now_s: request.now_s,
            add_generation_prompt: request.add_generation_prompt != 0,
            dropped_turns: request.dropped_turns as usize,
        })
    })
}

/// # Safety
/// As textshim.h says.
#[no_mangle]
pub unsafe extern "C" fn textshim_droppable_turns(messages: View, n: *mut u32, text: *mut Text) -> i32 {
    n.write(0);
    guarded(text, || {
        let turns = messages::droppable_turns(messages.text("messages")?)?;
        n.write(u32::try_from(turns).unwrap_or(u32::MAX));
        Ok(String::new())
    })
}

/// # Safety
/// `text` came from this library and is freed once.
#[no_mangle]
pub unsafe extern "C" fn textshim_text_free(text: Text) {
    if !text.data.is_null() {
        drop(Vec::from_raw_parts(text.data, text.size, text.capacity));
    }
}
