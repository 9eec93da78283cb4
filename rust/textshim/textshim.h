/* textshim: the Rust crates behind src/text as a C interface. Only src/text includes this.
 * Every call returns a code; on failure `text` holds a one-line UTF-8 message. No panic crosses, nothing is global.
 * Texts handed in are (pointer, length), need no terminator and are copied or only read during the call.
 * Texts handed out are owned by the caller: textshim_text_free.
 * Threads: a textshim_template is immutable; renders may run concurrently. */
#ifndef PAGODA_TEXTSHIM_H
#define PAGODA_TEXTSHIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  TEXTSHIM_OK = 0,
  TEXTSHIM_INVALID_ARGUMENT = 1, /* bad JSON, raise_exception, an expression that fails on these messages */
  TEXTSHIM_UNSUPPORTED = 2,      /* the template does not compile */
  TEXTSHIM_EXHAUSTED = 3,        /* the render ran into its limits (see template.rs) */
  TEXTSHIM_INTERNAL = 4          /* a panic, caught */
} textshim_code;

typedef struct {
  const char* data;
  size_t size;
} textshim_view;

typedef struct {
  char* data; /* null when empty */
  size_t size;
  size_t capacity;
} textshim_text;

typedef struct textshim_template textshim_template;

/* On TEXTSHIM_OK *compiled is owned by the caller (textshim_template_free), else it is null and *text the message. */
textshim_code textshim_template_compile(textshim_view source, textshim_view bos, textshim_view eos,
                                        textshim_template** compiled, textshim_text* text);
void textshim_template_free(textshim_template* compiled);

typedef struct {
  textshim_view messages;        /* JSON array of objects */
  textshim_view tools;           /* JSON array, or empty */
  textshim_view extra;           /* JSON object of further variables, or empty */
  int64_t now_s;                 /* for strftime_now */
  int32_t add_generation_prompt; /* 0 or 1 */
  uint32_t dropped_turns;        /* the oldest ones are left out; see textshim_droppable_turns */
} textshim_render_request;

/* *text is the rendered prompt on TEXTSHIM_OK, else the message. */
textshim_code textshim_template_render(const textshim_template* compiled, const textshim_render_request* request,
                                       textshim_text* text);

/* A turn is a message of the user and what follows it up to the next one; system messages are in none of them and stay. *n is how many
 * of the oldest can be left out: all but the last. */
textshim_code textshim_droppable_turns(textshim_view messages, uint32_t* n, textshim_text* text);

void textshim_text_free(textshim_text text);

#ifdef __cplusplus
}
#endif
#endif
